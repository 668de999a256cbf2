"""The excess of the loss over that of a selection, in logarithms.

On the way to the selection alpha the loss saturates, ``L(W) - L_alpha ~ e^{-R}`` with ``L_alpha`` the loss when every
query sees its selected token only, so that in plain arithmetic nothing is left to minimize from R of about 40 on.
The minimizers of ``log(L(W) - L_alpha)`` are the same, and this objective is of size R, exact at any R: relative
to the selected token, with ``gap_t = gamma_alpha - gamma_t`` and ``mean = sum_{t != alpha} s_t gap_t``, a query adds

    l(gamma_alpha - mean) - l(gamma_alpha) = mean * (slope of the chord of l),

where ``mean = e^c * (sum of terms of moderate size)`` carries its scale in the exponent c, and the slope of the chord
is an average of ``-l'``, free of cancellation. The gradient is a ratio of two such numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.attention import token_logits
from attsvm.losses import UNIT_RULE, Loss
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection

__all__ = ["LogExcess"]

FloatArray = npt.NDArray[np.float64]


class LogExcess:
    """``log(L(W) - L_alpha)`` and its gradient in W, exact however small the excess is.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with a linear head.
    selection : Selection
    loss : Loss

    Examples
    --------
    At ``W = 5000`` the excess of the correlation loss is ``e^-5000``, up to a factor ``1 + e^-5000``:

    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.paths.log_excess import LogExcess
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> objective = LogExcess(problem, problem.optimal_tokens(), attsvm.correlation_loss)
    >>> value, gradient = objective(np.array([[5000.0]]))
    >>> value, round(gradient.item(), 12)
    (-5000.0, -1.0)
    """

    def __init__(self, problem: AttentionProblem, selection: Selection, loss: Loss) -> None:
        self.n, self.loss = problem.n, loss
        shape = (problem.n, problem.K)
        self.X = problem.X.astype(np.float64)
        self.Z = problem.Z.astype(np.float64).reshape(*shape, problem.dz)
        self.selected = selection.indices.reshape(*shape, 1)
        allowed = problem.allowed.reshape(*shape, problem.T)
        self.off = allowed & (np.arange(problem.T) != self.selected)
        self.lonely = ~self.off.any(axis=-1, keepdims=True)  # queries of one token add nothing to the excess
        scores = np.where(allowed, problem.scores().reshape(*shape, problem.T), 0.0)
        self.top = np.take_along_axis(scores, self.selected, axis=-1)
        self.gap = np.where(self.off, self.top - scores, 0.0)
        self.floor = float(loss(self.top).sum() / self.n)

    def __call__(self, W: FloatArray) -> tuple[float, FloatArray]:
        """Value and gradient, shape (dx, dz); NaN and zeros where ``L(W) <= L_alpha``."""
        logits = token_logits(self.X, W, self.Z)  # masked tokens included, shape (n, K, T)
        off = np.where(self.off, logits - np.take_along_axis(logits, self.selected, axis=-1), -np.inf)
        largest = np.where(self.lonely, 0.0, off.max(axis=-1, keepdims=True))
        weights = np.exp(off - largest)  # s_t / e^c in [0, 1]
        total_weight = np.where(self.lonely, 1.0, weights.sum(axis=-1, keepdims=True))
        log_normalizer = np.logaddexp(0.0, largest + np.log(total_weight))
        c = largest - log_normalizer  # log-probability of the likeliest other token
        scaled_mean = (weights * self.gap).sum(axis=-1, keepdims=True)
        mean = scaled_mean * np.exp(c)

        unit, chord, slope = self._slopes(mean)
        c = np.where(self.lonely, -np.inf, c + unit)
        scale = float(c.max())
        share = np.exp(c - scale) / self.n
        excess = float((share * scaled_mean * chord).sum())  # times e^scale
        if not excess > 0:
            return float("nan"), np.zeros_like(W)
        factor = slope * share / excess
        in_logits = factor * weights * (self.gap - mean)
        np.put_along_axis(in_logits, self.selected, -factor * scaled_mean * np.exp(-log_normalizer), axis=-1)
        pulled = (in_logits @ self.X).reshape(-1, W.shape[0])
        return scale + float(np.log(excess)), pulled.T @ self.Z.reshape(-1, W.shape[1])

    def _slopes(self, mean: FloatArray) -> tuple[Any, Any, Any]:
        """``(l(u - mean) - l(u)) / mean`` and ``-l'(u - mean)``, both over e^unit: moderate for any head."""
        if self.loss.logs is None:  # a loss of the user's, whose slope may vanish or change its sign
            near = np.abs(mean) <= 1.0
            short, far = np.where(near, mean, 0.0), np.where(near, 1.0, mean)
            average = -sum(w * self.loss.derivative(self.top - short * x) for x, w in UNIT_RULE)
            chord = np.where(near, average, (self.loss(self.top - far) - self.loss(self.top)) / far)
            return np.zeros_like(mean), np.asarray(chord), np.asarray(-self.loss.derivative(self.top - mean))
        low = self.loss.log_slope(self.top - mean)
        unit = self.loss.log_slope(self.top - np.maximum(mean, 0.0))
        chord, slope = (np.exp(part - unit) for part in (self.loss.log_chord(self.top, mean), low))
        return np.asarray(unit), np.asarray(chord), np.asarray(slope)
