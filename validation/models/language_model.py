"""Text for small language models: generated, or WikiText-2 from files that the user has.

A small transformer language model that watches its own eigenspectrum, attention entropy and signal propagation.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.dynamics.localization.regularizer import locater_penalty, qk_scale, qk_trace, qk_weights
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.training.optimizers import gradient_step
from attsvm.user_input import require_count

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
    >>> corpus = synthetic_corpus(tokens=1000, vocabulary=100)
    >>> len(corpus.train), len(corpus.valid), int(corpus.train.max()) < 100
    (900, 100, True)
    """
    require_count("vocabulary", vocabulary, least=50)
    require_count("tokens", tokens, least=100)
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
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "wiki.train.tokens").write_text("a b a\nc a\n")
    >>> _ = (folder / "wiki.valid.tokens").write_text("a z\n")
    >>> corpus = read_wikitext(folder, vocabulary=4)
    >>> corpus.train.tolist(), corpus.valid.tolist()
    ([2, 3, 2, 1, 0, 2, 1], [2, 0, 1])
    """
    folder = Path(path)
    require_count("vocabulary", vocabulary, least=3)
    parts = {}
    for part in ("train", "valid"):
        text = find_wikitext(folder, part).read_text(encoding="utf-8")
        lines = (line.split() for line in text.splitlines())
        parts[part] = [word for line in lines if line for word in (*line, "<eos>")]
    frequent = Counter(word for word in parts["train"] if word not in ("<unk>", "<eos>"))
    index = {"<unk>": 0, "<eos>": 1} | {word: i + 2 for i, (word, _) in enumerate(frequent.most_common(vocabulary - 2))}
    train, valid = (np.array([index.get(w, 0) for w in parts[p]], dtype=np.int64) for p in ("train", "valid"))
    return Corpus(train, valid, len(index), "WikiText-2")


class _Attention(nn.Module):
    """Single-head causal self-attention; logits are kept apart for the measurements."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d, bias=False) for _ in range(3))

    def logits(self, x: Tensor) -> Tensor:
        """Shape (B, T, T), query by key, not masked."""
        found: Tensor = self.q_proj(x) @ self.k_proj(x).mT / math.sqrt(x.shape[-1])
        return found

    def forward(self, x: Tensor) -> Tensor:
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        attention = torch.softmax(self.logits(x).masked_fill(future, -torch.inf), dim=-1)
        mixed: Tensor = attention @ self.v_proj(x)
        return mixed


class _Block(nn.Module):
    """Attention and feed-forward net, each with a skip connection and a normalization after it."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.attention, self.norm1, self.norm2 = _Attention(d), nn.LayerNorm(d), nn.LayerNorm(d)
        self.feed = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm1(x + self.attention(x))
        normed: Tensor = self.norm2(x + self.feed(x))
        return normed


class LanguageModel(nn.Module):
    """Embedding, L blocks (Post-LN, single head), linear read-out; predicts the next word at every position.

    Parameters
    ----------
    vocabulary, d, T, layers : int

    Examples
    --------
    >>> LanguageModel(vocabulary=60, d=8, T=6)(torch.zeros(2, 6, dtype=torch.long)).shape
    torch.Size([2, 6, 60])
    """

    def __init__(self, vocabulary: int, d: int = 64, T: int = 32, layers: int = 1) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(vocabulary, d), nn.Embedding(T, d)
        self.blocks = nn.ModuleList(_Block(d) for _ in range(layers))
        self.readout = nn.Linear(d, vocabulary)

    def embed(self, tokens: Tensor) -> Tensor:
        """Input of the first block, shape (B, T, d)."""
        embedded: Tensor = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        return embedded

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next word, shape (B, T, vocabulary)."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.readout(x)
        return logits

    def attention_logits(self, tokens: Tensor) -> Iterator[Tensor]:
        """Logits of every block's attention, each of shape (B, T, T), not masked."""
        x = self.embed(tokens)
        for block in self.blocks:
            assert isinstance(block, _Block)
            yield block.attention.logits(x)
            x = block(x)


@dataclass(frozen=True, eq=False)
class LanguageRun:
    """What training showed at the recorded steps.

    Attributes
    ----------
    steps : ndarray of int, shape (R,)
    trace, scale : ndarray, shape (R,)
        ``tr(W_QK)`` and ``tr(W_QK^T W_QK)``, averaged over layers.
    entropy : ndarray, shape (R,)
        Of the causal attention on validation text, averaged over queries, sequences and layers.
    perplexity : ndarray, shape (R,)
        On validation text.
    propagation : ndarray, shape (R, T)
        Share of validation sequences in which token i passes a gradient to the last query's logits (first layer).
    largest_entropy : float
        That of uniform causal attention.
    """

    steps: npt.NDArray[np.int64]
    trace: FloatArray
    scale: FloatArray
    entropy: FloatArray
    perplexity: FloatArray
    propagation: FloatArray
    largest_entropy: float


def _batches(text: Tensor, T: int, starts: Tensor) -> tuple[Tensor, Tensor]:
    window = text[starts[:, None] + torch.arange(T + 1, device=text.device)]
    return window[:, :-1], window[:, 1:]


@torch.no_grad()
def _measure(model: LanguageModel, tokens: Tensor, targets: Tensor) -> tuple[float, float, float, float, list[float]]:
    T = tokens.shape[1]
    future = torch.ones(T, T, dtype=torch.bool, device=tokens.device).triu(1)
    entropies, shares = [], None
    for logits in model.attention_logits(tokens):
        log_p = torch.log_softmax(logits.masked_fill(future, -torch.inf), dim=-1)
        terms = torch.where(future, 0.0, log_p.exp() * log_p.masked_fill(future, 0.0))
        entropies.append(-terms.sum(-1).mean())
        if shares is None:
            omega = logits[:, -1]
            signal = (omega - omega.mean(-1, keepdim=True) + 1) / T
            shares = ((signal >= 0) & (signal <= 1)).double().mean(0)
    assert shares is not None
    loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    layers = list(qk_weights(model))
    trace = torch.stack([qk_trace(layer.W_q, layer.W_k).mean() for layer in layers]).mean()
    scale = torch.stack([qk_scale(layer.W_q, layer.W_k).mean() for layer in layers]).mean()
    return trace.item(), scale.item(), torch.stack(entropies).mean().item(), loss.exp().item(), shares.tolist()


def train_language_model(
    corpus: Corpus,
    k1: float = 0.0,
    k2: float = 0.0,
    *,
    d: int = 64,
    T: int = 32,
    layers: int = 1,
    batch: int = 32,
    steps: int = 400,
    lr: float = 1e-3,
    weight_decay: float = 0.01,
    record_every: int = 20,
    target: float = 1.0,
    seed: int = 0,
    device: str | None = None,
) -> LanguageRun:
    """Train with ``cross entropy + LocAteR`` and record the spectrum, the entropy and the perplexity.

    By Adam with decoupled weight decay, as the published experiments' toolkit does it.

    Parameters
    ----------
    corpus : Corpus
    k1, k2 : float
        Strengths on the trace and the scale; no penalty if both are 0.
    d, T, layers, batch, steps, lr, weight_decay : int or float
    record_every : int
        Steps between records; the first and the last step are always recorded.
    target : float
        Of the trace.
    seed : int
        Of the initial weights and the batches; independent of torch's global state.
    device : str, optional

    Examples
    --------
    >>> run = train_language_model(synthetic_corpus(2000, 60), k1=100.0, k2=1.0, d=16, T=8, steps=20, record_every=10)
    >>> run.steps.tolist(), run.propagation.shape
    ([0, 10, 20], (3, 8))
    """
    if min(len(corpus.train), len(corpus.valid)) <= T:
        raise ValueError(f"corpus must have more than T = {T} words for training and for validation")
    least = (("steps", steps, 1), ("record_every", record_every, 1), ("batch", batch, 1), ("T", T, 2))
    for name, number, smallest in least:
        require_count(name, number, smallest)
    with torch.random.fork_rng(devices=[]):  # initial weights from the seed, without touching the caller's generator
        torch.manual_seed(seed)
        model = LanguageModel(corpus.vocabulary, d, T, layers).to(device)
    rng = np.random.default_rng(seed)
    text = torch.as_tensor(corpus.train, device=device)
    starts = torch.as_tensor(np.arange(0, len(corpus.valid) - T, T)[:128], device=device)
    held = _batches(torch.as_tensor(corpus.valid, device=device), T, starts)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=weight_decay)
    records = [(0, *_measure(model, *held))]
    for step in range(1, steps + 1):
        where = torch.as_tensor(rng.integers(len(corpus.train) - T, size=batch), device=device)
        tokens, targets = _batches(text, T, where)
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        if k1 or k2:
            loss = loss + locater_penalty(model, k1, k2, target=target)
        gradient_step(optimizer, loss)
        if step % record_every == 0 or step == steps:
            records.append((step, *_measure(model, *held)))
    at, trace, scale, entropy, perplexity, propagation = (np.array(column) for column in zip(*records, strict=True))
    largest = float(np.log(np.arange(1, T + 1)).mean())
    return LanguageRun(at, trace, scale, entropy, perplexity, propagation, largest)
