"""What a solve will need, said before it starts: an allocation that the system cannot serve may end the process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from attsvm.solvers.arrays import is_number
from attsvm.solvers.margin_problem import MarginProblem

__all__ = [
    "MemoryLimitError",
    "MemoryPlan",
    "allowed_memory",
    "available_memory",
    "require_memory",
    "system_rows",
    "too_large",
    "working_memory",
]

# Vectors of one number per row that a solve holds at once.
_VECTORS = 14
# Free rows per query that real problems reach on the way (they end with one to three), as far as dimensions allow.
_FREE_PER_QUERY = 4.0
# Features of the preconditioner where the matrix does not fit: at least, and better.
_FEWEST_FEATURES, _FEATURES = 32, (128, 256)
# Share of the memory that is free now which a solve without a limit may take.
_SHARE = 0.8


class MemoryLimitError(MemoryError):
    """A solve would need more memory than it may take; nothing was started."""


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say.

    Examples
    --------
    >>> from attsvm.solvers.memory import available_memory
    >>> found = available_memory()
    >>> found is None or found > 0
    True
    """
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError, AttributeError):
        return None


class MemoryPlan(NamedTuple):
    """The way that fits.

    Attributes
    ----------
    matrix : bool
        Whether the matrix of the free rows may be formed.
    features : int or None
        Of the preconditioner of products; None leaves them to the method.
    """

    matrix: bool
    features: int | None


def system_rows(problem: MarginProblem) -> int:
    """Free rows that a solve is expected to reach: four per query, as far as there are rows and dimensions.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.memory import system_rows
    >>> system_rows(MarginProblem([[1.0]], [[1.0]], [0]))
    1
    """
    dx, dz = problem.shape
    return int(min(problem.m, dx * min(dz, problem.q), _FREE_PER_QUERY * problem.q + 1))


def working_memory(problem: MarginProblem, features: int | None = None) -> int:
    """Bytes that a working-set solve is expected to take beside the data.

    Vectors over the rows, matrices of the size of W, and the largest linear system, four free rows per query, with
    its rows written out; or, with a number of features, what products take in place of the system.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.memory import working_memory
    >>> working_memory(MarginProblem([[1.0]], [[1.0]], [0])) < 1000
    True
    """
    dx, dz = problem.shape
    free = system_rows(problem)
    if features is None:
        return 8 * (_VECTORS * problem.m + 6 * dx * dz + free * (free + 2 * dx + dz))
    return 8 * (_VECTORS * problem.m + 6 * dx * dz) + 4 * features * (free + features) + 8 * 6 * free


def require_memory(problem: MarginProblem, limit: object, products: bool = False) -> MemoryPlan:
    """The way that fits into the limit, or without one into 80% of what is available now; refused if none does.

    Parameters
    ----------
    problem : MarginProblem
    limit : float or None
        Bytes beside the data.
    products : bool
        Whether the solve can do without the matrix of the free rows.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.memory import require_memory
    >>> require_memory(MarginProblem([[1.0]], [[1.0]], [0]), 1e6)
    MemoryPlan(matrix=True, features=None)
    """
    allowed = allowed_memory(limit)
    need = working_memory(problem)
    if allowed is None or need <= allowed:
        return MemoryPlan(True, None)
    if products:
        need = working_memory(problem, _FEWEST_FEATURES)
        fitting = [count for count in (_FEWEST_FEATURES, *_FEATURES) if working_memory(problem, count) <= allowed]
        if fitting:
            return MemoryPlan(False, fitting[-1])
    raise too_large(problem, need, allowed, limit is not None)


def allowed_memory(limit: object) -> float | None:
    """Bytes that a solve may take: the limit, or 80% of what is available now; None where the system does not say.

    Examples
    --------
    >>> from attsvm.solvers.memory import allowed_memory
    >>> allowed_memory(1e6)
    1000000.0
    """
    if limit is None:
        found = available_memory()
        return None if found is None else _SHARE * found
    if not is_number(limit, 0.0, ends="(]"):
        raise ValueError(f"memory_limit must be None or a positive number of bytes, got {limit!r}")
    return float(limit)


def too_large(problem: MarginProblem, need: float, allowed: float, limited: bool) -> MemoryLimitError:
    """The error of a solve that needs more than is allowed, whether by a limit or by what is available."""
    reason = "memory_limit" if limited else "what is available now"
    return MemoryLimitError(
        f"this solve of {problem.m} rows and {problem.q} queries would take about {need / 1e6:.0f} MB beside the data, "
        f"more than {reason} ({allowed / 1e6:.0f} MB): raise memory_limit, solve fewer sequences or queries at a time, "
        "or project tokens and queries on fewer dimensions"
    )
