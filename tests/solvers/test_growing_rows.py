"""Growing sets of rows: the answer of all rows at once, whatever the first set was; proofs that hold for all rows."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, growing_rows, solve
from kkt import assert_infeasible, sphere_rows
from solver_api import proof_of

SOFT = [(slack, loss) for slack in ("query", "row") for loss in ("hinge", "squared_hinge")]


def separable(seed: int, q: int = 15, rows: int = 12, shape: tuple[int, int] = (4, 5)) -> MarginProblem:
    """Rows of which a hidden W satisfies all."""
    rng = np.random.default_rng(seed)
    a, queries, owner = (
        rng.normal(size=(q * rows, shape[0])),
        rng.normal(size=(q, shape[1])),
        np.repeat(np.arange(q), rows),
    )
    a *= np.sign(np.vecdot(a @ rng.normal(size=shape), queries[owner]))[:, None]
    return MarginProblem(a, queries, owner, rhs=rng.uniform(0.5, 1.5, q * rows))


@pytest.fixture(autouse=True)
def one_row_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that most rows that matter have to join."""
    monkeypatch.setattr(growing_rows, "_FIRST", 1)
    monkeypatch.setattr(growing_rows, "_JOIN", 1)


@pytest.mark.parametrize("norm", ["nuclear", "spectral", "l1", "linf", "l3"])
def test_hard_margins_are_those_of_all_rows(norm: str) -> None:
    problem = separable(0)
    found, known = solve(problem, norm, "growing_rows"), solve(problem, norm)
    assert (found.status, found.solver) == (Status.OPTIMAL, "growing_rows")
    assert found.norm == pytest.approx(known.norm, rel=3e-7)  # three times what the two certificates prove
    assert found.extras.working_rows < problem.m


@pytest.mark.parametrize(("slack", "loss"), SOFT)
@pytest.mark.parametrize("norm", ["nuclear", "spectral", "l1", "linf", "l1.5"])
def test_soft_margins_are_those_of_all_rows(norm: str, slack: str, loss: str) -> None:
    rng = np.random.default_rng(1)
    hard = MarginProblem(rng.normal(size=(150, 3)), rng.normal(size=(15, 4)), np.repeat(np.arange(15), 10))
    for C in (0.02, 1.0):
        problem = hard.soft(C, slack, loss)
        found, known = solve(problem, norm, "growing_rows"), solve(problem, norm, "primal_dual")
        assert found.status is known.status is Status.OPTIMAL
        assert found.certificate.soft_objective == pytest.approx(known.certificate.soft_objective, rel=3e-7)


def test_equality_rows_are_in_the_set_from_the_start() -> None:
    problem = separable(2)
    equal = np.arange(problem.m) % 60 == 0
    W = np.random.default_rng(3).normal(size=problem.shape)
    rhs = np.where(equal, problem.margins(W), problem.rhs - 5.0)
    rows = MarginProblem(problem.pairs().a, problem.pairs().queries, problem.owner, rhs, equal)
    found, known = solve(rows, "linf", "growing_rows"), solve(rows, "linf")
    assert found.status is known.status is Status.OPTIMAL
    assert found.norm == pytest.approx(known.norm, rel=3e-7)


@pytest.mark.parametrize("norm", ["nuclear", "l1"])
def test_a_contradiction_within_the_set_is_one_of_all_rows(norm: str) -> None:
    problem = separable(4)
    pair = problem.pairs()
    rows = MarginProblem(np.vstack([pair.a, -pair.a[:1]]), pair.queries, np.append(pair.owner, pair.owner[0]))
    found = solve(rows, norm, "growing_rows")
    assert found.status is Status.INFEASIBLE
    assert_infeasible(rows, proof_of(found))


def test_rounds_that_a_limit_stops_are_told() -> None:
    problem = separable(5)
    found = solve(problem, "l1", "growing_rows", max_iterations=1)
    assert found.status is Status.INACCURATE
    assert found.certificate.lower_bound <= solve(problem, "l1").norm * (1 + 1e-7)


@pytest.mark.parametrize("C", [None, 1.0])
@pytest.mark.parametrize("norm", ["spectral", "linf", "l3"])
def test_rough_first_rounds_take_few_steps(norm: str, C: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of all rounds, not seconds, against those of rounds that are all accurate and admit violated rows alone."""
    monkeypatch.setattr(growing_rows, "_FIRST", 3)
    monkeypatch.setattr(growing_rows, "_JOIN", 2)
    problem = MarginProblem(*sphere_rows(1, 20, 40, 32, seed=0))[0].soft(C)
    found = solve(problem, norm)
    assert (found.status, found.solver) == (Status.OPTIMAL, "growing_rows")
    steps = found.iterations
    monkeypatch.setattr(growing_rows, "_ROUGH", 0.0)
    monkeypatch.setattr(growing_rows, "_NEAR", 0.0)
    assert steps < 0.9 * solve(problem, norm).iterations
    assert found.extras.working_rows < 0.5 * problem.m


def test_a_set_of_most_rows_becomes_all_of_them() -> None:
    problem = separable(6, q=10, rows=6, shape=(8, 8))
    found = solve(problem, "linf", "growing_rows")
    assert found.status is Status.OPTIMAL
    assert found.extras.working_rows == problem.m
