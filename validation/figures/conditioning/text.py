"""Text for the two-layer transformer: sentences from templates, or WikiText-2 from its raw file; and the model."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.validation.models.corpora import find_wikitext

__all__ = ["WIKITEXT_VARIABLE", "TextTransformer", "chunked", "generated_text", "load_text", "peak_ratio"]

#: Environment variable that names the folder of WikiText-2; without it sentences are generated.
WIKITEXT_VARIABLE = "ATTSVM_WIKITEXT"

_NOUNS = ["river", "stone", "teacher", "garden", "ship", "letter", "window", "child", "market", "horse", "song",
          "winter", "bridge", "doctor", "lamp", "forest"]  # fmt: skip
_VERBS = ["sees", "follows", "remembers", "carries", "finds", "leaves", "paints", "answers", "watches", "holds"]
_ADJECTIVES = ["old", "quiet", "bright", "heavy", "small", "distant", "green", "broken", "patient", "strange"]
_PLACES = ["near", "behind", "under", "beyond", "inside", "above"]


def generated_text(words: int, seed: int = 0) -> list[str]:
    """Words of random sentences; every noun prefers a few verbs, so that the next word can be learnt.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.text import generated_text
    >>> len(generated_text(50)), "." in generated_text(50)
    (50, True)
    """
    rng = np.random.default_rng(seed)
    taste = rng.dirichlet(np.full(len(_VERBS), 0.2), size=len(_NOUNS))
    out: list[str] = []
    while len(out) < words:
        subject, target = rng.integers(len(_NOUNS), size=2)
        article = ("the", "a", "one")[rng.choice(3, p=(0.3, 0.4, 0.3))]
        sentence = [article, str(rng.choice(_ADJECTIVES)), _NOUNS[subject]]
        sentence.append(_VERBS[rng.choice(len(_VERBS), p=taste[subject])])
        if rng.random() < 0.5:
            sentence.append(str(rng.choice(_PLACES)))
        out += [*sentence, "a", _NOUNS[target], "."]
    return out[:words]


def load_text(path: str | Path | None = None, *, words: int = 40_000, seed: int = 0) -> tuple[list[str], str]:
    """Lower-case words and the name of the text.

    Parameters
    ----------
    path : path, optional
        A text file, or the folder of WikiText-2, of which the training part is read: headings (lines that start with
        ``=``) are left out and words are split at spaces. By default what the environment variable
        `WIKITEXT_VARIABLE` names, and without it `generated_text`.
    words : int
        Use so many words.
    seed : int
        Of the generated text.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.text import load_text
    >>> load_text(words=30)[0][:1] in (["the"], ["a"], ["one"])
    True
    """
    where = path if path is not None else os.environ.get(WIKITEXT_VARIABLE)
    if where is None:
        return generated_text(words, seed), "generated sentences"
    file = find_wikitext(where, "train") if Path(where).is_dir() else Path(where)
    lines = file.read_text(encoding="utf-8").splitlines()
    out = [word.lower() for line in lines if not line.strip().startswith("=") for word in line.split()]
    if not out:
        raise ValueError(f"{file.name} holds no words")
    return out[:words], file.name


def chunked(
    words: list[str], length: int, vocabulary: int, contained: str
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], int]:
    """Chunks (N, length) of word ids, whether each of them contains a word (N,), and the number of ids.

    The ``vocabulary`` most frequent words have ids of their own; id 0 is any other word, the last id the class token.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.text import chunked
    >>> ids, has, size = chunked("the cat sat on a mat".split(), 3, 10, "the")
    >>> ids.shape, has.tolist(), size
    ((2, 3), [1, 0], 8)
    """
    if len(words) < length:
        raise ValueError(f"{len(words)} words are too few for chunks of {length}")
    names = [word for word, _ in Counter(words).most_common(vocabulary)]
    index = {word: k + 1 for k, word in enumerate(names)}
    count = len(words) // length
    ids = np.array([index.get(word, 0) for word in words[: count * length]], dtype=np.int64).reshape(count, length)
    has = np.array([contained in words[k * length : (k + 1) * length] for k in range(count)], dtype=np.int64)
    return ids, has, len(names) + 2


class TextTransformer(nn.Module):
    """A class token first, learned positions, two pre-norm layers; the class token's output is classified.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.text import TextTransformer
    >>> model = TextTransformer(size=12, length=5, outputs=12, dim=8, heads=2)
    >>> logits, attention = model(torch.zeros(3, 5, dtype=torch.long))
    >>> tuple(logits.shape), tuple(attention.shape)  # (layer, example, head, position)
    ((3, 12), (2, 3, 2, 6))
    """

    def __init__(self, size: int, length: int, outputs: int, dim: int, heads: int, layers: int = 2, seed: int = 0):
        super().__init__()
        from attsvm.validation.figures.conditioning.vit import _Block

        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.class_id = size - 1
            self.embed = nn.Embedding(size, dim)
            self.positions = nn.Parameter(0.1 * torch.randn(1, length + 1, dim))
            self.blocks = nn.ModuleList(_Block(dim, heads, 4 * dim) for _ in range(layers))
            self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, outputs))

    def forward(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and log-attention of the class token."""
        first = torch.full((len(ids), 1), self.class_id, dtype=ids.dtype, device=ids.device)
        x = self.embed(torch.cat([first, ids], 1)) + self.positions
        seen = []
        for block in self.blocks:
            x, log_attention, _, _ = block(x)
            seen.append(log_attention[:, :, 0])
        return self.head(x[:, 0]), torch.stack(seen)


def peak_ratio(log_attention: Any) -> float:
    """Geometric mean over layers, heads and examples of max/min of the class token's attention.

    The arithmetic mean would be set by the few most saturated heads.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.text import peak_ratio
    >>> round(peak_ratio(torch.log(torch.tensor([[[[0.75, 0.25]]]]))), 6)
    3.0
    """
    logs = log_attention.double()
    return float(torch.exp((logs.amax(-1) - logs.amin(-1)).mean()))
