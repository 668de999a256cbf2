"""Ladders: which methods are tried on which problem, in which order, and refusals that name what would do."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from attsvm.solvers import NORMS, SOLVERS, MarginProblem, SolverSpec, get_norm, solve
from attsvm.solvers import ladder as ladder_module
from attsvm.solvers.compiled.batched_pivoting import MOST_ROWS
from attsvm.solvers.ladder import BATCH_ROWS, GRAM_ROWS, GROWING_ORDER, NUCLEAR_ORDER, rungs
from attsvm.solvers.margin_solution import MethodResult
from kkt import seeded_rows, sphere_rows


def rows_of_size(m: int, batch: int | None = None, d: int = 2) -> MarginProblem:
    """A problem that is only looked at."""
    lead = () if batch is None else (batch,)
    return MarginProblem(np.ones((*lead, m, d)), np.ones((*lead, 1, d)), np.zeros(m, dtype=int))


BY_NAME = {name for name, spec in SOLVERS.items() if spec.target.startswith("attsvm.solvers.method_")}
OTHERS = ("spectral", "l1", "linf", "l1.5", "l3")
# What is asked for, and the rungs of "auto": both sides of every limit.
LADDERS = [
    ("active_set working_set", {"m": 42}),
    ("active_set working_set", {"m": GRAM_ROWS}),
    ("working_set", {"m": GRAM_ROWS + 1, "d": 20}),
    ("working_set", {"m": 1599, "d": 20}),
    ("entries working_set", {"m": 1600, "d": 20}),
    ("working_set", {"m": 17000, "d": 65}),
    ("active_set working_set", {"m": 42, "batch": 5}),
    ("working_set", {"m": GRAM_ROWS + 1, "batch": 2, "d": 20}),
    ("primal_dual soft_large cvxpy", {"m": 42, "C": 1.0}),
    ("primal_dual soft_large cvxpy", {"m": 42, "batch": 5, "C": 1.0}),
    ("active_set primal_dual soft_large cvxpy", {"m": 42, "C": 1.0, "d": 10}),
    ("active_set primal_dual soft_large cvxpy", {"m": 42, "batch": 5, "C": 1.0, "d": 10}),
    ("active_set soft_large primal_dual cvxpy", {"m": MOST_ROWS, "C": 1.0, "d": 16}),
    ("soft_large primal_dual cvxpy", {"m": MOST_ROWS + 1, "C": 1.0, "d": 17}),
    ("soft_large primal_dual", {"m": GRAM_ROWS, "C": 1.0, "d": 38}),
    ("soft_large", {"m": GRAM_ROWS + 1, "C": 1.0, "d": 40}),
    ("interior nuclear_batch", {"m": BATCH_ROWS, "norm": "nuclear"}),
    ("interior", {"m": BATCH_ROWS + 1, "norm": "nuclear"}),
    ("interior", {"m": NUCLEAR_ORDER, "norm": "nuclear", "d": 19}),
    ("factored reweighted", {"m": NUCLEAR_ORDER + 1, "norm": "nuclear", "d": 19}),
    ("factored reweighted", {"m": 800, "norm": "nuclear", "d": 20}),
    ("interior factored reweighted", {"m": 801, "norm": "nuclear", "d": 20}),
    ("interior factored reweighted", {"m": 3000, "norm": "nuclear", "d": 20}),
    ("factored reweighted", {"m": 3001, "norm": "nuclear", "d": 20}),
    ("interior factored reweighted", {"m": 3000, "norm": "nuclear", "batch": 2, "d": 4}),
    ("nuclear_batch", {"m": BATCH_ROWS, "batch": 5, "norm": "nuclear"}),
    ("interior", {"m": BATCH_ROWS + 1, "batch": 5, "norm": "nuclear"}),
    ("rank_limited", {"m": 42, "norm": "nuclear", "rank": 2}),
    ("rank_limited", {"m": 42, "batch": 5, "norm": "nuclear", "rank": 2}),
    ("primal_dual growing_rows reweighted cvxpy", {"m": NUCLEAR_ORDER, "norm": "nuclear", "C": 1.0, "d": 20}),
    ("growing_rows reweighted cvxpy", {"m": NUCLEAR_ORDER + 1, "norm": "nuclear", "C": 1.0, "d": 20}),
    ("primal_dual growing_rows reweighted cvxpy", {"m": 801, "norm": "nuclear", "C": 1.0, "d": 20}),
    ("primal_dual growing_rows reweighted", {"m": 6000, "norm": "nuclear", "C": 1.0, "d": 20}),
    ("growing_rows reweighted", {"m": 3000, "norm": "nuclear", "C": 1.0, "d": 27}),
    *(("primal_dual cvxpy", {"m": 4, "norm": norm}) for norm in OTHERS),
    *(("primal_dual cvxpy", {"m": 4, "norm": norm, "C": 1.0}) for norm in OTHERS),
    *(("primal_dual cvxpy", {"m": 4000, "batch": 2, "norm": norm}) for norm in OTHERS),
    *(("primal_dual cvxpy", {"m": GROWING_ORDER, "norm": norm, "d": 64}) for norm in OTHERS),
    *(("growing_rows primal_dual cvxpy", {"m": GROWING_ORDER + 1, "norm": norm, "d": 64}) for norm in OTHERS),
    *(("primal_dual cvxpy", {"m": 577, "norm": norm, "d": 24}) for norm in OTHERS),
    *(("growing_rows primal_dual cvxpy", {"m": 500, "norm": norm, "d": 24, "C": 1.0}) for norm in OTHERS),
    *(("growing_rows", {"m": 4000, "norm": norm, "d": 64}) for norm in OTHERS),
]


@pytest.mark.parametrize(("names", "asked"), LADDERS)
def test_one_ladder_per_norm(names, asked):
    problem = rows_of_size(asked["m"], asked.get("batch"), asked.get("d", 2)).soft(asked.get("C"))
    norm = get_norm(asked.get("norm", "frobenius"))
    specs, variant = rungs(problem, norm, "auto", asked.get("rank"))
    assert (" ".join(spec.name for spec in specs), variant) == (names, "")
    assert all(spec is SOLVERS[spec.name] for spec in specs)
    assert all(spec.can(norm, asked.get("rank"), problem) for spec in specs)


def test_every_entry_is_on_a_ladder_or_used_by_name_and_described():
    assert {name for names, _ in LADDERS for name in names.split()} == set(SOLVERS) - BY_NAME
    families = {norm.family for norm in NORMS.values()} | {"l1", "lp"}
    for name, spec in SOLVERS.items():
        assert spec.name == name
        assert callable(spec.load())
        assert spec.load().__doc__
        assert 0 < spec.achievable < 1e-6
        assert spec.summary
        assert spec.norms is None or spec.norms <= families
        assert spec.soft_norms is None or spec.soft_norms <= families
        assert spec.norms is None or spec.norms | (spec.soft_norms or set())
        # By its own name it comes first whatever the size.
        for able, C in ((spec.norms, None), (spec.soft_norms, 1.0)):
            for family in sorted({"l1"} if able is None else able):
                norm = get_norm(family.replace("lp", "l3"))
                for m in (3, 50_000):
                    found = rungs(rows_of_size(m).soft(C), norm, name, 2 if spec.ranks else None)[0]
                    assert found[0] is spec


def test_no_method_imports_another_to_finish_its_work():
    """Fallbacks stand in the ladder alone: what a method imports of others, it uses as a part."""
    home = Path(ladder_module.__file__).parent
    entries = {target.split(":")[1] for spec in SOLVERS.values() for target in (spec.target, spec.batched) if target}
    uses = {
        (path.stem, name)
        for path in home.rglob("*.py")
        for name in re.findall(r"\b(solve_\w+)\b", "\n".join(re.findall(r"import (.*)", path.read_text())))
        if name in entries
    }
    assert uses == {
        ("interior", "solve_active_sets"), ("primal_dual", "solve_active_set"),  # where the method starts
            ("primal_dual", "solve_active_sets"),
        ("growing_rows", "solve_interior"), ("growing_rows", "solve_primal_dual"),
        ("rank_limited", "solve_factored"), ("rank_limited", "solve_interior"), ("rank_limited", "solve_reweighted"),
    }  # fmt: skip


def test_what_one_rung_leaves_open_goes_to_the_next(monkeypatch):
    seen = []

    def idle(unit, norm, request):
        seen.append(request.max_iterations)
        return MethodResult(iterations=3)

    mine = SolverSpec("mine", "nowhere:nothing", frozenset({"frobenius"}), 1e-9, "for this test")
    monkeypatch.setitem(SOLVERS, "mine", mine)
    monkeypatch.setattr(SolverSpec, "load", lambda spec, real=SolverSpec.load: idle if spec is mine else real(spec))
    problem = seeded_rows(3, 3, 4)
    found = solve(problem, solver="mine")
    assert (found.status, found.solver, seen) == ("optimal", "active_set", [None])
    assert found.iterations >= 4  # the steps of both
    assert solve(problem, solver="mine", max_iterations=5).status == "failed"  # a budget is the first rung's
    assert seen == [None, 5]


def test_batches_need_no_torch():
    code = "import sys; sys.modules['torch'] = None; from kkt import sphere_rows; from attsvm.solvers import *; "
    code += "b = solve(MarginProblem(*sphere_rows(3, 3, 3, 4, seed=0)), 'nuclear'); print(b.solver, *b.status)"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[1], capture_output=True, text=True)
    assert done.stdout.split() == ["nuclear_batch", *3 * ["optimal"]], done.stderr


FOR_NUCLEAR = "use one of ['cvxpy', 'factored', 'growing_rows', 'interior', 'nuclear_batch', 'reweighted']"


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
            "solver 'active_set' does not support norm 'l1'; use one of ['cvxpy', 'growing_rows', 'primal_dual']",
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
        ({"rank": 2}, "rank=2 limits the nuclear-norm problem; use norm='nuclear', got norm='frobenius'"),
        ({"rank": 2, "norm": "l1"}, "rank=2 limits the nuclear-norm problem; use norm='nuclear', got norm='l1'"),
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
    message = "solver 'factored' takes no option 'starts'; it takes tolerance, max_iterations, warm_start, columns"
    with pytest.raises(TypeError, match=re.escape(message)):
        solve(seeded_rows(2, 2, 3), "nuclear", "factored", starts=3)
    with pytest.raises(TypeError, match="problem must be a MarginProblem, got ndarray"):
        solve(np.ones((2, 2)))
    for bad in ("yes", object(), [["a"]]):
        message = f"warm_start must be a MarginSolution or multipliers, got {type(bad).__name__}"
        with pytest.raises(TypeError, match=message):
            solve(seeded_rows(2, 2, 3), warm_start=bad)
