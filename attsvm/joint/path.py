"""The regularization path of the pair: head and attention in balls of growing radius, minimized block by block.

``min L(v, W)`` over ``|v| <= r`` and ``|W|_F <= R`` is not convex, but each block alone is well posed in logarithms: v
is logistic regression on the attended tokens, and W minimizes the excess over the loss of the best tokens under v. The
excess is smaller than the loss itself by e^-R, so that one objective for both would lose it; in blocks neither
underflows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from attsvm._checks import generator, require_count, require_number
from attsvm.attention import likeliest, probabilities
from attsvm.comparison.metrics import misalignment
from attsvm.heads import LinearHead
from attsvm.joint.svm import JointSolution, joint_svm
from attsvm.losses import Loss, get_loss
from attsvm.paths.ball_search import BallSearch, Form
from attsvm.paths.log_excess import LogExcess
from attsvm.paths.regularization import read_radii
from attsvm.problem import AttentionProblem, require_problem
from attsvm.selection import Selection

__all__ = ["JointPath", "joint_path"]

FloatArray = npt.NDArray[np.float64]

# The blocks have settled when neither direction turns by more than this (as 1 - correlation) in a round.
_SETTLED = 1e-13


@dataclass(frozen=True, eq=False, repr=False)
class JointPath:
    """Minimizers of the loss over pairs of balls, S of them.

    Attributes
    ----------
    problem : AttentionProblem
    ratio : float
        Radius of the head's ball over that of attention.
    radii : ndarray, shape (S,)
        Of attention; the head's are ``ratio`` times these.
    v : ndarray, shape (S, dx)
    W : ndarray, shape (S, dx, dz)
    log_loss : ndarray, shape (S,)
    selection : ndarray of int, one set of ``query_shape`` per radius
        The likeliest tokens.
    predicted : tuple of JointSolution
        `joint_svm` of those tokens at this ratio.
    head_distance, attention_distance : ndarray, shape (S,)
        1 - correlation of v with the label SVM, and of W with the attention SVM; NaN where there is none.
    rounds : ndarray of int, shape (S,)
        Alternations between the blocks.
    settled : ndarray of bool, shape (S,)
        Whether the last round changed nothing.
    """

    problem: AttentionProblem
    ratio: float
    radii: FloatArray
    v: FloatArray
    W: FloatArray
    log_loss: FloatArray
    selection: npt.NDArray[np.int64]
    predicted: tuple[JointSolution, ...]
    head_distance: FloatArray
    attention_distance: FloatArray
    rounds: npt.NDArray[np.int64]
    settled: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.radii)

    def __repr__(self) -> str:
        ends = f"radii {self.radii[0]:g}..{self.radii[-1]:g}, ratio {self.ratio:g}"
        return f"JointPath({ends}, distance of v {self.head_distance[-1]:.1e}, of W {self.attention_distance[-1]:.1e})"


def joint_path(
    problem: AttentionProblem,
    radii: npt.ArrayLike,
    *,
    ratio: float = 1.0,
    loss: str | Loss = "logistic",
    starts: int = 4,
    seed: int | np.random.Generator = 0,
    max_rounds: int = 40,
    tolerance: float = 1e-5,
    max_iterations: int = 2000,
) -> JointPath:
    """Minimize the loss over ``|v| <= ratio R`` and ``|W|_F <= R`` for growing R.

    The best of several random starts at the first radius is followed outwards: one branch, of a problem that is not
    convex.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with labels; its head is not used.
    radii : array_like, shape (S,)
        Of attention, positive and increasing.
    ratio : float
    loss : {"logistic", "exponential"} or Loss
        A positive loss whose logarithm is known.
    starts : int
    seed : int or Generator
    max_rounds : int
        Most alternations between the blocks at one radius.
    tolerance, max_iterations
        Of each block, as for `attsvm.regularization_path`.

    Returns
    -------
    JointPath

    Examples
    --------
    >>> import attsvm
    >>> path = attsvm.joint_path(attsvm.random_problem(n=3, T=4, d=5, seed=0), [10, 160], starts=2)
    >>> bool(path.head_distance[-1] < 1e-3 > path.attention_distance[-1])
    True
    """
    if require_problem(problem).batch is not None:
        raise ValueError("a path belongs to one problem; index the batch first, e.g. problem[0]")
    rule = get_loss(loss)
    if rule.logs is None or rule.logs[0] is None:
        raise ValueError(f"loss must be positive with a known logarithm (logistic, exponential), got {rule.name!r}")
    R = read_radii(radii)
    require_number("ratio", ratio, "a positive number", low=0.0)
    for name, count in (("starts", starts), ("max_rounds", max_rounds), ("max_iterations", max_iterations)):
        require_count(name, count)
    pair = _Pair(problem, rule, tolerance, max_iterations, max_rounds)
    rng = generator(seed)
    first = [
        pair.settle(rng.standard_normal(problem.dx), rng.standard_normal((problem.dx, problem.dz)), ratio * R[0], R[0])
        for _ in range(starts)
    ]
    found = [min(first, key=lambda point: point.log_loss)]
    for radius in R[1:]:
        found.append(pair.settle(found[-1].v, found[-1].W, ratio * radius, float(radius)))
    return _collect(problem, float(ratio), R, found)


@dataclass(frozen=True, eq=False)
class _PairPoint:
    v: FloatArray
    W: FloatArray
    log_loss: float
    rounds: int
    settled: bool


class _Pair:
    """Alternation between the blocks at one pair of radii."""

    def __init__(
        self, problem: AttentionProblem, loss: Loss, tolerance: float, max_iterations: int, max_rounds: int
    ) -> None:
        self.problem, self.loss, self.max_rounds = problem, loss, max_rounds
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.form = Form(problem.dx, problem.dz, None)

    def settle(self, v: FloatArray, W: FloatArray, head_radius: float, radius: float) -> _PairPoint:
        """From directions of both to a pair that neither block improves."""
        W, settled, rounds = W * (radius / np.linalg.norm(W)), False, 0
        while not settled and rounds < self.max_rounds:
            before = v, W
            v = self._head_block(v, W, head_radius)
            W = self._attention_block(v, W, radius)
            turned = max(float(misalignment(before[0][None], v[None])), float(misalignment(before[1], W)))
            settled = turned <= _SETTLED
            rounds += 1
        return _PairPoint(v, W, self._log_loss(v, self._features(W))[0], rounds, settled)

    def _features(self, W: FloatArray) -> FloatArray:
        """``Y X^T s`` of every query, shape (n K, dx)."""
        attended = probabilities(self.problem, W).reshape(self.problem.n, -1, self.problem.T) @ self.problem.X
        return np.asarray(attended.reshape(-1, self.problem.dx) * self.problem.Y.reshape(-1, 1))

    def _log_loss(self, v: FloatArray, features: FloatArray) -> tuple[float, FloatArray]:
        """``log L`` and its gradient in v."""
        u = features @ v
        each = self.loss.log_value(u)
        top = float(each.max())
        total = float(np.exp(each - top).sum())
        slopes = np.exp(self.loss.log_slope(u) - top) / total
        return top + float(np.log(total / self.problem.n)), -(slopes @ features)

    def _head_block(self, v: FloatArray, W: FloatArray, length: float) -> FloatArray:
        features = self._features(W)
        return _on_sphere(lambda point: self._log_loss(point, features), v, length, self.max_iterations)

    def _attention_block(self, v: FloatArray, W: FloatArray, length: float) -> FloatArray:
        under = replace(self.problem, head=LinearHead(v))
        objective = LogExcess(under, under.optimal_tokens(), self.loss)
        search = BallSearch(objective, self.form, None, self.tolerance, self.max_iterations)
        found = search.explore([W.reshape(-1)], [], length, limit=1)
        return self.form.compose(found[0].theta) if found else W


def _on_sphere(
    function: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray, length: float, iterations: int
) -> FloatArray:
    """The minimizer of given length: a head that separates always gains by growing."""
    from scipy.optimize import minimize

    def turned(point: FloatArray) -> tuple[float, FloatArray]:
        size = float(np.linalg.norm(point))
        unit = point / size
        value, slope = function(length * unit)
        return value, (length / size) * (slope - (slope @ unit) * unit)

    options = {"maxiter": iterations, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
    result = minimize(turned, start / np.linalg.norm(start), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(length / np.linalg.norm(result.x) * result.x)


def _collect(problem: AttentionProblem, ratio: float, radii: FloatArray, found: list[_PairPoint]) -> JointPath:
    chosen = [Selection(likeliest(problem, point.W)) for point in found]
    predicted = tuple(joint_svm(problem, selection, ratio=ratio) for selection in chosen)

    distances = np.full((2, len(found)), np.nan)
    for k, (point, solution) in enumerate(zip(found, predicted, strict=True)):
        if solution.status.has_solution:
            distances[:, k] = misalignment(point.v[None], solution.v[None]), misalignment(point.W, solution.W)
    return JointPath(
        problem,
        ratio,
        radii,
        np.stack([point.v for point in found]),
        np.stack([point.W for point in found]),
        np.array([point.log_loss for point in found]),
        np.stack([selection.indices for selection in chosen]),
        predicted,
        distances[0],
        distances[1],
        np.array([point.rounds for point in found]),
        np.array([point.settled for point in found]),
    )
