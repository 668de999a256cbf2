"""A solver is one function and one line, a norm is one class: the code of the page that says so, used in earnest."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

from attsvm.solvers import NORMS, SOLVERS, MarginProblem, Status, certify, get_norm, ladder, solve
from kkt import assert_infeasible, assert_optimal, random_rows
from margin_problems import conflict
from planted_optima import planted_frobenius

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def code_of(section: str, block: int = 0) -> str:
    text = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    (body,) = [part for part in text if part.startswith(f"{section}\n")]
    return re.findall(r"```python\n(.*?)```", body, re.DOTALL)[block]


@pytest.fixture
def run_page(monkeypatch, capsys, registries):
    """Runs the code of a section as a module of its own; what it registers is gone afterwards."""

    def run(section: str) -> types.ModuleType:
        module = types.ModuleType("page_of_extensions")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(code_of(section).replace('"__main__:', f'"{module.__name__}:'), vars(module))
        assert "optimal" in capsys.readouterr().out
        return module

    return run


def test_a_new_solver_is_certified_like_any_other(run_page, rng):
    run_page("A solver")
    for entry in (planted_frobenius(), planted_frobenius(equalities=3), planted_frobenius(5, 4, unit_rhs=True)):
        found = solve(entry.problem, solver="hildreth")
        assert found.status is Status.OPTIMAL
        assert_optimal(entry.problem, found.W, found.multipliers, "frobenius", 1e-7)
        assert found.norm == pytest.approx(entry.value, rel=1e-8)
    problems = [random_rows(rng, 3, 3, 5) for _ in range(3)]
    batch = solve(MarginProblem.stack(problems), solver="hildreth")  # one by one, as it says nothing about batches
    assert batch.solver == batch[1].solver == "hildreth"
    np.testing.assert_allclose(batch.norm, [solve(problem).norm for problem in problems], rtol=1e-8)


def test_a_module_of_a_method_is_a_solver(run_page, rng, monkeypatch, tmp_path):
    run_page("A solver")
    function = code_of("A solver").split("SOLVERS[")[0]
    (tmp_path / "method_coordinates.py").write_text(
        function.replace("solve_hildreth", "solve_coordinates") + code_of("A solver", 1)
    )
    monkeypatch.setattr("attsvm.solvers.__path__", [str(tmp_path)])
    (spec,) = ladder._by_name()
    SOLVERS[spec.name] = spec
    found = solve(random_rows(rng, 3, 3, 5), solver="coordinates")
    assert (found.status, found.solver, spec.summary) == (Status.OPTIMAL, "coordinates", SOLVERS["hildreth"].summary)
    assert sys.modules.pop(spec.target.split(":")[0]).ENTRY["norms"] == spec.norms


def test_the_pipeline_keeps_a_new_solver_honest(run_page, rng):
    run_page("A solver")
    problem = random_rows(rng, 4, 4, 6)
    stopped = solve(problem, solver="hildreth", max_iterations=2)
    assert stopped.status is Status.INACCURATE
    assert stopped.iterations == 2
    assert stopped.certificate.proved > stopped.tolerance
    assert stopped.certificate.lower_bound <= solve(problem).norm  # what was proved stays true
    blind = conflict("zero query").problem  # settled before any method runs
    proof = solve(blind, solver="hildreth").certificate.farkas
    assert_infeasible(blind, proof.multipliers)
    with pytest.raises(TypeError, match="solver 'hildreth' takes no option 'speed'"):
        solve(problem, solver="hildreth", speed=2)
    with pytest.raises(ValueError, match="solver 'hildreth' does not support norm 'nuclear'"):
        solve(problem, "nuclear", "hildreth")
    assert solve(problem).solver == "active_set"  # "auto" still takes the first that can


def test_a_new_norm_is_solved_and_certified(run_page, rng):
    run_page("A norm")
    norm = get_norm("weighted")
    weights = np.array(norm.weights)[:, None]
    problem = random_rows(rng, 4, 4, 6)
    found = solve(problem, "weighted")
    assert found.status is Status.OPTIMAL
    # The same problem in the coordinates V = diag(w) W is a Frobenius problem.
    rows = problem.rows
    plain = solve(MarginProblem(rows.a / weights.T, rows.queries, rows.owner))
    assert found.norm == pytest.approx(plain.norm, rel=1e-7)
    np.testing.assert_allclose(weights * found.W, plain.W, atol=1e-3 * plain.norm)  # the root of the reference's gap
    assert norm(found.W) == pytest.approx(np.linalg.norm(weights * found.W), rel=1e-14)
    D = rng.standard_normal((6, 6))
    assert norm.dual(D) == pytest.approx(np.linalg.norm(D / weights), rel=1e-14)
    assert certify(problem, 2 * found.W, found.multipliers, "weighted").gap == pytest.approx(0.5, rel=1e-6)
    batch = solve(MarginProblem.stack([problem, problem]), "weighted")
    np.testing.assert_allclose(batch.norm, found.norm, rtol=1e-7)
    blind = conflict("opposite rows", dx=6).problem
    assert_infeasible(blind, solve(blind, "weighted").certificate.farkas.multipliers)


def test_nothing_is_left_behind():
    assert "hildreth" not in SOLVERS
    assert "weighted" not in NORMS
    with pytest.raises(ValueError, match="norm must be 'frobenius'"):
        get_norm("weighted")
