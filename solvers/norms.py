"""Matrix norms, their duals, and the names by which they are asked for. A norm is one class."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.rounding import gamma
from attsvm.solvers.certify.singular_values import singular_value_error

if TYPE_CHECKING:
    import cvxpy

__all__ = ["NORMS", "Entrywise", "Norm", "Schatten", "get_norm"]


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

    def rank_bound(self, queries: int, shape: tuple[int, int]) -> int:
        """The rank that some solution does not exceed, whatever the rows: a limit from here on never binds.

        Projecting W on the span of the queries changes no row. It does not raise a unitarily invariant norm, but may
        raise others, whose solutions can have any rank.
        """
        return min(queries, *shape) if self.unitarily_invariant else min(shape)

    @property
    @abstractmethod
    def name(self) -> str:
        """What ``norm=`` takes."""

    @property
    def family(self) -> str:
        """What solvers list among the norms that they take: the name, or one for all exponents of a family."""
        return self.name

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
        """Bound on the relative error of `values` in float64 (`attsvm.solvers.certify.rounding.norm_bounds`)."""
        return 2.0 * gamma(shape[0] * shape[1] + 8)

    def __call__(self, W: npt.ArrayLike) -> float:
        """The norm of one matrix."""
        return float(self.values(np.asarray(W, dtype=np.float64)))


def _conjugate(p: float) -> float:
    """1/p + 1/q = 1."""
    return np.inf if p == 1.0 else 1.0 if np.isinf(p) else p / (p - 1.0)


_SCHATTEN = {1.0: "nuclear", 2.0: "frobenius"}


@dataclass(frozen=True)
class Schatten(Norm):
    """The l_p norm of the singular values: nuclear (p = 1), Frobenius (p = 2) and spectral (p = inf).

    They are the biases of gradient descent on (K, Q), of gradient descent on W, and of spectral descent.
    """

    p: float
    unitarily_invariant = True

    @cached_property
    def name(self) -> str:
        """``"nuclear"``, ``"frobenius"`` or ``"spectral"``."""
        return _SCHATTEN.get(self.p, "spectral")

    @property
    def dual(self) -> Norm:
        """The norm of the conjugate exponent."""
        return Schatten(_conjugate(self.p))

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        if self.p == 2.0:
            return np.asarray(np.sqrt(np.einsum("...ij,...ij->...", W, W)))
        singular = np.linalg.svd(W, compute_uv=False)
        return np.asarray(singular.sum(axis=-1) if self.p == 1.0 else singular[..., 0])

    def largest_on_ball(self, shape: tuple[int, int]) -> float:
        """Root of the rank for the nuclear norm, else 1."""
        return float(np.sqrt(min(shape))) if self.p == 1.0 else 1.0

    def rounding(self, shape: tuple[int, int]) -> float:
        """Of sums of squares, or of singular values (`attsvm.solvers.certify.singular_values.singular_value_error`)."""
        if self.p == 2.0:
            return super().rounding(shape)
        return float(singular_value_error(shape, 1.0)) * (min(shape) if self.p == 1.0 else 1)

    def expression(self, W: cvxpy.Variable) -> cvxpy.Expression:
        """Half the square of the Frobenius norm (a quadratic program, which OSQP takes too); the others as they are."""
        import cvxpy as cp

        if self.p == 2.0:
            return cp.sum_squares(cp.vec(W, order="C")) / 2
        return cp.normNuc(W) if self.p == 1.0 else cp.sigma_max(W)


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

    @cached_property
    def name(self) -> str:
        """``"l<p>"``."""
        return "linf" if np.isinf(self.p) else f"l{self.p:.17g}"

    @property
    def family(self) -> str:
        """``"lp"`` for every p between 1 and infinity."""
        return "lp" if 1.0 < self.p < np.inf else self.name

    @cached_property
    def dual(self) -> Norm:
        """The norm of the conjugate exponent."""
        return Entrywise(_conjugate(self.p))

    def values(self, W: FloatArray) -> FloatArray:
        """Norms over the last two axes."""
        size = np.abs(W).reshape(*W.shape[:-2], -1)  # np.linalg.norm does the same in three times the time
        if np.isinf(self.p):
            return np.asarray(np.maximum.reduce(size, axis=-1))
        if self.p == 1.0:
            return np.asarray(np.add.reduce(size, axis=-1))
        return np.asarray(np.add.reduce(size**self.p, axis=-1) ** (1.0 / self.p))

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


NORMS: dict[str, Norm] = {
    norm.name: norm for norm in (Schatten(2.0), Schatten(1.0), Schatten(np.inf), Entrywise(np.inf))
}


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
    if isinstance(name, str):  # first: the look at an abstract class takes longer
        if name in NORMS:
            return NORMS[name]
        match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name)
        if match and float(match[1]) == 2.0:
            return NORMS["frobenius"]  # the same norm, and unitarily invariant
        if match and float(match[1]) >= 1.0:
            return Entrywise(float(match[1]))
    elif isinstance(name, Norm):
        return name
    names = dict.fromkeys(["frobenius", "nuclear", "spectral", "l1", "linf", *NORMS])
    known = ", ".join(map(repr, names))
    raise ValueError(f"norm must be {known} or 'l<p>' with a number p >= 1, got {name!r}")
