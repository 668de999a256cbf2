"""A head that somebody trained: keys, queries and biases as one matrix W of a margin problem.

A layer scores token t for query k by ``(W_q h_k + b_q) . (W_k h_t + b_k) scale``. With a constant 1 behind every hidden
state this is ``x_t^T W z_k``, ``W = scale [W_k, b_k]^T [W_q, b_q]``: the score that every function of this library
is about. W has rank at most d_head.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import freeze, real_array, require_finite, require_number


def _matrix(name: str, value: npt.ArrayLike) -> FloatArray:
    matrix = real_array(name, value).astype(np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"{name} must have shape (d_head, d), got {matrix.shape}")
    require_finite(name, matrix)
    return matrix


def _with_bias(name: str, matrix: FloatArray, bias: npt.ArrayLike | None) -> FloatArray:
    """``[W, b]``, the bias as one more column; 0 without a bias."""
    column = np.zeros(len(matrix)) if bias is None else real_array(name, bias).astype(np.float64)
    if column.shape != (len(matrix),):
        raise ValueError(
            f"{name} must have shape ({len(matrix)},), one number per row of its matrix, got {column.shape}"
        )
    require_finite(name, column)
    return np.column_stack([matrix, column])


@dataclass(frozen=True, eq=False, repr=False)
class TrainedHead:
    """Key and query maps of one attention head.

    Attributes
    ----------
    key_map : ndarray, shape (d_head, dx)
        ``[W_k, b_k]`` when `biased`, else ``W_k``; maps a token (with its constant 1) to its key.
    query_map : ndarray, shape (d_head, dz)
        ``[W_q, b_q]`` or ``W_q``.
    scale : float
        What logits are multiplied by, usually ``1 / sqrt(d_head)``.
    biased : bool
        Whether hidden states get a constant 1 behind them (see `extend`).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.trained_head import TrainedHead
    >>> rng = np.random.default_rng(0)
    >>> W_q, W_k, b_q, b_k = rng.normal(size=(4, 6)), rng.normal(size=(4, 6)), rng.normal(size=4), rng.normal(size=4)
    >>> head = TrainedHead.from_weights(W_q, W_k, b_q, b_k)
    >>> head
    TrainedHead(d_head=4, W 7 x 7, scale=0.5, biased)
    >>> h = rng.normal(size=(5, 6))  # hidden states of one sequence
    >>> by_hand = (h @ W_q.T + b_q) @ (h @ W_k.T + b_k).T / 2.0
    >>> bool(np.allclose(head.extend(h) @ head.W.T @ head.extend(h).T, by_hand))
    True
    """

    key_map: FloatArray
    query_map: FloatArray
    scale: float
    biased: bool = False

    def __post_init__(self) -> None:
        for name in ("key_map", "query_map"):
            object.__setattr__(self, name, freeze(_matrix(name, getattr(self, name))))
        if len(self.key_map) != len(self.query_map):
            raise ValueError(
                f"key_map and query_map must have as many rows (d_head), got {self.key_map.shape} and "
                f"{self.query_map.shape}"
            )
        require_number("scale", self.scale, "a finite number")

    @classmethod
    def from_weights(
        cls,
        W_q: npt.ArrayLike,
        W_k: npt.ArrayLike,
        b_q: npt.ArrayLike | None = None,
        b_k: npt.ArrayLike | None = None,
        *,
        scale: float | None = None,
    ) -> TrainedHead:
        """From the arrays of a layer, one head's rows of them.

        Parameters
        ----------
        W_q, W_k : array_like, shape (d_head, d)
            Applied as ``W h``, as ``torch.nn.Linear`` stores them.
        b_q, b_k : array_like, shape (d_head,), optional
            One missing bias counts as 0.
        scale : float, optional
            ``1 / sqrt(d_head)`` by default.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.trained_head import TrainedHead
        >>> TrainedHead.from_weights(np.eye(2, 3), np.eye(2, 3), scale=1.0).W.diagonal()
        array([1., 1., 0.])
        """
        query, key = _matrix("W_q", W_q), _matrix("W_k", W_k)
        if len(query) != len(key):
            raise ValueError(f"W_q and W_k must have as many rows (d_head), got {query.shape} and {key.shape}")
        factor = 1.0 / math.sqrt(len(query)) if scale is None else scale
        if b_q is None and b_k is None:
            return cls(key, query, factor)
        return cls(_with_bias("b_k", key, b_k), _with_bias("b_q", query, b_q), factor, True)

    @property
    def d_head(self) -> int:
        """Dimension of keys and queries: the largest rank of W."""
        return len(self.key_map)

    @property
    def W(self) -> FloatArray:
        """``scale [W_k, b_k]^T [W_q, b_q]``, shape (dx, dz)."""
        return np.asarray(self.scale * (self.key_map.T @ self.query_map))

    def extend(self, hidden: npt.ArrayLike) -> npt.NDArray[np.floating[Any]]:
        """Hidden states with the constant 1 behind them if the head has biases, shape (..., dx).

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.trained_head import TrainedHead
        >>> TrainedHead.from_weights([[1.0]], [[1.0]], [0.5]).extend([[2.0], [3.0]])
        array([[2., 1.],
               [3., 1.]])
        """
        states = real_array("hidden", hidden)
        given = self.key_map.shape[1] - self.biased
        if states.ndim < 1 or states.shape[-1] != given:
            raise ValueError(f"hidden must have shape (..., {given}), got {states.shape}")
        if not self.biased:
            return states
        return np.concatenate([states, np.ones((*states.shape[:-1], 1), dtype=states.dtype)], axis=-1)

    def problem(
        self, hidden: npt.ArrayLike, mask: npt.ArrayLike | None = None, *, causal: bool = False
    ) -> AttentionProblem:
        """Self-attention over hidden states: every position is a query of its sequence.

        Parameters
        ----------
        hidden : array_like, shape (n, T, d)
        mask : array_like of bool, shape (n, T) or (n, T, T), optional
            True where attention is allowed.
        causal : bool
            Query k sees tokens 0..k only.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.trained_head import TrainedHead
        >>> head = TrainedHead.from_weights(np.eye(2, 3), np.eye(2, 3))
        >>> head.problem(np.random.default_rng(0).normal(size=(4, 5, 3)), causal=True)
        AttentionProblem(n=4, T=5, dx=3, dz=3, K=5, no head, masked)
        """
        return AttentionProblem.sequences(self.extend(hidden), mask=mask, causal=causal)

    def __repr__(self) -> str:
        dx, dz = self.key_map.shape[1], self.query_map.shape[1]
        biased = ", biased" if self.biased else ""
        return f"TrainedHead(d_head={self.d_head}, W {dx} x {dz}, scale={self.scale:.4g}{biased})"


def split_heads(
    W_q: npt.ArrayLike,
    W_k: npt.ArrayLike,
    b_q: npt.ArrayLike | None = None,
    b_k: npt.ArrayLike | None = None,
    *,
    heads: int,
    kv_heads: int | None = None,
    scale: float | None = None,
) -> list[TrainedHead]:
    """The heads of a layer whose matrices hold them row block by row block.

    Parameters
    ----------
    W_q : array_like, shape (heads * d_head, d)
    W_k : array_like, shape (kv_heads * d_head, d)
    b_q, b_k : array_like, optional
    heads, kv_heads : int
        With grouped queries, ``heads / kv_heads`` consecutive query heads share one key head.
    scale : float, optional
        ``1 / sqrt(d_head)`` by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.trained_head import split_heads
    >>> split_heads(np.eye(4), np.eye(2, 4), heads=2, kv_heads=1)[1].W.nonzero()
    (array([0, 1]), array([2, 3]))
    """
    kv = heads if kv_heads is None else kv_heads
    if heads < 1 or kv < 1 or heads % kv:
        raise ValueError(f"heads must be a positive multiple of kv_heads, got heads={heads} and kv_heads={kv_heads}")
    query, key = _matrix("W_q", W_q), _matrix("W_k", W_k)
    d_head, rest = divmod(len(query), heads)
    if rest or len(key) != kv * d_head:
        raise ValueError(
            f"W_q must have {heads} and W_k {kv} blocks of d_head rows, got {len(query)} and {len(key)} rows"
        )

    def block(name: str, bias: npt.ArrayLike | None, rows: int, place: int) -> FloatArray | None:
        if bias is None:
            return None
        values = real_array(name, bias).astype(np.float64)
        if values.shape != (rows,):
            raise ValueError(f"{name} must have shape ({rows},), got {values.shape}")
        return values[place * d_head : (place + 1) * d_head]

    group = heads // kv
    return [
        TrainedHead.from_weights(
            query[h * d_head : (h + 1) * d_head],
            key[h // group * d_head : (h // group + 1) * d_head],
            block("b_q", b_q, len(query), h),
            block("b_k", b_k, len(key), h // group),
            scale=scale,
        )
        for h in range(heads)
    ]
