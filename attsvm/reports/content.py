"""Everything that the page about a problem shows, as plain data: what `build_content` solves, trains and lists.

`run_content` holds the series of a training run and its attention at every snapshot; `graph_content` the graph of
selections, laid out with the margin to the right and the mean score upwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from attsvm.attention import probabilities
from attsvm.comparison import Report, compare
from attsvm.enumeration.selection_space import SelectionSpace
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import plain, versions
from attsvm.reports.solved import problem_record, solution_record
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import Solution
from attsvm.svm import att_svm
from attsvm.user_input import require_count, require_number

if TYPE_CHECKING:
    from attsvm.enumeration import Basins
    from attsvm.training.run_result import Run

__all__ = [
    "MOST_EDGES",
    "MOST_QUERIES",
    "MOST_TOKENS",
    "NORMS",
    "RUNS",
    "Progress",
    "ReportOptions",
    "build_content",
    "graph_content",
    "run_content",
]

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
    if require_problem(problem).batch is not None:
        raise ValueError("a report takes one problem; index the batch first, e.g. problem[0]")
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
    >>> from attsvm.reports.content import run_content
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
    >>> from attsvm.reports.content import graph_content
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
