"""Least distance to a given matrix: against cvxpy, against exact arithmetic, and where nothing has to change."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.exact.settle import exact_certificate, exact_rows_of

NORMS = ("frobenius", "nuclear", "spectral", "l1", "linf")


def _rows(seed: int, n: int = 4, T: int = 4, d: int = 5, equal: bool = False) -> MarginProblem:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((n * (T - 1), d)), rng.standard_normal((n, d))
    if not equal:
        return MarginProblem(a, b, np.repeat(np.arange(n), T - 1))
    tied = np.arange(len(a)) % (T - 1) == 0
    return MarginProblem(a, b, np.repeat(np.arange(n), T - 1), np.where(tied, 0.0, 1.0), tied)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("equal", [False, True])
def test_the_change_is_that_of_cvxpy(norm: str, equal: bool) -> None:
    for seed in range(3):
        rows = _rows(seed, equal=equal)
        W0 = 3.0 * np.random.default_rng(100 + seed).standard_normal(rows.shape)
        found, reference = solve(rows.around(W0), norm), solve(rows.around(W0), norm, "cvxpy:CLARABEL")
        assert found.status == "optimal"
        assert abs(found.norm - reference.norm) <= 1e-7 * found.norm
        values = rows.margins(W0 + found.W)
        assert rows.missed(values - rows.rhs).max() <= 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_a_prior_that_satisfies_the_rows_is_not_changed_at_all(norm: str) -> None:
    rows = _rows(0)
    W0 = (1.0 + 1e-12) * solve(rows).W
    assert (rows.margins(W0) >= 1.0).all()
    found = solve(rows.around(W0), norm)
    assert found.status == "optimal" and found.norm == 0.0 and not found.W.any()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("size", [1.0, 1e6])
def test_what_the_certificate_says_holds_in_exact_arithmetic(norm: str, size: float) -> None:
    """Large priors leave right-hand sides with few digits: the bounds must own up to it."""
    for seed in range(4):
        rows = _rows(seed, n=3, T=3, d=3)
        near = rows.around(size * np.random.default_rng(seed).standard_normal(rows.shape))
        found = solve(near, norm)
        certificate, exact = found.certificate, found.certificate.exact()
        assert float(exact.violation) <= certificate.primal_violation + certificate.primal_error
        assert certificate.lower_bound <= exact.norm[1]
        assert near.prior is not None
        sides = [float(x) for x in exact_rows_of(near).rhs]  # right-hand sides without rounding
        assert (np.abs(np.array(sides) - near.rhs) <= near.prior.error).all()


def test_rounded_right_hand_sides_lower_the_bound() -> None:
    """A bound that forgot them would exceed what exact arithmetic finds for the true right-hand sides."""
    honest = 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        rows = MarginProblem(rng.standard_normal((1, 30)), rng.standard_normal((1, 30)), [0])
        near = rows.around(1e9 * rng.standard_normal(rows.shape))
        found = solve(near)
        if found.norm == 0.0:
            continue
        exact = exact_certificate(near, found.W, found.multipliers, found.norm_kind)
        assert found.certificate.lower_bound <= exact.norm[1]
        forgetful = float(near.rhs @ found.multipliers) / float(np.linalg.norm(near.adjoint(found.multipliers)))
        honest += forgetful > exact.norm[1]
    assert honest > 0  # the error is real


def test_a_batch_is_its_problems() -> None:
    stacked = MarginProblem.stack([_rows(seed, n=2 + seed % 2) for seed in range(4)])
    W0 = np.random.default_rng(0).standard_normal((4, 5, 5))
    for norm in ("frobenius", "nuclear", "l1"):
        near = stacked.around(W0)
        whole = solve(near, norm)
        for i in range(4):
            alone = solve(_rows(i, n=2 + i % 2).around(W0[i]), norm)
            assert whole[i].problem.m == alone.problem.m
            np.testing.assert_allclose(whole[i].norm, alone.norm, rtol=1e-7)
            part = near.take(np.array([i]))[0]
            np.testing.assert_allclose(part.rhs, alone.problem.rhs, atol=1e-14)  # sums in another order
    again = MarginProblem.stack([near[i] for i in range(4)])
    assert again.prior is not None and near.prior is not None
    np.testing.assert_array_equal(again.prior.asked, near.prior.asked)
    np.testing.assert_array_equal(again.prior.error, near.prior.error)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_contradiction_is_proved_whatever_the_prior(norm: str) -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((6, 3)), rng.standard_normal((3, 3))
    a[5], b[2] = -a[0], b[0]  # query 2 asks for the opposite of query 0
    rows = MarginProblem(a, b, [0, 0, 1, 1, 2, 2])
    for size in (1.0, 1e5):
        found = solve(rows.around(size * rng.standard_normal((3, 3))), norm)
        assert found.status == "infeasible"
        assert found.certificate.farkas is not None
        assert found.certificate.farkas.owners.tolist() == [0, 2]
        assert found.certificate.exact().farkas is not None


def test_numbers_that_leave_the_range_are_scaled() -> None:
    rows = MarginProblem([[2.0**-600]], [[1.0]], [0])
    found = solve(rows.around([[2.0**599]]))
    assert found.status == "optimal" and found.W.item() == 2.0**599
    assert solve(rows.around([[2.0**601]])).W.item() == 0.0


def test_a_prior_that_does_not_fit_is_refused() -> None:
    rows = _rows(0)
    with pytest.raises(ValueError, match=r"prior must have shape \(5, 5\), got \(5, 4\)"):
        rows.around(np.zeros((5, 4)))
    with pytest.raises(ValueError, match="prior must be finite"):
        rows.around(np.full((5, 5), np.nan))
    with pytest.raises(ValueError, match="has a prior already"):
        rows.around(np.zeros((5, 5))).around(np.zeros((5, 5)))
