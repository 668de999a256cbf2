"""Problems and solutions as records, ready for JSON, and as tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from attsvm.attention import probabilities
from attsvm.comparison import Report, compare, svm_name
from attsvm.enumeration.selection_space import SelectionSpace
from attsvm.exact_tokens import exact_local_optimality
from attsvm.heads import LinearHead
from attsvm.optimality import Convergence, convergence_of, support_indices
from attsvm.problem import AttentionProblem, require_single
from attsvm.records import Table, plain, versions
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import Solution
from attsvm.svm import att_svm
from attsvm.user_input import require_count, require_number

if TYPE_CHECKING:
    from attsvm.enumeration import Basins
    from attsvm.training.run_result import Run

Record = dict[str, Any]
# Multipliers of an exact proof that a line has room for.
_FEW = 4


def problem_record(problem: AttentionProblem, selection: Selection | None = None) -> Record:
    """Sizes and head of a problem, and the tokens of a selection.

    Examples
    --------
    >>> import attsvm
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


def _shown(value: float | None, form: str = ".6f") -> str:
    return "-" if value is None else format(value, form)


def _rank(rank: int, resolution: float | None) -> str:
    """A certified rank is a statement about singular values above a resolution, and printed with it."""
    if resolution is None or resolution == float("inf"):
        return "not proved"
    return f"{rank} above {resolution:.0e}" if resolution > 0 else f"{rank}"


def _power(value: float | None) -> str:
    return "full rank" if value == float("inf") else _shown(value, ".0e")


# A line that is not defined, for want of a solution or of a head, raises KeyError and shows a dash.
_LINES: tuple[tuple[str, Callable[[Record], object]], ...] = (
    ("status", lambda r: r["status"]),
    ("norm", lambda r: _shown(r["norm"])),
    ("margin = 1 / norm", lambda r: _shown(r["margin"])),
    ("numerical rank", lambda r: r["rank"]),
    ("certified rank", lambda r: _rank(r["certificate"]["rank"], r["certificate"]["resolution"])),
    ("singular-value gap", lambda r: _power(r["certificate"]["singular_gap"])),
    ("support tokens", lambda r: sum(map(len, r["support"]))),
    ("locally optimal", lambda r: {True: "yes", False: "no", None: "undecided"}[r["locally_optimal"]]),
    ("norm is at least", lambda r: _shown(r["certificate"]["lower_bound"])),
    ("relative duality gap", lambda r: _shown(r["certificate"]["gap"], ".0e")),
    ("primal violation", lambda r: _shown(r["certificate"]["primal_violation"], ".0e")),
    ("dual violation", lambda r: _shown(r["certificate"]["dual_violation"], ".0e")),
    ("solver", lambda r: r["solver"]),
    ("milliseconds", lambda r: f"{1e3 * r['seconds']:.1f}"),
)


def name_of(record: Record) -> str:
    """What the problem of a solution is called."""
    return svm_name(record["formulation"], record["norm_name"])


def solutions_table(records: Sequence[Record], title: str) -> Table:
    """One column per solution.

    Examples
    --------
    >>> import attsvm
    >>> solved = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> solutions_table([solution_record(solved)], "a problem").rows[0]
    ('status', 'optimal')
    """

    def cell(show: Callable[[Record], object], record: Record) -> object:
        try:
            return show(record)
        except KeyError:
            return None

    heads = ("", *(f"{name_of(record)} ({record['norm_name']})" for record in records))
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
        f"{name_of(record)} is infeasible: sequences {farkas['sequences']} conflict. {_PROOFS[farkas['proof']]}, "
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
    >>> solved = attsvm.att_svm(attsvm.AttentionProblem([[[0.0], [1.0], [-1.0]]], None, [[1.0]]), [0])
    >>> exact_line(solution_record(solved), exact_record(solved))[:71]
    'Att-SVM in exact arithmetic: infeasible. The rows [0, 1] of queries [[0'
    """
    head = f"{name_of(record)} in exact arithmetic: {exact['status']}."
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


# Larger maps are cut to what can be looked at; the selected tokens are always among the columns.
MOST_QUERIES, MOST_TOKENS = 32, 64
MOST_EDGES = 4000
_COLORS = 8
_LISTED = 20
NORMS = ("frobenius", "nuclear")
RUNS = ("W", "KQ")
Progress = Callable[[str, int, int], object]
Node = tuple[int, ...]


class ReportOptions(TypedDict, total=False):
    """Keywords of `build_content`, which say what a page holds."""

    selection: SelectionLike
    steps: int
    seed: int
    device: str | None
    graph_limit: int
    name: str
    progress: Progress | None


def build_content(
    problem: AttentionProblem,
    *,
    selection: SelectionLike = None,
    steps: int = 5000,
    seed: int = 0,
    device: str | None = None,
    graph_limit: int = 3000,
    name: str = "problem",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Solve, train, diagnose and enumerate; every part that cannot be had says why.

    Parameters
    ----------
    problem : AttentionProblem
        Not a batch.
    selection : Selection or array_like of int, optional
        Tokens of the solutions; the optimal tokens by default.
    steps : int
        Of training W and (K, Q); 0 leaves training out.
    seed, device
        Of training.
    graph_limit : int
        Most selections for the graph of local optima.
    name : str
        What the page calls the problem.
    progress : callable, optional
        Called with a label, the parts done and the number of parts.

    Returns
    -------
    dict
        Ready for `json.dumps`.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports import build_content
    >>> content = build_content(attsvm.random_problem(n=2, T=3, d=4, seed=0), steps=0)
    >>> [record["status"] for record in content["solutions"]], content["training_skipped"]
    (['optimal', 'optimal'], 'Training was skipped: steps = 0.')
    """
    require_single(problem, "a report takes one problem")
    require_count("steps", steps, least=0)
    require_number("graph_limit", graph_limit, "a number >= 0", 0.0, ends="[]")
    chosen = read_selection(problem, selection)
    skipped = _why_not_trained(problem, steps)
    forms = RUNS if skipped is None else ()
    labels = [*(f"solving ({norm})" for norm in NORMS), "diagnosing", *(f"training {p}" for p in forms), "local optima"]
    announce = _announcer(labels, progress)
    solutions: list[Solution] = []
    for norm in NORMS:
        announce()
        solutions.append(att_svm(problem, chosen, norm=norm))
    announce()
    diagnosis = _diagnosis(problem, chosen, seed)
    runs = []
    for form in forms:
        announce()
        run = _trained(problem, form, steps=steps, seed=seed, device=device)
        runs.append(run_content(compare(run, *solutions)))
    announce()
    content: dict[str, Any] = plain({
        "name": name,
        "problem": problem_record(problem, chosen) | _score_record(problem, chosen),
        "solutions": [_solution(solution) for solution in solutions],
        "diagnosis": diagnosis,
        "training_skipped": skipped,
        "runs": runs,
        "graph": _graph(problem, graph_limit),
        "settings": {"steps": steps, "seed": seed, "graph_limit": graph_limit},
        "versions": versions(*(["torch"] if runs else [])),
    })  # fmt: skip
    return content


def _announcer(labels: list[str], progress: Progress | None) -> Callable[[], None]:
    done = iter(enumerate(labels))

    def announce() -> None:
        place, label = next(done)
        if progress is not None:
            progress(label, place, len(labels))

    return announce


def _why_not_trained(problem: AttentionProblem, steps: int) -> str | None:
    if not steps:
        return "Training was skipped: steps = 0."
    if problem.head is None:
        return "Training needs a head, and the problem has none."
    if find_spec("torch") is None:
        return "Training needs torch: pip install 'attsvm[torch]'."
    return None


def _score_record(problem: AttentionProblem, chosen: Selection) -> dict[str, Any]:
    """Score of each selected token and its lead over the next best; what the map may show."""
    record: dict[str, Any] = {
        "allowed": problem.allowed.reshape(-1, problem.T).astype(int).tolist() if problem.mask is not None else None,
        "labels": problem.Y.ravel().astype(int).tolist(),
    }
    if problem.head is None:
        return record
    scores = problem.scores().reshape(-1, problem.T)
    tokens = chosen.indices.reshape(-1, 1)
    own = np.take_along_axis(scores, tokens, axis=1)[:, 0]
    rivals = scores.copy()
    np.put_along_axis(rivals, tokens, -np.inf, axis=1)
    best = problem.optimal_tokens()
    return record | {
        "scores": own.tolist(),
        "leads": (own - rivals.max(axis=1)).tolist(),
        "optimal": best.indices.ravel().tolist(),
        "is_optimal": bool(chosen == best),
    }


def _solution(solution: Solution) -> dict[str, Any]:
    record = solution_record(solution) | {"advice": solution.status.advice}
    if solution.status.has_solution:
        record["singular_values"] = np.linalg.svd(solution.W, compute_uv=False).tolist()
    return record


def _diagnosis(problem: AttentionProblem, chosen: Selection, seed: int) -> dict[str, Any]:
    from attsvm.theory import diagnose

    return diagnose(problem, chosen, seed=seed).to_dict()


def _trained(problem: AttentionProblem, form: str, **options: Any) -> Run:
    from attsvm.training import train

    return train(problem, form, **options)


def _graph(problem: AttentionProblem, limit: int) -> dict[str, Any]:
    if problem.head is None:
        return {"skipped": "The graph needs scores, but the problem has no head."}
    try:
        return graph_content(problem, "frobenius", limit)
    except RuntimeError as error:  # some selection could not be certified
        return {"skipped": f"No graph: {error}."}


# -- training runs -----------------------------------------------------------------------------------------------------


def run_content(report: Report) -> dict[str, Any]:
    """One run: numbers per snapshot, comparisons, and maps in thousandths.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> content = run_content(attsvm.compare(attsvm.train(problem, steps=10, snapshots=3)))
    >>> content["steps"], [c["label"] for c in content["comparisons"]]
    ([0, 1, 3, 10], ['Att-SVM, own tokens'])
    """
    run = report.run
    h = run.history
    columns = _columns(report)
    maps = probabilities(run.problem, h.W).reshape(len(h), -1, run.problem.T)[:, :MOST_QUERIES, columns]
    return {
        "parameterization": run.parameterization,
        "optimizer": run.options.optimizer_name,
        "status": str(run.status),
        "convergence": report.convergence,
        "uncovered": report.uncovered,
        "rank": report.rank,
        "effective_rank": _number(report.effective_rank, 3),
        "steps": h.steps.tolist(),
        "loss": _numbers(h.loss),
        "norm": _numbers(h.norm),
        "rest": _numbers(h.log_rest / math.log(10)),
        "comparisons": [
            {
                "label": c.label,
                "norm_name": c.solution.norm_name,
                "status": str(c.solution.status),
                "misalignment": _numbers(c.misalignment),
                "margin": _numbers(c.margin),
                "rate": _number(c.rate, 3),
            }
            for c in report.shown
        ],
        "selection": h.selection.reshape(len(h), -1).tolist(),
        "columns": columns,
        "attention": (1000 * maps).round().astype(int).tolist(),
    }


def _columns(report: Report) -> list[int]:
    """Tokens that the maps show: those of the solutions, then those of the run, then the first others."""
    run = report.run
    solved = [c.solution.selection.indices for c in report.comparisons if hasattr(c.solution.selection, "indices")]
    wanted = [*solved, run.history.selection[-1]]
    tokens = [int(t) for selection in wanted for t in selection.reshape(-1)[:MOST_QUERIES]]
    return sorted(list(dict.fromkeys([*tokens, *range(run.problem.T)]))[:MOST_TOKENS])


def _numbers(values: Any) -> list[float | None]:
    return [_number(float(value)) for value in values]


def _number(value: float, digits: int = 5) -> float | None:
    """Few digits keep the page light; JSON has neither NaN nor infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


# -- the graph of selections -------------------------------------------------------------------------------------------


def graph_content(problem: AttentionProblem, norm: str, limit: int) -> dict[str, Any]:
    """Nodes, edges and the list of local optima as plain data, or why there is no graph.

    Nodes are ``[tokens, margin, score, kind, colour]``: kind is "local", "best" (globally optimal), "infeasible",
    "one" (leads to one local optimum only) or "several"; colour numbers the local optimum.

    Examples
    --------
    >>> import attsvm
    >>> content = graph_content(attsvm.random_problem(n=3, T=4, d=4, seed=5), "frobenius", 100)
    >>> len(content["nodes"]), content["optima"][0]["tokens"]
    (64, '2-3-3')
    >>> graph_content(attsvm.random_problem(n=3, T=4, d=4, seed=5), "frobenius", 10)["skipped"]
    'The problem has 64 selections, more than the 10 that are drawn.'
    """
    space = SelectionSpace(problem)
    if space.size > limit:
        size = f"{space.size:,}" if space.size < 10**9 else f"{space.size:.2g}"
        return {"skipped": f"The problem has {size} selections, more than the {limit:,} that are drawn."}
    from attsvm.enumeration import basins, selection_graph

    graph = selection_graph(problem, norm=norm, limit=limit)
    found = basins(graph)
    optima = sorted((node for node in graph if graph.nodes[node]["locally_optimal"]), key=_by_margin(graph))
    colour = {node: i % _COLORS for i, node in enumerate(optima)}
    number = {node: i for i, node in enumerate(graph)}
    nodes = []
    for node, data in graph.nodes(data=True):
        place = round(data["margin"], 6), round(data["score"], 6)
        nodes.append(["-".join(map(str, node)), *place, *_kind(node, data, found, colour)])
    edges = [[number[a], number[b]] for a, b in graph.edges]
    if len(edges) > MOST_EDGES:  # those that matter most: into a local optimum
        edges = [[number[a], number[b]] for a, b in graph.edges if b in colour][:MOST_EDGES]
    return {
        "norm": norm,
        "nodes": nodes,
        "edges": edges,
        "edge_count": graph.number_of_edges(),
        "local_optima": len(optima),
        "optima": [_optimum(graph, found, node) | {"colour": colour[node]} for node in optima[:_LISTED]],
    }


def _kind(node: Node, data: Any, found: Basins, colour: dict[Node, int]) -> tuple[str, int | None]:
    """What becomes of a node, and the number of the local optimum that it is or leads to."""
    ends = found.reach[node]
    if node in colour:
        return "best" if data["globally_optimal"] else "local", colour[node]
    if not data["feasible"]:
        return "infeasible", None
    if len(ends) == 1 and not found.dead_end[node]:
        return "one", colour[next(iter(ends))]
    return "several", None


def _optimum(graph: Any, found: Basins, node: Node) -> dict[str, Any]:
    data = {name: graph.nodes[node][name] for name in ("margin", "score", "globally_optimal")}
    reached = {"reaching": found.reaching[node], "only": found.only[node]}
    return {"tokens": "-".join(map(str, node))} | data | reached


def _by_margin(graph: Any) -> Any:
    return lambda node: -graph.nodes[node]["margin"]
