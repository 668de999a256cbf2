"""Every error bound against exact rationals or 60 digits: never exceeded, and not absurdly large on ordinary data."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from attsvm.solvers import MarginProblem, certify, solve
from attsvm.solvers.certify.rounding import (
    TINY,
    dot_error,
    down,
    dual_bound,
    gamma,
    margin_error,
    margin_error_by_entries,
    norm_bounds,
    up,
)
from attsvm.solvers.certify.singular_values import nuclear_bounds, singular_value_bounds, singular_value_error

# A bound may be this many times the worst error seen on ordinary data; more would be useless.
ABSURD = 1e3


def exact(array):
    return np.vectorize(Fraction, otypes=[object])(np.asarray(array, dtype=np.float64))


def mixed(rng, shape, spread):
    """Normal numbers times powers of ten within the given spread, row by row and entry by entry."""
    rows = 10.0 ** rng.uniform(-spread, spread, (*shape[:-1], 1))
    return rng.standard_normal(shape) * rows * 10.0 ** rng.uniform(-spread / 2, spread / 2, shape)


def tokens_and_rows(rng, kind, m, dx, dz, q):
    """Tokens x, y (rows are fl(x - y)), queries and W of one kind of difficulty."""
    spread = {"ordinary": 0.0, "mixed": 8.0, "extreme": 60.0, "subnormal": 0.0, "cancelling": 0.0}[kind]
    x, y = mixed(rng, (m, dx), spread), mixed(rng, (m, dx), spread)
    queries, W = mixed(rng, (q, dz), spread), mixed(rng, (dx, dz), spread)
    if kind == "subnormal":
        x, y, queries = x * 2.0**-500, y * 2.0**-500, queries * 2.0**-540
    if kind == "cancelling":  # W almost orthogonal to every row, and tokens that almost agree
        y = x + 1e-9 * rng.standard_normal(x.shape)
        y[0] = x[0] + rng.standard_normal(dx)
        b = queries[0]
        W = W - np.outer(W @ b, b) / (b @ b)
    return x, y, queries, W


KINDS = ["ordinary", "mixed", "extreme", "subnormal", "cancelling"]


def exact_margins(x, y, queries, owner, W):
    left = exact(x) - exact(y)
    keys = exact(queries) @ exact(W).T
    return (left * keys[owner]).sum(axis=1)


@pytest.mark.parametrize("kind", KINDS)
def test_margins_are_within_their_bound(rng, kind):
    seen, bounds = [], []
    for _ in range(150):
        m, dx, dz, q = (int(v) for v in rng.integers(1, 7, 4))
        x, y, queries, W = tokens_and_rows(rng, kind, m, dx, dz, q)
        a, owner = x - y, rng.integers(0, q, m)
        truth = exact_margins(x, y, queries, owner, W)
        norm = norm_bounds(W, axes=2)[1]
        bound = margin_error(norm_bounds(a)[1], norm, norm_bounds(queries)[1][owner], (dx, dz))
        sharp = margin_error_by_entries(a, W, queries, owner)
        orders = [
            np.einsum("kd,kd->k", a, (queries @ W.T)[owner]),
            ((a @ W) * queries[owner]) @ np.ones(dz),
            MarginProblem(a, queries, owner).margins(W),
        ]
        for computed in orders:
            error = [abs(Fraction(float(c)) - t) for c, t in zip(computed, truth, strict=True)]
            assert all(e <= Fraction(float(b)) for e, b in zip(error, bound, strict=True))
            assert all(e <= Fraction(float(b)) for e, b in zip(error, sharp, strict=True))
            seen.append(float(max(error)))
            bounds.append(float(bound.max()))
    if kind == "ordinary":
        assert max(bounds) <= ABSURD * max(seen)


@pytest.mark.parametrize("seed", [107, 1414])
def test_margins_of_a_solution_at_mixed_scales(seed):
    # Float margins of such solutions are wrong by 1e0 to 1e3; the bound must say so.
    r = np.random.default_rng(seed)
    X = r.normal(size=(3, 2, 2)) * 10.0 ** r.uniform(-6, 6, (3, 2, 1))
    problem = MarginProblem(X[:, 0] - X[:, 1], X[:, 0], np.arange(3))
    W = solve(problem).W
    bound = margin_error(
        norm_bounds(problem.rows.a)[1], norm_bounds(W, axes=2)[1], norm_bounds(problem.rows.queries)[1], (2, 2)
    )
    truth = exact_margins(X[:, 0], X[:, 1], problem.rows.queries, problem.owner, W)
    computed = problem.margins(W)
    assert all(abs(Fraction(float(c)) - t) <= b for c, t, b in zip(computed, truth, bound, strict=True))
    assert bound.max() > 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_lower_bounds_hold_whatever_rounding_does_to_the_dual_matrix(rng, kind):
    """Of equality rows any multipliers give a bound; where rows cancel the dual matrix is mostly rounding."""
    for trial in range(120):
        m, dx, dz, q = (int(v) for v in rng.integers(1, 7, 4))
        x, y, queries, _ = tokens_and_rows(rng, kind, m, dx, dz, q)
        a, owner = x - y, rng.integers(0, q, m)
        lam = mixed(rng, (m,), 8.0 if kind == "mixed" else 0.0)
        if trial % 3 == 0:  # two halves that cancel
            a, x, y = np.vstack([a, a]), np.vstack([x, x]), np.vstack([y, y])
            owner, lam = np.tile(owner, 2), np.concatenate([lam, -lam * (1 + 2.0**-50)])
        rhs = np.sign(lam)
        problem = MarginProblem(a, queries, owner, rhs, np.ones(len(lam), dtype=bool))
        bound = certify(problem, np.zeros((dx, dz)), lam).lower_bound
        b = exact(queries[owner])
        D = sum(Fraction(float(lam[k])) * np.outer(exact(x[k]) - exact(y[k]), b[k]) for k in range(len(lam)))
        square, value = (D**2).sum(), sum(abs(v) for v in exact(lam))
        assert Fraction(bound) ** 2 * square <= value**2
        if kind == "ordinary" and trial % 3:  # where nothing cancels it is a few roundings below the exact one
            assert Fraction(bound) ** 2 * square >= value**2 * (1 - Fraction(1, 10**12))


@pytest.mark.parametrize("spread", [0.0, 8.0, 60.0])
def test_dot_products_are_within_their_bound(rng, spread):
    seen, bounds = [], []
    for trial in range(400):
        n = int(rng.integers(1, 40))
        x, y = mixed(rng, (n,), spread), mixed(rng, (n,), spread)
        if trial % 2:  # cancellation
            x, y = np.concatenate([x, -x]), np.concatenate([y, y * (1 + 1e-14)])
        if trial % 7 == 0:
            x, y = x * 1e-160, y * 1e-160
        bound, truth = float(dot_error(x, y)), (exact(x) * exact(y)).sum()
        for computed in (x @ y, float(sum(x * y)), np.einsum("i,i", x, y)):
            error = abs(Fraction(float(computed)) - truth)
            assert error <= Fraction(bound)
            seen.append(float(error))
            bounds.append(bound)
    if spread == 0:
        assert max(bounds) <= ABSURD * max(seen)


@pytest.mark.parametrize("scale", [1.0, 1e-165, 1e160, 1e-308, 5e-324, 1e300])
def test_norms_are_within_their_bounds(rng, scale):
    for trial in range(300):
        x = mixed(rng, (int(rng.integers(1, 20)),), 5.0 if trial % 2 else 0.0) * (scale if scale > 1e-320 else 1e-310)
        lower, upper = norm_bounds(x)
        square = (exact(x) ** 2).sum()
        assert Fraction(float(lower)) ** 2 <= square
        assert not np.isfinite(upper) or square <= Fraction(float(upper)) ** 2
        if 1e-290 < float(lower) < 1e290:
            assert upper <= lower * (1 + (2 * len(x) + 32) * 2.0**-53)  # 2 (n + 3) u and the slack of the evaluation


def test_norms_of_batches_and_of_zero():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 3, 2, 5))
    lower, upper = norm_bounds(x, axes=2)
    assert lower.shape == upper.shape == (4, 3)
    assert (norm_bounds(x[2, 1], axes=2)[1] == upper[2, 1]).all()
    assert [float(v) for v in norm_bounds(np.zeros(3))] == [0.0, 0.0]
    lower, upper = norm_bounds([[np.inf, 1.0], [np.nan, 0.0], [1.0, 1.0]])
    assert upper[:2].tolist() == [np.inf, np.inf]
    assert np.isfinite(upper[2])


def test_bounds_accept_batches(rng):
    B, m, dx, dz = 5, 4, 3, 2
    a, b, W = rng.standard_normal((B, m, dx)), rng.standard_normal((B, m, dz)), rng.standard_normal((B, dx, dz))
    norms = norm_bounds(a)[1], norm_bounds(b)[1]
    size = norm_bounds(W, axes=2)[1]
    batch = margin_error(norms[0], size, norms[1], (dx, dz))
    assert batch.shape == (B, m)
    assert (batch[3] == margin_error(norms[0][3], size[3], norms[1][3], (dx, dz))).all()
    lam = rng.standard_normal((B, m))
    assert dot_error(lam, lam).shape == (B,)
    owner = np.arange(m)
    assert margin_error_by_entries(a, W, b, owner).shape == (B, m)
    lower, upper, residual = singular_value_bounds(W)
    assert lower.shape == upper.shape == (B, 2)
    assert residual.shape == (B,)
    assert nuclear_bounds(W)[0].shape == (B,)


def test_overflow_makes_bounds_infinite():
    assert margin_error([1e200], 1e200, [1e200], (2, 2))[0] == np.inf
    assert margin_error([0.0], np.inf, [1.0], (2, 2))[0] == np.inf
    assert float(dot_error([1e200], [1e200])) == np.inf
    lower, upper, _ = singular_value_bounds(np.full((2, 2), 1.7e308))
    assert (upper >= 1.7e308).all()
    assert (lower <= upper).all()


def hard_matrix(rng, kind):
    m, n = (int(v) for v in rng.integers(1, 6, 2))
    r = min(m, n)
    if kind == "gaussian":
        return rng.standard_normal((m, n))
    if kind == "graded":
        return rng.standard_normal((m, n)) * 10.0 ** -np.linspace(0, 16, n)
    if kind == "low rank":
        return rng.standard_normal((m, 1)) @ rng.standard_normal((1, n)) + 1e-14 * rng.standard_normal((m, n))
    U, _ = np.linalg.qr(rng.standard_normal((m, r)))
    V, _ = np.linalg.qr(rng.standard_normal((n, r)))
    if kind == "cluster":
        return (U * (1 + 1e-15 * np.arange(r))) @ V.T
    return mixed(rng, (m, n), 6.0)


def true_singular_values(matrix):
    with mpmath.workdps(60):
        values = mpmath.svd_r(mpmath.matrix(matrix.tolist()), compute_uv=False)
        return sorted((mpmath.mpf(v) for v in values), reverse=True)


@pytest.mark.parametrize("kind", ["gaussian", "graded", "low rank", "cluster", "mixed"])
def test_singular_values_are_within_their_bounds(rng, kind):
    assumed, proved, seen, nuclear = [], [], [], []
    for _ in range(60):
        A = hard_matrix(rng, kind)
        truth = true_singular_values(A)
        lower, upper, _ = singular_value_bounds(A)
        assert all(
            mpmath.mpf(float(lo)) <= t <= mpmath.mpf(float(hi)) for lo, t, hi in zip(lower, truth, upper, strict=True)
        )
        computed = np.linalg.svd(A, compute_uv=False)
        bound = float(singular_value_error(A.shape, computed[0]))
        errors = [float(abs(mpmath.mpf(float(c)) - t)) for c, t in zip(computed, truth, strict=True)]
        assert max(errors) <= bound / 4  # assumed of LAPACK, so it must be far away
        low, high = nuclear_bounds(A)
        assert mpmath.mpf(float(low)) <= sum(truth) <= mpmath.mpf(float(high))
        size = float(computed[0])
        assumed.append(bound / size)
        proved.append(float((upper - lower).max()) / size)
        nuclear.append(float(high - low) / size)
        seen.append(max(errors) / size)
    if kind == "gaussian":
        worst = max(seen)
        assert max(assumed) <= ABSURD * worst
        assert max(proved) <= ABSURD * worst
        assert max(nuclear) <= ABSURD * worst


def test_a_wrong_decomposition_gives_wide_but_true_bounds(rng):
    A = rng.standard_normal((4, 3))
    truth = np.linalg.svd(A, compute_uv=False)
    U, s, Vt = np.linalg.svd(rng.standard_normal((4, 3)), full_matrices=False)
    lower, upper, _ = singular_value_bounds(A, (U, s, Vt))
    assert (lower <= truth).all()
    assert (upper >= truth).all()
    lower, upper, _ = singular_value_bounds(A, (3 * U, s, Vt))  # not even frames
    assert (lower == 0).all()
    assert (upper == np.inf).all()


def test_dual_bound_is_rounded_down(rng):
    for _ in range(300):
        value, norm = abs(float(mixed(rng, (1,), 8.0)[0])), abs(float(mixed(rng, (1,), 8.0)[0]))
        errors = value * 1e-12, norm * 1e-13
        bound = Fraction(float(dual_bound(value, errors[0], norm, errors[1])))
        truth = (Fraction(value) - Fraction(errors[0])) / (Fraction(norm) + Fraction(errors[1]))
        assert truth * (1 - Fraction(1, 2**50)) <= bound <= truth
    assert float(dual_bound(1.0, 0.0, 0.0, 0.0)) == np.inf
    assert float(dual_bound(1e300, 0.0, 1e-300, 0.0)) == np.finfo(float).max  # finite: D is not zero
    assert float(dual_bound(-1.0, 0.0, 0.0, 0.0)) == 0.0
    assert float(dual_bound(1.0, np.inf, 1.0, 0.0)) == 0.0
    assert float(dual_bound(1.0, 0.0, 1.0, np.inf)) == 0.0
    assert float(dual_bound(np.nan, 0.0, 1.0, 0.0)) == 0.0


def test_directed_steps_enclose_every_operation(rng):
    for _ in range(500):
        x, y = (float(v) for v in mixed(rng, (2,), 20.0))
        for computed, truth in ((x + y, Fraction(x) + Fraction(y)), (x * y, Fraction(x) * Fraction(y))):
            assert Fraction(float(down(computed))) < truth < Fraction(float(up(computed)))


def test_gamma_is_an_upper_bound_and_refuses_nonsense():
    for k in (0, 1, 7, 1000, 10**9):
        u = Fraction(1, 2**53)
        assert Fraction(gamma(k)) >= k * u / (1 - k * u)
    with pytest.raises(ValueError, match="roundings must lie in"):
        gamma(2**53)
    with pytest.raises(ValueError, match="roundings must lie in"):
        gamma(-1)
    assert TINY == np.finfo(float).tiny
