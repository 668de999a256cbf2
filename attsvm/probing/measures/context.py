"""What the measures of one layer share: who is padding, where a sequence starts and ends, how its tokens move."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.dynamics.localization import Covariance, read_covariance
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
