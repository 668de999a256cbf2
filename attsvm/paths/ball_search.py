"""Minimize the log excess over a ball of parameters: L-BFGS on its sphere, inside it, and in a cone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np
import numpy.typing as npt

from attsvm.optimality import SeparatingCone
from attsvm.parameterizations import Parameterization, get_parameterization
from attsvm.paths.log_excess import LogExcess
from attsvm.solvers.status import Advised

__all__ = ["BallSearch", "Form", "PathStatus", "Point"]

FloatArray = npt.NDArray[np.float64]

# Points of one length whose log excess differs by less than this are equal for all that float64 can tell.
_FLAT = 1e-8
# Branches this far (in log excess) above the best are dropped: they would have to gain a factor e^3 to win.
_HOPELESS = 3.0


class PathStatus(Advised):
    """How the search at one radius ended; ``status.advice`` says more.

    Examples
    --------
    >>> from attsvm.paths.ball_search import PathStatus
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
        size = float(np.linalg.norm(direction))
        if size == 0:
            return None
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
        steepness = float(np.linalg.norm(g))
        scale = length * steepness
        if not boundary or scale <= self.tolerance:
            # Without a gradient there is no multiplier to tell: unbalanced factors can use up the radius for nothing.
            return Point(theta, value, scale, self.form.norm(theta) > (1 - 1e-6) * self.form.radius(length), scale)
        radial = float(g @ theta) / length
        tangential = float(np.linalg.norm(g - radial * theta / length))
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
