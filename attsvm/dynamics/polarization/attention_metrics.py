"""Metrics of any attention tensor ``(layer, head, sample, query, key)``, NumPy or torch: sinks and sparsity.

The result is of the kind given (an ndarray, or a tensor on the same device), shape (layer, head).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from attsvm.solvers.arrays import BoolArray
from attsvm.user_input import AnyFloatArray, ArrayT

if TYPE_CHECKING:
    from torch import Tensor


def _check(attention: Any) -> Any:
    if not hasattr(attention, "ndim") or not hasattr(attention, "sum"):
        raise ValueError("attention must be an ndarray or a tensor")
    if attention.ndim != 5:
        raise ValueError(
            f"attention must have axes (layer, head, sample, query, key), got shape {tuple(attention.shape)}"
        )
    if 0 in tuple(attention.shape):
        raise ValueError(f"attention must not be empty, got shape {tuple(attention.shape)}")
    if bool((attention != attention).any()):
        raise ValueError("attention must not hold NaN")
    return attention


def sink_score(
    attention: ArrayT, *, sink: int = 0, queries: slice = slice(1, -2), how: str = "mean_of_ratios", clip: bool = False
) -> ArrayT:
    """Share of the attention weight that goes to the sink token, per head.

    Parameters
    ----------
    attention : ndarray or Tensor, shape (layer, head, sample, query, key)
    sink : int
        The key of the beginning-of-sequence token.
    queries : slice
        Where nothing can be predicted; the default drops the first query and the last two (appendix E.1).
    how : {"mean_of_ratios", "ratio_of_sums"}
        The published pseudocode averages the share of each query; the published code divides sums over the queries of a
        sample. They agree where rows sum to one and differ widely for unnormalized attention.
    clip : bool
        Into [0, 1], as published; without it scores of signed attention may lie outside.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import sink_score
    >>> A = np.zeros((1, 1, 1, 4, 4)); A[..., 0] = [1, 1, 3, 1]; A[..., 1] = [0, 1, 1, 1]
    >>> sink_score(A, queries=slice(1, 3)).item()
    0.625
    >>> round(sink_score(A, queries=slice(1, 3), how="ratio_of_sums").item(), 4)
    0.6667
    """
    A = _check(attention)[..., queries, :]
    if A.shape[3] == 0:
        raise ValueError(f"queries {queries} selects no query of {attention.shape[3]}")
    total = A.sum(-1)
    score: Any
    if how == "mean_of_ratios":
        score = (A[..., sink] / _nonzero(total)).mean(-1).mean(-1)
    elif how == "ratio_of_sums":
        score = (A[..., sink].sum(-1) / _nonzero(total.sum(-1))).mean(-1)
    else:
        raise ValueError(f'how must be "mean_of_ratios" or "ratio_of_sums", got {how!r}')
    found: ArrayT = score.clip(0, 1) if clip else score
    return found


def _nonzero(total: Any) -> Any:
    """Totals with 0 replaced by 1: a query without any weight attends to nothing, and so not to the sink."""
    return total + (total == 0)


@overload
def sink_heads(
    attention: AnyFloatArray, threshold: float = ..., *, sink: int = ..., queries: slice = ..., how: str = ...
) -> BoolArray: ...


@overload
def sink_heads(
    attention: Tensor, threshold: float = ..., *, sink: int = ..., queries: slice = ..., how: str = ...
) -> Tensor: ...


def sink_heads(
    attention: AnyFloatArray | Tensor,
    threshold: float = 0.9,
    *,
    sink: int = 0,
    queries: slice = slice(1, -2),
    how: str = "mean_of_ratios",
) -> BoolArray | Tensor:
    """Whether each head is a sink head: a sink score above the threshold; the rest as for `sink_score`.

    Scores above 1, which only signed attention has, do not count: such a head is not concentrated on the sink.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization.attention_metrics import sink_heads
    >>> A = np.zeros((1, 2, 1, 4, 4)); A[:, 0, ..., 0] = 1; A[:, 1] = 0.25
    >>> sink_heads(A).tolist()
    [[True, False]]
    """
    given: Any = attention
    score: Any = sink_score(given, sink=sink, queries=queries, how=how)
    found: BoolArray | Tensor = (score > threshold) & (score <= 1 + 1e-6)
    return found


def sparsity_score(attention: ArrayT, *, valid: BoolArray | Tensor | None = None) -> ArrayT:
    """Mean over queries of ``max_j A_ij / sum_j A_ij``, per head (appendix E.2).

    Parameters
    ----------
    attention : ndarray or Tensor, shape (layer, head, sample, query, key)
    valid : array of bool, shape (sample, query), optional
        Queries that count (padding left out).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import sparsity_score
    >>> sparsity_score(np.full((1, 1, 1, 2, 4), 0.25)).item()
    0.25
    """
    A = _check(attention)
    ratio = A.max(-1) if not hasattr(A, "detach") else A.amax(-1)
    ratio = ratio / _nonzero(A.sum(-1))
    if valid is None:
        mean: ArrayT = ratio.mean(-1).mean(-1)
        return mean
    if tuple(valid.shape) != tuple(A.shape[2:4]):
        raise ValueError(f"valid must have shape {tuple(A.shape[2:4])}, got {tuple(valid.shape)}")
    if not bool(valid.any()):
        raise ValueError("valid must keep at least one query")
    found: ArrayT = (ratio * valid).sum(-1).sum(-1) / valid.sum()
    return found
