"""Matrix norms, their duals, and the names by which they are asked for. A norm is one class."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.rounding import gamma
from attsvm.solvers.spectral_bounds import singular_value_error

if TYPE_CHECKING:
    import cvxpy

__all__ = ["NORMS", "Entrywise", "Frobenius", "Norm", "Nuclear", "Spectral", "get_norm"]


class Norm(ABC):
    """A matrix norm over the last two axes.

    A new norm is a subclass entered in `NORMS`: its value, its dual, its largest value on the Frobenius ball and its
    cvxpy expression; certificates, duals and the reference solver need no more.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import get_norm
    >>> norm = get_norm("nuclear")
    >>> norm(np.diag([3.0, 4.0])), norm.dual(np.diag([3.0, 4.0]))
    (7.0, 4.0)
    """

    unitarily_invariant: ClassVar[bool] = False
    """True when ``||U W V^T|| = ||W||`` for orthonormal U, V, so that both spans may be reduced."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What ``norm=`` takes."""

    @property
    @abstractmethod
    def dual(self) -> Norm:
        """The dual norm ``sup { <D, W> : ||W|| <= 1 }``."""

    @abstractmethod
    def values(self, W: FloatArray) -> FloatArray:
        """Norms of matrices of shape (*batch, dx, dz), shape (*batch,)."""

    @abstractmethod
    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """The most that a matrix of Frobenius norm 1 can have: turns error bounds into bounds in this norm."""

    @abstractmethod
    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """The norm of a cvxpy variable, or an increasing function of it."""

    def rounding(self, shape: tuple[int, int]) -> float:
        """Bound on the relative error of `values` in float64 (`attsvm.solvers.rounding.norm_bounds`)."""
        return 2.0 * gamma(shape[0] * shape[1] + 8)

    def __call__(self, W: npt.ArrayLike) -> float:
        """The norm of one matrix."""
        return float(self.values(np.asarray(W, dtype=np.float64)))


@dataclass(frozen=True)
class Frobenius(Norm):
    """Root of the sum of squares: the bias of gradient descent on W."""

    unitarily_invariant = True

    @property
    def name(self) -> str:
        """``"frobenius"``."""
        return "frobenius"

    @property
    def dual(self) -> Norm:
        """Itself."""
        return self

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        return np.asarray(np.sqrt(np.einsum("...ij,...ij->...", W, W)))

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """1."""
        return 1.0

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """Half the square: a quadratic program, which OSQP takes too."""
        import cvxpy as cp

        return cp.sum_squares(cp.vec(W, order="C")) / 2


@dataclass(frozen=True)
class Nuclear(Norm):
    """Sum of the singular values: the bias of gradient descent on (K, Q)."""

    unitarily_invariant = True

    @property
    def name(self) -> str:
        """``"nuclear"``."""
        return "nuclear"

    @property
    def dual(self) -> Norm:
        """The spectral norm."""
        return Spectral()

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        return np.asarray(np.linalg.svd(W, compute_uv=False).sum(axis=-1))

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """Root of the rank."""
        return float(np.sqrt(min(shape)))

    def rounding(self, shape: tuple[int, int]) -> float:
        """Of a sum of singular values, each wrong by at most `attsvm.solvers.rounding.singular_value_error`."""
        return min(shape) * float(singular_value_error(shape, 1.0))

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """``normNuc``."""
        import cvxpy as cp

        return cp.normNuc(W)


@dataclass(frozen=True)
class Spectral(Norm):
    """Largest singular value: the bias of spectral descent."""

    unitarily_invariant = True

    @property
    def name(self) -> str:
        """``"spectral"``."""
        return "spectral"

    @property
    def dual(self) -> Norm:
        """The nuclear norm."""
        return Nuclear()

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        return np.asarray(np.linalg.svd(W, compute_uv=False)[..., 0])

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """1."""
        return 1.0

    def rounding(self, shape: tuple[int, int]) -> float:
        """Of the largest singular value."""
        return float(singular_value_error(shape, 1.0))

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """``sigma_max``."""
        import cvxpy as cp

        return cp.sigma_max(W)


@dataclass(frozen=True)
class Entrywise(Norm):
    """The l_p norm of the entries, ``"l1"``, ``"linf"`` or ``"l<p>"``.

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> get_norm("l3").dual.name, get_norm("l1")([[1.0, -2.0]])
    ('l1.5', 3.0)
    """

    p: float

    @property
    def name(self) -> str:
        """``"l<p>"``."""
        return "linf" if np.isinf(self.p) else f"l{self.p:.17g}"

    @property
    def dual(self) -> Norm:
        """The norm of the conjugate exponent."""
        if self.p == 1.0:
            return Entrywise(np.inf)
        return Entrywise(1.0 if np.isinf(self.p) else self.p / (self.p - 1.0))

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        return np.asarray(np.linalg.norm(W.reshape(*W.shape[:-2], -1), self.p, axis=-1))

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """``(dx dz)^(1/p - 1/2)`` for p < 2, else 1."""
        return float((shape[0] * shape[1]) ** max(0.0, 1.0 / self.p - 0.5))

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """``norm1``, ``norm_inf`` or exact power cones."""
        import cvxpy as cp

        entries = cp.vec(W, order="C")
        if self.p == 1.0:
            return cp.norm1(entries)
        if np.isinf(self.p):
            return cp.norm_inf(entries)
        return cp.pnorm(entries, self.p, approx=False)  # exact power cones, not a rational approximation of p


NORMS: dict[str, Norm] = {norm.name: norm for norm in (Frobenius(), Nuclear(), Spectral(), Entrywise(np.inf))}


def get_norm(name: str | Norm) -> Norm:
    """Look a norm up by name.

    Parameters
    ----------
    name : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf", "l<p>" with p > 1 (e.g. "l1.5", "l3"), or a name in `NORMS`.

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> get_norm("l3").dual.name
    'l1.5'
    """
    if isinstance(name, Norm):
        return name
    if isinstance(name, str):
        if name in NORMS:
            return NORMS[name]
        match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name)
        if match and float(match[1]) == 2.0:
            return NORMS["frobenius"]  # the same norm, and unitarily invariant
        if match and float(match[1]) >= 1.0:
            return Entrywise(float(match[1]))
    raise ValueError(
        f"norm must be 'frobenius', 'nuclear', 'spectral', 'l1', 'linf' or 'l<p>' with a number p >= 1, got {name!r}"
    )
