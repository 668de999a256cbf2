"""What the measures of one layer share: who is padding, where a sequence starts and ends, how its tokens move."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.dynamics.localization.walks import Covariance, read_covariance
from attsvm.probing.data import HeadData, LayerData

__all__ = ["Context", "per_sequence"]

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Context:
    """Of one layer on one set of sequences.

    Attributes
    ----------
    layer : LayerData
    ids : ndarray of int, shape (n, T), or None
        Token numbers, for heads that look for the same token.
    """

    layer: LayerData
    ids: IntArray | None = None
    _norms: dict[tuple[bool, int], Float64] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def keys(self) -> BoolArray:
        """Tokens that some query that counts may see, shape (n, Tk)."""
        seen = self.layer.allowed & self.layer.valid[..., None]
        return np.asarray(seen.any(axis=1))

    @cached_property
    def first(self) -> IntArray:
        """First token of each sequence, shape (n,)."""
        return np.asarray(self.keys.argmax(axis=1))

    @cached_property
    def last(self) -> IntArray:
        """Last token of each sequence, shape (n,)."""
        return np.asarray(self.keys.shape[1] - 1 - self.keys[:, ::-1].argmax(axis=1))

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sequence, shape (n,)."""
        return np.asarray(self.keys.sum(axis=1))

    def token_norms(self, biased: bool, tokens: npt.NDArray[np.floating]) -> Float64:
        """Largest singular value of the tokens of each sequence, with a constant 1 if biased, shape (n,)."""
        key = (biased, id(tokens))
        if key not in self._norms:
            x = np.where(self.keys[..., None], tokens, 0.0).astype(np.float64)
            gram = x @ x.swapaxes(-1, -2)
            if biased:
                gram = gram + self.keys[:, :, None] * self.keys[:, None, :]
            self._norms[key] = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[:, -1], 0.0))
        return self._norms[key]

    @cached_property
    def steps(self) -> Covariance | None:
        """Covariance of the step from a token to the next, which is what the theory of localization asks for."""
        x = self.layer.tokens.astype(np.float64)
        both = self.keys[:, 1:] & self.keys[:, :-1]
        steps = (x[:, 1:] - x[:, :-1])[both]
        if len(steps) < 2:
            return None
        return read_covariance(steps.T @ steps / len(steps), x.shape[-1])


def per_sequence(values: npt.NDArray[np.floating], head: HeadData, where: BoolArray | None = None) -> Float64:
    """Mean over the queries that count of each sequence, shape (n,); nan where there is none.

    Parameters
    ----------
    values : ndarray, shape (n, Tq)
    head : HeadData
    where : ndarray of bool, shape (n, Tq), optional
        Which queries, of those that count.
    """
    keep = head.counts if where is None else head.counts & where
    total = np.where(keep, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(keep.any(axis=1), keep.sum(axis=1), np.nan))
