"""Imports follow the layers of docs/module_map.py, and its picture is up to date."""

import importlib.util
from pathlib import Path

import networkx as nx
import pytest

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
    assert {unit for _, units in module_map.DATA for unit in units} <= set(listed)


def test_no_import_goes_against_the_layers(graph):
    assert module_map.against_the_layers(graph) == []
    assert nx.is_directed_acyclic_graph(graph)


def test_the_picture_is_drawn_from_these_imports(graph):
    assert module_map.PICTURE.read_text() == module_map.draw(graph), "python docs/module_map.py"


def test_an_import_in_any_form_is_seen(tmp_path):
    for folder in ("attsvm", "solvers", "validation"):
        (tmp_path / folder).mkdir()
    (tmp_path / "attsvm" / "__init__.py").write_text('_LAZY = {"train": "attsvm.training"}\n')
    (tmp_path / "attsvm" / "training.py").write_text("def f():\n    from attsvm.validation import figures\n")
    (tmp_path / "attsvm" / "rows.py").write_text(
        "from typing import TYPE_CHECKING\nimport attsvm.problem\nif TYPE_CHECKING:\n    import attsvm.training\n"
    )
    (tmp_path / "attsvm" / "problem.py").write_text("from attsvm import rows\n")
    (tmp_path / "validation" / "figures.py").write_text("from attsvm.solvers.dual import solve\n")
    (tmp_path / "solvers" / "dual.py").write_text("import attsvm.rows\nimport numpy\n")
    found = module_map.import_graph(tmp_path)
    assert set(found.edges) == {
        ("attsvm", "training"), ("training", "validation.figures"), ("rows", "problem"), ("problem", "rows"),
        ("validation.figures", "solvers"), ("solvers", "rows"),
    }  # fmt: skip
    assert module_map.against_the_layers(found) == [
        "problem imports rows (attsvm.problem)",
        "solvers imports rows (attsvm.solvers.dual)",
        "training imports validation.figures (attsvm.training)",
    ]
