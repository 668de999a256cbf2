"""A corpus that every machine has: docstrings of the Python standard library, summary line and body.

Sources are parsed, not imported. Pairs whose body nearly repeats another one are left out.
"""

from __future__ import annotations

import ast
import os
import random
import re
import sysconfig
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["docstring_pairs"]

_SKIPPED = ("test", "idlelib", "lib2to3", "turtledemo", "site-packages", "__pycache__", "ensurepip", "pydoc_data")
_BLOCKS = ("body", "handlers", "cases", "orelse", "finalbody")  # where statements hold statements
_WORD = re.compile(r"[a-z0-9_]+")


def _documented(tree: ast.AST) -> Iterator[str]:
    """Docstrings in the order of `ast.walk`, which would look at every expression as well."""
    waiting: deque[ast.AST] = deque([tree])
    while waiting:
        node = waiting.popleft()
        waiting.extend(part for name in _BLOCKS for part in getattr(node, name, ()))
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def _split(text: str) -> tuple[str, str] | None:
    """Summary line and body, if both say something."""
    head, _, body = text.partition("\n\n")
    summary, rest = " ".join(head.split()), " ".join(body.split())
    if "\n" in head.strip() or not 3 <= len(summary.split()) <= 30 or len(rest.split()) < 12:
        return None
    return summary, rest


def docstring_pairs(limit: int | None = None, seed: int = 0) -> list[tuple[str, str, str]]:
    """(module, summary, body) of docstrings of the standard library, in the order of the modules' names.

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random from the whole library: the first ones would come from few large modules.
    seed : int
        Of the draw.

    Examples
    --------
    >>> from attsvm.validation.pretrained.docstrings import docstring_pairs
    >>> module, summary, body = docstring_pairs(30)[-1]
    >>> len(summary.split()) >= 3 and len(body.split()) >= 12, module > "m"  # not from the beginning of the alphabet
    (True, True)
    """
    found = _every_pair()
    if limit is None or limit >= len(found):
        return list(found)
    return [found[k] for k in sorted(random.Random(seed).sample(range(len(found)), limit))]


@cache
def _every_pair() -> tuple[tuple[str, str, str], ...]:
    """All pairs; the library of a running Python does not change."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[tuple[str, str, str]] = []
    bodies: dict[str, list[frozenset[str]]] = {}  # copies are in the same module
    summaries: set[str] = set()
    for path in _modules(root):
        parts = path.relative_to(root).with_suffix("").parts
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for text in _documented(tree):
            pair = _split(text)
            words = frozenset(_WORD.findall(pair[1].lower())) if pair else frozenset()
            if pair is None or pair[0] in summaries or _repeats(words, bodies.get(parts[0], [])):
                continue
            summaries.add(pair[0])
            bodies.setdefault(parts[0], []).append(words)
            found.append((parts[0], *pair))
    return tuple(found)


def _modules(root: Path) -> list[Path]:
    """Files of the library in the order of their names; skipped folders (installed packages!) are not entered."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(_SKIPPED)]
        found += [Path(folder, name) for name in names if name.endswith(".py") and not name.startswith(_SKIPPED)]
    return sorted(found)


def _repeats(words: frozenset[str], known: list[frozenset[str]]) -> bool:
    """Whether a body shares most of its words with an earlier one."""
    return any(len(words & other) > 0.8 * len(words | other) for other in known)
