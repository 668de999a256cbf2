"""Directives of the API reference: each page lists its names once, the tables and the entries follow from the list."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

from sphinx.util.docutils import SphinxDirective

PAGES = Path(__file__).parent / "api"
SECTIONS = ("Parameters", "Other Parameters", "Returns", "Yields", "Attributes")
PROJECT = r"(?:numpy|scipy|torch|sklearn|networkx|concurrent)\."
# Words of types that other projects explain.
FOREIGN = {
    "array_like": ":external+numpy:std:term:`array_like`",
    "ndarray": ":py:obj:`~numpy.ndarray`",
    "Tensor": ":py:obj:`~torch.Tensor`",
    "nn.Module": ":py:obj:`~torch.nn.Module`",
    "Path": ":py:obj:`~pathlib.Path`",
    "callable": ":external+python:std:term:`callable`",
}


def find(name: str) -> Any:
    """The object of a full name, ``attsvm.solvers.solve``."""
    module, _, attribute = name.rpartition(".")
    return getattr(import_module(module), attribute)


def expand(line: str) -> list[str]:
    """Full names of a line of a list: ``attsvm.softmax.*`` stands for the classes and functions in its ``__all__``."""
    module, _, last = line.rpartition(".")
    if last != "*":
        return [line]
    names = [f"{module}.{name}" for name in import_module(module).__all__]
    return [name for name in names if inspect.isclass(find(name)) or inspect.isfunction(find(name))]


def names_of(page: Path) -> list[str]:
    """Full names that a page of the reference documents."""
    lines = re.findall(r"^   (attsvm\.[\w.*]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [name for line in lines for name in expand(line)]


def table(names: list[str]) -> list[str]:
    """A table of names with the first sentence of each; a second name of a class has none."""
    start = ["", ".. currentmodule:: None", "", ".. autosummary::", "   :nosignatures:", ""]
    own = [name for name in names if not inspect.isclass(it := find(name)) or name.endswith(f".{it.__name__}")]
    return [*start, *[f"   ~{name}" for name in own], ""]


def entry(name: str) -> list[str]:
    """The directive of a name. Classes show what they inherit from this library, not from torch, sklearn or Python."""
    thing = find(name)
    if inspect.isfunction(thing):
        return [f".. autofunction:: {name}", ""]
    if not inspect.isclass(thing):
        return [f".. autodata:: {name}", "   :no-value:", ""]
    if issubclass(thing, BaseException):
        return [f".. autoexception:: {name}", ""]
    foreign = ", ".join(base.__name__ for base in thing.__mro__ if not base.__module__.startswith("attsvm"))
    added = [name for name in dir(thing) if _home(thing, name).startswith("sklearn.")]
    options = ["   :members:", f"   :inherited-members: {foreign}", f"   :exclude-members: {', '.join(added)}"]
    return [f".. autoclass:: {name}", *options, ""]


def _home(thing: type, member: str) -> str:
    return getattr(getattr(thing, member, None), "__module__", None) or ""


class Reference(SphinxDirective):
    """A list of full names: a table of them with their summaries, then the entry of each."""

    has_content = True

    def run(self) -> list[Any]:
        """Put the table and the entries in the place of the list."""
        names = [name for line in self.content if line for name in expand(line)]
        lines = [*table(names), *(line for name in names for line in entry(name))]
        self.state_machine.insert_input(lines, "reference")
        return []


class ReferenceGroup(SphinxDirective):
    """A list of pages: links to them, and a table of their names that ``import attsvm`` offers."""

    has_content = True

    def run(self) -> list[Any]:
        """Put the links and the table in the place of the list."""
        pages = [line for line in self.content if line]
        names = [name for page in pages for name in names_of(PAGES / f"{page}.md") if name.count(".") == 1]
        links = ["", ".. toctree::", "   :maxdepth: 1", "", *[f"   api/{page}" for page in pages], ""]
        self.state_machine.insert_input([*links, *(table(names) if names else [])], "reference-group")
        return []


def classes() -> dict[str, str]:
    """Roles of the documented classes by their short names; a name of two classes is none."""
    names = {name for page in PAGES.glob("*.md") for name in names_of(page) if inspect.isclass(find(name))}
    short = [name.rpartition(".")[2] for name in names]
    return {
        word: f":py:obj:`~{name}`"
        for name in names
        if short.count(word := name.rpartition(".")[2]) == 1
    }  # fmt: skip


def link_types(lines: list[str], words: dict[str, str]) -> list[str]:
    """Turn the words of types, in sections that have types, and other projects' names in code into links.

    Examples
    --------
    >>> text = ["Parameters", "----------", "X : ndarray, shape (n, T)", "    An ndarray."]
    >>> link_types(text, {"ndarray": ":py:obj:`~numpy.ndarray`"})[2:]
    ['X : :py:obj:`~numpy.ndarray`, shape (n, T)', '    An ndarray.']
    """
    section, linked = "", []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if below and set(below) == {"-"} and len(below) == len(line):
            section = line
        name, colon, kind = line.partition(" : ")
        if not colon and section in ("Returns", "Yields"):
            name, kind = "", line
        if section in SECTIONS and kind and not line.startswith((" ", section, "-")):
            parts = re.split(r"(`+[^`]*`+)", kind)
            parts[::2] = [re.sub(r"(?<![\w.])[A-Za-z_][\w.]*\w", lambda it: _role(it[0], words), p) for p in parts[::2]]
            line = name + colon + "".join(parts)
        linked.append(re.sub(rf"``({PROJECT}[\w.]+)``", r":py:obj:`\1`", line))
    return linked


def _role(word: str, words: dict[str, str]) -> str:
    return f":py:obj:`{word}`" if re.match(PROJECT, word) else words.get(word, word)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx; types are linked before napoleon reads the sections."""
    app.add_directive("reference", Reference)
    app.add_directive("reference-group", ReferenceGroup)
    words: dict[str, str] = {}
    app.connect("builder-inited", lambda _app: words.update(FOREIGN | classes()))
    app.connect(
        "autodoc-process-docstring",
        lambda _app, _what, _name, _thing, _options, lines: lines.__setitem__(slice(None), link_types(lines, words)),
        priority=400,
    )
    return {"parallel_read_safe": True}
