"""Assumption A with ``l' < 0``, on the interval of predictions that a problem can produce."""

from __future__ import annotations

import numpy as np

from attsvm.losses import Loss
from attsvm.problem import AttentionProblem
from attsvm.theory.check import Check
from attsvm.theory.mixtures import sampled_predictions

__all__ = ["check_loss", "prediction_range"]

_GRID = 2001
# A slope this small relative to the largest, inside the interval, is a zero up to the accuracy of the search for it.
_TOUCH = 1e-12
# The trapezoidal rule on the grid is far better than this for any smooth loss; a wrong derivative is not.
_MISMATCH = 1e-3


def prediction_range(problem: AttentionProblem, seed: int = 0) -> tuple[float, float, bool]:
    """Interval of ``Y h(X^T s)``: exact (the scores' range) for linear heads, sampled mixtures for others.

    Returns
    -------
    low, high : float
    exact : bool

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.loss_check import prediction_range
    >>> problem = attsvm.AttentionProblem([[[1.0], [-1.0]]], [1], [[1.0]], attsvm.LinearHead([2.0]))
    >>> prediction_range(problem)
    (-2.0, 2.0, True)
    """
    scores = problem.scores()[problem.allowed]
    low, high = float(scores.min()), float(scores.max())
    if problem.head is not None and problem.head.is_linear:
        return low, high, True
    sampled = sampled_predictions(problem, seed)
    return min(low, float(sampled.min())), max(high, float(sampled.max())), False


def check_loss(loss: Loss, low: float, high: float) -> Check:
    """Assumption A on ``[low, high]`` with ``l' < 0``, which the proofs use; M0 and M1 are measured there.

    The three losses of the library satisfy it everywhere. Any other loss is examined on a grid, refined around
    the largest slope, so that ``-u^3``, which is strictly decreasing but flat at 0, is caught.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.loss_check import check_loss
    >>> cubic = attsvm.Loss("cubic", lambda u: -(u**3), lambda u: -3 * u**2, lambda u: -6 * u)
    >>> check_loss(attsvm.logistic, -1.0, 2.0).verdict, check_loss(cubic, -1.0, 2.0).verdict
    ('holds', 'fails')
    """
    if loss.is_standard:
        M0, M1 = loss.constants(low, high)
        slope = float(loss.derivative(np.array([high])).max())  # l' increases: all three losses are convex
        values = {"M0": M0, "M1": M1, "largest slope": slope, "interval": [low, high]}
        detail = f"l' <= {slope:.3g} < 0 on [{low:.3g}, {high:.3g}]; M0 = {M0:.3g}, M1 = {M1:.3g}"
        return Check("A", "holds", values, detail)
    return _examine(loss, low, high)


def _examine(loss: Loss, low: float, high: float) -> Check:
    u = np.linspace(low, high, _GRID) if high > low else np.array([low])
    value, slope, curve = (np.asarray(f(u), dtype=np.float64) for f in (loss.value, loss.derivative, loss.second))
    where = f"on [{low:.3g}, {high:.3g}]"
    if not (np.isfinite(value).all() and np.isfinite(slope).all() and np.isfinite(curve).all()):
        return Check("A", "fails", {"interval": [low, high]}, f"{loss.name} is not finite everywhere {where}")
    M0, M1 = float(np.abs(curve).max()), float(np.abs(slope).max())
    worst, at, inside = _largest_slope(loss, u, slope)
    values = {"M0": M0, "M1": M1, "largest slope": worst, "at": at, "interval": [low, high]}
    rise = np.diff(value)
    error = np.abs(rise - 0.5 * np.diff(u) * (slope[1:] + slope[:-1])).sum()
    if error > _MISMATCH * np.abs(rise).sum() and len(u) > 1:
        return Check("A", "fails", values, f"the derivative given for {loss.name} is not that of its values {where}")
    if worst >= 0 or (inside and worst >= -_TOUCH * M1):
        sign = "> 0" if worst > _TOUCH * M1 else "= 0"
        return Check("A", "fails", values, f"l' {sign} at u = {at:.3g} {where}: the proofs need l' < 0")
    return Check("A", "holds", values, f"l' <= {worst:.3g} < 0 {where} (on a grid); M0 = {M0:.3g}, M1 = {M1:.3g}")


def _largest_slope(
    loss: Loss, u: np.ndarray[tuple[int], np.dtype[np.float64]], slope: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[float, float, bool]:
    """Largest ``l'``, where, and whether that is inside the interval: golden search around the best grid point."""
    from scipy.optimize import minimize_scalar

    k = int(slope.argmax())
    best, at = float(slope[k]), float(u[k])
    if not 0 < k < len(u) - 1:
        return best, at, False
    found = minimize_scalar(
        lambda x: -float(loss.derivative(np.array([x]))[0]), bounds=(u[k - 1], u[k + 1]), method="bounded",
        options={"xatol": 1e-14},
    )  # fmt: skip
    if -found.fun > best:
        best, at = -float(found.fun), float(found.x)
    return best, at, True
