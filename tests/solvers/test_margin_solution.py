"""Solutions: a batch and its problems say the same, and what has no W says why."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import fields, is_dataclass

import numpy as np
import pytest

import attsvm.solvers
from attsvm.solvers import (
    Certificate,
    InfeasibleError,
    MarginProblem,
    MarginSolution,
    NoSolutionError,
    Status,
    certify_infeasible,
    solve,
)
from kkt import assert_infeasible, seeded_rows
from margin_problems import conflict

FIELDS = [f.name for f in fields(MarginSolution) if not f.name.startswith("_")]


def mixed(rng) -> list[MarginProblem]:
    """Feasible and infeasible problems of W (4, 3) with different numbers of rows, one with equalities."""
    feasible = [
        MarginProblem(
            rng.standard_normal((m, 4)), rng.standard_normal((3, 3)), np.arange(m) % 3, None, np.arange(m) < e
        )
        for m, e in ((2, 0), (5, 2), (4, 0))
    ]
    return [*feasible, conflict("opposite rows").problem, conflict("zero query").problem]


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
def test_a_stack_of_solutions_gives_them_back(rng, norm):
    problems = mixed(rng)
    alone = [solve(problem, norm) for problem in problems]
    batch = MarginSolution.stack(alone, MarginProblem.stack(problems))
    assert batch.status.tolist() == [s.status for s in alone] == ["optimal"] * 3 + ["infeasible"] * 2
    assert batch.seconds == pytest.approx(sum(s.seconds for s in alone))
    assert batch.W.shape == (5, 4, 3) and batch.multipliers.shape == (5, 5)
    for i, single in enumerate(alone):
        one = batch[i]
        for name in ("norm_kind", "status", "solver", "iterations", "tolerance", "extras"):
            assert getattr(one, name) == getattr(single, name), name
        np.testing.assert_array_equal(one.multipliers, single.multipliers)
        assert one.problem.m == single.problem.m
        for part in fields(Certificate):
            value, expected = getattr(one.certificate, part.name), getattr(single.certificate, part.name)
            if part.name == "rank_certificate":
                assert (value is None) == (expected is None)
                if value is not None:
                    assert (value.rank, value.resolution) == (expected.rank, expected.resolution)
            elif part.name == "farkas":
                assert (value is None) == (expected is None)
                if value is not None:
                    np.testing.assert_array_equal(value.multipliers, expected.multipliers)
                    assert value.rows.tolist() == expected.rows.tolist()
                    assert value.owners.tolist() == expected.owners.tolist()
            elif part.name == "_source":  # the batch knows itself, one problem itself
                assert value is None or value.problem.m == one.problem.m
            else:
                assert value == expected, part.name
        if single.status.has_solution:
            np.testing.assert_array_equal(one.W, single.W)
            assert not batch.multipliers[i][~batch.problem.valid[i]].any()
        else:
            assert np.isnan(batch.W[i]).all() and np.isnan(batch.multipliers[i]).all()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_status_and_numbers_of_a_batch_are_arrays(rng, norm):
    problems = mixed(rng)
    batch = solve(MarginProblem.stack(problems), norm)
    feasible = batch.status == "optimal"
    assert feasible.dtype == bool and feasible.tolist() == [True] * 3 + [False] * 2
    assert (batch.status == Status.INFEASIBLE).tolist() == (~feasible).tolist()
    assert np.isinf(batch.norm[~feasible]).all() and np.isfinite(batch.norm[feasible]).all()
    assert np.isinf(batch.certificate.lower_bound[~feasible]).all()  # no W of any norm
    for i in np.flatnonzero(~feasible):
        proof = batch[i].certificate.farkas
        assert_infeasible(problems[i], proof.multipliers)
        assert certify_infeasible(problems[i], proof.multipliers) is not None
        assert len(proof.multipliers) == problems[i].m
    if norm == "nuclear":
        assert (batch.certificate.rank[~feasible] == -1).all()
        assert all(batch[i].certificate.rank is None for i in np.flatnonzero(~feasible))
    np.testing.assert_array_equal(batch[-1].certificate.farkas.rows, batch[4].certificate.farkas.rows)


def test_reading_w_says_why_there_is_none(rng):
    infeasible = solve(conflict("zero query").problem)
    with pytest.raises(InfeasibleError, match=r"no W satisfies all rows; queries \[3\] conflict"):
        _ = infeasible.W
    signs = MarginProblem([[1.0, 0.0], [0.0, -1.0], [1.0, 0.0], [0.0, 1.0]], np.eye(2), [0, 0, 1, 1])
    failed = solve(signs, "nuclear", rank=1, starts=1)
    assert failed.status is Status.FAILED
    with pytest.raises(
        NoSolutionError, match=r"there is no W to read: status is failed\. The solver returned neither"
    ) as caught:
        _ = failed.W
    assert not isinstance(caught.value, InfeasibleError)  # nothing was proved
    assert isinstance(caught.value, ValueError)
    assert failed.certificate.lower_bound == 0.0  # a failure proves nothing
    assert failed.certificate.farkas is None
    assert failed.norm == np.inf


def test_one_solution_is_no_batch():
    one = solve(seeded_rows(2, 2, 3))
    for call in (lambda: one[0], lambda: len(one)):
        with pytest.raises(TypeError, match="one margin problem"):
            call()
    batch = solve(MarginProblem.stack([seeded_rows(2, 2, 3)] * 2))
    with pytest.raises(IndexError, match="problem 2 is out of range for a batch of 2"):
        batch[2]
    assert set(FIELDS) <= set(dir(batch))


def test_rank_limits_survive_in_batches():
    problems = [seeded_rows(4, 4, 6, seed) for seed in range(2)]
    together = solve(MarginProblem.stack(problems), "nuclear", rank=1, starts=2)
    for i, problem in enumerate(problems):
        one, alone = together[i], solve(problem, "nuclear", rank=1, starts=2)
        assert one.status is alone.status is Status.LOCAL
        assert one.norm == pytest.approx(alone.norm, rel=1e-10)
        assert one.extras.rank_limit.convex_bound == pytest.approx(alone.extras.rank_limit.convex_bound, rel=1e-10)
        assert one.extras.rank_limit.message.startswith("a KKT point")


def test_uniqueness_is_a_question_about_one_nuclear_solution():
    with pytest.raises(
        ValueError, match="uniqueness is worked out for one nuclear-norm solution, got norm 'frobenius'"
    ):
        _ = solve(seeded_rows(2, 2, 3)).uniqueness
    with pytest.raises(ValueError, match="uniqueness is worked out for one nuclear-norm solution"):
        _ = solve(MarginProblem.stack([seeded_rows(2, 2, 3)] * 2), "nuclear").uniqueness
    with pytest.raises(InfeasibleError):
        _ = solve(conflict("zero query").problem, "nuclear").uniqueness


def test_records_cannot_be_changed() -> None:
    """Certificates, solutions and requests are handed on without copies: nobody may write to them."""
    seen, loose = set(), set()
    for found in pkgutil.walk_packages(attsvm.solvers.__path__, "attsvm.solvers."):
        if found.name.endswith("._kernels"):  # a library in C, no module
            continue
        module = importlib.import_module(found.name)
        for value in vars(module).values():
            own = isinstance(value, type) and value.__module__ == found.name and not value.__name__.startswith("_")
            if own and is_dataclass(value):
                frozen = value.__dataclass_params__.frozen  # type: ignore[attr-defined]
                (seen if frozen else loose).add(value.__name__)
    assert {"Certificate", "FarkasCertificate", "MarginSolution", "Request", "UniquenessCertificate"} <= seen
    assert loose == {"InteriorPoint"}  # the state of an iteration
