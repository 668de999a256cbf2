"""Least nuclear norms of many more rows than entries of W: systems of the order of the entries."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from attsvm.solvers import MarginProblem, Status, get_norm, solve
from attsvm.solvers.compiled.kernels import GroupPenalty, minimize
from kkt import assert_optimal

Array = npt.NDArray[np.float64]
SIZES = [(12, 6, 3, 4), (60, 11, 5, 4), (100, 16, 4, 4), (20, 16, 8, 8)]
KINDS = [("row", "hinge"), ("query", "hinge"), ("row", "squared_hinge"), ("query", "squared_hinge")]


def planted(size: tuple[int, int, int, int], seed: int, noise: float = 0.0, batch: int = 1) -> MarginProblem:
    """Rows of n queries that each prefer one of T points: the one that a matrix of rank 2 scores highest."""
    n, T, p, q = size
    rng = np.random.default_rng(seed)
    points, queries = rng.normal(size=(batch, n, T, p)), rng.normal(size=(batch, n, q))
    scores = np.einsum(
        "bntp,bpr,bqr,bnq->bnt", points, rng.normal(size=(batch, p, 2)), rng.normal(size=(batch, q, 2)), queries
    )
    scores += noise * scores.std() * rng.normal(size=scores.shape)
    order = np.argsort(-scores, axis=-1)
    points = np.take_along_axis(points, order[..., None], axis=2)
    a = (points[:, :, :1] - points[:, :, 1:]).reshape(batch, n * (T - 1), p)
    owner = np.repeat(np.arange(n), T - 1)
    return MarginProblem(a, queries, owner) if batch > 1 else MarginProblem(a[0], queries[0], owner)


def objective(problem: MarginProblem, W: Array) -> float:
    """Nuclear norm and penalty by their definitions."""
    penalty = problem.penalty
    assert penalty is not None
    violated = np.maximum(problem.rhs - problem.margins(W), 0.0)
    if penalty.slack == "query":
        violated = np.array([violated[problem.owner == j].max() for j in range(problem.q)])
    cost = violated.sum() if penalty.loss == "hinge" else violated @ violated
    return float(np.linalg.norm(W, "nuc") + penalty.C * cost)


@pytest.mark.parametrize("size", SIZES)
def test_hard_margins(size: tuple[int, int, int, int]) -> None:
    problem = planted(size, 0)
    found = solve(problem, "nuclear")
    assert found.solver == "interior"
    assert found.status is Status.OPTIMAL
    assert found.certificate.proved < 1e-10
    assert_optimal(problem, found.W, found.multipliers, "nuclear", 1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", SIZES)
def test_soft_margins_reach_the_value_of_the_reference(size: tuple[int, int, int, int], kind: tuple[str, str]) -> None:
    for C, noise in ((0.05, 1.0), (3.0, 0.1)):
        problem = planted(size, 1, noise).soft(C=C, slack=kind[0], loss=kind[1])
        found = solve(problem, "nuclear")
        assert found.solver == "primal_dual"
        assert found.status is Status.OPTIMAL
        assert found.certificate.proved < 1e-8
        other = solve(problem, "nuclear", "cvxpy")
        # The reference ends at a relative gap of 1e-8 or so.
        assert objective(problem, found.W) == pytest.approx(objective(problem, other.W), rel=1e-7)


@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_groups_whose_rows_have_different_weights(loss: str) -> None:
    """The row that changes roles with the slack of its group divides by its weight, the others by their share of it."""
    rng = np.random.default_rng(2)
    m, p, q, groups = 80, 3, 4, 9
    left, right = rng.normal(size=(m, p)), rng.normal(size=(m, q))
    left /= np.linalg.norm(left, axis=-1, keepdims=True)
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    group, weight = rng.integers(groups, size=m).astype(np.intc), np.exp(rng.normal(size=m))
    for C in (0.02, 1.0):
        penalty = GroupPenalty(loss, groups, group, weight, np.array([C]))
        sense, c = np.ones(m, dtype=np.int8), np.ones(m)
        W, lam, _ = minimize(get_norm("nuclear"), left, right, c, sense, c, 80, 1e-10, None, penalty)
        assert lam.min() > 0.0
        D = np.einsum("k,ki,kj->ij", lam, left, right)
        load = np.bincount(group, weight * lam, groups)
        short = np.zeros(groups)
        np.maximum.at(short, group, (c - np.einsum("ki,ij,kj->k", left, W, right)) / weight)
        size = max(1.0, float(np.linalg.norm(D, 2)))
        if loss == "hinge":
            primal, dual = np.linalg.norm(W, "nuc") + C * short.sum(), c @ lam / max(size, load.max() / C)
        else:
            primal = np.linalg.norm(W, "nuc") + C * short @ short
            dual = c @ lam / size - load @ load / (4.0 * C * size**2)
        assert primal == pytest.approx(dual, rel=1e-7)


def test_equality_rows_are_kept() -> None:
    base = planted((30, 11, 4, 4), 3)
    inside = solve(base, "nuclear").W
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(3, 4))
    sides = np.concatenate([np.ones(base.m), np.einsum("ki,ij,kj->k", a, 1.5 * inside, b)])
    problem = MarginProblem(
        np.concatenate([base.rows.a, a]),
        np.concatenate([base.rows.queries, b]),
        np.concatenate([base.owner, 30 + np.arange(3)]),
        rhs=sides,
        equality=np.arange(base.m + 3) >= base.m,
    )
    found = solve(problem, "nuclear")
    assert (found.solver, found.status) == ("interior", Status.OPTIMAL)
    np.testing.assert_allclose(problem.margins(found.W)[-3:], sides[-3:], rtol=1e-9)
    assert_optimal(problem, found.W, found.multipliers, "nuclear", 1e-8)


def test_rows_that_contradict_each_other_are_proved_infeasible() -> None:
    found = solve(planted((60, 11, 4, 4), 4, noise=1.0), "nuclear")
    assert found.status is Status.INFEASIBLE


def test_a_batch_is_solved_as_its_problems_are_alone() -> None:
    batch = planted((30, 11, 4, 4), 5, batch=4)
    for solver in ("auto", "nuclear_batch"):
        found = solve(batch, "nuclear", solver)
        for i in range(4):
            alone = solve(batch[i], "nuclear")
            assert found[i].status is Status.OPTIMAL
            assert found[i].norm == pytest.approx(alone.norm, rel=1e-9)
