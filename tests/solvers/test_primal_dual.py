"""Spectral, l1, linf and l_p norms: every own solver on the library, alone and together, judged by dense arithmetic."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.solvers import MarginProblem, MarginSolution, Status, get_norm, primal_dual, solve
from kkt import assert_infeasible, assert_optimal, norm_and_dual, random_rows, sphere_rows
from margin_problems import library
from solver_api import HARD, proof_of, solve_as_batch

NORMS = ("spectral", "l1", "linf", "l3", "l1.5")
OWN = "primal_dual"
ENTRIES = {entry.name: entry for entry in library(0)}
# What the solvers declare; what they reach on the library is a hundred times better.
TOLERANCE = 1e-7


def judge(name: str, norm: str, solution: MarginSolution) -> None:
    entry = ENTRIES[name]
    if not entry.feasible:
        assert solution.status is Status.INFEASIBLE
        assert_infeasible(entry.problem, proof_of(solution))
        return
    assert solution.status is Status.OPTIMAL or (entry.tags & HARD and solution.status is Status.INACCURATE)
    if solution.status is Status.OPTIMAL:
        assert_optimal(entry.problem, solution.W, solution.multipliers, norm, TOLERANCE)


# Where the spectral steps leave a nearly infeasible problem open, exact arithmetic takes seconds: once, in the batch.
ALONE = [
    (norm, solver, name)
    for norm, solver in [(norm, "auto") for norm in NORMS]
    for name, entry in ENTRIES.items()
    if norm != "spectral" or not entry.tags & HARD
]


@pytest.mark.parametrize(("norm", "solver", "name"), ALONE)
def test_own_solvers_meet_the_optimality_conditions(norm: str, solver: str, name: str) -> None:
    solution = solve(ENTRIES[name].problem, norm, solver)
    assert solution.solver == OWN or (ENTRIES[name].tags & HARD and solution.solver == "cvxpy")
    judge(name, norm, solution)


@cache
def together(norm: str, shape: tuple[int, int]) -> dict[str, MarginSolution]:
    """All entries of one shape as one batch: numbers of rows and queries, equalities and feasibility differ."""
    names = [name for name, entry in ENTRIES.items() if entry.problem.shape == shape]
    return dict(zip(names, solve_as_batch([ENTRIES[name].problem for name in names], norm), strict=True))


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("norm", NORMS)
def test_batches_meet_the_optimality_conditions(name: str, norm: str) -> None:
    judge(name, norm, together(norm, ENTRIES[name].problem.shape)[name])


@pytest.mark.parametrize("norm", [*NORMS, "l1.2", "l4"])
def test_random_problems_agree_with_the_reference(norm: str) -> None:
    rng = np.random.default_rng(3)
    problems = [random_rows(rng, 4, 5, 6, equalities=equal) for equal in (0, 0, 3)]
    for problem, batched in zip(problems, solve_as_batch(problems, norm), strict=True):
        own, known = solve(problem, norm), solve(problem, norm, "cvxpy")
        assert own.solver == OWN
        assert own.status is batched.status is Status.OPTIMAL
        # Both certificates prove 1e-7, so the norms differ by no more than twice that.
        assert own.norm == pytest.approx(known.norm, rel=2e-7)
        assert batched.norm == pytest.approx(own.norm, rel=2e-7)
        assert own.certificate.proved <= 1e-7


@given(
    p=st.one_of(st.floats(1.15, 6.0), st.sampled_from([1.0, np.inf])), dx=st.integers(1, 5), dz=st.integers(1, 5),
    rhs=st.floats(0.01, 100.0), seed=st.integers(0, 10**6),
)  # fmt: skip
def test_one_row_has_the_value_of_the_dual_norm(p: float, dx: int, dz: int, rhs: float, seed: int) -> None:
    """``min N(W)`` subject to ``<R, W> >= c`` is ``c / N*(R)``, by the definition of the dual norm."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(1, dx)), rng.normal(size=(1, dz))
    name = "linf" if np.isinf(p) else f"l{p!r}"
    found = solve(MarginProblem(a, b, [0], rhs=[rhs]), name)
    dual = norm_and_dual("spectral")[1] if name == "spectral" else norm_and_dual(name)[1]
    assert found.status is Status.OPTIMAL
    assert found.norm == pytest.approx(rhs / dual(np.outer(a[0], b[0])), rel=2e-7)


@given(seed=st.integers(0, 10**6), scale=st.floats(-6.0, 6.0))
def test_spectral_norm_turns_and_scales_with_the_data(seed: int, scale: float) -> None:
    """Rotated tokens and queries give the same norm; rows ten times as large give a tenth."""
    rng = np.random.default_rng(seed)
    problem = random_rows(rng, 3, 4, 5)
    turn = [np.linalg.qr(rng.normal(size=(5, 5)))[0] for _ in range(2)]
    pair = problem.pairs()
    turned = MarginProblem(pair.a @ turn[0] * 10.0**scale, pair.queries @ turn[1], pair.owner)
    first, second = solve(problem, "spectral"), solve(turned, "spectral")
    assert first.status is second.status is Status.OPTIMAL
    assert second.norm * 10.0**scale == pytest.approx(first.norm, rel=2e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_least_change_of_a_given_matrix(norm: str) -> None:
    """``prior=`` moves the right-hand sides: the change meets the optimality conditions of the moved problem."""
    rng = np.random.default_rng(8)
    problem = random_rows(rng, 3, 4, 5)
    W0 = rng.normal(size=(5, 5))
    change = solve(problem.around(W0), norm)
    pair = problem.pairs()
    moved = MarginProblem(pair.a, pair.queries, pair.owner, rhs=1.0 - problem.margins(W0))
    assert change.status is Status.OPTIMAL
    assert_optimal(moved, change.W, change.multipliers, norm, TOLERANCE)


@pytest.mark.parametrize("norm", NORMS)
def test_a_large_batch_is_solved_without_one_by_one_solves(norm: str) -> None:
    a, queries, owner = sphere_rows(60, 3, 4, 5, seed=1)
    batch = solve(MarginProblem(a, queries, owner), norm)
    assert (batch.status == "optimal").all()
    assert not np.any(batch.extras.rescued)
    assert float(np.max(batch.certificate.proved)) <= 1e-7


@pytest.mark.parametrize("norm", NORMS)
def test_attention_problems_take_them_by_default(norm: str) -> None:
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    svm = attsvm.att_svm(problem, norm=norm)
    assert svm.status is Status.OPTIMAL
    assert svm.result.solver == OWN
    sets = attsvm.gen_svm(problem, [[0, 1], [2], [1, 3]], norm=norm)
    assert sets.status is Status.OPTIMAL
    assert sets.certificate.proved <= 1e-7


@pytest.mark.parametrize("norm", NORMS)
def test_too_few_steps_are_told(norm: str) -> None:
    rng = np.random.default_rng(0)
    found = solve(random_rows(rng, 4, 5, 6), norm, max_iterations=2)
    assert found.status is Status.INACCURATE
    assert found.iterations == 2
    exact = solve(random_rows(np.random.default_rng(0), 4, 5, 6), norm)
    assert found.certificate.lower_bound <= exact.norm * (1 + 1e-9)  # a bound all the same


def test_what_they_do_not_solve_is_refused_by_name() -> None:
    problem = random_rows(np.random.default_rng(0), 2, 3, 4)
    with pytest.raises(ValueError, match=r"solver 'primal_dual' does not support norm 'nuclear'"):
        solve(problem, "nuclear", "primal_dual")
    with pytest.raises(TypeError, match=r"solver 'primal_dual' takes no option 'seed'"):
        solve(problem, "l1", "primal_dual", seed=1)


def test_extreme_exponents_end_with_a_certificate_or_say_so() -> None:
    problem = random_rows(np.random.default_rng(2), 3, 4, 5)
    for name in ("l1.02", "l40"):
        found = solve(problem, name)
        assert found.status is Status.OPTIMAL  # the reference takes over where the steps stall
        # ||W||_p decreases in p: between the neighbours that linear programs solve exactly.
        assert solve(problem, "linf").norm - 1e-6 <= found.norm <= solve(problem, "l1").norm + 1e-6


def test_families_of_norms() -> None:
    assert [get_norm(name).family for name in ("l1", "l1.5", "l7", "linf", "spectral", "l2")] == [
        "l1", "lp", "lp", "linf", "spectral", "frobenius",
    ]  # fmt: skip


def test_the_solver_that_answered_is_the_one_that_is_named() -> None:
    """Where a method leaves a problem to another one, the result says so, alone and in a batch."""
    thin = ENTRIES["narrow 6x4, 3 x 3 rows, norm 1e+06"].problem
    alone = solve(thin, "l1")
    assert alone.status is Status.OPTIMAL
    assert alone.solver == alone.extras.answered_by == "cvxpy"
    assert solve(thin, "l1", alone.solver).norm == pytest.approx(alone.norm, rel=2e-7)
    easy = random_rows(np.random.default_rng(0), 3, 3, 6)
    easy = MarginProblem(easy.pairs().a, easy.pairs().queries[:, :4], easy.owner)
    first, second = solve_as_batch([easy, thin], "l1")
    assert (first.solver, second.solver) == (OWN, "cvxpy")
    assert second.extras.rescued
    # A budget makes a batch a row of single solves.
    few = solve(MarginProblem.stack([easy, thin]), "l3", max_iterations=3)
    assert few[0].solver == OWN


@pytest.mark.parametrize("norm", NORMS)
def test_contradictions_of_many_rows_take_no_corrections(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the steps leave of an infeasible problem is not worth a last step, which took longer than all the rest."""

    def never(problem: MarginProblem, W: object) -> object:
        raise AssertionError(f"a last step on {problem.m} rows that no W satisfies")

    monkeypatch.setattr(primal_dual, "least_change", never)
    problem = MarginProblem(*sphere_rows(1, 60, 10, 6, seed=0))[0]
    found = solve(problem, norm)
    assert (found.status, found.solver) == (Status.INFEASIBLE, OWN)
    assert_infeasible(problem, proof_of(found))


@pytest.mark.parametrize("shape", [(12, 5), (5, 12), (7, 7)])
def test_spectral_norm_of_oblong_matrices(shape: tuple[int, int]) -> None:
    """Entries of W beyond the square are tied to no other one in the bases of the steps; by rows and by entries."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=shape)
    for rows in (40, 400):
        a, queries, owner = rng.normal(size=(rows, shape[0])), rng.normal(size=(20, shape[1])), np.arange(rows) % 20
        a *= np.sign(np.vecdot(a @ hidden, queries[owner]))[:, None]
        problem = MarginProblem(a, queries, owner)
        found = solve(problem, "spectral")
        assert (found.status, found.solver) == (Status.OPTIMAL, OWN)
        assert found.iterations <= 30
        assert_optimal(problem, found.W, found.multipliers, "spectral", TOLERANCE)
