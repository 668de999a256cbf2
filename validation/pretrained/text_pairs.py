"""Short and long texts that belong together, from what a machine has, and their embeddings on disk.

Sources: docstrings of Python's library (parsed, not imported), descriptions of Debian packages in the lists of apt, and
manual pages. Of pairs whose long text nearly repeats another one, one is kept.
"""

from __future__ import annotations

import ast
import gzip
import os
import random
import re
import subprocess
import sysconfig
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from attsvm.records import atomic_write, digest
from attsvm.validation.pretrained.installed_models import embed

__all__ = ["SOURCES", "TextPair", "docstring_pairs", "embedded_pairs", "manual_pairs", "package_pairs", "text_pairs"]

TextPair = tuple[str, str, str]
"""Group (module, section of packages), short text, long text."""
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


def docstring_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
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
def _every_pair() -> tuple[TextPair, ...]:
    """All pairs; the library of a running Python does not change."""
    root = Path(sysconfig.get_paths()["stdlib"])
    found: list[TextPair] = []
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


def package_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
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

    def drawn() -> Iterator[TextPair]:
        names = sorted(texts)
        random.Random(seed).shuffle(names)
        for name in names:
            synopsis, _, body = texts[name].partition("\n")
            yield sections.get(name, ""), synopsis, " ".join(line for line in body.split() if line != ".")

    return _different(drawn(), limit)


def manual_pairs(limit: int | None = None, seed: int = 0) -> list[TextPair]:
    """(section, purpose, description) of manual pages; empty where none are installed.

    The purpose is what follows the name in the section NAME, the description the text of the section DESCRIPTION.

    Parameters
    ----------
    limit : int, optional
        Pairs to return, drawn at random; of pairs that share the purpose or most words of the description one is kept.
    seed : int
        Of the draw.

    Examples
    --------
    >>> from attsvm.validation.pretrained.text_pairs import manual_pairs
    >>> all(len(purpose.split()) >= 3 for _, purpose, _ in manual_pairs(5))
    True
    """

    def drawn() -> Iterator[TextPair]:
        paths = sorted(path for k in _MANUAL for path in Path(f"/usr/share/man/man{k}").glob("*.gz"))
        random.Random(seed).shuffle(paths)
        for path in paths:
            try:
                page = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
            except (OSError, EOFError, zlib.error):  # a damaged file, or a link to a page that is gone
                continue
            name, description = (_of_manual(page, title) for title in ("NAME", "DESCRIPTION"))
            yield path.parent.name, name.partition(" - ")[2], description

    return _different(drawn(), limit)


_MANUAL = (1, 3, 5, 7, 8)
# Escapes of roff: fonts and sizes, named characters, the dash; what begins with a dot is a macro and its arguments.
_FONT, _NAMED, _SECTION = (
    re.compile(r"\\[fs](?:\(..|\[[^]]*\]|[-+]?.)"),
    re.compile(r"\\(?:\(..|\[[^]]*\])"),
    re.compile(r"^\.S[Hh] ", re.M),
)
_TEXT_MACRO = re.compile(r"\.(?:[BI]|BR|RB|IR|RI|BI|IB|Nm|Nd|Ar|Fl|Xr|Pa|Em|Sy|Li)\s+")


def _of_manual(page: str, title: str) -> str:
    """The text of a section of a manual page in roff, without its macros; empty where there is none."""
    part = next((one for one in _SECTION.split(page) if one.partition("\n")[0].strip(' "').upper() == title), "")
    words = []
    for line in part.partition("\n")[2].splitlines():
        text = line.replace(".Nd ", "- ") if line.startswith(".Nd ") else _TEXT_MACRO.sub("", line, count=1)
        if not text.startswith((".", "'")):
            text = _NAMED.sub(" ", _FONT.sub("", text.replace("\\-", "-")))
            words += text.replace("\\&", "").replace("\\", "").replace('"', "").split()
    return " ".join(words)


def _different(drawn: Iterable[TextPair], limit: int | None) -> list[TextPair]:
    """The first pairs that are long enough and repeat none before: neither the short text nor most of the long one."""
    found: list[TextPair] = []
    shorts: set[str] = set()
    bodies: dict[str, list[frozenset[str]]] = {}
    for group, short, rest in drawn:
        words = frozenset(_WORD.findall(rest.lower()))
        few = len(short.split()) < 3 or len(rest.split()) < 12
        if few or short in shorts or _repeats(words, bodies.get(group, [])):
            continue
        shorts.add(short)
        bodies.setdefault(group, []).append(words)
        found.append((group, short, rest))
        if limit is not None and len(found) == limit:
            break
    return found


SOURCES = {
    "packages": (package_pairs, "synopses and descriptions of Debian packages"),
    "manual": (manual_pairs, "purposes and descriptions of manual pages"),
    "docstrings": (docstring_pairs, "summaries and bodies of docstrings of Python's library"),
}


def text_pairs(sources: Sequence[str], count: int) -> tuple[list[TextPair], str]:
    """So many pairs of the first source that has them, or of the largest one, and where they are from.

    Examples
    --------
    >>> from attsvm.validation.pretrained.text_pairs import text_pairs
    >>> pairs, source = text_pairs(["docstrings"], 3)
    >>> len(pairs), source
    (3, "summaries and bodies of docstrings of Python's library")
    """
    for name in sources:
        if name not in SOURCES:
            raise ValueError(f"texts must be some of {', '.join(SOURCES)}, got {name!r}")
    best: list[TextPair] = []
    source = ""
    for name in sources:
        pairs = SOURCES[name][0](count)
        if len(pairs) > len(best):
            best, source = pairs, SOURCES[name][1]
        if len(best) == count:
            break
    if not best:
        raise ValueError(
            "no texts were found: apt's lists have descriptions after apt-get -o Acquire::Languages=en update; "
            "texts='[\"docstrings\"]' needs Python's library alone"
        )
    return best, source


def embedded_pairs(pairs: Sequence[TextPair], folder: Path, *, longest: int, queries: int | None = None) -> Path:
    """A file with ``documents``, ``queries``, ``texts`` and ``groups`` of pairs, named by the digest of the texts.

    Parameters
    ----------
    pairs : sequence of (group, short text, long text)
    folder : Path
        Where it is kept: the same texts are embedded once.
    longest : int
        Tokens after which a text is cut.
    queries : int, optional
        Short texts to embed; all by default.

    Returns
    -------
    Path
        ``.npz``: embeddings of length 1 of long and short texts, the short texts, and the groups.
    """
    shorts, longs = [pair[1] for pair in pairs][:queries], [pair[2] for pair in pairs]
    path = folder / f"own_texts_{len(pairs)}_{digest(*shorts, *longs, str(longest), length=12)}.npz"
    if not path.exists():
        vectors = embed([*shorts, *longs], longest=longest)
        n = len(shorts)
        groups = np.array([pair[0] for pair in pairs])
        with atomic_write(path) as file:
            np.savez(file, queries=vectors[:n], documents=vectors[n:], texts=np.array(shorts), groups=groups)
    return path


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
    """Whether a body shares most of its words with an earlier one; sizes rule most of them out."""
    low, high = 0.8 * len(words), 1.25 * len(words)
    near = (other for other in known if low < len(other) < high)
    return any(len(words & other) > 0.8 * len(words | other) for other in near)
