"""The two synthetic tasks: in-context bigrams (induction) and sets of tokens from one group (classification).

A small pre-norm transformer with any attention of Table 1, for the induction and classification tasks.

Training on the two tasks, and what the trained attention does: sinks of the second layer, one-token flips.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from attsvm.dynamics.polarization.attention_metrics import sink_heads, sink_score
from attsvm.dynamics.polarization.value_descent import AttentionKind, attention_weights
from attsvm.training.optimizers import gradient_step
from attsvm.user_input import positive, require_choice, require_count


@dataclass(frozen=True)
class InductionTask:
    """``BOS t_1 .. t_k t'_i`` and then ``t_{i+1}``: continue a bigram seen before (appendix E.1).

    The t_j are drawn without replacement; ``t'_i`` is t_i itself, or its twin from a second alphabet when
    ``shifted``. The continuation of the last token t_k is t' itself, as in the published code.

    Attributes
    ----------
    symbols : int
        Ordinary tokens, numbered 1..symbols; 0 is BOS; twins are symbols+1..2*symbols.
    length : int
        k.
    shifted : bool
        Whether ``t' != t``.

    Examples
    --------
    >>> task = InductionTask(symbols=5, length=3)
    >>> tokens, target = task.sample(2, torch.Generator().manual_seed(0))
    >>> tuple(tokens.shape), tuple(target.shape), task.vocabulary
    ((2, 5), (2,), 11)
    """

    symbols: int = 49
    length: int = 10
    shifted: bool = True

    def __post_init__(self) -> None:
        if not 2 <= self.length <= self.symbols:
            raise ValueError(f"length must be in 2..symbols = {self.symbols}, got {self.length}")

    @property
    def vocabulary(self) -> int:
        """Number of input tokens."""
        return 1 + self.symbols * (2 if self.shifted else 1)

    @property
    def width(self) -> int:
        """Length of an input: BOS, k tokens, t'."""
        return self.length + 2

    def sample(
        self, count: int, generator: torch.Generator, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs (count, k + 2) and the token that follows them (count,)."""
        order = torch.rand(count, self.symbols, generator=generator).argsort(dim=1)[:, : self.length] + 1
        chosen = torch.randint(self.length, (count,), generator=generator)
        rows = torch.arange(count)
        cue = order[rows, chosen] + (self.symbols if self.shifted else 0)
        following = torch.cat([order[:, 1:], cue[:, None]], 1)[rows, chosen]
        tokens = torch.cat([torch.zeros(count, 1, dtype=torch.long), order, cue[:, None]], 1)
        return tokens.to(device), following.to(device)


@dataclass(frozen=True)
class SetTask:
    """Tokens of one of K disjoint groups, CLS last; the label is the group (appendix E.3).

    Any single token gives the label, so every attention pattern solves it. When ``length`` is the size of a group,
    drawing without replacement leaves only K distinct sets (the published vocabulary of 41 with length 10):
    `is_degenerate`.

    Attributes
    ----------
    vocabulary : int
        Tokens 0..vocabulary-2 in K equal groups, and CLS, the last.
    labels : int
        K.
    length : int
        Tokens per input without CLS.

    Examples
    --------
    >>> task = SetTask(vocabulary=81)
    >>> tokens, labels = task.sample(3, torch.Generator().manual_seed(0))
    >>> bool((tokens[:, :-1] // task.group == labels[:, None]).all()), task.is_degenerate, SetTask(41).is_degenerate
    (True, False, True)
    """

    vocabulary: int = 81
    labels: int = 4
    length: int = 10

    def __post_init__(self) -> None:
        if self.labels < 2 or (self.vocabulary - 1) % self.labels:
            raise ValueError(f"vocabulary must be 1 + a multiple of labels = {self.labels}, got {self.vocabulary}")
        if not 1 <= self.length <= self.group:
            raise ValueError(f"length must be in 1..{self.group}, the size of a group, got {self.length}")

    @property
    def group(self) -> int:
        """Tokens per label."""
        return (self.vocabulary - 1) // self.labels

    @property
    def width(self) -> int:
        """Length of an input with CLS."""
        return self.length + 1

    @property
    def is_degenerate(self) -> bool:
        """Whether each label has a single possible set."""
        return self.length == self.group

    def sample(
        self, count: int, generator: torch.Generator, device: torch.device | str | None = None
    ) -> tuple[Tensor, Tensor]:
        """Inputs (count, length + 1) and labels (count,)."""
        labels = torch.randint(self.labels, (count,), generator=generator)
        inside = torch.rand(count, self.group, generator=generator).argsort(dim=1)[:, : self.length]
        tokens = torch.cat([inside + labels[:, None] * self.group, torch.full((count, 1), self.vocabulary - 1)], 1)
        return tokens.to(device), labels.to(device)


SOFTMAX = AttentionKind("softmax")

POSITIONS = ("add", "concat", "none")


@dataclass(frozen=True)
class TransformerSpec:
    """The shape of a model.

    Attributes
    ----------
    vocabulary, length, outputs : int
        Number of input tokens, longest input, number of output classes per position.
    kind : AttentionKind
    layers, heads, dim, feedforward : int
    causal, layer_norm, mlp : bool
    positions : {"add", "concat", "none"}
        "concat" gives half of the dimensions to the position.
    embedding_scale : float
        Standard deviation of the initial embeddings; 1 is torch's default. It decides what attention can tell apart at
        the start, and with it whether it polarizes before the loss is fitted.
    """

    vocabulary: int
    length: int
    outputs: int
    kind: AttentionKind = SOFTMAX
    layers: int = 2
    heads: int = 1
    dim: int = 64
    feedforward: int = 256
    causal: bool = True
    layer_norm: bool = True
    mlp: bool = True
    positions: str = "add"
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        require_count("heads", self.heads)
        if self.dim % self.heads:
            raise ValueError(f"dim must be a multiple of heads, got {self.dim} and {self.heads}")
        require_choice("positions", self.positions, *POSITIONS)
        positive("embedding_scale", self.embedding_scale)
        for name in ("vocabulary", "length", "outputs", "layers"):
            require_count(name, getattr(self, name))


class _Block(nn.Module):
    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        dim, width = spec.dim, spec.dim // spec.heads
        self.norm1 = nn.LayerNorm(dim) if spec.layer_norm else nn.Identity()
        self.norm2 = nn.LayerNorm(dim) if spec.layer_norm and spec.mlp else nn.Identity()
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.features = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            if spec.kind.name == "mlp"
            else None
        )
        self.mlp = (
            nn.Sequential(nn.Linear(dim, spec.feedforward), nn.GELU(), nn.Linear(spec.feedforward, dim))
            if spec.mlp
            else None
        )

    def forward(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        B, T, dim = x.shape
        heads = self.spec.heads
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        weights = attention_weights(self.spec.kind, qkv[0], qkv[1], mask=mask, features=self.features)
        mixed = (weights @ qkv[2]).transpose(1, 2).reshape(B, T, dim)
        x = x + self.out(mixed)
        if self.mlp is not None:
            x = x + self.mlp(self.norm2(x))
        return x, weights


class SmallTransformer(nn.Module):
    """Embedding, blocks, and a linear read-out at every position.

    Parameters
    ----------
    spec : TransformerSpec
    seed : int
        Of the initial weights, which are drawn without touching the global generator.

    Examples
    --------
    >>> model = SmallTransformer(TransformerSpec(vocabulary=10, length=5, outputs=3, heads=2), seed=0)
    >>> logits, attention = model(torch.zeros(4, 5, dtype=torch.long), attention=True)
    >>> tuple(logits.shape), tuple(attention.shape)  # attention is (layer, head, sample, query, key)
    ((4, 5, 3), (2, 2, 4, 5, 5))
    """

    def __init__(self, spec: TransformerSpec, seed: int = 0) -> None:
        super().__init__()
        self.spec = spec
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            half = spec.dim // 2 if spec.positions == "concat" else spec.dim
            self.embedding = nn.Embedding(spec.vocabulary, half)
            nn.init.normal_(self.embedding.weight, std=spec.embedding_scale)
            place = spec.dim - half if spec.positions == "concat" else spec.dim
            self.position = (
                nn.Parameter(spec.embedding_scale * torch.randn(spec.length, place))
                if spec.positions != "none"
                else None
            )
            self.blocks = nn.ModuleList([_Block(spec) for _ in range(spec.layers)])
            self.norm = nn.LayerNorm(spec.dim) if spec.layer_norm else nn.Identity()
            self.readout = nn.Linear(spec.dim, spec.outputs)

    def forward(self, tokens: Tensor, attention: bool = False) -> tuple[Tensor, Tensor | None]:
        """Logits (sample, query, output) and, if asked for, attention (layer, head, sample, query, key).

        Parameters
        ----------
        tokens : Tensor of int, shape (sample, length)
        attention : bool
        """
        T = tokens.shape[1]
        if self.spec.length < T:
            raise ValueError(f"tokens must have at most {self.spec.length} columns, got {T}")
        x = self.embedding(tokens)
        if self.position is not None:
            place = self.position[:T]
            x = x + place if self.spec.positions == "add" else torch.cat([x, place.expand(len(x), -1, -1)], -1)
        mask = torch.ones(T, T, dtype=torch.bool, device=tokens.device).tril() if self.spec.causal else None
        kept = []
        for block in self.blocks:
            x, weights = block(x, mask)
            kept.append(weights.transpose(0, 1))
        logits: Tensor = self.readout(self.norm(x))
        return logits, torch.stack(kept) if attention else None


def train_induction(
    kind: AttentionKind,
    *,
    task: InductionTask | None = None,
    heads: int = 4,
    dim: int = 64,
    positions: str = "add",
    auxiliary: float = 0.2,
    lr: float = 1e-3,
    batch: int = 128,
    steps: int = 1500,
    seed: int = 0,
    device: Any = None,
) -> SmallTransformer:
    """Train a two-layer causal transformer on fresh samples of the induction task with AdamW.

    The loss is ``L_induction + auxiliary * L_random``: the last position predicts the continuation, the others (BOS
    and the random tokens, t' among their targets) predict what comes next and so should stay constant.

    Parameters
    ----------
    kind : AttentionKind
    task : InductionTask, optional
        49 symbols, k = 10, t' != t by default.
    heads, dim, positions
        As in `TransformerSpec`; the feed-forward width is 4 dim.
    auxiliary : float
        lambda.
    lr, batch, steps, seed, device

    Examples
    --------
    >>> task = InductionTask(symbols=6, length=3)
    >>> model = train_induction(AttentionKind("softmax"), task=task, heads=1, dim=16, batch=16, steps=2)
    >>> induction_report(model, task, samples=32).scores.shape
    torch.Size([1])
    """
    chosen = InductionTask() if task is None else task
    spec = TransformerSpec(
        vocabulary=chosen.vocabulary,
        length=chosen.width,
        outputs=chosen.vocabulary,
        kind=kind,
        layers=2,
        heads=heads,
        dim=dim,
        feedforward=4 * dim,
        positions=positions,
    )

    def loss_of(model: SmallTransformer, generator: torch.Generator) -> Tensor:
        tokens, following = chosen.sample(batch, generator, device)
        logits, _ = model(tokens)
        loss = cross_entropy(logits[:, -1], following)
        if auxiliary:
            loss = loss + auxiliary * cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return loss

    return _trained(spec, loss_of, lr, batch, steps, seed, device)


def _trained(
    spec: TransformerSpec,
    loss_of: Callable[[SmallTransformer, torch.Generator], Tensor],
    lr: float,
    batch: int,
    steps: int,
    seed: int,
    device: Any,
) -> SmallTransformer:
    """AdamW on the loss of fresh batches."""
    require_count("steps", steps)
    require_count("batch", batch)
    model = SmallTransformer(spec, seed=seed).to(device)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    for _ in range(steps):
        gradient_step(optimizer, loss_of(model, generator))
    return model


@dataclass(frozen=True, eq=False)
class InductionReport:
    """What the second layer of an induction model does.

    Attributes
    ----------
    accuracy : float
        Of the continuation; runs below 0.95 are discarded in the published protocol.
    scores, pooled_scores : Tensor, shape (heads,)
        Sink scores as mean of ratios and as ratio of sums.
    sinks : Tensor of bool, shape (heads,)
    """

    accuracy: float
    scores: Tensor
    pooled_scores: Tensor
    sinks: Tensor

    @property
    def sink_share(self) -> float:
        """Proportion of sink heads."""
        return float(self.sinks.double().mean())


def induction_report(
    model: SmallTransformer, task: InductionTask | None = None, *, samples: int = 1000, seed: int = 1_000_003
) -> InductionReport:
    """Accuracy and sink scores of the last layer on held-out samples.

    Examples
    --------
    >>> task = InductionTask(symbols=6, length=3)
    >>> spec = TransformerSpec(vocabulary=13, length=5, outputs=13, dim=16)
    >>> 0 <= induction_report(SmallTransformer(spec), task, samples=64).accuracy <= 1
    True
    """
    chosen = InductionTask() if task is None else task
    device = next(model.parameters()).device
    tokens, following = chosen.sample(samples, torch.Generator().manual_seed(seed), device)
    with torch.no_grad():
        logits, attention = model(tokens, attention=True)
    assert attention is not None
    # Queries 1..k-1 of BOS t_1 .. t_k t': at t_k and t' something can be predicted (appendix E.1 drops -1 and -2).
    last = attention[-1:]
    return InductionReport(
        accuracy=float((logits[:, -1].argmax(-1) == following).double().mean()),
        scores=sink_score(last)[0],
        pooled_scores=sink_score(last, how="ratio_of_sums")[0],
        sinks=sink_heads(last)[0],
    )


def train_classifier(
    kind: AttentionKind,
    *,
    task: SetTask | None = None,
    layers: int = 1,
    heads: int = 1,
    dim: int = 64,
    layer_norm: bool = True,
    mlp: bool = True,
    embedding_scale: float = 1.0,
    lr: float = 1e-3,
    batch: int = 256,
    steps: int = 400,
    seed: int = 0,
    device: Any = None,
) -> SmallTransformer:
    """Train a transformer without positions to classify sets, read out at CLS.

    On a degenerate task each label has one set and the model does not see the order: the batch is then replaced by
    the K sets weighted by how often a batch holds them, which is the same gradient at a fraction of the cost.

    Parameters
    ----------
    kind : AttentionKind
    task : SetTask, optional
        Vocabulary 81 by default.
    layers, heads, dim, layer_norm, mlp, embedding_scale
        As in `TransformerSpec`; the feed-forward width is 4 dim.
    lr, batch, steps, seed, device

    Examples
    --------
    >>> task = SetTask(vocabulary=9, labels=2, length=3)
    >>> model = train_classifier(AttentionKind("softmax"), task=task, dim=16, batch=16, steps=3)
    >>> flip_rates(model, task, pairs=20).top.shape
    torch.Size([1, 1])
    """
    chosen = SetTask() if task is None else task
    spec = TransformerSpec(
        vocabulary=chosen.vocabulary,
        length=chosen.width,
        outputs=chosen.labels,
        kind=kind,
        layers=layers,
        heads=heads,
        dim=dim,
        feedforward=4 * dim,
        causal=False,
        layer_norm=layer_norm,
        mlp=mlp,
        positions="none",
        embedding_scale=embedding_scale,
    )
    sets, names = _all_sets(chosen, device) if chosen.is_degenerate else (None, None)

    def loss_of(model: SmallTransformer, generator: torch.Generator) -> Tensor:
        if sets is not None and names is not None:
            drawn = torch.randint(chosen.labels, (batch,), generator=generator)
            share = torch.bincount(drawn, minlength=chosen.labels).to(device) / batch
            return (share * cross_entropy(model(sets)[0][:, -1], names, reduction="none")).sum()
        tokens, labels = chosen.sample(batch, generator, device)
        return cross_entropy(model(tokens)[0][:, -1], labels)

    return _trained(spec, loss_of, lr, batch, steps, seed, device)


def _all_sets(task: SetTask, device: Any) -> tuple[Tensor, Tensor]:
    tokens = torch.arange(task.vocabulary - 1).view(task.labels, task.group)
    cls = torch.full((task.labels, 1), task.vocabulary - 1)
    return torch.cat([tokens, cls], 1).to(device), torch.arange(task.labels, device=device)


@dataclass(frozen=True, eq=False)
class FlipRates:
    """How often one swapped token turns the prediction into the donor's label.

    Attributes
    ----------
    top : Tensor, shape (layer, head)
        Swapping the most attended tokens of the two inputs.
    control : float
        Swapping tokens at random.
    accuracy : float
        On unchanged inputs.
    """

    top: Tensor
    control: float
    accuracy: float

    @property
    def worst(self) -> float:
        """Largest rate over layers and heads, the published number."""
        return float(self.top.max())


def flip_rates(
    model: SmallTransformer, task: SetTask | None = None, *, pairs: int = 500, seed: int = 1_000_003
) -> FlipRates:
    """Adversarial one-token flips of a classifier (appendix E.3).

    Two inputs with different labels exchange the token that CLS attends to most (for each layer and head); a flip
    succeeds when the prediction becomes the donor's label. A change to a third label does not count.

    Examples
    --------
    >>> spec = TransformerSpec(vocabulary=81, length=11, outputs=4, layers=1, dim=16, causal=False, positions="none")
    >>> 0 <= flip_rates(SmallTransformer(spec), pairs=20).worst <= 1
    True
    """
    chosen = SetTask() if task is None else task
    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(seed)
    tokens, labels = chosen.sample(8 * pairs, generator, device)
    first, second = tokens[: 4 * pairs], tokens[4 * pairs :]
    differ = (labels[: 4 * pairs] != labels[4 * pairs :]).nonzero()[:, 0][:pairs]
    if len(differ) < pairs:
        raise ValueError(f"only {len(differ)} of {pairs} pairs have different labels; sample again with another seed")
    x = torch.cat([first[differ], second[differ]])  # each input ...
    donor = torch.cat([second[differ], first[differ]])  # ... beside its donor
    own = torch.cat([labels[differ], labels[4 * pairs + differ]])
    other = torch.cat([labels[4 * pairs + differ], labels[differ]])
    with torch.no_grad():
        logits, attention = model(x, attention=True)
        assert attention is not None
        accuracy = float((logits[:, -1].argmax(-1) == own).double().mean())
        best = attention[..., -1, :-1].argmax(-1)  # (layer, head, sample): CLS queries, CLS itself left out
        rates = torch.stack([torch.stack([_flipped(model, x, donor, other, row) for row in layer]) for layer in best])
        random = torch.randint(chosen.length, (len(x),), generator=generator).to(device)
        control = _flipped(model, x, donor, other, random)
    return FlipRates(rates, float(control), accuracy)


def _flipped(model: SmallTransformer, x: Tensor, donor: Tensor, other: Tensor, place: Tensor) -> Tensor:
    """Share of inputs whose prediction becomes the donor's label when each exchanges the token at ``place``."""
    rows = torch.arange(len(x), device=x.device)
    half = len(x) // 2
    partner = torch.cat([place[half:], place[:half]])  # the donor's own place
    changed = x.clone()
    changed[rows, place] = donor[rows, partner]
    logits: Tensor = model(changed)[0]
    return (logits[:, -1].argmax(-1) == other).double().mean()
