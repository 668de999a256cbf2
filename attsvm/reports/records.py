"""Solutions and problems as plain data, ready for JSON."""

from __future__ import annotations

import math
import platform
from importlib.metadata import version
from typing import Any

import attsvm
from attsvm.optimality import Convergence, convergence_of

__all__ = ["finite", "problem_record", "solution_record", "versions"]


def finite(value: Any) -> Any:
    """JSON has no infinity: write null instead.

    Examples
    --------
    >>> from attsvm.reports.records import finite
    >>> finite({"gap": float("inf"), "margins": [1.0, float("nan")]})
    {'gap': None, 'margins': [1.0, None]}
    """
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def versions(*names: str) -> dict[str, str]:
    """Versions that a number depends on.

    Examples
    --------
    >>> from attsvm.reports.records import versions
    >>> sorted(versions("torch"))
    ['attsvm', 'numpy', 'python', 'scipy', 'torch']
    """
    packages = ("attsvm", "numpy", "scipy", *names)
    return {name: version(name) for name in packages} | {"python": platform.python_version()}


def problem_record(problem: attsvm.AttentionProblem, selection: attsvm.Selection | None = None) -> dict[str, Any]:
    """Sizes and head of a problem, and the scores of a selection.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.records import problem_record
    >>> problem_record(attsvm.random_problem(n=2, T=3, d=4, seed=0))["rows"]
    4
    """
    rows = int((problem.allowed.sum(axis=-1) - 1).sum())
    record: dict[str, Any] = {
        "n": problem.n, "T": problem.T, "K": problem.K if problem.multi_query else None, "dx": problem.dx,
        "dz": problem.dz, "rows": rows, "masked": problem.mask is not None,
        "head": None if problem.head is None else type(problem.head).__name__,
    }  # fmt: skip
    if selection is not None:
        record["selection"] = selection.indices.tolist()
        record["ties"] = {",".join(map(str, place)): list(tokens) for place, tokens in selection.ties.items()}
    return record


def solution_record(solution: attsvm.Solution) -> dict[str, Any]:
    """Everything that is printed about a solution.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.records import solution_record
    >>> solution_record(attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0)))["status"]
    'optimal'
    """
    certificate = solution.certificate
    record: dict[str, Any] = {
        "formulation": solution.formulation,
        "norm_name": solution.norm_name,
        "status": str(solution.status),
        "solver": solution.solver,
        "seconds": solution.seconds,
    }
    if certificate.farkas is not None:
        queries = [solution.rows.query_index(int(o)) for o in solution.conflicting_queries]
        farkas: dict[str, Any] = {
            "sequences": sorted({query[0] for query in queries}),
            "residual": certificate.farkas.residual,
            "excluded_norm": certificate.farkas.excluded_norm,
        }
        if solution.problem.multi_query:
            farkas["queries"] = [list(query) for query in queries]
        return record | {"farkas": farkas}
    if not solution.status.has_solution:
        return record
    record |= {
        "norm": solution.norm,
        "margin": solution.margin,
        "rank": solution.rank,
        "support": [indices.tolist() for indices in attsvm.support_indices(solution)],
        "certificate": {
            "gap": certificate.gap,
            "primal_violation": certificate.primal_violation,
            "dual_violation": certificate.dual_violation,
            "complementarity": certificate.complementarity,
            "lower_bound": certificate.lower_bound,
        },
    }
    if solution.problem.head is not None and isinstance(solution.selection, attsvm.Selection):
        kind = convergence_of(solution)
        record["locally_optimal"] = None if kind is Convergence.UNDECIDED else kind.is_local
    rank = certificate.rank_certificate
    if rank is not None:
        record["certificate"] |= {
            "rank": rank.rank,
            "singular_gap": rank.singular_gap,
            "dual_gap": rank.dual_gap,
            "outside_mass": rank.outside_mass,
        }
    return record
