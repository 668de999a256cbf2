"""Imports follow the layers of docs/module_map.py and form no cycle inside solvers/; the picture is up to date."""

import importlib.util
from pathlib import Path

import networkx as nx
import pytest

from attsvm.solvers import SOLVERS

PATH = Path(__file__).parents[1] / "docs" / "module_map.py"
spec = importlib.util.spec_from_file_location("module_map", PATH)
module_map = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module_map)


@pytest.fixture(scope="module")
def graph():
    return module_map.import_graph()


def test_every_module_has_one_place_in_the_layers(graph):
    listed = [unit for units in module_map.LAYERS.values() for unit in units]
    assert len(set(listed)) == len(listed)
    assert set(listed) == set(graph)
    assert sorted(box for row in module_map.ROWS for box in row) == sorted(module_map.BOXES)
    assert len(module_map.BOXES) <= 12  # a picture that can be held in mind


def test_no_import_goes_against_the_layers(graph):
    assert module_map.against_the_layers(graph) == []
    assert nx.is_directed_acyclic_graph(graph)


def test_imports_inside_solvers_form_no_cycle():
    """Imports inside functions count, and so do the methods that the ladder imports by name."""
    inside = module_map.module_graph("attsvm.solvers")
    methods = {entry.target.split(":")[0] for entry in SOLVERS.values()}
    assert methods <= set(inside)
    inside.add_edges_from(("attsvm.solvers.ladder", method) for method in methods)
    assert [sorted(part) for part in nx.strongly_connected_components(inside) if len(part) > 1] == []
    assert nx.has_path(inside, "attsvm.solvers.solve", "attsvm.solvers.certify.certify_pair")  # the graph is not empty


def test_a_cycle_through_a_function_is_seen(tmp_path):
    for folder in ("attsvm", "solvers/nuclear", "validation"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "solvers" / "margin_solution.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from attsvm.solvers import request\n"
        "def unique():\n    from attsvm.solvers.nuclear.newton import step\n"
    )
    (tmp_path / "solvers" / "request.py").write_text("import attsvm.solvers.margin_solution\nimport numpy\n")
    (tmp_path / "solvers" / "nuclear" / "newton.py").write_text(
        "from attsvm.solvers.margin_solution import MethodResult\n"
    )
    inside = module_map.module_graph("attsvm.solvers", tmp_path)
    solution, request, newton = (f"attsvm.solvers.{name}" for name in ("margin_solution", "request", "nuclear.newton"))
    assert set(inside.edges) == {(solution, newton), (newton, solution), (request, solution)}
    assert not nx.is_directed_acyclic_graph(inside)


def test_the_picture_is_drawn_from_these_imports(graph):
    assert module_map.PICTURE.read_text() == module_map.draw(graph), "python docs/module_map.py"


def test_an_import_in_any_form_is_seen(tmp_path):
    for folder in ("attsvm", "solvers", "validation"):
        (tmp_path / folder).mkdir()
    (tmp_path / "attsvm" / "__init__.py").write_text('_LAZY = {"train": "attsvm.training"}\n')
    (tmp_path / "attsvm" / "training.py").write_text("def f():\n    from attsvm.validation import figures\n")
    (tmp_path / "attsvm" / "selection_rows.py").write_text(
        "from typing import TYPE_CHECKING\nimport attsvm.problem\nif TYPE_CHECKING:\n    import attsvm.training\n"
    )
    (tmp_path / "attsvm" / "problem.py").write_text("from attsvm import selection_rows\n")
    (tmp_path / "validation" / "figures.py").write_text("from attsvm.solvers.dual import solve\n")
    (tmp_path / "solvers" / "dual.py").write_text("import attsvm.selection_rows\nimport numpy\n")
    found = module_map.import_graph(tmp_path)
    assert set(found.edges) == {
        ("attsvm", "training"), ("training", "validation.figures"), ("selection_rows", "problem"),
        ("problem", "selection_rows"),
        ("validation.figures", "solvers"), ("solvers", "selection_rows"),
    }  # fmt: skip
    assert module_map.against_the_layers(found) == [
        "problem imports selection_rows (attsvm.problem)",
        "solvers imports selection_rows (attsvm.solvers.dual)",
        "training imports validation.figures (attsvm.training)",
    ]
