"""Everything that the page shows, as plain data."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from attsvm.comparison import compare
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import plain, versions
from attsvm.reports.graph import graph_content
from attsvm.reports.solved import problem_record, solution_record
from attsvm.reports.trajectory import run_content
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import Solution
from attsvm.svm import att_svm

if TYPE_CHECKING:
    from attsvm.training.run import Run

__all__ = ["NORMS", "RUNS", "Progress", "ReportOptions", "build_content"]

Progress = Callable[[str, int, int], object]

NORMS = ("frobenius", "nuclear")
RUNS = ("W", "KQ")


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
    (['optimal', 'optimal'], 'No steps were asked for.')
    """
    if require_problem(problem).batch is not None:
        raise ValueError("a report takes one problem; index the batch first, e.g. problem[0]")
    for name_, value, kind in (("steps", steps, "an integer "), ("graph_limit", graph_limit, "")):
        if value < 0:
            raise ValueError(f"{name_} must be {kind}>= 0, got {value}")
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
        return "No steps were asked for."
    if problem.head is None:
        return "Training needs a head, and the problem has none."
    if find_spec("torch") is None:
        return "Training needs torch: pip install 'attsvm[torch]'."
    return None


def _trained(problem: AttentionProblem, form: str, **options: Any) -> Run:
    from attsvm.training import train

    return train(problem, form, **options)


def _diagnosis(problem: AttentionProblem, chosen: Selection, seed: int) -> dict[str, Any]:
    from attsvm.theory import diagnose

    return diagnose(problem, chosen, seed=seed).to_dict()


def _graph(problem: AttentionProblem, limit: int) -> dict[str, Any]:
    if problem.head is None:
        return {"skipped": "The graph needs scores, and so a head."}
    try:
        return graph_content(problem, "frobenius", limit)
    except RuntimeError as error:  # some selection could not be certified
        return {"skipped": f"No graph: {error}."}


def _solution(solution: Solution) -> dict[str, Any]:
    record = solution_record(solution) | {"advice": solution.status.advice}
    if solution.status.has_solution:
        record["singular_values"] = np.linalg.svd(solution.W, compute_uv=False).tolist()
    return record


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
