"""Uniqueness of nuclear-norm solutions: what is proved about all of them from one."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, certify, solve
from attsvm.solvers.nuclear.uniqueness import certify_uniqueness
from kkt import seeded_rows

# W11 >= 1 and W22 >= 1: [[1, t], [t, 1]] is optimal for all |t| <= 1.
FREE_OFF_DIAGONAL = MarginProblem(np.eye(2), np.eye(2), [0, 1])


@pytest.mark.parametrize("t", [0.0, 0.5, 1.0, -1.0])
def test_not_unique(t: float) -> None:
    W = np.array([[1.0, t], [t, 1.0]])
    verdict = certify_uniqueness(FREE_OFF_DIAGONAL, W, [1.0, 1.0])
    assert verdict.verdict == "not unique"
    assert verdict.face_dimension == 1
    assert verdict.witness is not None
    assert np.linalg.norm(verdict.witness - W) > 1e-2
    # The witness is as optimal as W: same multipliers, gap at the level of the bisection.
    assert certify(FREE_OFF_DIAGONAL, verdict.witness, [1.0, 1.0], "nuclear").worst <= 1e-9
    ranks = certify(FREE_OFF_DIAGONAL, W, [1.0, 1.0], "nuclear").rank_certificate
    assert ranks is not None
    assert (ranks.numerical_rank == ranks.rank) == (abs(t) < 1)  # strictly complementary only inside the face


def test_unique_when_the_face_is_cut_off() -> None:
    # W12 + W21 = 0.5 by an equality on (e1 + e2)(e1 + e2)^T fixes what was free.
    rows = MarginProblem(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]], [0, 1, 2], [1.0, 1.0, 2.5],
        [False, False, True],
    )  # fmt: skip
    result = solve(rows, "nuclear")
    assert result.status is Status.OPTIMAL
    assert result.certificate.worst <= 1e-10
    assert result.norm == pytest.approx(2.0, abs=1e-9)
    verdict = certify_uniqueness(rows, result.W, result.multipliers)
    assert verdict.verdict == "unique"
    np.testing.assert_allclose(result.W, [[1.0, 0.25], [0.25, 1.0]], atol=1e-8)


def test_solver_reports_uniqueness() -> None:
    assert solve(FREE_OFF_DIAGONAL, "nuclear").uniqueness.verdict == "not unique"
    for seed in range(5):
        result = solve(seeded_rows(5, 6, 9, seed), "nuclear")
        found, ranks = result.uniqueness, result.certificate.rank_certificate
        assert found.verdict == "unique"
        assert ranks is not None and ranks.rank == ranks.numerical_rank == found.rank
        assert found.smallest_singular_value > 1e-3


def test_inaccurate_pairs_stay_undecided() -> None:
    problem = seeded_rows(5, 6, 9)
    assert certify_uniqueness(problem, np.ones((9, 9)), np.ones(problem.m)).verdict == "undecided"
