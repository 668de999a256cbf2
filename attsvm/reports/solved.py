"""Problems and solutions as records, ready for JSON, and as tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from attsvm.comparison.report import svm_name
from attsvm.exact_tokens import exact_local_optimality
from attsvm.heads import LinearHead
from attsvm.optimality import Convergence, convergence_of, support_indices
from attsvm.problem import AttentionProblem
from attsvm.records import Table
from attsvm.selection import Selection
from attsvm.solution import Solution

__all__ = [
    "exact_line",
    "exact_record",
    "farkas_line",
    "problem_record",
    "solution_record",
    "solutions_table",
    "support_table",
]

Record = dict[str, Any]
# Multipliers of an exact proof that a line has room for.
_FEW = 4


def problem_record(problem: AttentionProblem, selection: Selection | None = None) -> Record:
    """Sizes and head of a problem, and the tokens of a selection.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.solved import problem_record
    >>> problem_record(attsvm.random_problem(n=2, T=3, d=4, seed=0))["rows"]
    4
    """
    rows = int((problem.allowed.sum(axis=-1) - 1).sum())
    record: Record = {
        "n": problem.n, "T": problem.T, "K": problem.K if problem.multi_query else None, "dx": problem.dx,
        "dz": problem.dz, "rows": rows, "masked": problem.mask is not None,
        "head": None if problem.head is None else problem.head.name,
    }  # fmt: skip
    if selection is not None:
        record["selection"] = selection.indices.tolist()
        record["ties"] = {",".join(map(str, place)): list(tokens) for place, tokens in selection.ties.items()}
    return record


def solution_record(solution: Solution) -> Record:
    """Everything that is printed about a solution.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.solved import solution_record
    >>> solution_record(attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0)))["status"]
    'optimal'
    """
    certificate = solution.certificate
    record: Record = {
        "formulation": solution.formulation,
        "norm_name": solution.norm_name,
        "status": str(solution.status),
        "solver": solution.solver,
        "seconds": solution.seconds,
    }
    if certificate.farkas is not None:
        queries = [solution.rows.query_index(int(o)) for o in solution.conflicting_queries]
        farkas: Record = {"sequences": sorted({query[0] for query in queries})}
        farkas |= {name: getattr(certificate.farkas, name) for name in ("residual", "excluded_norm", "proof")}
        if solution.problem.multi_query:
            farkas["queries"] = [list(query) for query in queries]
        return record | {"farkas": farkas}
    if solution.status != "optimal":
        record["reason"] = solution.reason
    if not solution.status.has_solution:
        return record
    proved = ("gap", "primal_violation", "dual_violation", "complementarity", "lower_bound")
    record |= {
        "norm": solution.norm,
        "margin": solution.margin,
        "rank": solution.rank,
        "support": [indices.tolist() for indices in support_indices(solution)],
        "certificate": {name: getattr(certificate, name) for name in proved},
    }
    if solution.problem.head is not None and isinstance(solution.selection, Selection):
        kind = convergence_of(solution)
        record["locally_optimal"] = None if kind is Convergence.UNDECIDED else kind.is_local
    rank = certificate.rank_certificate
    if rank is not None:
        ranked = ("rank", "resolution", "singular_gap", "dual_gap")
        record["certificate"] |= {name: getattr(rank, name) for name in ranked}
    return record


def _number(value: float | None, form: str = ".6f") -> str:
    return "-" if value is None else format(value, form)


def _rank(rank: int, resolution: float | None) -> str:
    """A certified rank is a statement about singular values above a resolution, and printed with it."""
    if resolution is None or resolution == float("inf"):
        return "not proved"
    return f"{rank} above {resolution:.0e}" if resolution > 0 else f"{rank}"


def _power(value: float | None) -> str:
    return "full rank" if value == float("inf") else _number(value, ".0e")


# A line that is not defined, for want of a solution or of a head, raises KeyError and shows a dash.
_LINES: tuple[tuple[str, Callable[[Record], object]], ...] = (
    ("status", lambda r: r["status"]),
    ("norm", lambda r: _number(r["norm"])),
    ("margin = 1 / norm", lambda r: _number(r["margin"])),
    ("numerical rank", lambda r: r["rank"]),
    ("certified rank", lambda r: _rank(r["certificate"]["rank"], r["certificate"]["resolution"])),
    ("singular-value gap", lambda r: _power(r["certificate"]["singular_gap"])),
    ("support tokens", lambda r: sum(map(len, r["support"]))),
    ("locally optimal", lambda r: {True: "yes", False: "no", None: "undecided"}[r["locally_optimal"]]),
    ("norm is at least", lambda r: _number(r["certificate"]["lower_bound"])),
    ("relative duality gap", lambda r: _number(r["certificate"]["gap"], ".0e")),
    ("primal violation", lambda r: _number(r["certificate"]["primal_violation"], ".0e")),
    ("dual violation", lambda r: _number(r["certificate"]["dual_violation"], ".0e")),
    ("solver", lambda r: r["solver"]),
    ("milliseconds", lambda r: f"{1e3 * r['seconds']:.1f}"),
)


def _name(record: Record) -> str:
    return svm_name(record["formulation"], record["norm_name"])


def solutions_table(records: Sequence[Record], title: str) -> Table:
    """One column per solution.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.solved import solution_record, solutions_table
    >>> solved = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> solutions_table([solution_record(solved)], "a problem").rows[0]
    ('status', 'optimal')
    """

    def cell(show: Callable[[Record], object], record: Record) -> object:
        try:
            return show(record)
        except KeyError:
            return None

    heads = ("", *(f"{_name(record)} ({record['norm_name']})" for record in records))
    return Table(title, heads, [(name, *(cell(show, record) for record in records)) for name, show in _LINES])


def support_table(problem: AttentionProblem, selection: Selection, records: Sequence[Record], most: int = 40) -> Table:
    """Selected token, score and support of each query; the first ``most`` of them."""
    multi, indices = problem.multi_query, selection.indices
    scores = None if problem.head is None else problem.scores()
    rows: list[tuple[object, ...]] = []
    for flat, place in enumerate(np.ndindex(indices.shape)):
        if flat == most:
            rows.append(("...", "", f"{indices.size - most} more", *([""] * len(records))))
            break
        score = None if scores is None else f"{scores[(*place, indices[place])]:+.4f}"
        supports = (" ".join(map(str, record["support"][flat])) for record in records)
        rows.append((", ".join(map(str, place)), indices[place], score, *supports))
    heads = ("sequence, query" if multi else "sequence", "selected", "score")
    return Table(
        "Tokens per query" if multi else "Tokens per sequence",
        (*heads, *(f"support ({record['norm_name']})" for record in records)),
        rows,
        align="rrr" + "l" * len(records),
    )


def farkas_line(record: Record, advice: str = "") -> str:
    """What the proof of infeasibility says."""
    farkas = record["farkas"]
    return (
        f"{_name(record)} is infeasible: sequences {farkas['sequences']} conflict. {_PROOFS[farkas['proof']]}, "
        f"so no W satisfies them. {advice}"
    ).rstrip()


_PROOFS = {
    "zero row": "One row is zero and has a positive right-hand side",
    "rounding bounds": "A combination of their rows cancels, proved with bounds on the rounding error",
    "rationals": "A combination of their rows cancels in exact arithmetic",
}


def exact_record(solution: Solution) -> Record:
    """What rational arithmetic proves about a solution; numbers as floats, the violation also as a fraction.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.solved import exact_record
    >>> exact_record(attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0)))["status"]
    'optimal'
    """
    proved = solution.certificate.exact(solution.result.tolerance)
    record: Record = {"status": str(proved.status)}
    if proved.farkas is not None:
        rows = proved.farkas.rows
        queries = sorted({int(owner) for owner in solution.rows.margin_problem.owner[rows]})
        record["queries"] = [list(solution.rows.query_index(owner)) for owner in queries]
        return record | {"rows": rows.tolist(), "multipliers": [str(value) for value in proved.farkas.values]}
    record |= {"violation": float(proved.violation), "violation_fraction": str(proved.violation), "gap": proved.gap}
    record |= {"tolerance": solution.result.tolerance, "norm": list(proved.norm)}
    if proved.rank is not None:
        record |= {"rank": proved.rank, "resolution": proved.resolution}
    chosen, linear = solution.selection, isinstance(solution.problem.head, LinearHead)
    if linear and isinstance(chosen, Selection) and solution.norm_name == "frobenius":  # elsewhere W need not be unique
        record["locally_optimal"] = exact_local_optimality(solution.problem, chosen).locally_optimal
    return record


def exact_line(record: Record, exact: Record) -> str:
    """The same in one sentence.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.solved import exact_line, exact_record, solution_record
    >>> solved = attsvm.att_svm(attsvm.AttentionProblem([[[0.0], [1.0], [-1.0]]], None, [[1.0]]), [0])
    >>> exact_line(solution_record(solved), exact_record(solved))[:71]
    'Att-SVM in exact arithmetic: infeasible. The rows [0, 1] of queries [[0'
    """
    head = f"{_name(record)} in exact arithmetic: {exact['status']}."
    if "multipliers" in exact:
        values = ", ".join(exact["multipliers"]) if len(exact["multipliers"]) <= _FEW else "given with --json"
        return (
            f"{head} The rows {exact['rows']} of queries {exact['queries']} cancel exactly with multipliers {values}."
        )
    low, high = exact["norm"]
    rank = ""
    if "rank" in exact:
        rank = f" Every optimal W has at most {exact['rank']} singular values above {exact['resolution']:.1e}."
    local = ""
    if "locally_optimal" in exact:
        local = f" The selection is {'' if exact['locally_optimal'] else 'not '}locally optimal."
    return (
        f"{head} W violates no row by more than {exact['violation']:.1e}; the optimal norm lies between {low:.17g} and "
        f"{high:.17g}.{rank}{local}"
    )
