"""The public surface: small, listed on the API pages, each name documented."""

import ast
import importlib
import re
from pathlib import Path

import pytest

import attsvm

DOCS = Path(__file__).parents[1] / "docs"
SIBLINGS = ("conditioning", "localization", "polarization", "specialization")


def test_about_forty_names():
    assert len(attsvm.__all__) <= 45
    assert set(attsvm.__all__) <= set(dir(attsvm))


def test_the_api_page_lists_every_name():
    page = (DOCS / "api.md").read_text()
    listed = {name.rpartition(".")[2] for name in re.findall(r"\.\. auto\w+:: ([\w.]+)", page)}
    assert not set(attsvm.__all__) - listed


@pytest.mark.parametrize("name", SIBLINGS)
def test_the_page_of_the_sibling_models_covers_each(name):
    page = (DOCS / "api_dynamics.md").read_text()
    assert f".. automodule:: attsvm.dynamics.{name}\n   :members:\n" in page
    package = importlib.import_module(f"attsvm.dynamics.{name}")
    assert len(package.__all__) <= 40
    for public in package.__all__:
        assert getattr(package, public).__doc__, public
    for path in re.findall(rf"auto\w+:: (attsvm\.dynamics\.{name}\.\w+\.\w+)", page):
        module, _, thing = path.rpartition(".")
        assert thing in importlib.import_module(module).__all__ or thing[0].isupper()
        assert thing not in package.__all__  # described once


def test_prose_after_the_parameters_is_not_read_as_parameters():
    """A section of a docstring ends at a heading: text between Parameters and the next heading would be parameters."""
    bad = []
    for path in sorted(Path(attsvm.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                bad += [f"{path.name}: {node.name}: {line}" for line in _stray(text)]
    assert bad == []
    said = "Do.\n\nParameters\n----------\nx : float\n    It.\n\nA batch has one more axis: (B, n).\n"
    assert list(_stray(said)) == ["A batch has one more axis: (B, n)."]


def _stray(text):
    lines, inside = text.splitlines(), False
    for here, below in zip(lines, [*lines[1:], ""], strict=True):
        if set(below) == {"-"} and len(below) == len(here):
            inside = here in ("Parameters", "Attributes")
        elif inside and here and not here.startswith((" ", "-")) and not re.match(r"[*\w, ]+( : |$)", here):
            yield here
