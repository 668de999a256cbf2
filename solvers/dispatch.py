"""One entry point for every solver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.solution import MarginSolution

__all__ = ["SOLVERS", "SolverSpec", "solve"]


@dataclass(frozen=True)
class SolverSpec:
    """A solver's name, what it can do, and where it lives.

    Attributes
    ----------
    name : str
        What ``solver=`` takes; a backend with variants is called as ``"name:VARIANT"``.
    target : str
        ``"module:function"``, imported at first use.
    norms : frozenset of str or None
        Norms it solves; None means all.
    variants : bool
        Whether the name takes a variant.
    summary : str
        One line for tables.
    """

    name: str
    target: str
    norms: frozenset[str] | None
    variants: bool
    summary: str

    def load(self) -> Callable[..., MarginSolution]:
        """Import the solver function."""
        module, function = self.target.split(":")
        loaded: Callable[..., MarginSolution] = getattr(importlib.import_module(module), function)
        return loaded


SOLVERS = {
    spec.name: spec
    for spec in (
        SolverSpec(
            "cvxpy",
            "attsvm.solvers.backends.cvxpy_:solve_cvxpy",
            None,
            True,
            "reference: any norm, vectorised, CLARABEL or any installed cvxpy solver",
        ),
    )
}


def _auto(problem: MarginProblem, norm: Norm) -> str:
    return "cvxpy"


def solve(
    problem: MarginProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    **options: Any,
) -> MarginSolution:
    """Solve a margin problem.

    Parameters
    ----------
    problem : MarginProblem
    norm : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf" or "l<p>".
    solver : str
        "auto", or a name from `SOLVERS`, e.g. "cvxpy" or "cvxpy:SCS".
    tolerance : float, optional
        Largest gap and violation that count as optimal; each solver has an achievable default.
    max_iterations : int, optional
    **options
        Passed to the solver.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem([[2.0]], [[1.0]], [0]))
    >>> print(result.status, round(result.W.item(), 6))
    optimal 0.5
    """
    norm = get_norm(norm)
    if tolerance is not None and not tolerance > 0:
        raise ValueError(f"tolerance must be positive, got {tolerance}")
    if max_iterations is not None and max_iterations < 1:
        raise ValueError(f"max_iterations must be at least 1, got {max_iterations}")
    if not isinstance(solver, str):
        raise ValueError(f"solver must be a string such as 'auto' or 'cvxpy:SCS', got {solver!r}")
    name, _, variant = (_auto(problem, norm) if solver == "auto" else solver).partition(":")
    spec = SOLVERS.get(name)
    if spec is None or (variant and not spec.variants):
        raise ValueError(
            f"solver must be 'auto' or one of {sorted(SOLVERS)} ('cvxpy:NAME' picks a solver), got {solver!r}"
        )
    if spec.norms is not None and norm.name not in spec.norms:
        able = sorted(s.name for s in SOLVERS.values() if s.norms is None or norm.name in s.norms)
        raise ValueError(f"solver {name!r} does not support norm {norm.name!r}; use one of {able}")
    if variant:
        options["variant"] = variant
    return spec.load()(problem, norm, tolerance=tolerance, max_iterations=max_iterations, **options)
