"""The prompt model f(X) = softmax(X W p)^T X v, its linear twin, and the matrices that govern its training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from attsvm._arrays import finite_array, freeze
from attsvm._checks import require_choice
from attsvm.dynamics.conditioning.loss import ScalarLoss, squared_loss
from attsvm.softmax import log_softmax

__all__ = ["Array", "PromptProblem"]

Array = npt.NDArray[np.float64]


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

    X: Array
    y: Array
    v: Array
    W: Array | None = None
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
    def keys(self) -> Array:
        """``K_i = X_i W``, shape (N, n, d)."""
        return self.X if self.W is None else self.X @ self.W

    @cached_property
    def values(self) -> Array:
        """``u_i = X_i v``, shape (N, n)."""
        return self.X @ self.v

    def with_labels(self, y: npt.ArrayLike) -> PromptProblem:
        """The same data with other labels."""
        return replace(self, y=y)  # type: ignore[arg-type]  # read again in __post_init__

    def with_values(self, v: npt.ArrayLike) -> PromptProblem:
        """The same data with another value vector."""
        return replace(self, v=v)  # type: ignore[arg-type]

    def _prompt(self, p: npt.ArrayLike) -> Array:
        return finite_array("p", p, (self.shape[2],))

    def log_weights(self, p: npt.ArrayLike) -> Array:
        """Log-attention of every example, shape (N, n); softmax only."""
        if self.attention != "softmax":
            raise ValueError("the linear twin has no attention distribution")
        return log_softmax(self.keys @ self._prompt(p))

    def weights(self, p: npt.ArrayLike) -> Array:
        """Attention ``a_i`` (softmax) or ``K_i p / n`` (linear), shape (N, n)."""
        if self.attention == "linear":
            return np.asarray(self.keys @ self._prompt(p) / self.shape[1])
        return np.asarray(np.exp(self.log_weights(p)))

    def predict(self, p: npt.ArrayLike) -> Array:
        """``f(X_i)``, shape (N,)."""
        return np.asarray((self.weights(p) * self.values).sum(axis=1))

    def loss_at(self, p: npt.ArrayLike) -> float:
        """Mean loss, equation (3)."""
        return float(self.loss.value(self.predict(p) - self.y).mean())

    def rows(self, p: npt.ArrayLike) -> Array:
        """``r_i = K_i^T J(a_i) u_i``, the gradients of f(X_i) with respect to p, shape (N, d)."""
        u = self.values
        if self.attention == "linear":
            pulled = u / self.shape[1]
        else:
            a = self.weights(p)
            pulled = a * (u - (a * u).sum(axis=1, keepdims=True))
        return np.asarray(np.einsum("in,ind->id", pulled, self.keys))

    def feature_matrix(self, p: npt.ArrayLike) -> Array:
        """``F(p)``, rows r_i / N, equation (9), shape (N, d)."""
        return self.rows(p) / self.shape[0]

    def gradient(self, p: npt.ArrayLike) -> Array:
        """``F(p)^T g(p)``, shape (d,); gradient descent subtracts it (equation (10) is printed with a plus)."""
        slope = self.loss.slope(self.predict(p) - self.y)
        return np.asarray(self.feature_matrix(p).T @ slope)

    def smallest_singular_value(self, p: npt.ArrayLike) -> float:
        """``sigma_N(F)``: zero when d < N, where the smallest of d singular values would mislead (Lemma 2)."""
        N, _, d = self.shape
        return 0.0 if d < N else float(np.linalg.svd(self.feature_matrix(p), compute_uv=False)[-1])
