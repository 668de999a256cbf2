"""Short and long texts that belong together: docstrings of Python's library, and descriptions of Debian packages.

Sources are parsed, not imported. Of pairs whose long text nearly repeats another one, one is kept.
"""

from __future__ import annotations

import ast
import os
import random
import re
import subprocess
import sysconfig
from collections import deque
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__all__ = ["docstring_pairs", "package_pairs"]

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
    >>> from attsvm.validation.pretrained.text_pairs import docstring_pairs
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


def package_pairs(limit: int | None = None, seed: int = 0) -> list[tuple[str, str, str]]:
    """(section, synopsis, description) of Debian packages, from the lists of apt; empty where there are none.

    Lists have descriptions where apt fetches translations (``apt-get -o Acquire::Languages=en update``).

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random; of pairs that share the synopsis or most words of the description one is kept.
    seed : int
        Of the draw.

    Examples
    --------
    >>> from attsvm.validation.pretrained.text_pairs import package_pairs
    >>> all(len(synopsis.split()) >= 3 for _, synopsis, _ in package_pairs(5))
    True
    """
    sections = {field["Package"]: field.get("Section", "") for field in _stanzas("*_Packages*")}
    texts = {
        field["Package"]: field["Description-en"]
        for field in _stanzas("*_Translation-en*")
        if "Description-en" in field
    }
    names = sorted(texts)
    random.Random(seed).shuffle(names)
    found: list[tuple[str, str, str]] = []
    synopses: set[str] = set()
    bodies: dict[str, list[frozenset[str]]] = {}
    for name in names:
        synopsis, _, body = texts[name].partition("\n")
        rest = " ".join(line for line in body.split() if line != ".")
        words, section = frozenset(_WORD.findall(rest.lower())), sections.get(name, "")
        short = len(synopsis.split()) < 3 or len(rest.split()) < 12
        if short or synopsis in synopses or _repeats(words, bodies.get(section, [])):
            continue
        synopses.add(synopsis)
        bodies.setdefault(section, []).append(words)
        found.append((section, synopsis, rest))
        if limit is not None and len(found) == limit:
            break
    return found


def _stanzas(pattern: str) -> Iterator[dict[str, str]]:
    """Fields of the entries of apt's lists, which apt itself decompresses."""
    helper = Path("/usr/lib/apt/apt-helper")
    for path in sorted(Path("/var/lib/apt/lists").glob(pattern)) if helper.exists() else ():
        read = subprocess.run([helper, "cat-file", path], capture_output=True, check=True)
        for stanza in read.stdout.decode("utf-8", "replace").split("\n\n"):
            parts = re.split(r"\n(?=\S)", stanza.strip("\n"))
            fields = dict(part.split(": ", 1) for part in parts if ": " in part)
            if "Package" in fields:
                yield fields


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
