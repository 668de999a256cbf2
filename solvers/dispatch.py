"""One entry point: read what is asked, choose from the table, hand over to the pipeline of one problem or a batch."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.batches import solve_many
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.registry import SolverSpec, choose
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import FEW_ROWS
from attsvm.solvers.single import solve_one
from attsvm.solvers.solution import MarginSolution, MarginSolutionBatch
from attsvm.solvers.threads import blas_threads

__all__ = ["solve", "solve_batch"]

_FROBENIUS = frozenset({"frobenius"})


def _check(solver: object, tolerance: object, max_iterations: object, rank: object) -> None:
    """Refuse arguments of the wrong kind, by name."""
    if not isinstance(solver, str):
        raise ValueError(f"solver must be a string such as 'auto' or 'cvxpy:SCS', got {solver!r}")
    if tolerance is not None and not (isinstance(tolerance, (int, float, np.number)) and tolerance > 0):
        raise ValueError(f"tolerance must be positive, got {tolerance!r}")
    for name, count in (("max_iterations", max_iterations), ("rank", rank)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1):
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")


def _warm(given: Any) -> Any:
    """A solution as it is, anything else as an array of multipliers."""
    if given is None or isinstance(given, MarginSolution):
        return given
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"warm_start must be a MarginSolution or multipliers, got {type(given).__name__}") from error


def solve(
    problem: MarginProblem,
    norm: str | Norm = "frobenius",
    solver: str = "auto",
    *,
    rank: int | None = None,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: MarginSolution | npt.ArrayLike | None = None,
    **options: Any,
) -> MarginSolution:
    """Solve a margin problem, or all problems of a batch.

    Parameters
    ----------
    problem : MarginProblem
    norm : str or Norm
        "frobenius", "nuclear", "spectral", "l1", "linf" or "l<p>".
    solver : str
        "auto", or a name from `SOLVERS`, e.g. "cvxpy" or "cvxpy:SCS".
    rank : int, optional
        Largest rank of W allowed (nuclear norm, nonconvex): see `attsvm.solvers.nuclear.rank_limited`.
    tolerance : float, optional
        What the certificate must reach to be called optimal; what the solver achieves by default.
    max_iterations : int, optional
        In the solver's own unit.
    warm_start : MarginSolution or array_like, shape (*batch, m), optional
        Solution or multipliers of a similar problem with as many rows.
    **options
        Passed to the solver.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem([[2.0]], [[1.0]], [0]))
    >>> print(result.status, round(result.W.item(), 6))
    optimal 0.5
    >>> batch = solve(MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0]))
    >>> batch.W.ravel().round(9).tolist(), (batch.status == "optimal").tolist()
    ([0.5, 0.25], [True, True])
    """
    if not isinstance(problem, MarginProblem):
        raise TypeError(f"problem must be a MarginProblem, got {type(problem).__name__}")
    norm = get_norm(norm)
    _check(solver, tolerance, max_iterations, rank)
    spec, variant = choose(problem, norm, solver, rank)
    if options and spec.options is not None and set(options) - spec.options:
        unknown = sorted(set(options) - spec.options)
        raise TypeError(f"solver {spec.name!r} takes no option {unknown[0]!r}; it takes {sorted(spec.options)}")
    goal = tolerance or _achievable(spec, variant)
    request = Request(goal, max_iterations, _warm(warm_start), rank, variant, options)
    request.check(problem)
    if spec.norms == _FROBENIUS and not problem.batch and problem.m < FEW_ROWS:
        return solve_one(spec, problem, norm, request)  # products of so few rows are never shared between threads
    with _threads(spec, problem):
        if problem.batch:
            return solve_many(spec, problem, norm, request)
        if spec.batch_only:
            return solve_many(spec, MarginProblem.stack([problem]), norm, request)[0]
        return solve_one(spec, problem, norm, request)


def solve_batch(
    problem: MarginProblem, norm: str | Norm = "frobenius", solver: str = "auto", **options: Any
) -> MarginSolutionBatch:
    """`solve` with the type of a batch: the same names with a leading axis.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve_batch
    >>> solve_batch(MarginProblem(np.ones((2, 1, 1)), np.ones((2, 1, 1)), [0])).norm
    array([1., 1.])
    """
    if not problem.batch:
        raise ValueError("solve_batch takes a batch of problems; use solve for one")
    found: Any = solve(problem, norm, solver, **options)
    face: MarginSolutionBatch = found
    return face


def _achievable(spec: SolverSpec, variant: str) -> float:
    if spec.foreign:
        from attsvm.solvers.reference import ACHIEVABLE

        return ACHIEVABLE.get(variant.upper() or "CLARABEL", 1e-5)
    return spec.achievable


def _threads(spec: SolverSpec, problem: MarginProblem) -> AbstractContextManager[Any]:
    if spec.foreign:  # keeps its own habits
        return nullcontext()
    if spec.soft and not problem.batch:  # methods with a working set: the largest matrix is that of the free rows
        return blas_threads(max(problem.rows.elements, min(problem.m, 2 * problem.q) ** 2))
    large = spec.norms == _FROBENIUS and not problem.batch
    return blas_threads(problem.rows.elements if large else 0)
