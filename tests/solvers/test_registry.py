"""The table of solvers: "auto" is a look-up in it, every entry is reachable, and refusals name what would do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attsvm.solvers import NORMS, SOLVERS, MarginProblem, SolverSpec, get_norm, solve
from attsvm.solvers import registry as registry_module
from attsvm.solvers.registry import choose
from kkt import seeded_rows, sphere_rows


def rows_of_size(m: int, batch: int | None = None, d: int = 2) -> MarginProblem:
    """A problem that is only looked at."""
    lead = () if batch is None else (batch,)
    return MarginProblem(np.ones((*lead, m, d)), np.ones((*lead, 1, d)), np.zeros(m, dtype=int))


# What is asked for, and the entry that "auto" finds: each solver at least once, and both sides of every size limit.
LOOKUPS = [
    ("active_set", {"m": 42}),
    ("active_set", {"m": int(SOLVERS["active_set"].most_rows)}),
    ("working_set", {"m": int(SOLVERS["active_set"].most_rows) + 1, "d": 20}),
    ("working_set", {"m": 1599, "d": 20}),
    ("few_entries", {"m": 1600, "d": 20}),
    ("few_entries", {"m": int(SOLVERS["active_set"].most_rows) + 1}),
    ("active_set", {"m": 42, "batch": 5}),
    ("working_set", {"m": int(SOLVERS["active_set"].most_rows) + 1, "batch": 2, "d": 20}),
    ("interior", {"m": 42, "norm": "nuclear"}),
    ("interior", {"m": int(SOLVERS["interior"].most_rows), "norm": "nuclear"}),
    ("factored", {"m": int(SOLVERS["interior"].most_rows) + 1, "norm": "nuclear"}),
    ("lockstep", {"m": 42, "batch": 5, "norm": "nuclear"}),
    ("lockstep", {"m": int(SOLVERS["lockstep"].most_rows), "batch": 5, "norm": "nuclear"}),
    ("interior", {"m": int(SOLVERS["lockstep"].most_rows) + 1, "batch": 5, "norm": "nuclear"}),
    ("lockstep", {"m": 5000, "norm": "nuclear", "device": "cpu"}),
    ("lockstep", {"m": 5000, "batch": 2, "norm": "nuclear", "device": "cpu"}),
    ("rank_limited", {"m": 42, "norm": "nuclear", "rank": 2}),
    ("rank_limited", {"m": 42, "batch": 5, "norm": "nuclear", "rank": 2}),
    ("working_set", {"m": 42, "C": 1.0}),
    ("working_set", {"m": 42, "batch": 5, "C": 1.0}),
    ("reweighted", {"m": 42, "norm": "nuclear", "C": 1.0}),
    ("cvxpy", {"m": 42, "norm": "spectral", "C": 1.0}),
    *(("primal_dual", {"m": 4, "norm": norm}) for norm in ("spectral", "l1", "linf", "l1.5", "l3")),
    *(("primal_dual", {"m": 1500, "batch": 2, "norm": norm}) for norm in ("spectral", "l1", "linf", "l3")),
    *(("cvxpy", {"m": 4000, "batch": 2, "norm": norm}) for norm in ("spectral", "l1", "linf", "l3")),
]


@pytest.mark.parametrize(("name", "asked"), LOOKUPS)
def test_auto_is_a_lookup(name, asked):
    problem = rows_of_size(asked["m"], asked.get("batch"), asked.get("d", 2)).soft(asked.get("C"))
    norm = get_norm(asked.get("norm", "frobenius"))
    spec, variant = choose(problem, norm, "auto", asked.get("rank"), asked.get("device"))
    assert (spec.name, variant) == (name, "")
    assert spec is SOLVERS[name]


def test_every_entry_is_reachable_and_described():
    assert {name for name, _ in LOOKUPS} == set(SOLVERS)
    for name, spec in SOLVERS.items():
        assert spec.name == name
        assert callable(spec.load())
        assert spec.load().__doc__
        assert 0 < spec.achievable < 1e-6
        assert spec.summary
        assert spec.norms is None or spec.norms <= {norm.family for norm in NORMS.values()} | {"l1", "lp"}
        # By its own name it is found whatever the size.
        norm = get_norm(min(spec.norms or {"l1"}).replace("lp", "l3"))
        for m in (3, 50_000):
            assert choose(rows_of_size(m), norm, name, 2 if spec.ranks else None)[0] is spec


def test_the_first_entry_that_can_is_taken(monkeypatch):
    mine = SolverSpec("mine", "nowhere:nothing", frozenset({"linf"}), 1e-9, "for this test", most_rows=10)
    monkeypatch.setattr(registry_module, "SOLVERS", {"mine": mine, **SOLVERS})
    assert choose(rows_of_size(10), get_norm("linf"))[0] is mine
    assert choose(rows_of_size(11), get_norm("linf"))[0].name == "primal_dual"
    assert choose(rows_of_size(10), get_norm("frobenius"))[0].name == "active_set"


def test_batches_need_no_torch():
    code = "import sys; sys.modules['torch'] = None; from kkt import sphere_rows; from attsvm.solvers import *; "
    code += "b = solve(MarginProblem(*sphere_rows(3, 3, 3, 4, seed=0)), 'nuclear'); print(b.solver, *b.status)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.stdout.split() == ["lockstep", *3 * ["optimal"]], done.stderr


FOR_NUCLEAR = "use one of ['cvxpy', 'factored', 'interior', 'lockstep', 'reweighted']"


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (
            {"solver": "magic"},
            f"solver must be 'auto' or one of {sorted(SOLVERS)} ('cvxpy:NAME' picks a solver), got 'magic'",
        ),
        ({"solver": "interior:FAST", "norm": "nuclear"}, "solver must be 'auto' or one of"),
        ({"solver": "nuclear_conic", "norm": "nuclear"}, "got 'nuclear_conic'"),
        ({"solver": ""}, "solver must be 'auto' or one of"),
        (
            {"solver": "active_set", "norm": "l1"},
            "solver 'active_set' does not support norm 'l1'; use one of ['cvxpy', 'primal_dual']",
        ),
        (
            {"solver": "working_set", "norm": "nuclear"},
            "solver 'working_set' does not support norm 'nuclear'; " + FOR_NUCLEAR,
        ),
        (
            {"solver": "factored", "norm": "nuclear", "rank": 1},
            "solver 'factored' does not support norm 'nuclear' with rank=1; use one of ['rank_limited']",
        ),
        (
            {"solver": "rank_limited", "norm": "nuclear"},
            "solver 'rank_limited' does not support norm 'nuclear'; " + FOR_NUCLEAR,
        ),
        (
            {"solver": "factored", "norm": "nuclear", "device": "cpu"},
            "solver 'factored' does not support norm 'nuclear' on a device; use one of ['lockstep']",
        ),
        ({"device": "cpu"}, "device='cpu' runs the norms ['nuclear'] only, got norm 'frobenius'"),
        ({"rank": 2}, "rank=2 limits the nuclear-norm problem; use norm='nuclear', got norm='frobenius'"),
        ({"rank": 2, "norm": "l1"}, "rank=2 limits the nuclear-norm problem; use norm='nuclear', got norm='l1'"),
        (
            {"rank": 2, "norm": "nuclear", "device": "cpu"},
            "rank=2 and device='cpu' do not go together: no solver takes both",
        ),
    ],
)
def test_refusals_name_what_would_do(asked, message):
    for problem in (seeded_rows(2, 2, 3), MarginProblem(*sphere_rows(2, 2, 3, 3, seed=0))):
        with pytest.raises(ValueError, match=re.escape(message)):
            solve(problem, **asked)


def test_the_name_in_a_result_is_the_name_that_is_asked_for():
    for norm in ("frobenius", "nuclear", "l1"):
        for problem in (seeded_rows(3, 3, 4), MarginProblem(*sphere_rows(2, 3, 3, 4, seed=0))):
            first = solve(problem, norm)
            again = solve(problem, norm, first.solver)
            assert again.solver == first.solver
            np.testing.assert_array_equal(again.W, first.W)
    scs = solve(seeded_rows(3, 3, 4), "l1", "cvxpy:scs")
    assert scs.solver == "cvxpy:SCS"
    assert solve(seeded_rows(3, 3, 4), "l1", scs.solver).solver == "cvxpy:SCS"
    many = solve(MarginProblem(*sphere_rows(2, 3, 3, 4, seed=0)), "l1", "cvxpy:SCS")
    assert many.solver == many[1].solver == "cvxpy:SCS"
    limited = solve(seeded_rows(3, 3, 4), "nuclear", rank=1)
    assert solve(seeded_rows(3, 3, 4), "nuclear", limited.solver, rank=1).solver == limited.solver == "rank_limited"


def test_unknown_options_are_named():
    message = "solver 'factored' takes no option 'starts'; it takes ['columns', 'seed']"
    with pytest.raises(TypeError, match=re.escape(message)):
        solve(seeded_rows(2, 2, 3), "nuclear", "factored", starts=3)
    with pytest.raises(TypeError, match="problem must be a MarginProblem, got ndarray"):
        solve(np.ones((2, 2)))
    for bad in ("yes", object(), [["a"]]):
        message = f"warm_start must be a MarginSolution or multipliers, got {type(bad).__name__}"
        with pytest.raises(TypeError, match=message):
            solve(seeded_rows(2, 2, 3), warm_start=bad)
