"""One entry point for every solver."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.threads import blas_threads

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


def _spec(name: str, target: str, norm: str, summary: str) -> SolverSpec:
    return SolverSpec(name, f"attsvm.solvers.{target}", frozenset({norm}), False, summary)


SOLVERS = {
    spec.name: spec
    for spec in (
        _spec(
            "frobenius", "frobenius:solve_frobenius", "frobenius", "own: active set up to 1,500 rows, then projected"
        ),
        _spec("active_set", "active_set:solve_active_set", "frobenius", "own: block pivoting on the Gram matrix"),
        _spec(
            "projected", "projected:solve_projected", "frobenius", "own: matrix-free pivoting with conjugate gradients"
        ),
        _spec("nuclear", "nuclear:solve_nuclear", "nuclear", "own: interior point up to 700 rows, then factored"),
        _spec(
            "nuclear_interior", "nuclear:solve_nuclear_interior", "nuclear", "own: interior point on the multipliers"
        ),
        _spec(
            "nuclear_factored", "nuclear_factored:solve_nuclear_factored", "nuclear", "own: low-rank factors, Newton"
        ),
        _spec(
            "nuclear_conic", "nuclear_conic:solve_nuclear_conic", "nuclear", "Clarabel on the dual, no modelling layer"
        ),
        SolverSpec(
            "cvxpy",
            "attsvm.solvers.backends.cvxpy_:solve_cvxpy",
            None,
            True,
            "reference: any norm, vectorised, CLARABEL or any installed cvxpy solver",
        ),
    )
}


def _auto(norm: Norm) -> str:
    """Own solvers where there are any; operator and entrywise norms stay on the reference."""
    return norm.name if norm.name in ("frobenius", "nuclear") else "cvxpy"


def solve(
    problem: MarginProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
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
    rank : int, optional
        Largest rank of W allowed (nuclear norm, nonconvex): see `attsvm.solvers.rank_limited`.
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
    if rank is not None:
        return _solve_rank_limited(
            problem, norm, solver, rank, tolerance=tolerance, max_iterations=max_iterations, **options
        )
    name, _, variant = (_auto(norm) if solver == "auto" else solver).partition(":")
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
    function = spec.load()
    with _threads(spec, problem):
        return function(problem, norm, tolerance=tolerance, max_iterations=max_iterations, **options)


def _threads(spec: SolverSpec, problem: MarginProblem) -> AbstractContextManager[Any]:
    if spec.variants:  # a foreign solver keeps its own habits
        return nullcontext()
    return blas_threads(problem.a.size if spec.norms == frozenset({"frobenius"}) else 0)


def _solve_rank_limited(problem: MarginProblem, norm: Norm, solver: str, rank: int, **options: Any) -> MarginSolution:
    if norm.name != "nuclear" or solver not in ("auto", "nuclear"):
        raise ValueError(
            f"rank={rank} limits the nuclear-norm problem and has one solver; use norm='nuclear' and solver='auto', "
            f"got norm={norm.name!r} and solver={solver!r}"
        )
    from attsvm.solvers.rank_limited import solve_rank_limited

    with blas_threads(0):
        return solve_rank_limited(problem, rank, norm=norm, **options)
