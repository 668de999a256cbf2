"""The excess of the loss over that of a selection, in logarithms.

On the way to the selection alpha the loss saturates, ``L(W) - L_alpha ~ e^{-R}`` with ``L_alpha`` the loss when every
query sees its selected token only, so that in plain arithmetic nothing is left to minimize from R of about 40 on.
The minimizers of ``log(L(W) - L_alpha)`` are the same, and this objective is of size R, exact at any R: relative
to the selected token, with ``gap_t = gamma_alpha - gamma_t`` and ``mean = sum_{t != alpha} s_t gap_t``, a query adds

    l(gamma_alpha - mean) - l(gamma_alpha) = mean * (slope of the chord of l),

where ``mean = e^c * (sum of terms of moderate size)`` carries its scale in the exponent c, and the slope of the chord
is an average of ``-l'``, free of cancellation. The gradient is a ratio of two such numbers.

Minimize the log excess over a ball of parameters: L-BFGS on its sphere, inside it, and in a cone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from attsvm.attention import token_logits
from attsvm.losses import UNIT_RULE, Loss
from attsvm.optimality import SeparatingCone
from attsvm.parameterizations import Parameterization, get_parameterization
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.status import Advised


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
        with np.errstate(over="ignore", invalid="ignore"):  # nothing is known of W where logits have no double
            logits = token_logits(self.X, W, self.Z)  # masked tokens included, shape (n, K, T)
        if not np.isfinite(logits).all():
            return float("nan"), np.zeros_like(W)
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


def _length(vector: FloatArray) -> float:
    """The norm, also of vectors whose squares overflow or underflow."""
    largest = float(np.abs(vector).max(initial=0.0))
    return largest * float(np.linalg.norm(vector / largest)) if largest > 0 else 0.0


# Points of one length whose log excess differs by less than this are equal for all that float64 can tell.
_FLAT = 1e-8

# Branches this far (in log excess) above the best are dropped: they would have to gain a factor e^3 to win.
_HOPELESS = 3.0


class PathStatus(Advised):
    """How the search at one radius ended; ``status.advice`` says more.

    Examples
    --------
    >>> PathStatus.BOUNDARY.advice
    'The minimizer uses the whole radius.'
    """

    BOUNDARY = "boundary", "The minimizer uses the whole radius."
    INTERIOR = "interior", "The minimizer is shorter than the radius: the loss has a finite minimum."
    WALL = (
        "cone wall",
        "The search ended at the wall of the separating cone; raise the radius or choose another selection.",
    )
    NO_START = (
        "no start",
        "At this radius the SVM direction is outside the cone, or beats its selection; raise the radius.",
    )
    FLAT = "flat", "The gradient vanishes with the radius: the loss has levelled off, and not at that of the selection."
    INACCURATE = (
        "inaccurate",
        "The search ended before it was stationary; read stationarity, raise max_iterations or tolerance.",
    )


@dataclass(frozen=True, eq=False)
class Form:
    """A parameterization as one long vector: its length for radius R, W, and the gradient pulled back."""

    dx: int
    dz: int
    m: int | None  # None for W itself

    @cached_property
    def rule(self) -> Parameterization:
        """How parameters make W."""
        return get_parameterization("W" if self.m is None else "KQ")

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the parameters, in the order of the vector."""
        return self.rule.shapes(self.dx, self.dz, self.m or 0)

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(prod(shape) for shape in self.shapes.values())

    def length(self, radius: float) -> float:
        """Norm of the parameters that a radius allows."""
        return float(radius if self.m is None else np.sqrt(2.0 * radius))

    def radius(self, length: float) -> float:
        """The radius that allows parameters of this norm."""
        return float(length if self.m is None else 0.5 * length**2)

    def parameters(self, theta: FloatArray) -> dict[str, FloatArray]:
        """The vector cut into W, or into K and Q."""
        ends = np.cumsum([prod(shape) for shape in self.shapes.values()])
        parts = np.split(theta, ends[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self.shapes.items(), parts, strict=True)}

    def compose(self, theta: FloatArray) -> FloatArray:
        """W, shape (dx, dz)."""
        return np.asarray(self.rule.compose(self.parameters(theta)), dtype=np.float64)

    def pull_back(self, theta: FloatArray, G: FloatArray) -> FloatArray:
        """Gradient in the parameters from a gradient in W."""
        pulled = self.rule.pull_back(self.parameters(theta), G)
        return np.asarray(np.concatenate([pulled[name].reshape(-1) for name in self.shapes]))

    def norm(self, theta: FloatArray) -> float:
        """Norm of W that the radius bounds: Frobenius, or nuclear for factors."""
        return float(np.linalg.norm(self.compose(theta), "fro" if self.m is None else "nuc"))

    def lift(self, W: FloatArray) -> FloatArray:
        """Parameters of W: itself, or its balanced factors (of the m leading singular values)."""
        if self.m is None:
            return W.reshape(-1)
        U, singular, Vt = np.linalg.svd(W, full_matrices=False)
        root = np.sqrt(singular[: self.m])
        K, Q = np.zeros((self.dx, self.m)), np.zeros((self.dz, self.m))
        K[:, : len(root)], Q[:, : len(root)] = U[:, : len(root)] * root, Vt[: len(root)].T * root
        return np.concatenate([K.reshape(-1), Q.reshape(-1)])


@dataclass(frozen=True, eq=False)
class Point:
    """Where a search ended."""

    theta: FloatArray
    value: float
    stationarity: float
    on_boundary: bool
    scale: float  # |gradient| times the length of the ball: how much the value changes over it


class BallSearch:
    """Minimize the log excess over one ball, from given starts."""

    def __init__(
        self, objective: LogExcess, form: Form, cone: SeparatingCone | None, tolerance: float, max_iterations: int
    ) -> None:
        self.objective, self.form, self.cone = objective, form, cone
        self.tolerance, self.max_iterations = tolerance, max_iterations

    def evaluate(self, theta: FloatArray) -> tuple[float, FloatArray]:
        """Log excess and its gradient; NaN outside the cone, or where the selection is beaten."""
        if not np.isfinite(theta).all():  # L-BFGS may overflow where the objective is flat
            return float("nan"), np.zeros_like(theta)
        W = self.form.compose(theta)
        if self.cone is not None and not (W.any() and self.cone.value(W) > 0):
            return float("nan"), np.zeros_like(theta)
        value, G = self.objective(W)
        return value, self.form.pull_back(theta, G)

    def _descend(self, function: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray) -> FloatArray:
        from scipy.optimize import minimize

        reached, _ = function(start)
        x = start
        # L-BFGS ends at a line search that fails by rounding, or early with a stale model; a restart tells which.
        for _ in range(4):
            # A step out of the domain must look worse than the start for the line search to shorten it, but not by
            # much: its interpolation would then come back too far.
            barrier = reached + 1.0

            def safe(point: FloatArray, barrier: float = barrier) -> tuple[float, FloatArray]:
                value, slope = function(point)
                return (value, slope) if np.isfinite(value) else (barrier, np.zeros_like(point))

            options = {"maxiter": self.max_iterations, "maxfun": 2 * self.max_iterations, "maxcor": 20, "maxls": 40}
            result = minimize(safe, x, jac=True, method="L-BFGS-B", options={**options, "ftol": 0.0, "gtol": 0.0})
            value, _ = function(result.x)
            if not (np.isfinite(value) and value < reached):
                break
            progress, reached, x = reached - value, value, result.x
            if progress <= 1e-12 * max(1.0, abs(value)):
                break
        return x

    def on_sphere(self, direction: FloatArray, length: float) -> Point | None:
        """Best point of the given length from a direction; None when the direction is outside the domain."""
        largest = float(np.abs(direction).max(initial=0.0))
        if largest == 0:
            return None
        direction = direction / largest  # the length of an SVM solution of tokens near 1e-150 overflows
        size = float(np.linalg.norm(direction))
        # L-BFGS begins with a step of length 1. In a cone it must not leave the basin of the start: in units where it
        # turns W by an angle of about 1 / R, it moves the logits by about 1. Elsewhere long steps help to explore.
        scale = 1.0 if self.cone is None else self.form.radius(length)

        def function(v: FloatArray) -> tuple[float, FloatArray]:
            size = float(np.linalg.norm(v))
            unit = v / size
            value, g = self.evaluate(length * unit)
            return value, (length / size) * (g - (g @ unit) * unit)

        start = scale / size * direction
        if not np.isfinite(function(start)[0]):
            return None
        v = self._descend(function, start)
        # Rounded as in the function: at the wall of a cone another rounding may be outside.
        return self._reached(length * (v / float(np.linalg.norm(v))), length, boundary=True)

    def inside(self, theta: FloatArray, length: float) -> Point:
        """Best point of at most the given length, downhill from theta."""

        def function(point: FloatArray) -> tuple[float, FloatArray]:
            if np.linalg.norm(point) > length * (1.0 + 1e-12):
                return float("nan"), np.zeros_like(point)
            return self.evaluate(point)

        return self._reached(self._descend(function, theta), length, boundary=False)

    def _inwards(self, point: Point, length: float) -> Point:
        """From a point of the sphere with lower values inside: to a minimizer inside, or to the sphere elsewhere."""
        inner = self.inside(point.theta, length)
        if inner.stationarity <= self.tolerance:
            return inner
        outer = self.on_sphere(inner.theta, length)  # the way downhill may lead out again
        return outer if outer is not None and outer.value < inner.value + _FLAT else inner

    def _reached(self, theta: FloatArray, length: float, boundary: bool) -> Point:
        value, g = self.evaluate(theta)
        steepness = _length(g)
        scale = length * steepness
        if not boundary or scale <= self.tolerance:
            # Without a gradient there is no multiplier to tell: unbalanced factors can use up the radius for nothing.
            return Point(theta, value, scale, self.form.norm(theta) > (1 - 1e-6) * self.form.radius(length), scale)
        radial = float(g @ theta) / length
        tangential = _length(g - radial * theta / length)
        # A gradient that points outwards on the sphere says that shorter parameters do better.
        return Point(theta, value, tangential / steepness, radial < 0, scale)

    def explore(self, starts: list[FloatArray], previous: list[Point], length: float, limit: int) -> list[Point]:
        """The distinct points reached from all starts and from previous interior minimizers, best first."""
        points = []
        for start in starts:
            point = self.on_sphere(start, length)
            if point is not None:
                points.append(point if point.on_boundary else self._inwards(point, length))
        # A minimizer that does not press outwards stays one in the larger ball.
        free = [point for point in previous if not point.on_boundary or point.scale <= self.tolerance]
        points += [self.inside(point.theta, length) for point in free]
        # In a cone a descent that ran into the wall is lower, but it left the basin of the selection.
        points.sort(key=lambda p: (self.cone is not None and p.stationarity > self.tolerance, p.value))
        kept: list[Point] = []
        for point in points:
            is_new = all(abs(point.value - p.value) > 1e-6 * max(1.0, abs(p.value)) for p in kept)
            if is_new and (not kept or point.value < kept[0].value + _HOPELESS):
                kept.append(point)
        return kept[:limit]

    def status(self, point: Point) -> PathStatus:
        """How the search ended."""
        if point.on_boundary and point.scale <= self.tolerance:
            return PathStatus.FLAT
        if point.stationarity <= self.tolerance and not point.on_boundary:
            return PathStatus.FLAT if self._levelled(point) else PathStatus.INTERIOR
        if point.stationarity <= self.tolerance:
            return PathStatus.BOUNDARY
        if point.on_boundary and point.stationarity * point.scale <= _FLAT:
            return PathStatus.FLAT
        # At the wall the line search shortens its steps to nothing while the gradient still points through it.
        if self.cone is not None and not np.isfinite(self._beyond(point)):
            return PathStatus.WALL
        return PathStatus.INACCURATE

    def _levelled(self, point: Point) -> bool:
        """Whether shorter parameters do equally well, which tells a plateau from a minimum."""
        return bool(point.theta.any()) and self.evaluate(0.9 * point.theta)[0] - point.value <= self.tolerance

    def _beyond(self, point: Point) -> float:
        """Value a little further downhill: NaN when that is outside the domain."""
        _, g = self.evaluate(point.theta)
        size = float(np.linalg.norm(point.theta))
        further = point.theta - 1e-3 * size * g / np.linalg.norm(g)
        return self.evaluate(further * size / float(np.linalg.norm(further)))[0]
