"""Text for small language models: generated, or WikiText-2 from files that the user has."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Corpus", "read_wikitext", "synthetic_corpus"]

IntArray = npt.NDArray[np.int64]

_NAMES = 2  # names per document
_LENGTH = 40  # mean words per document, apart from names


@dataclass(frozen=True, eq=False)
class Corpus:
    """Words as integers.

    Attributes
    ----------
    train, valid : ndarray of int, shape (n,)
    vocabulary : int
        Number of different words.
    name : str
    """

    train: IntArray
    valid: IntArray
    vocabulary: int
    name: str


def synthetic_corpus(tokens: int = 60_000, vocabulary: int = 500, seed: int | np.random.Generator | None = 0) -> Corpus:
    """A text in which both the last word and words far back help to predict the next one.

    Every document has a topic and two names of its own. Words follow a sparse random chain (each word allows eight
    successors, weighted by a Zipf law and tilted towards the topic); the marker word 1 calls for one of the
    document's names, which only attention to earlier names can tell. Word 0 ends a document.

    Parameters
    ----------
    tokens : int
        Words in all; a tenth, from the end, is for validation.
    vocabulary : int
        At least 50: the last fifth are names.
    seed : int or numpy.random.Generator

    Examples
    --------
    >>> from attsvm.validation.models import synthetic_corpus
    >>> corpus = synthetic_corpus(tokens=1000, vocabulary=100)
    >>> len(corpus.train), len(corpus.valid), int(corpus.train.max()) < 100
    (900, 100, True)
    """
    if vocabulary < 50:
        raise ValueError(f"vocabulary must be >= 50, got {vocabulary}")
    if tokens < 100:
        raise ValueError(f"tokens must be >= 100, got {tokens}")
    rng = np.random.default_rng(seed)
    names = vocabulary // 5
    words = vocabulary - names
    zipf = 1.0 / np.arange(1, words - 1)
    successors = np.stack(
        [rng.choice(np.arange(2, words), 8, replace=False, p=zipf / zipf.sum()) for _ in range(words)]
    )
    topics = rng.integers(4, size=words)
    out: list[int] = []
    while len(out) < tokens:
        out.extend(_document(rng, successors, topics, words, names))
    text = np.array(out[:tokens], dtype=np.int64)
    cut = tokens - tokens // 10
    return Corpus(text[:cut], text[cut:], vocabulary, "generated text")


def _document(rng: np.random.Generator, successors: IntArray, topics: IntArray, words: int, names: int) -> list[int]:
    topic = int(rng.integers(4))
    own = words + rng.choice(names, _NAMES, replace=False)
    current = int(rng.integers(2, words))
    document = [current]
    for _ in range(int(rng.geometric(1 / _LENGTH))):
        if rng.random() < 0.3:
            document.extend((1, int(rng.choice(own))))
        choices = successors[current]
        weights = np.arange(1, 9) ** -1.0 * np.where(topics[choices] == topic, 4.0, 1.0)
        current = int(rng.choice(choices, p=weights / weights.sum()))
        document.append(current)
    document.append(0)
    return document


def find_wikitext(folder: str | Path, part: str) -> Path:
    """The file of one part of WikiText-2, by the names under which it is distributed.

    Parameters
    ----------
    folder : str or Path
    part : {"train", "valid", "test"}

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from attsvm.validation.models.corpora import find_wikitext
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "wiki.train.raw").write_text("a b")
    >>> find_wikitext(folder, "train").name
    'wiki.train.raw'
    """
    names = [f"{stem}{part}.{end}" for stem in ("wiki.", "") for end in ("tokens", "raw", "txt")]
    found = next((Path(folder) / name for name in names if (Path(folder) / name).is_file()), None)
    if found is None:
        raise ValueError(f"path must be a folder with {names[0]} (or {', '.join(names[1:])}), got {folder}")
    return found


def read_wikitext(path: str | Path, vocabulary: int = 10_000) -> Corpus:
    r"""WikiText-2 from a folder with one training and one validation file, split at blanks, one ``<eos>`` per line.

    Parameters
    ----------
    path : str or Path
        Holds ``wiki.train.tokens`` and ``wiki.valid.tokens`` (or names with ``.raw`` or ``.txt``, or without
        ``wiki.``).
    vocabulary : int
        Keep the most frequent words; the others become ``<unk>``.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from attsvm.validation.models import read_wikitext
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "wiki.train.tokens").write_text("a b a\nc a\n")
    >>> _ = (folder / "wiki.valid.tokens").write_text("a z\n")
    >>> corpus = read_wikitext(folder, vocabulary=4)
    >>> corpus.train.tolist(), corpus.valid.tolist()
    ([2, 3, 2, 1, 0, 2, 1], [2, 0, 1])
    """
    folder = Path(path)
    if vocabulary < 3:
        raise ValueError(f"vocabulary must be >= 3, got {vocabulary}")
    parts = {}
    for part in ("train", "valid"):
        text = find_wikitext(folder, part).read_text(encoding="utf-8")
        lines = (line.split() for line in text.splitlines())
        parts[part] = [word for line in lines if line for word in (*line, "<eos>")]
    frequent = Counter(word for word in parts["train"] if word not in ("<unk>", "<eos>"))
    index = {"<unk>": 0, "<eos>": 1} | {word: i + 2 for i, (word, _) in enumerate(frequent.most_common(vocabulary - 2))}
    train, valid = (np.array([index.get(w, 0) for w in parts[p]], dtype=np.int64) for p in ("train", "valid"))
    return Corpus(train, valid, len(index), "WikiText-2")
