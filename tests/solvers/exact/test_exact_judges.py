"""Exact judges, themselves judged by plain `fractions.Fraction` arithmetic written out again here."""

import subprocess
import sys
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm.solvers.exact.feasibility as feasibility
import attsvm.solvers.exact.linear_programs as simplex
from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.certify.rounding import margin_error, norm_bounds
from attsvm.solvers.exact import (
    ExactFarkas,
    ExactLeastNorm,
    exact_farkas,
    exact_feasibility,
    exact_least_norm,
    exact_rows,
    nearest,
    nuclear_enclosure,
    repair,
)
from attsvm.solvers.exact.nuclear import float_bounds, singular_values
from attsvm.solvers.exact.rows import rational, rational_matrix, to_float
from kkt import random_rows


def fraction(x):
    return x if isinstance(x, Fraction) else Fraction(float(x))


def margins(a, queries, owner, W):
    """Margins with nested loops over Fractions."""
    out = []
    for k, j in enumerate(owner):
        total = Fraction(0)
        for i, x in enumerate(a[k]):
            for c, z in enumerate(queries[j]):
                total += fraction(x) * fraction(W[i][c]) * fraction(z)
        out.append(total)
    return out


def is_farkas(a, queries, owner, rhs, equality, y):
    """Signs, cancellation and right-hand side of a proof of infeasibility."""
    if any(v < 0 and not e for v, e in zip(y, equality, strict=True)):
        return False
    for i in range(len(a[0])):
        for c in range(len(queries[0])):
            if sum(v * fraction(a[k][i]) * fraction(queries[owner[k]][c]) for k, v in enumerate(y)) != 0:
                return False
    return sum(v * fraction(r) for v, r in zip(y, rhs, strict=True)) > 0


def is_feasible(a, queries, owner, rhs, equality, W):
    values = margins(a, queries, owner, W)
    return all(v == fraction(r) if e else v >= fraction(r) for v, r, e in zip(values, rhs, equality, strict=True))


def random_data(rng, kind):
    """Rows of a kind, a good share of them infeasible."""
    m, q = int(rng.integers(1, 9)), int(rng.integers(1, 5))
    dx, dz = int(rng.integers(1, 4)), int(rng.integers(1, 4))
    a, queries = rng.standard_normal((m, dx)), rng.standard_normal((q, dz))
    if kind == "integer":
        a, queries = rng.integers(-2, 3, (m, dx)).astype(float), rng.integers(-2, 3, (q, dz)).astype(float)
    elif kind == "scales":
        a, queries = a * 10.0 ** rng.uniform(-12, 12, (m, 1)), queries * 10.0 ** rng.uniform(-12, 12, (q, 1))
    rhs, equality = np.ones(m), np.zeros(m, dtype=bool)
    if rng.random() < 0.4:
        rhs = rng.integers(-2, 3, m).astype(float)
    if rng.random() < 0.4:
        equality = rng.random(m) < 0.4
    return a, queries, rng.integers(0, q, m), rhs, equality


KINDS = st.sampled_from(["gaussian", "integer", "scales"])


@given(seed=st.integers(0, 10**6), kind=KINDS, guess=st.booleans())
def test_feasibility_comes_with_a_witness_or_a_proof(seed, kind, guess):
    for k in range(8):  # many problems per example: each takes a millisecond
        rng = np.random.default_rng([seed, k])
        data = random_data(rng, kind)
        m = len(data[0])
        answer = exact_feasibility(exact_rows(*data), multipliers=rng.random(m) if guess else None)
        assert (answer.witness is None) != (answer.proof is None)
        if answer.feasible:
            assert is_feasible(*data, answer.W)
        else:
            assert is_farkas(*data, answer.proof.multipliers)
            assert sum(y * fraction(r) for y, r in zip(answer.proof.multipliers, data[3], strict=True)) == 1
            with pytest.raises(ValueError, match="infeasible"):
                _ = answer.W


@given(seed=st.integers(0, 10**6), kind=KINDS)
def test_farkas_proofs_are_found_from_any_float_guess(seed, kind):
    for k in range(6):
        rng = np.random.default_rng([seed, k])
        data = random_data(rng, kind)
        rows = exact_rows(*data)
        feasible = exact_feasibility(rows).feasible
        for guess in (None, rng.standard_normal(rows.m), np.zeros(rows.m), np.ones(rows.m)):
            proof = exact_farkas(rows, guess)
            assert (proof is None) == feasible
            assert proof is None or is_farkas(*data, proof.multipliers)


def test_farkas_keeps_to_the_rows_of_the_float_proof():
    a = [[0.1, 0.3], [-0.1, -0.3], [1.0, 0.0], [-1.0, 0.0]]
    rows = exact_rows(a, [[1.0]], [0] * 4)
    assert exact_farkas(rows, [0.5001, 0.4999, 1e-12, 0.0]).rows.tolist() == [0, 1]
    assert exact_farkas(rows, [0.0, 0.0, 0.3, 0.3]).rows.tolist() == [2, 3]
    with pytest.raises(ValueError, match="multipliers must have shape"):
        exact_farkas(rows, [1.0])


@given(seed=st.integers(0, 10**6), kind=KINDS)
def test_least_norm_satisfies_the_optimality_conditions(seed, kind):
    for k in range(5):
        rng = np.random.default_rng([seed, k])
        data = random_data(rng, kind)
        a, queries, owner, rhs, equality = data
        rows = exact_rows(*data)
        best = exact_least_norm(rows, rng.random(rows.m) if rng.random() < 0.5 else None)
        assert isinstance(best, ExactLeastNorm) == exact_feasibility(rows).feasible
        if isinstance(best, ExactFarkas):
            assert is_farkas(*data, best.multipliers)
            continue
        assert is_feasible(*data, best.W)
        values, lam = margins(a, queries, owner, best.W), best.multipliers
        assert all(y >= 0 or e for y, e in zip(lam, equality, strict=True))
        assert all(y == 0 or v == fraction(r) for y, v, r in zip(lam, values, rhs, strict=True))
        assert best.support.tolist() == [v == fraction(r) for v, r in zip(values, rhs, strict=True)]
        assert best.active.tolist() == [y != 0 for y in lam]
        stationary = [
            [
                sum(y * fraction(a[k][i]) * fraction(queries[owner[k]][c]) for k, y in enumerate(lam))
                for c in range(len(queries[0]))
            ]
            for i in range(len(a[0]))
        ]
        assert (np.array(stationary, dtype=object) == best.W).all()
        assert sum(x * x for x in best.W.ravel()) == best.norm_squared


def test_least_norm_agrees_with_the_solver():
    rng = np.random.default_rng(5)
    pivots = 0
    for trial in range(300):
        n, T, d = (int(v) for v in (rng.integers(1, 6), rng.integers(2, 6), rng.integers(2, 7)))
        problem = random_rows(rng, n, T, d)
        answer = solve(problem)
        rows = exact_rows(problem.rows.a, problem.rows.queries, problem.owner)
        best = exact_least_norm(rows, answer.multipliers if answer.status == "optimal" else None)
        assert (answer.status == "infeasible") == isinstance(best, ExactFarkas), trial
        if isinstance(best, ExactFarkas):
            continue
        size = float(best.norm_squared) ** 0.5
        assert abs(np.linalg.norm(answer.W) - size) <= 1e-12 * size
        assert np.abs(answer.W - nearest(best.matrix)).max() <= 1e-12 * size
        pivots += best.pivots
    assert pivots <= 30  # the support of the float multipliers is nearly always right


@pytest.mark.parametrize("S", [1e9, 1e12, 1e15, 1e40, 1e300])
def test_large_tokens_do_not_make_a_problem_infeasible(S):
    # Tokens (0,0), (-S,0), (S,-1), query 1: W = (1/S, 2) has both margins 1.
    rows = exact_rows([[S, 0.0], [-S, 1.0]], [[1.0]], [0, 0])
    assert exact_feasibility(rows).feasible
    assert exact_farkas(rows, [0.5, 0.5]) is None
    assert rows.violation([[Fraction(1) / Fraction(S)], [2]]) == 0
    best = exact_least_norm(rows, [1.0, 1.0])
    assert best.W.ravel().tolist() == [1 / Fraction(S), Fraction(2)]
    assert best.support.all()


@pytest.mark.parametrize("d", [1e-9, 1e-15, 1e-100, 5e-324])
def test_opposite_rows_with_a_thin_common_part_are_feasible(d):
    rows = exact_rows([[1.0, d], [-1.0, d]], [[1.0]], [0, 0])
    assert exact_feasibility(rows).feasible
    best = exact_least_norm(rows)
    assert best.W.ravel().tolist() == [0, 1 / Fraction(d)]
    assert isinstance(exact_least_norm(exact_rows([[1.0, 0.0], [-1.0, 0.0]], [[1.0]], [0, 0])), ExactFarkas)


# A W that a solver of this library returned as "optimal" with violation 0.0 for seed 1414 below.
FALSE_OPTIMUM = [
    ["-0x1.026ade4f7220cp+22", "-0x1.e23c4c2629308p+23"],
    ["0x1.54e4df13784f7p+27", "-0x1.1e15009af270dp+27"],
]


def test_exact_violation_sees_what_float_margins_hide():
    r = np.random.default_rng(1414)
    X = r.normal(size=(3, 2, 2)) * 10.0 ** r.uniform(-6, 6, (3, 2, 1))
    problem = MarginProblem(X[:, 0] - X[:, 1], X[:, 0], np.arange(3))
    W = np.array([[float.fromhex(x) for x in row] for row in FALSE_OPTIMUM])
    rows = exact_rows(problem.rows.a, problem.rows.queries, problem.owner)
    truth = margins(problem.rows.a, problem.rows.queries, problem.owner, W)
    assert [Fraction(int(v.p), int(v.q)) for v in rows.margins(W)] == truth
    assert float(truth[0]) < -100.0  # how far below depends on the last bits of 10 ** x, hence on the machine
    assert to_float(rows.violation(W)) == pytest.approx(1.0 - float(min(truth)), rel=1e-12)
    # The running error bound of float margins says that these mean nothing.
    sizes = norm_bounds(problem.rows.a)[1], norm_bounds(W, axes=2)[1], norm_bounds(problem.rows.queries)[1]
    error = margin_error(*sizes, (2, 2))
    assert np.abs(problem.margins(W) - [float(v) for v in truth])[0] <= error[0]
    assert error[0] > 194


@pytest.mark.parametrize("seed", [107, 1414])
def test_mixed_scales_have_an_exact_answer(seed):
    r = np.random.default_rng(seed)
    X = r.normal(size=(3, 2, 2)) * 10.0 ** r.uniform(-6, 6, (3, 2, 1))
    a, Z = X[:, 0] - X[:, 1], X[:, 0]
    best = exact_least_norm(exact_rows(a, Z, np.arange(3)))
    assert min(margins(a, Z, range(3), best.W)) == 1


def test_equalities_that_almost_agree_are_infeasible():
    data = ([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 1.0 + 1e-9], [True, True])
    proof = exact_feasibility(exact_rows(*data)).proof
    assert is_farkas(*data, proof.multipliers)
    assert is_farkas(*data, exact_least_norm(exact_rows(*data)).multipliers)
    data = ([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 1.0], [True, True])
    assert exact_least_norm(exact_rows(*data)).W[0, 0] == 1


def test_dependent_queries_and_zero_rows():
    # The third query is the sum of the first two, the fourth is zero.
    queries = [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.0, 0.0]]
    for data, feasible in (
        (([[1.0], [1.0], [1.0]], queries, [0, 1, 2], [1.0, 1.0, 2.0], [True, True, True]), True),
        (([[1.0], [1.0], [1.0]], queries, [0, 1, 2], [1.0, 1.0, 3.0], [True, True, True]), False),
        (([[1.0], [1.0], [-1.0]], queries, [0, 1, 2], [1.0, 1.0, 1.0], [False, False, False]), False),
        (([[1.0], [2.0]], queries, [0, 3], [1.0, 1.0], [False, False]), False),
        (([[1.0], [2.0]], queries, [0, 3], [1.0, 0.0], [False, True]), True),
        (([[0.0]], queries, [3], [-1.0], [False]), True),
    ):
        answer = exact_feasibility(exact_rows(*data))
        assert answer.feasible == feasible
        assert is_feasible(*data, answer.W) if feasible else is_farkas(*data, answer.proof.multipliers)


def test_a_given_w_is_taken_when_it_is_feasible():
    rows = exact_rows([[3.0]], [[1.0]], [0])
    third = 1.0 / 3.0  # rounded down: three times it is less than 1
    assert rows.violation([[third]]) > 0
    assert exact_feasibility(rows, W=[[1.0]]).W[0, 0] == 1
    near = exact_feasibility(rows, W=[[third]]).W[0, 0]
    assert Fraction(third) < near < Fraction(third) * (1 + Fraction(1, 2**39))


@pytest.mark.parametrize("greedy", [0, 3])
def test_blands_rule_reaches_the_same_answers(monkeypatch, greedy):
    rng = np.random.default_rng(2)
    problems = [random_data(rng, "integer") for _ in range(60)]
    expected = [exact_feasibility(exact_rows(*data)).feasible for data in problems]
    monkeypatch.setattr(simplex, "_GREEDY_PIVOTS", greedy)
    monkeypatch.setattr(feasibility, "_FIRST_PIVOTS", None)  # no float guess
    assert [exact_feasibility(exact_rows(*data)).feasible for data in problems] == expected
    assert 10 < sum(expected) < 50


def test_a_float_guess_alone_reaches_the_same_answers(monkeypatch):
    rng = np.random.default_rng(3)
    problems = [random_data(rng, kind) for kind in ("integer", "gaussian", "scales") for _ in range(40)]
    expected = [exact_feasibility(exact_rows(*data)).feasible for data in problems]
    monkeypatch.setattr(feasibility, "_FIRST_PIVOTS", 0)
    for data, known in zip(problems, expected, strict=True):
        answer = exact_feasibility(exact_rows(*data))
        assert answer.feasible == known
        assert is_feasible(*data, answer.W) if known else is_farkas(*data, answer.proof.multipliers)


def test_a_prime_that_divides_the_rows_is_caught(monkeypatch):
    # Modulo 3 these rows are dependent although they are not.
    data = ([[1.0, 1.0], [-1.0, 2.0]], [[1.0]], [0, 0], [1.0, 1.0], [False, False])
    monkeypatch.setattr(feasibility, "PRIMES", (3, simplex.PRIMES[0]))
    assert is_feasible(*data, exact_feasibility(exact_rows(*data)).W)
    monkeypatch.setattr(feasibility, "PRIMES", (3,))
    with pytest.raises(ArithmeticError, match="could not be verified"):
        exact_feasibility(exact_rows(*data))


def test_fractions_are_rows_too():
    third = Fraction(1, 3)
    rows = exact_rows(np.array([[third, Fraction(0)]], dtype=object), [[1]], [0], [Fraction(2, 7)])
    assert exact_least_norm(rows).W.ravel().tolist() == [Fraction(6, 7), 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0], [[1.0]], [0]), "a must be a non-empty matrix"),
        (([[np.nan]], [[1.0]], [0]), "a must be finite"),
        (([[1.0]], [[np.inf]], [0]), "queries must be finite"),
        (([[1.0]], [[1.0]], [1]), "owner must be 1 integers in"),
        (([[1.0]], [[1.0]], [0.0]), "owner must be 1 integers in"),
        (([[1.0]], [[1.0]], [0], [1.0, 2.0]), "rhs and equality must have shape"),
        (([[1.0]], [[1.0]], [0], [np.nan]), "rhs must be finite"),
    ],
)
def test_bad_rows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        exact_rows(*arguments)


def test_bad_matrices_are_refused():
    rows = exact_rows([[1.0, 2.0]], [[1.0]], [0])
    with pytest.raises(ValueError, match=r"W must have shape \(2, 1\), got \(1, 1\)"):
        rows.margins([[1.0]])
    with pytest.raises(ValueError, match="W must be a finite matrix"):
        rows.margins([[np.inf], [0.0]])
    with pytest.raises(RuntimeError, match="max_pivots = 0"):
        exact_least_norm(rows, max_pivots=0)


def test_floats_of_rationals_are_rounded_once():
    rng = np.random.default_rng(0)
    for x in rng.standard_normal(200) * 10.0 ** rng.uniform(-300, 300, 200):
        assert to_float(rational(x)) == x
    assert to_float(rational(10**400)) == np.inf
    assert to_float(rational(-(10**400))) == -np.inf
    assert to_float(rational(Fraction(1, 10**400))) == 0.0


# -- singular values and the nuclear norm ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gaussian", "cluster", "low rank", "scales"])
def test_singular_values_are_enclosed(rng, kind):
    for _ in range(12):
        m, n = (int(v) for v in rng.integers(1, 6, 2))
        A = rng.standard_normal((m, n))
        if kind == "cluster":
            A = np.linalg.qr(rng.standard_normal((m, m)))[0][:, : min(m, n)] @ np.eye(min(m, n), n)
        elif kind == "low rank":
            A = np.outer(A[:, 0], rng.integers(-3, 4, n))
        elif kind == "scales":
            A = A * 10.0 ** rng.uniform(-100, 100, (m, 1))
        balls = singular_values(rational_matrix("A", A))
        with mpmath.workdps(90):
            truth = sorted(mpmath.svd_r(mpmath.matrix(A.tolist()), compute_uv=False), reverse=True)
            for ball, value in zip(balls, truth, strict=True):
                low, high = float_bounds(ball)
                assert low - 1e-80 * truth[0] <= value <= high + 1e-80 * truth[0]
        assert all(float(ball.rad()) <= 1e-25 * float(balls[0]) for ball in balls)


def test_enclosure_of_a_degenerate_face_claims_no_more_than_is_true():
    # W11 >= 1, W22 >= 1: [[1, b], [b, 1]] is optimal for |b| <= 1, with singular values 1 + |b| and 1 - |b|.
    rows = exact_rows(np.eye(2), np.eye(2), [0, 1])
    for lam in ([1.0, 1.0], [0.9, 0.9]):  # the scale of the multipliers must not matter
        proved = nuclear_enclosure(rows, np.eye(2), lam)
        assert proved.gap <= 1e-50
        assert proved.norm[0] <= 2 <= proved.norm[1]
        assert proved.lower_bound <= 2 <= proved.lower_bound + 1e-14
        assert proved.rank(0.99) == proved.rank(1e-9) == 2


def test_enclosure_at_mixed_scales():
    # W11 >= 1, 1e7 W22 >= 1: every [[1, t], [t, 1e-7]] with t^2 <= 1e-7 is optimal, the second value up to 1e-7.
    rows = exact_rows(np.diag([1.0, 1e7]), np.eye(2), [0, 1])
    proved = nuclear_enclosure(rows, np.diag([1.0, 1e-7]), [1.0, 1e-7])
    assert proved.rank(1e-8) == 2
    assert proved.resolutions[1] >= 1e-7
    assert proved.relative_gap <= 1e-15


@given(seed=st.integers(0, 10**6))
def test_enclosures_hold_for_other_optimal_points(seed):
    """Bounds from a poor pair (W, lam) must hold for a good solution of the same problem."""
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 3, 3, 4)
    rows = exact_rows(problem.rows.a, problem.rows.queries, problem.owner)
    good = solve(problem, "nuclear")
    assert good.status == "optimal"
    sharp = nuclear_enclosure(rows, good.W, good.multipliers)
    assert sharp.relative_gap <= 1e-6
    noise = 10.0 ** rng.uniform(-8, -1)
    W = good.W + noise * rng.standard_normal(good.W.shape)
    lam = good.multipliers + noise * rng.standard_normal(problem.m)
    poor = nuclear_enclosure(rows, W, lam)
    if poor is None:
        return
    assert poor.lower_bound <= sharp.norm[1]
    assert sharp.lower_bound <= poor.norm[1]
    # The good solution is optimal up to its own gap, so it obeys the claims of the poor pair up to that.
    values = sharp.singular_values[0]
    slack = 1e-5 * sharp.norm[1]
    for r in range(len(values) + 1):
        assert values[r:].sum() <= poor.tails[r] + slack
        if r < len(values):
            assert values[r] <= poor.resolutions[r] + slack
    assert poor.violation == Fraction(int(rows.violation(W).p), int(rows.violation(W).q))


def test_repair_gives_a_feasible_matrix_nearby():
    rng = np.random.default_rng(1)
    for equalities in (0, 2):
        problem = random_rows(rng, 3, 3, 5, equalities=equalities)
        rows = exact_rows(problem.rows.a, problem.rows.queries, problem.owner, problem.rhs, problem.equality)
        W = solve(problem, "nuclear").W
        bent = W * (1 - 1e-9) + 1e-12 * rng.standard_normal(W.shape)
        near = repair(rows, bent)
        assert rows.violation(near) == 0
        assert rows.violation(bent) > 0
        floats = np.array([to_float(x) for x in near.entries()]).reshape(W.shape)
        assert np.abs(floats - W).max() <= 1e-7
    conflict = exact_rows([[1.0], [-1.0]], [[1.0]], [0, 0])
    assert repair(conflict, [[0.0]]) is None
    assert nuclear_enclosure(conflict, [[0.0]], [1.0, 1.0]) is None


def test_repair_does_not_pull_satisfied_rows_to_their_margin():
    # The two rows differ by 1e-11 in direction; W misses the first by 1e-15 and has a slack of 1e-9 at the second. To
    # hold both at their right-hand sides would move W by 100, to be feasible takes 1e-15.
    rows = exact_rows([[1.0, 0.0], [1.0, 1e-11]], [[1.0]], [0, 0], [1.0, 1.0 - 1e-9], [True, False])
    W = np.array([[1.0 - 2.0**-50], [0.0]])
    near = repair(rows, W)
    assert rows.violation(near) == 0 < rows.violation(W)
    assert max(abs(to_float(x) - y) for x, y in zip(near.entries(), W.ravel(), strict=True)) <= 2.0**-50


def test_enclosure_refuses_nonsense():
    rows = exact_rows([[1.0]], [[1.0]], [0])
    with pytest.raises(ValueError, match="multipliers must have shape"):
        nuclear_enclosure(rows, [[1.0]], [1.0, 1.0])
    proved = nuclear_enclosure(rows, [[1.0]], [0.0])  # D = 0 proves nothing
    assert proved.lower_bound == 0.0
    assert proved.relative_gap == np.inf
    with pytest.raises(ValueError, match="delta must be"):
        proved.rank(-1.0)


def test_flint_is_loaded_at_first_use():
    code = "import sys, attsvm, attsvm.solvers.exact; sys.exit('flint' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_guessed_point_is_checked_row_by_row():
    """Rows x >= 1, x >= 2 and y = 3 at points that meet them, exceed them, and miss one of each kind."""
    from flint import fmpq, fmpz_mat

    matrix, levels, equality = fmpz_mat([[1, 0], [1, 0], [0, 1]]), [fmpq(1), fmpq(2), fmpq(3)], [False, False, True]

    def meets(x, y, strictly=False):
        return feasibility._meets(matrix, [x, y], levels, equality, strictly)

    assert meets(fmpq(2), fmpq(3)) and meets(fmpq(5), fmpq(3))
    assert not meets(fmpq(2) - fmpq(1, 10**30), fmpq(3))
    assert not meets(fmpq(5), fmpq(3) + fmpq(1, 10**30))
    assert meets(fmpq(3), fmpq(4), strictly=True) and not meets(fmpq(2), fmpq(4), strictly=True)
