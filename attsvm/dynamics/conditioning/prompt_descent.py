"""Gradient descent and what could be done about its conditioning, on the same problem: in steps and in time to a loss.

Theta is p, or (p, v) when a value vector to start from is given. All methods share the residuals r = f - y, the
Jacobian of f (N x dim) and the gradient J^T l'(r) / N; the Gauss-Newton matrix is J^T diag(l'') J / N, which for the
squared loss is also the Fisher matrix of a Gaussian output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.prompt_model import PromptProblem
from attsvm.softmax import peakedness
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import require_choice, require_count


@dataclass(frozen=True, eq=False)
class Descent:
    """A run.

    Attributes
    ----------
    p, v : ndarray, shape (d,)
        Where it ended.
    steps : ndarray of int, shape (k,)
        Steps at which the loss was recorded.
    losses : ndarray, shape (k,)
    seconds : ndarray, shape (k,)
        Elapsed when they were recorded.
    log_ratio : float
        Median over examples of log(max a / min a) at the end; not a number for the linear twin.
    status : str
        "reached" (the target), "running" (out of steps) or "diverged".
    """

    p: FloatArray
    v: FloatArray
    steps: npt.NDArray[np.int64]
    losses: FloatArray
    seconds: FloatArray
    log_ratio: float
    status: str

    def first_below(self, loss: float) -> tuple[int, float] | None:
        """Step and seconds of the first record below a loss, or None."""
        where = np.flatnonzero(self.losses <= loss)
        return (int(self.steps[where[0]]), float(self.seconds[where[0]])) if where.size else None


class _Evaluator:
    """Residuals, gradient and Jacobian of f at theta, with the tokens of all examples in one matrix."""

    def __init__(self, problem: PromptProblem, joint: bool) -> None:
        N, n, d = problem.shape
        self.problem, self.joint = problem, joint
        self.N, self.n, self.d = N, n, d
        self.tokens = problem.X.reshape(N * n, d)
        self.keys = problem.keys.reshape(N * n, d)
        self.fixed_values = problem.values
        self.same = problem.W is None

    def forward(self, theta: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Weights (N, n), values (N, n) and residuals (N,)."""
        if self.joint and self.same:
            both = self.tokens @ theta.reshape(2, self.d).T
            scores, u = both[:, 0].reshape(self.N, self.n), both[:, 1].reshape(self.N, self.n)
        else:
            scores = (self.keys @ theta[: self.d]).reshape(self.N, self.n)
            u = (self.tokens @ theta[self.d :]).reshape(self.N, self.n) if self.joint else self.fixed_values
        if self.problem.attention == "linear":
            a = scores / self.n
        else:
            a = np.exp(scores - scores.max(axis=1, keepdims=True))
            a /= a.sum(axis=1, keepdims=True)
        return a, u, np.einsum("ij,ij->i", a, u) - self.problem.y

    def pulled(self, a: FloatArray, u: FloatArray) -> FloatArray:
        """Derivative of f with respect to the scores, shape (N, n)."""
        if self.problem.attention == "linear":
            return u / self.n
        return np.asarray(a * (u - np.einsum("ij,ij->i", a, u)[:, None]))

    def gradient(self, a: FloatArray, u: FloatArray, residuals: FloatArray) -> FloatArray:
        slope = (self.problem.loss.slope(residuals) / self.N)[:, None]
        back = (self.pulled(a, u) * slope).reshape(-1)
        if not self.joint:
            return np.asarray(back @ self.keys)
        ahead = (a * slope).reshape(-1)
        if self.same:
            return np.asarray((np.stack([back, ahead]) @ self.tokens).reshape(-1))
        return np.concatenate([back @ self.keys, ahead @ self.tokens])

    def jacobian(self, a: FloatArray, u: FloatArray) -> FloatArray:
        """Shape (N, dim)."""
        keys = self.keys.reshape(self.N, self.n, self.d)
        rows = np.einsum("ij,ijd->id", self.pulled(a, u), keys)
        if not self.joint:
            return np.asarray(rows)
        tokens = self.tokens.reshape(self.N, self.n, self.d)
        return np.concatenate([rows, np.einsum("ij,ijd->id", a, tokens)], axis=1)

    def loss(self, residuals: FloatArray) -> float:
        return float(self.problem.loss.value(residuals).mean())


Step = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]


def _gradient_descent(model: _Evaluator, lr: float) -> Step:
    return lambda theta, a, u, r: theta - lr * model.gradient(a, u, r)


def _adam(model: _Evaluator, lr: float) -> Step:
    first = second = np.zeros(2 * model.d if model.joint else model.d)
    t = 0

    def step(theta: FloatArray, a: FloatArray, u: FloatArray, r: FloatArray) -> FloatArray:
        nonlocal first, second, t
        t += 1
        g = model.gradient(a, u, r)
        first = 0.9 * first + 0.1 * g
        second = 0.999 * second + 0.001 * g * g
        moved = first / (1 - 0.9**t) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
        return np.asarray(theta - lr * moved)

    return step


def _gauss_newton_parts(
    model: _Evaluator, a: FloatArray, u: FloatArray, r: FloatArray
) -> tuple[FloatArray, FloatArray]:
    jacobian = model.jacobian(a, u)
    weighted = model.problem.loss.curvature(r)[:, None] * jacobian
    return jacobian.T @ weighted / model.N, jacobian.T @ model.problem.loss.slope(r) / model.N


def _preconditioned(model: _Evaluator, lr: float) -> Step:
    """Gradient over the diagonal of the Gauss-Newton matrix: scales, but no rotation."""

    def step(theta: FloatArray, a: FloatArray, u: FloatArray, r: FloatArray) -> FloatArray:
        jacobian = model.jacobian(a, u)
        diagonal = np.einsum("i,ij,ij->j", model.problem.loss.curvature(r), jacobian, jacobian) / model.N
        return np.asarray(theta - lr * model.gradient(a, u, r) / (diagonal + 1e-3 * diagonal.max() + 1e-300))

    return step


def _natural(model: _Evaluator, lr: float) -> Step:
    """Natural gradient: the Fisher matrix with a little damping, a fixed step."""

    def step(theta: FloatArray, a: FloatArray, u: FloatArray, r: FloatArray) -> FloatArray:
        fisher, gradient = _gauss_newton_parts(model, a, u, r)
        damping = 1e-3 * np.trace(fisher) / len(fisher) + 1e-300
        return np.asarray(theta - lr * np.linalg.solve(fisher + damping * np.eye(len(fisher)), gradient))

    return step


def _levenberg_marquardt(model: _Evaluator, lr: float) -> Step:
    """Gauss-Newton whose damping grows until the loss falls; ``lr`` is the inverse of the first damping."""
    damping = 1.0 / lr

    def step(theta: FloatArray, a: FloatArray, u: FloatArray, r: FloatArray) -> FloatArray:
        nonlocal damping
        matrix, gradient = _gauss_newton_parts(model, a, u, r)
        here = model.loss(r)
        for _ in range(30):
            trial = theta - np.linalg.solve(matrix + damping * np.eye(len(matrix)), gradient)
            if model.loss(model.forward(trial)[2]) < here:
                damping = max(damping / 3, 1e-14)
                return np.asarray(trial)
            damping *= 4
        return theta

    return step


#: Name -> (how a step is made, default learning rate).
OPTIMIZERS: dict[str, tuple[Callable[[_Evaluator, float], Step], float]] = {
    "gd": (_gradient_descent, 0.05),
    "preconditioned": (_preconditioned, 0.1),
    "natural": (_natural, 0.5),
    "gauss_newton": (_levenberg_marquardt, 1.0),
    "adam": (_adam, 0.01),
}


def _start(name: str, value: npt.ArrayLike, d: int) -> FloatArray:
    start = np.asarray(value, dtype=np.float64)
    if start.shape != (d,):
        raise ValueError(f"{name} must have shape ({d},), got {start.shape}")
    return start


def descend(
    problem: PromptProblem,
    p0: npt.ArrayLike,
    v0: npt.ArrayLike | None = None,
    *,
    optimizer: str = "gd",
    lr: float | None = None,
    steps: int = 1000,
    target: float = 0.0,
    every: int = 10,
) -> Descent:
    """Minimize the loss from ``p0`` (and ``v0``).

    Parameters
    ----------
    problem : PromptProblem
    p0 : array_like, shape (d,)
    v0 : array_like, shape (d,), optional
        Train the value vector as well, from here; otherwise the problem's own is kept.
    optimizer : {"gd", "preconditioned", "natural", "gauss_newton", "adam"}
        ``preconditioned`` divides by the diagonal of the Gauss-Newton matrix, ``natural`` solves with the whole of it,
        ``gauss_newton`` is Levenberg-Marquardt.
    lr : float, optional
        Learning rate; see `OPTIMIZERS` for the defaults.
    steps : int
    target : float
        Stop at this loss.
    every : int
        Record the loss every so many steps.

    Returns
    -------
    Descent

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=30, n=6, d=4, sigma_p=0.5, seed=1)
    >>> p0, _ = teacher.student(seed=2)
    >>> plain = descend(teacher.problem, p0, lr=1.0, steps=5000, target=1e-10)
    >>> newton = descend(teacher.problem, p0, optimizer="gauss_newton", steps=100, target=1e-10, every=1)
    >>> plain.status, newton.status, bool(newton.steps[-1] < plain.steps[-1])
    ('reached', 'reached', True)
    """
    require_choice("optimizer", optimizer, *OPTIMIZERS)
    require_count("steps", steps, least=0)
    require_count("every", every)
    joint = v0 is not None
    model = _Evaluator(problem, joint)
    theta = np.concatenate([_start("p0", p0, model.d), *([] if v0 is None else [_start("v0", v0, model.d)])])
    make, default = OPTIMIZERS[optimizer]
    step = make(model, default if lr is None else lr)
    records: list[tuple[int, float, float]] = []
    status, begun = "running", perf_counter()
    with np.errstate(over="ignore", invalid="ignore"):  # divergence is a status
        for t in range(steps + 1):
            a, u, r = model.forward(theta)
            if t % every == 0 or t == steps:
                loss = model.loss(r)
                records.append((t, loss, perf_counter() - begun))
                status = "reached" if loss <= target else "running" if loss < 1e12 else "diverged"
                if status != "running":
                    break
            if t < steps:
                theta = step(theta, a, u, r)
    p, v = theta[: model.d], theta[model.d :] if joint else np.array(problem.v)
    log_ratio = float("nan")
    if problem.attention == "softmax" and np.isfinite(theta).all():
        log_ratio = float(np.median(peakedness(log_attention=problem.log_weights(p), log=True)))
    times, losses, seconds = (np.array(column) for column in zip(*records, strict=True))
    return Descent(p, v, times.astype(np.int64), losses, seconds, log_ratio, status)
