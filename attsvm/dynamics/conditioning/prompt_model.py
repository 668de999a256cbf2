"""The prompt model f(X) = softmax(X W p)^T X v, its linear twin, its losses, and student-teacher data.

Losses are functions of the residual f - y: m-strongly convex, L-smooth and least at zero. Teachers are prompts of a
given scale or a given sparsity ratio that label Gaussian tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm.softmax import log_softmax, peakedness
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import finite_array, freeze, positive, require_choice, require_count


@dataclass(frozen=True)
class ScalarLoss:
    """A loss l(f - y) with its first two derivatives.

    Attributes
    ----------
    value, slope, curvature : callable
        Elementwise functions of the residual.
    m, L : float
        Bounds of the curvature from below and above.
    """

    value: Callable[[FloatArray], FloatArray]
    slope: Callable[[FloatArray], FloatArray]
    curvature: Callable[[FloatArray], FloatArray]
    m: float
    L: float


def squared_loss() -> ScalarLoss:
    """Half the square, m = L = 1.

    Examples
    --------
    >>> float(squared_loss().value(np.array(3.0)))
    4.5
    """
    return ScalarLoss(lambda r: 0.5 * r * r, lambda r: r, np.ones_like, 1.0, 1.0)


def curved_loss(extra: float) -> ScalarLoss:
    """``r^2 / 2 + extra * log cosh r``: m = 1 and L = 1 + extra differ.

    Examples
    --------
    >>> curved_loss(2.0).L, float(curved_loss(2.0).curvature(np.array(0.0)))
    (3.0, 3.0)
    """
    if not extra >= 0:
        raise ValueError(f"extra must be nonnegative, got {extra}")

    def value(r: FloatArray) -> FloatArray:
        size = np.abs(r)
        return np.asarray(0.5 * r * r + extra * (size + np.log1p(np.exp(-2.0 * size)) - np.log(2.0)))

    def curvature(r: FloatArray) -> FloatArray:
        return np.asarray(1.0 + extra * (1.0 - np.tanh(r) ** 2))

    return ScalarLoss(value, lambda r: np.asarray(r + extra * np.tanh(r)), curvature, 1.0, 1.0 + extra)


@dataclass(frozen=True, eq=False)
class PromptProblem:
    """Data and frozen parameters of the prompt model, equation (2).

    Parameters
    ----------
    X : array_like, shape (N, n, d)
        N examples of n tokens.
    y : array_like, shape (N,)
        Labels.
    v : array_like, shape (d,)
        Value vector.
    W : array_like, shape (d, d), optional
        Key-query matrix; the identity by default.
    loss : ScalarLoss
        Of a prediction and a label.
    attention : {"softmax", "linear"}
        The linear twin weighs token j by its score over n: ``f = (X W p)^T X v / n``.

    Examples
    --------
    >>> problem = PromptProblem(X=[[[1.0, 0.0], [0.0, 1.0]]], y=[0.0], v=[1.0, -1.0])
    >>> problem.predict([0.0, 0.0]), problem.loss_at([1.0, 0.0]) > 0
    (array([0.]), True)
    """

    X: FloatArray
    y: FloatArray
    v: FloatArray
    W: FloatArray | None = None
    loss: ScalarLoss = field(default_factory=squared_loss)
    attention: str = "softmax"

    def __post_init__(self) -> None:
        X = freeze(finite_array("X", self.X, ("N", "n", "d")))
        N, _, d = X.shape
        require_choice("attention", self.attention, "softmax", "linear")
        object.__setattr__(self, "X", X)
        object.__setattr__(self, "y", freeze(finite_array("y", self.y, (N,))))
        object.__setattr__(self, "v", freeze(finite_array("v", self.v, (d,))))
        if self.W is not None:
            W = freeze(finite_array("W", self.W, (d, d)))
            if np.linalg.matrix_rank(W) < d:
                raise ValueError(f"W must have full rank {d} (Assumption A3), got rank {np.linalg.matrix_rank(W)}")
            object.__setattr__(self, "W", W)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Examples N, tokens n, dimension d."""
        N, n, d = self.X.shape
        return N, n, d

    @cached_property
    def keys(self) -> FloatArray:
        """``K_i = X_i W``, shape (N, n, d)."""
        return self.X if self.W is None else self.X @ self.W

    @cached_property
    def values(self) -> FloatArray:
        """``u_i = X_i v``, shape (N, n)."""
        return self.X @ self.v

    def with_labels(self, y: npt.ArrayLike) -> PromptProblem:
        """The same data with other labels."""
        return replace(self, y=y)  # type: ignore[arg-type]  # read again in __post_init__

    def with_values(self, v: npt.ArrayLike) -> PromptProblem:
        """The same data with another value vector."""
        return replace(self, v=v)  # type: ignore[arg-type]

    def _prompt(self, p: npt.ArrayLike) -> FloatArray:
        return finite_array("p", p, (self.shape[2],))

    def log_weights(self, p: npt.ArrayLike) -> FloatArray:
        """Log-attention of every example, shape (N, n); softmax only."""
        if self.attention != "softmax":
            raise ValueError("the linear twin has no attention distribution")
        return log_softmax(self.keys @ self._prompt(p))

    def weights(self, p: npt.ArrayLike) -> FloatArray:
        """Attention ``a_i`` (softmax) or ``K_i p / n`` (linear), shape (N, n)."""
        if self.attention == "linear":
            return np.asarray(self.keys @ self._prompt(p) / self.shape[1])
        return np.asarray(np.exp(self.log_weights(p)))

    def predict(self, p: npt.ArrayLike) -> FloatArray:
        """``f(X_i)``, shape (N,)."""
        return np.asarray((self.weights(p) * self.values).sum(axis=1))

    def loss_at(self, p: npt.ArrayLike) -> float:
        """Mean loss, equation (3)."""
        return float(self.loss.value(self.predict(p) - self.y).mean())

    def rows(self, p: npt.ArrayLike) -> FloatArray:
        """``r_i = K_i^T J(a_i) u_i``, the gradients of f(X_i) with respect to p, shape (N, d)."""
        u = self.values
        if self.attention == "linear":
            pulled = u / self.shape[1]
        else:
            a = self.weights(p)
            pulled = a * (u - (a * u).sum(axis=1, keepdims=True))
        return np.asarray(np.einsum("in,ind->id", pulled, self.keys))

    def feature_matrix(self, p: npt.ArrayLike) -> FloatArray:
        """``F(p)``, rows r_i / N, equation (9), shape (N, d)."""
        return self.rows(p) / self.shape[0]

    def gradient(self, p: npt.ArrayLike) -> FloatArray:
        """``F(p)^T g(p)``, shape (d,); gradient descent subtracts it (equation (10) is printed with a plus)."""
        slope = self.loss.slope(self.predict(p) - self.y)
        return np.asarray(self.feature_matrix(p).T @ slope)

    def smallest_singular_value(self, p: npt.ArrayLike) -> float:
        """``sigma_N(F)``: zero when d < N, where the smallest of d singular values would mislead (Lemma 2)."""
        N, _, d = self.shape
        return 0.0 if d < N else float(np.linalg.svd(self.feature_matrix(p), compute_uv=False)[-1])


@dataclass(frozen=True, eq=False)
class StudentTeacher:
    """A problem with the teacher that labelled it.

    Attributes
    ----------
    problem : PromptProblem
        With the teacher's value vector.
    p_star : ndarray, shape (d,)
        The teacher's prompt: a global minimum, loss zero.
    """

    problem: PromptProblem
    p_star: FloatArray

    def log_ratios(self) -> FloatArray:
        """``log(max a / min a)`` of the teacher's attention on every example, shape (N,)."""
        return peakedness(log_attention=self.problem.log_weights(self.p_star), log=True)

    def student(self, seed: int | np.random.Generator = 0) -> tuple[FloatArray, FloatArray]:
        """Random p and v of a student, entries N(0, 1/d)."""
        rng = np.random.default_rng(seed)
        d = self.problem.shape[2]
        return rng.normal(size=d) / np.sqrt(d), rng.normal(size=d) / np.sqrt(d)


def student_teacher(
    N: int = 100,
    n: int = 20,
    d: int = 20,
    *,
    sigma_p: float = 1.0,
    sigma_v: float = 1.0,
    log_ratio: float | None = None,
    loss: ScalarLoss | None = None,
    seed: int | np.random.Generator = 0,
) -> StudentTeacher:
    """Gaussian tokens, W = I, labels of a teacher with p ~ N(0, sigma_p^2), v ~ N(0, sigma_v^2).

    Parameters
    ----------
    N, n, d : int
        Examples, tokens, dimension.
    sigma_p, sigma_v : float
        Standard deviations of the teacher's entries. The log-ratio is proportional to sigma_p.
    log_ratio : float, optional
        Rescale the teacher's prompt so that the median of log(max a / min a) over the examples is exactly this.
    loss : ScalarLoss, optional
        `squared_loss` by default.
    seed : int or Generator

    Returns
    -------
    StudentTeacher

    Examples
    --------
    >>> teacher = student_teacher(N=5, n=4, d=3, log_ratio=2.0, seed=0)
    >>> round(float(np.median(teacher.log_ratios())), 12), teacher.problem.loss_at(teacher.p_star)
    (2.0, 0.0)
    """
    for name, number in (("N", N), ("n", n), ("d", d)):
        require_count(name, number)
    for name, scale in (("sigma_p", sigma_p), ("sigma_v", sigma_v)):
        positive(name, scale)
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(N, n, d))
    p, v = sigma_p * rng.normal(size=d), sigma_v * rng.normal(size=d)
    if log_ratio is not None:
        if not log_ratio >= 0:
            raise ValueError(f"log_ratio must be nonnegative, got {log_ratio}")
        if n == 1 and log_ratio > 0:
            raise ValueError("log_ratio is 0 with one token (n = 1)")
        scores = X @ p
        spread = float(np.median(np.ptp(scores, axis=1)))
        p = p * (log_ratio / spread if n > 1 else 1.0)
    problem = PromptProblem(X=X, y=np.zeros(N), v=v, loss=loss or squared_loss())
    return StudentTeacher(problem.with_labels(problem.predict(p)), p)


def structured_teacher(
    N: int,
    n: int,
    d: int,
    important: int,
    *,
    gap: float,
    leakage: float = 0.0,
    spread: float = 0.0,
    signal: int | None = None,
    seed: int | np.random.Generator = 0,
) -> tuple[StudentTeacher, FloatArray, FloatArray]:
    """Data that meets Assumption B: important keys in a signal subspace I, scores ahead of the others by ``gap``.

    Parameters
    ----------
    N, n, d : int
    important : int
        Tokens s of every example with large attention.
    gap : float
        Score gap Delta between important and other tokens.
    leakage : float
        Size of the important keys' part in U relative to the other keys.
    spread : float
        Width Gamma of the important scores.
    signal : int, optional
        Dimension of I, at least 2; half of d by default.
    seed : int or Generator

    Returns
    -------
    teacher : StudentTeacher
    members : ndarray of bool, shape (N, n)
        The important tokens.
    basis : ndarray, shape (d, d - signal)
        Orthonormal basis of U.

    Examples
    --------
    >>> teacher, members, basis = structured_teacher(6, 5, 6, 2, gap=4.0)
    >>> scores = teacher.problem.keys @ teacher.p_star
    >>> gaps = np.where(members, scores, np.inf).min(1) - np.where(members, -np.inf, scores).max(1)
    >>> bool(np.allclose(gaps, 4.0)), basis.shape
    (True, (6, 3))
    """
    k = d // 2 if signal is None else signal
    if not 1 <= important < n:
        raise ValueError(f"important must be between 1 and n - 1 = {n - 1}, got {important}")
    if not 2 <= k < d:
        raise ValueError(f"signal must be between 2 and d - 1 = {d - 1}, got {k}")
    rng = np.random.default_rng(seed)
    X = np.zeros((N, n, d))
    members = np.zeros((N, n), dtype=bool)
    members[:, :important] = True
    # p* = e_1: the first coordinate is the score. Important keys live in I = span(e_1, ..., e_k), others in U + e_1.
    X[:, :important, 0] = gap + spread * rng.random((N, important))
    X[:, 0, 0] = gap
    X[:, :important, 1:k] = rng.normal(size=(N, important, k - 1))
    X[:, :important, k:] = leakage * rng.normal(size=(N, important, d - k))
    X[:, important:, k:] = rng.normal(size=(N, n - important, d - k))
    p = np.zeros(d)
    p[0] = 1.0
    v = rng.normal(size=d)
    problem = PromptProblem(X=X, y=np.zeros(N), v=v)
    return StudentTeacher(problem.with_labels(problem.predict(p)), p), members, np.eye(d)[:, k:]
