"""Every solver on every problem of the library, alone and in batches, judged by dense arithmetic of the tests' own."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import MarginSolution, Status
from kkt import assert_infeasible, assert_optimal, dense_rows, norm_and_dual, residuals
from margin_problems import LibraryProblem, attention_rows, conflict, library
from planted_optima import narrow, planted_frobenius, planted_nuclear
from solver_api import (
    BATCH_NORMS,
    HARD,
    accuracy_of,
    proof_of,
    rows_of,
    solve_as_batch,
    solve_single,
    solvers_for,
)

SEEDS = (0, 1)
ENTRIES = {(seed, entry.name): entry for seed in SEEDS for entry in library(seed)}


class Case(NamedTuple):
    seed: int
    entry: str
    norm: str
    solver: str

    def __str__(self) -> str:
        return f"{self.entry}-{self.norm}-{self.solver}-{self.seed}"


ALONE = [
    Case(seed, name, norm, solver)
    for (seed, name), entry in ENTRIES.items()
    for norm in entry.norms
    for solver in solvers_for(norm)
]
TOGETHER = [
    Case(seed, name, norm, "auto")
    for (seed, name), entry in ENTRIES.items()
    for norm in entry.norms
    if norm in BATCH_NORMS
]


def judge(entry: LibraryProblem, norm: str, solution: MarginSolution, solver: str) -> None:
    """The status is the true one, and what comes with it holds."""
    if not entry.feasible:
        assert solution.status is Status.INFEASIBLE
        assert_infeasible(entry.problem, proof_of(solution))
        return
    accuracy = accuracy_of(solver, norm)
    hard = bool(entry.tags & HARD)
    tolerance = accuracy.hard if hard else accuracy.ordinary
    assert solution.status is Status.OPTIMAL or (hard and solution.status is Status.INACCURATE)
    if tolerance is None:
        return
    assert_optimal(entry.problem, solution.W, solution.multipliers, norm, tolerance)
    if entry.value is None:
        return
    assert abs(solution.norm - entry.value) <= tolerance * entry.value
    if norm == "frobenius":  # |W - W*|^2 <= |W|^2 - |W*|^2 for every feasible W: the square root of the tolerance
        assert np.linalg.norm(solution.W - entry.W) <= 2 * np.sqrt(tolerance) * entry.value


@pytest.mark.parametrize("case", ALONE, ids=str)
def test_every_solver_meets_the_optimality_conditions(case: Case) -> None:
    entry = ENTRIES[case.seed, case.entry]
    judge(entry, case.norm, solve_single(entry.problem, case.norm, case.solver), case.solver)


@cache
def solved_together(seed: int, norm: str, shape: tuple[int, int]) -> dict[str, MarginSolution]:
    """All entries of one shape as one batch: numbers of rows and queries, equalities and feasibility differ."""
    chosen = [e for (s, _), e in ENTRIES.items() if s == seed and norm in e.norms and e.problem.shape == shape]
    problems = [entry.problem for entry in chosen] * 2  # no batch of one
    return {entry.name: solution for entry, solution in zip(chosen * 2, solve_as_batch(problems, norm), strict=True)}


@pytest.mark.parametrize("case", TOGETHER, ids=str)
def test_batches_meet_the_optimality_conditions(case: Case) -> None:
    entry = ENTRIES[case.seed, case.entry]
    together = solved_together(case.seed, case.norm, entry.problem.shape)[case.entry]
    judge(entry, case.norm, together, "auto")
    alone = solve_single(entry.problem, case.norm, "auto")
    if not entry.tags & HARD:
        assert together.status is alone.status
    if entry.feasible:
        accuracy = accuracy_of("auto", case.norm)
        tolerance = accuracy.hard if entry.tags & HARD else accuracy.ordinary
        assert tolerance is not None
        assert together.norm == pytest.approx(alone.norm, rel=2 * tolerance)


# -- the library itself: no solver involved ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_known_answers_satisfy_the_conditions(seed: int) -> None:
    entries = library(seed)
    assert len({entry.name for entry in entries}) == len(entries)
    for entry in entries:
        if not entry.feasible:
            assert_infeasible(entry.problem, entry.multipliers)
            assert rows_of(entry.problem)[3] @ entry.multipliers == pytest.approx(1.0, rel=1e-12)
        elif entry.value is not None:
            for norm in entry.norms:
                # Rounding, times the size of the multipliers where they cancel.
                tolerance = 1e-13 * max(1.0, entry.value) ** 1.5
                assert_optimal(entry.problem, entry.W, entry.multipliers, norm, tolerance)
                assert norm_and_dual(norm)[0](entry.W) == pytest.approx(entry.value, rel=1e-12)


def test_the_library_covers_what_it_promises() -> None:
    tags = {tag for entry in library() for tag in entry.tags}
    assert tags == {
        "closed-form", "planted", "infeasible", "near-infeasible", "degenerate", "equality", "mixed-rhs", "zero-rows",
        "zero", "scales", "shape", "attention",
    }  # fmt: skip
    for tag in tags:
        assert {norm for entry in library(tag=tag) for norm in entry.norms} >= {"frobenius", "nuclear"}, tag
    assert {norm for entry in library() for norm in entry.norms} == {"frobenius", "nuclear", "spectral", "l1", "linf"}
    assert library(seed=3)[0].W.tolist() == library(seed=3)[0].W.tolist() != library(seed=4)[0].W.tolist()


@given(
    dx=st.integers(1, 9), dz=st.integers(1, 9), queries=st.integers(1, 6), active=st.integers(1, 12),
    inactive=st.integers(0, 9), equalities=st.integers(0, 4), weak=st.integers(0, 4), unit_rhs=st.booleans(),
    value=st.floats(0.01, 100.0), seed=st.integers(0, 999),
)  # fmt: skip
def test_planted_frobenius_problems_of_any_size(dx, dz, queries, active, inactive, equalities, weak, unit_rhs, **kind):
    entry = planted_frobenius(
        dx, dz, queries, active, inactive, equalities=equalities, weak=weak, unit_rhs=unit_rhs, **kind
    )
    _, _, _, rhs, equality = rows_of(entry.problem)
    m = active + inactive + equalities + weak
    assert (entry.problem.m, entry.problem.shape, equality.sum()) == (m, (dx, dz), equalities)
    # Rows are drawn of ordinary size; dividing by a small right-hand side may cost a few digits.
    assert max(residuals(entry.problem, entry.W, entry.multipliers, "frobenius")) <= 1e-10
    assert np.linalg.norm(entry.W) == pytest.approx(kind["value"], rel=1e-12)
    slack = dense_rows(entry.problem) @ entry.W.ravel() - rhs
    assert (slack[m - inactive :] > 0.05).all()
    assert (rows_of(entry.problem)[3] == 1.0).all() or not unit_rhs


@given(
    dx=st.integers(1, 9), dz=st.integers(1, 9), queries=st.integers(1, 9), active=st.integers(1, 4),
    inactive=st.integers(0, 3), equalities=st.integers(0, 5), unit_rhs=st.booleans(), share=st.floats(0, 1),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_planted_nuclear_problems_of_any_size(dx, dz, queries, active, inactive, equalities, unit_rhs, share, seed):
    queries = min(queries, dz) if unit_rhs else queries
    rank = 1 + round(share * (min(dx, dz, queries) - 1))
    entry = planted_nuclear(
        dx, dz, queries, active, inactive, rank=rank, equalities=equalities, unit_rhs=unit_rhs, seed=seed
    )
    # The shares of nearly dependent queries are large, and so are then the rows that carry them.
    assert max(residuals(entry.problem, entry.W, entry.multipliers, "nuclear")) <= 1e-9
    assert np.linalg.matrix_rank(entry.W) == rank
    assert (rows_of(entry.problem)[3] == 1.0).all() or not unit_rhs


def test_wrong_answers_are_seen_by_every_measure() -> None:
    """The judge itself: each optimality condition, broken alone, shows in its own number."""
    for norm, entry in (("frobenius", planted_frobenius(equalities=2)), ("nuclear", planted_nuclear(equalities=2))):
        problem, W, lam = entry.problem, entry.W, entry.multipliers
        assert residuals(problem, W * 0.99, lam, norm).primal > 1e-3
        assert residuals(problem, W, lam * 1.01, norm).dual_norm == pytest.approx(0.01, rel=1e-9)
        assert residuals(problem, W, lam * 0.99, norm).alignment == pytest.approx(0.01, rel=1e-9)
        F, rhs = dense_rows(problem), rows_of(problem)[3]
        loose = int(np.argmax(F @ W.ravel() - rhs))
        shifted = lam + 0.1 * (np.arange(len(F)) == loose)
        assert residuals(problem, W, shifted, norm).complementarity > 1e-3
        negative = lam - 10.0 * (np.arange(len(F)) == loose)
        assert residuals(problem, W, negative, norm).dual_domain == pytest.approx(10 * np.linalg.norm(F[loose]))
        turned = W + 0.1 * np.random.default_rng(0).standard_normal(W.shape)
        assert residuals(problem, turned, lam, norm).stationarity > 1e-5
        with pytest.raises(AssertionError):
            assert_optimal(problem, turned, lam, norm, 1e-6)
    impossible = conflict("opposite rows")
    for wrong in (-impossible.multipliers, 0 * impossible.multipliers, impossible.multipliers + 1e-3):
        with pytest.raises(AssertionError):
            assert_infeasible(impossible.problem, wrong)
    with pytest.raises(AssertionError):
        assert_infeasible(narrow(1e6).problem, narrow(1e6).multipliers)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"rank must lie in 1\.\.min"):
        planted_nuclear(3, 3, rank=4)
    with pytest.raises(ValueError, match="unit_rhs needs queries <= dz"):
        planted_nuclear(3, 3, queries=4, unit_rhs=True)
    with pytest.raises(ValueError, match="kind must be one of"):
        conflict("none")
    with pytest.raises(ValueError, match="n must be at most dz"):
        attention_rows(n=5, d=4)
