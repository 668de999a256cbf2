"""Paths of soft margins: what single solves give, for every norm, size and kind of rows."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
import pytest

import attsvm
from attsvm.solvers import ConvergenceWarning, MarginProblem, solve
from attsvm.solvers.compiled.exchanges import Exchanged
from attsvm.solvers.deadline import within
from attsvm.solvers.penalty import PenaltyBatch
from attsvm.solvers.soft_path import solve_soft_path

CS = np.geomspace(1e-2, 1e2, 9)
# Both certificates close to 1e-7 at worst.
AGREES = 3e-7


def many_rows(seed: int, n: int = 60, T: int = 9, d: int = 12) -> tuple[attsvm.AttentionProblem, np.ndarray]:
    """More rows than pivoting takes, ragged, some labels wrong."""
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    lengths = rng.integers(3, T + 1, n)
    mask = np.arange(T) < lengths[:, None]
    logits = np.where(mask, np.einsum("ntd,de,ne->nt", X, rng.standard_normal((d, d)), Z), -np.inf)
    wrong = rng.random(n) < 0.1
    return attsvm.AttentionProblem(X, Z=Z, mask=mask), np.where(wrong, rng.integers(0, lengths), logits.argmax(axis=1))


def assert_as_alone(problem: attsvm.AttentionProblem, selection: Any, **options: Any) -> attsvm.paths.SoftPath:
    path = attsvm.soft_path(problem, CS, selection, **options)
    assert len(path) == len(CS) and np.array_equal(path.Cs, CS)
    for C, one in zip(CS, path, strict=True):
        alone = attsvm.att_svm(problem, selection, C=C, **options)
        assert one.status == alone.status == "optimal" and one.rows.margin_problem.penalty.C == C
        assert one.objective == pytest.approx(alone.objective, rel=AGREES)
        assert one.certificate.primal_value == pytest.approx(one.objective, rel=1e-12)
        assert np.allclose(one.W, one.change if one.prior is None else one.prior + one.change)
    return path


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l1.5"])
@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_small_problems(norm: str, slack: str, loss: str) -> None:
    problem = attsvm.random_problem(n=5, T=5, d=6, seed=1)
    assert_as_alone(problem, None, norm=norm, slack=slack, loss=loss)


@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_many_rows(slack: str, loss: str) -> None:
    path = assert_as_alone(*many_rows(0), slack=slack, loss=loss)
    assert {one.solver for one in path} <= {"soft_large", "primal_dual"}


def test_priors_and_offsets() -> None:
    rng = np.random.default_rng(2)
    problem = attsvm.random_problem(n=5, T=5, d=6, seed=2)
    for norm in ("frobenius", "nuclear"):
        assert_as_alone(problem, None, norm=norm, prior=rng.standard_normal((6, 6)))
        assert_as_alone(problem, None, norm=norm, offset=0.3 * rng.standard_normal((5, 5)))


def test_beyond_the_last_bound_nothing_changes_and_below_the_first_all_is_in_proportion() -> None:
    problem, selection = many_rows(3, n=60, T=9, d=30)
    path = attsvm.soft_path(problem, [1e-4, 2e-4, 1e3, 1e4], selection)
    assert path[1].iterations == path[3].iterations == 0  # carried over by their certificates
    assert np.allclose(path[1].W, 2.0 * path[0].W, rtol=1e-7) and np.allclose(path[3].W, path[2].W, rtol=1e-7)
    assert all(one.status == "optimal" for one in path)


def test_sequence_of_solutions() -> None:
    problem = attsvm.random_problem(n=4, T=4, d=5, seed=0)
    path = attsvm.soft_path(problem, [1.0, 0.1, 10.0])
    assert [one.rows.margin_problem.penalty.C for one in path.solutions[1:]] == [1.0, 10.0]
    assert path[-1] is path[2] and len(path.solutions) == 3
    with pytest.raises(IndexError):
        path[3]


@pytest.mark.parametrize("name", ["C", "rank", "warm_start"])
def test_what_it_does_not_take(name: str) -> None:
    problem = attsvm.random_problem(n=4, T=4, d=5, seed=0)
    with pytest.raises(TypeError, match=f"does not take {name}="):
        attsvm.soft_path(problem, [1.0], **{name: 1})


@pytest.mark.parametrize("Cs", [[], [0.0], [-1.0, 1.0], [np.inf], [np.nan]])
def test_bad_penalties(Cs: list[float]) -> None:
    with pytest.raises(ValueError, match="Cs must be positive finite numbers"):
        attsvm.soft_path(attsvm.random_problem(n=4, T=4, d=5, seed=0), Cs)


def test_answers_that_are_not_proved_warn() -> None:
    problem, selection = many_rows(4)
    with pytest.warns(ConvergenceWarning):
        path = attsvm.soft_path(problem, [0.1, 10.0], selection, max_iterations=1)
    assert all(one.status == "inaccurate" for one in path)


def test_a_path_in_the_words_of_rows() -> None:
    rng = np.random.default_rng(7)
    rows = MarginProblem(rng.standard_normal((30, 4)), rng.standard_normal((6, 4)), np.repeat(np.arange(6), 5))
    C = np.array([0.01, 0.1, 1.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solve_soft_path(rows, PenaltyBatch(C))
    for i, one in enumerate(C):
        alone = solve(rows.soft(float(one)))
        assert found[i].certificate.primal_value == pytest.approx(alone.certificate.primal_value, rel=AGREES)


def test_penalties_that_exchanges_leave_open_are_solved_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, selection = many_rows(5)
    whole = attsvm.soft_path(problem, CS, selection)
    exchange = importlib.import_module("attsvm.solvers.soft_path").exchange_rows

    def first_ones(*given: Any) -> Exchanged:
        return Exchanged(*(part[:4] for part in exchange(*given)))

    monkeypatch.setattr("attsvm.solvers.soft_path.exchange_rows", first_ones)
    part = attsvm.soft_path(problem, CS, selection)
    for one, other in zip(whole, part, strict=True):
        assert other.status == "optimal" and other.objective == pytest.approx(one.objective, rel=AGREES)


def test_a_time_limit_is_that_of_all_penalties() -> None:
    problem, selection = many_rows(6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        path = within(1e-9, attsvm.soft_path, problem, CS, selection)
    assert [one.status for one in path][1:] == ["failed"] * (len(CS) - 1)  # nothing is begun after the deadline


def test_rows_that_are_missed_by_rounding_alone_do_not_join_for_ever() -> None:
    """W = 0 up to rounding: every look found rows that are missed by 1e-16, and the working set grew to all rows."""
    problem = attsvm.random_problem(n=200, T=40, d=16, seed=0)
    found = attsvm.att_svm(problem, C=0.01)
    assert found.status == "optimal" and found.result.extras.working_rows < 200 * 39


@pytest.mark.parametrize("norm", ["nuclear", "spectral"])
def test_few_solves_prove_a_path_in_other_norms(norm: str) -> None:
    """W = 0 below some C, and one W above the largest multiplier: only what is between needs solves of its own."""
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=4)
    path = attsvm.soft_path(problem, np.geomspace(1e-3, 1e3, 20), norm=norm)
    solved = sum(one.iterations > 0 for one in path)
    assert 2 <= solved <= 8 and all(one.status == "optimal" for one in path)
    assert path[0].norm == 0.0 and path[-2].norm == pytest.approx(path[-1].norm, rel=1e-6)


def test_a_path_of_large_faces_costs_few_solves() -> None:
    """Small C follow from the first solution, large ones from the last; those between begin near their solutions."""
    rng = np.random.default_rng(0)
    X, Z = rng.standard_normal((100, 12, 40)), rng.standard_normal((100, 40))
    X, Z = X / np.linalg.norm(X, axis=-1, keepdims=True), Z / np.linalg.norm(Z, axis=-1, keepdims=True)
    problem, selection = attsvm.AttentionProblem(X, Z=Z), rng.integers(0, 12, 100)
    Cs = np.geomspace(1e-2, 1e2, 20)
    path = attsvm.soft_path(problem, Cs, selection)
    assert all(one.status == "optimal" and one.result.tolerance == 1e-8 for one in path)
    first = [one.iterations for one in path[:8]]
    assert first[0] > 0 and first[1:] == [0] * 7  # one solution, sharp enough for its multiples
    alone = np.median([attsvm.att_svm(problem, selection, C=C).iterations for C in Cs])
    assert sum(one.iterations for one in path) < 6 * alone


@pytest.mark.parametrize("solver", ["cvxpy", "cvxpy:SCS", "cvxpy:OSQP", "primal_dual", "soft_large"])
def test_a_named_solver_has_its_own_tolerance_at_every_penalty(solver: str) -> None:
    problem = attsvm.random_problem(n=5, T=5, d=6, seed=1)
    path = attsvm.soft_path(problem, [0.05, 0.5, 5.0], solver=solver)
    alone = attsvm.att_svm(problem, C=0.05, solver=solver)
    assert [one.status for one in path] == ["optimal"] * 3
    assert {one.result.tolerance for one in path} == {alone.result.tolerance}


def test_what_is_expected_and_not_proved_is_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = attsvm.random_problem(n=5, T=5, d=6, seed=5)
    whole = attsvm.soft_path(problem, CS, norm="nuclear")
    assert any(one.iterations == 0 for one in whole)
    module = importlib.import_module("attsvm.solvers.soft_path")
    certify = module.certify

    def of_another_matrix(problem: Any, W: Any, multipliers: Any, norm: Any) -> Any:
        return certify(problem, W + 1.0, multipliers, norm)

    monkeypatch.setattr(module, "certify", of_another_matrix)
    part = attsvm.soft_path(problem, CS, norm="nuclear")
    for one, other in zip(whole, part, strict=True):
        assert other.status == "optimal" and other.iterations > 0
        assert other.objective == pytest.approx(one.objective, rel=AGREES)
