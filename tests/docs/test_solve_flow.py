"""The picture of a solve is drawn from the table of solvers and from the ladders."""

import importlib.util
from pathlib import Path

from attsvm.solvers import SOLVERS
from attsvm.solvers.ladder import LADDERS

PATH = Path(__file__).parents[2] / "docs" / "solve_flow.py"
spec = importlib.util.spec_from_file_location("solve_flow", PATH)
solve_flow = importlib.util.module_from_spec(spec)
spec.loader.exec_module(solve_flow)


def test_the_picture_is_up_to_date():
    assert solve_flow.TARGET.read_text() == solve_flow.picture(), "run python docs/solve_flow.py"


def test_the_picture_names_every_solver_and_its_module():
    drawn = solve_flow.picture()
    root = PATH.parents[1]
    for name, entry in SOLVERS.items():
        module = entry.target.split(":")[0].removeprefix("attsvm.solvers.").replace(".", "/") + ".py"
        assert f">{name}</text>" in drawn and f">{module}</text>" in drawn
        assert (root / "solvers" / module).exists()
    for *_, place in (*solve_flow.STAGES, *solve_flow.ENDINGS):
        for part in place.split(", "):
            assert (root / "solvers" / part).exists(), part


def test_the_picture_draws_every_norm_and_climbs_to_every_solver():
    drawn = solve_flow.picture()
    for case in solve_flow.CASES:
        steps = " \N{RIGHTWARDS ARROW} ".join(case.drawn())
        assert f">{steps}</text>" in drawn
    by_name = {name for name, entry in SOLVERS.items() if entry.target.startswith("attsvm.solvers.method_")}
    assert {name for case in solve_flow.CASES for name in case.ladder()} == set(SOLVERS) - by_name
    assert {case.norm for case in solve_flow.CASES} == {"frobenius", "nuclear", "other"}
    others = {family for family, ladder in LADDERS.items() if ladder is LADDERS["spectral"]}
    assert others == set(LADDERS) - {"frobenius", "nuclear"}
