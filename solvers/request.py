"""What the caller asked of a solver, read once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from attsvm.solvers.arrays import FloatArray, is_count
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.margin_solution import EitherSolution, MarginSolution

__all__ = ["Request", "did_you_mean"]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question about the nearest known name, for an error about an unknown one; empty when none is near.

    Examples
    --------
    >>> from attsvm.solvers.request import did_you_mean
    >>> did_you_mean("nomr", ["norm", "rank"]), did_you_mean("device", ["norm"])
    ("; did you mean 'norm'?", '')
    """
    from difflib import get_close_matches  # rarely needed

    near = get_close_matches(name, list(known), n=1, cutoff=0.7)  # one pair of letters exchanged in four passes
    return f"; did you mean {near[0]!r}?" if near else ""


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
    rank : int or None
        Largest rank allowed.
    solver : str
        As it was asked for, "auto" by default.
    variant : str
        What followed the colon in ``solver="name:VARIANT"``.
    options : dict
        Left for the method.
    """

    tolerance: float
    max_iterations: int | None = None
    warm_start: EitherSolution | FloatArray | None = None
    rank: int | None = None
    solver: str = "auto"
    variant: str = ""
    options: dict[str, object] = field(default_factory=dict)

    def check(self, problem: EitherProblem) -> None:
        """Refuse a warm start that does not fit, whether or not the method will use it."""
        given, batch, m, shape = self.warm_start, problem.batch, problem.m, problem.shape
        if given is None:
            return
        if isinstance(given, MarginSolution):
            known = given.problem
            if (known.batch, known.m, known.shape) != (batch, m, shape):
                raise ValueError(
                    f"warm_start must solve a problem with {m} rows and W of shape {(*batch, *shape)}, "
                    f"got {known.m} rows and {(*known.batch, *known.shape)}"
                )
        elif given.shape != (*batch, m):
            raise ValueError(f"warm_start must hold multipliers of shape {(*batch, m)}, one per row, got {given.shape}")
        elif not np.isfinite(given).all():
            raise ValueError("warm_start must be finite")

    def whole(self, name: str, default: int, least: int = 0) -> int:
        """An option that is an integer of at least ``least``; refused by name if it is none."""
        given = self.options.get(name)
        if given is None:
            return default
        if not is_count(given, least):
            raise ValueError(f"{name} must be an integer >= {least}, got {given!r}")
        return int(given)

    def multipliers(self, problem: EitherProblem) -> FloatArray | None:
        """Multipliers to start from, negative inequality multipliers cut to 0; None when there are none to use."""
        given = self.warm_start
        if given is None:
            return None
        # An infeasible neighbour knows nothing of use here: its multipliers are NaN.
        known = np.nan_to_num(given.multipliers) if isinstance(given, MarginSolution) else given
        lam = problem.clipped(known)
        return lam if lam.any() else None
