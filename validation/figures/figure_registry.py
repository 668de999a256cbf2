"""Which figures there are, found by their modules."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from attsvm.validation.figures.figure import Figure

__all__ = [
    "GROUPS",
    "LEDGER",
    "PAPERS",
    "all_figures",
    "choose_figures",
    "figure_titles",
]


PAPERS = {
    "svm": "Transformers as Support Vector Machines",
    "conditioning": "Softmax-induced ill-conditioning in transformer models",
    "polarization": "Gradient flow polarizes softmax outputs towards low-entropy solutions",
    "localization": "Self-attention networks localize when QK-eigenspectrum concentrates",
    "specialization": "Specialization of softmax attention heads",
}


# Whose statements are rows of the ledger: the papers, and newer ones whose figures are not drawn again.
LEDGER = PAPERS | {"newer": "Newer papers on the same margin problem"}


GROUPS = PAPERS | {"own": "What this library says of itself"}


def all_figures(paper: str = "svm") -> list[Figure]:
    """The figures of one paper (or our own) in the order of their numbers.

    Examples
    --------
    >>> from attsvm.validation.figures.figure_registry import all_figures
    >>> [figure.name for figure in all_figures("svm")][:2]
    ['fig1', 'fig4']
    """
    if paper not in GROUPS:
        raise ValueError(f"paper must be one of {', '.join(GROUPS)}, got {paper!r}")
    package = import_module(f"attsvm.validation.figures.{paper}")
    modules = (import_module(f"{package.__name__}.{m.name}") for m in iter_modules(package.__path__))
    figures = [value for module in modules for value in vars(module).values() if isinstance(value, Figure)]
    figures = list({figure.name: figure for figure in figures}.values())  # a module may import another one's
    return sorted(figures, key=lambda figure: _order(figure.name))


def choose_figures(names: Sequence[str], everything: bool = False) -> list[Figure]:
    """Figures by the words of a command: ``["fig5"]``, ``["conditioning", "fig1"]``, ``["conditioning:fig1"]``.

    A paper's name applies to the words after it; ``svm`` is understood before the first. With ``everything`` all
    figures of the named papers are meant, by default those of ``svm``.

    Examples
    --------
    >>> from attsvm.validation.figures.figure_registry import choose_figures
    >>> [(f.paper, f.name) for f in choose_figures(["fig2"])]
    [('svm', 'fig5')]
    """
    paper, named, chosen = "svm", [], []
    for word in names:
        group, _, figure = word.partition(":")
        if figure and group in GROUPS and not everything:
            chosen.append(_find(group, figure))
        elif word in GROUPS:
            paper = word
            named.append(word)
        elif everything:
            raise ValueError(f"figures: with --all name papers only ({', '.join(GROUPS)}), got {word!r}")
        else:
            chosen.append(_find(paper, word))
    if everything:
        return [figure for name in named or ["svm"] for figure in all_figures(name)]
    if not chosen:
        have = ", ".join(f.name for f in all_figures(paper))
        raise ValueError(f"figures: name at least one figure of {paper} ({have}), or pass --all")
    return list(dict.fromkeys(chosen))


def figure_titles(paper: str) -> list[tuple[str, str]]:
    """Names and titles of a paper's figures, read from the modules' text: a listing needs nothing that they import.

    Examples
    --------
    >>> from attsvm.validation.figures.figure_registry import figure_titles
    >>> figure_titles("svm")[0]
    ('fig1', 'Paths of W z and K Q^T z towards the SVM directions in the plane')
    """
    package = import_module(f"attsvm.validation.figures.{paper}")
    found = []
    for module in iter_modules(package.__path__):
        source = (Path(package.__path__[0]) / f"{module.name}.py").read_text(encoding="utf-8")
        for node in ast.parse(source).body:
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func) == "Figure"
            ):
                words = {k.arg: k.value for k in node.value.keywords if k.arg in ("name", "title", "aliases")}
                name, title, *more = (ast.literal_eval(words[k]) for k in ("name", "title", "aliases") if k in words)
                found.append(("/".join((name, *(more[0] if more else ()))), title))
    return sorted(found, key=lambda pair: _order(pair[0].split("/")[0]))


def _find(paper: str, word: str) -> Figure:
    figures = all_figures(paper)
    for figure in figures:
        if word in (figure.name, *figure.aliases):
            return figure
    names = ", ".join(f.names for f in figures)
    raise ValueError(f"figures: {paper} has no {word!r}; there are {names}")


def _order(name: str) -> tuple[str, int]:
    digits = re.search(r"\d+", name)
    return (name[: digits.start()] if digits else name, int(digits.group()) if digits else 0)
