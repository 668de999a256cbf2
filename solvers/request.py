"""What the caller asked of a solver, read once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.solution import MarginSolution

if TYPE_CHECKING:
    import torch

__all__ = ["Request"]


@dataclass(frozen=True, eq=False)
class Request:
    """What the caller asked for, read once.

    Attributes
    ----------
    tolerance : float
        What the certificate must reach to be called optimal.
    max_iterations : int or None
        In the method's own unit.
    warm_start : MarginSolution or ndarray, or None
        A solution, or multipliers of shape (*batch, m).
    device : str or torch.device or None
    rank : int or None
        Largest rank allowed.
    variant : str
        What followed the colon in ``solver="name:VARIANT"``.
    options : dict
        Left for the method.
    """

    tolerance: float
    max_iterations: int | None = None
    warm_start: MarginSolution | FloatArray | None = None
    device: str | torch.device | None = None
    rank: int | None = None
    variant: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def multipliers(self, problem: MarginProblem) -> FloatArray | None:
        """Multipliers to start from, negative inequality multipliers cut to 0; None when there are none to use."""
        if self.warm_start is None:
            return None
        given = self.warm_start
        known = given.multipliers if isinstance(given, MarginSolution) else np.asarray(given, dtype=np.float64)
        expected = (*problem.batch, problem.m)
        if known.shape != expected:
            raise ValueError(f"warm_start must hold multipliers of shape {expected}, one per row, got {known.shape}")
        if not np.isfinite(known).all():
            if isinstance(given, MarginSolution):  # an infeasible neighbour knows nothing of use here
                known = np.nan_to_num(known, posinf=0.0, neginf=0.0)
            else:
                raise ValueError("warm_start must be finite")
        lam = problem.clipped(known)
        return lam if lam.any() else None
