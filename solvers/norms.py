"""Matrix norms, their duals, and the names by which they are asked for."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Norm", "get_norm"]

_SPECTRAL_FAMILY = {"frobenius": "frobenius", "nuclear": "spectral", "spectral": "nuclear"}


@dataclass(frozen=True)
class Norm:
    """A matrix norm and its dual.

    Entrywise norms are named ``"l1"``, ``"linf"`` or ``"l<p>"`` with a number ``p > 1``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import get_norm
    >>> norm = get_norm("nuclear")
    >>> norm(np.diag([3.0, 4.0])), norm.dual(np.diag([3.0, 4.0]))
    (7.0, 4.0)
    """

    name: str
    p: float | None = None

    @property
    def unitarily_invariant(self) -> bool:
        """True when ``||U W V^T|| = ||W||`` for orthonormal U, V, so that both spans may be reduced."""
        return self.p is None

    @property
    def dual(self) -> Norm:
        """The dual norm ``sup { <D, W> : ||W|| <= 1 }``."""
        if self.p is None:
            return Norm(_SPECTRAL_FAMILY[self.name])
        if self.p == 1.0:
            return Norm("linf", np.inf)
        if np.isinf(self.p):
            return Norm("l1", 1.0)
        conjugate = self.p / (self.p - 1.0)
        return Norm(f"l{conjugate:.17g}", conjugate)

    def __call__(self, W: npt.ArrayLike) -> float:
        """The norm of a matrix."""
        matrix = np.asarray(W, dtype=np.float64)
        if self.name == "frobenius":
            return float(np.linalg.norm(matrix))
        if self.p is not None:
            return float(np.linalg.norm(matrix.ravel(), self.p))
        singular = np.linalg.svd(matrix, compute_uv=False)
        return float(singular.sum() if self.name == "nuclear" else singular[0])


def get_norm(name: str | Norm) -> Norm:
    """Look a norm up by name.

    Parameters
    ----------
    name : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf", or "l<p>" with p > 1 (e.g. "l1.5", "l3").

    Examples
    --------
    >>> from attsvm.solvers import get_norm
    >>> get_norm("l3").dual.name
    'l1.5'
    """
    if isinstance(name, Norm):
        return name
    if name in _SPECTRAL_FAMILY:
        return Norm(name)
    if name == "linf":
        return Norm(name, np.inf)
    match = re.fullmatch(r"l(\d+(?:\.\d+)?)", name) if isinstance(name, str) else None
    if match and float(match[1]) == 2.0:
        return Norm("frobenius")  # the same norm, and unitarily invariant
    if match and float(match[1]) >= 1.0:
        return Norm(name, float(match[1]))
    raise ValueError(
        f"norm must be 'frobenius', 'nuclear', 'spectral', 'l1', 'linf' or 'l<p>' with a number p >= 1, got {name!r}"
    )
