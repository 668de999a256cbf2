"""The two synthetic tasks: in-context bigrams (induction) and sets of tokens from one group (classification)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["InductionTask", "SetTask"]


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
    >>> import torch
    >>> from attsvm.validation.models import InductionTask
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
        """Inputs (count, k + 2) and the token that follows them (count,).

        Parameters
        ----------
        count : int
        generator : torch.Generator
        device : optional
            Where the tensors go.
        """
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
    >>> import torch
    >>> from attsvm.validation.models import SetTask
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
        """Inputs (count, length + 1) and labels (count,).

        Parameters
        ----------
        count : int
        generator : torch.Generator
        device : optional
            Where the tensors go.
        """
        labels = torch.randint(self.labels, (count,), generator=generator)
        inside = torch.rand(count, self.group, generator=generator).argsort(dim=1)[:, : self.length]
        tokens = torch.cat([inside + labels[:, None] * self.group, torch.full((count, 1), self.vocabulary - 1)], 1)
        return tokens.to(device), labels.to(device)
