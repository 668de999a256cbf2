"""Cases of local optimality, enumeration and theory, against the definitions on every selection of small problems."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import product
from typing import Any, get_args

import numpy as np

import attsvm
from attsvm.enumeration import (
    basins,
    count_selections,
    draw_selection_graph,
    solve_every_selection,
    solve_selections,
    write_graphml,
)
from attsvm.solvers.arrays import FloatArray
from attsvm.theory.assumptions import Verdict
from attsvm.validation.matrix import VALUES, Instance, Margin, constraints_of, reference
from attsvm.validation.matrix_calls.call_cases import FORMS, Call, Row, case, close

# A margin within this of 1 is that of a support token; the reference is accurate to about 1e-8. A token between the
# two is left out of the comparison.
_ON, _OFF = 1e-6, 1e-4

_VERDICTS = get_args(Verdict)

# Norms whose selections are listed; others are refused by these functions.
_LISTED = ("frobenius", "nuclear")


def _instance(problem: Any, chosen: Any) -> Instance:
    members = np.arange(problem.T) == np.asarray(chosen)[..., None]
    return Instance("att", problem.X, problem.Z, problem.mask, members, 1.0)


def _scores(problem: Any) -> FloatArray:
    """``Y h(x)``, shape (n, T)."""
    return np.asarray(problem.Y[..., None] * (problem.X @ np.asarray(problem.head.v)))


def _least_norm(one: Instance) -> FloatArray | None:
    """The least Frobenius norm subject to the rows, by non-negative least squares (Lawson and Hanson); None if none."""
    from scipy.optimize import nnls

    rows = constraints_of(one)
    system = np.vstack([rows.features.T, rows.rhs])
    target = np.append(np.zeros(rows.features.shape[1]), 1.0)
    lam, residual = nnls(system, target)
    short = target - system @ lam
    return None if residual < 1e-7 else np.asarray(-short[:-1] / short[-1]).reshape(one.X.shape[-1], -1)


def _verdict(problem: Any, chosen: Any, norm: str) -> tuple[float, bool | None]:
    """Margin of a selection (0 when infeasible), and whether it is locally optimal.

    None where a token is close to the support, and in norms whose solutions are many: the verdict is about all of them.
    """
    one = _instance(problem, chosen)
    W = _least_norm(one) if norm == "frobenius" else reference(one, norm, Margin()).W
    if W is None:
        return 0.0, False
    size = VALUES[norm](W)
    values = np.einsum("ntd,de,ne->nt", problem.X, W, problem.Z)
    index = np.arange(problem.n), np.asarray(chosen)
    slack = values[index][:, None] - values - 1.0
    scores = _scores(problem)
    higher = scores >= scores[index][:, None]
    higher[index] = False
    if norm not in _LISTED:
        return 1.0 / size, None if higher.any() else True
    if (higher & (slack > _ON) & (slack < _OFF)).any():
        return 1.0 / size, None
    return 1.0 / size, not (higher & (slack <= _ON)).any()


@lru_cache(maxsize=4)
def _every(n: int, T: int, d: int, seed: int, norm: str) -> dict[tuple[int, ...], tuple[float, bool | None]]:
    """Margin and verdict of every selection of a random problem."""
    problem = attsvm.random_problem(n, T, d, seed=seed)
    return {chosen: _verdict(problem, chosen, norm) for chosen in product(range(T), repeat=n)}


def _sized(call: Call) -> tuple[Any, tuple[int, int, int, int]]:
    size = call.pick((2, 3, 4), (2, 4, 5), (3, 3, 4))
    # Few problems, so that the reference of all their selections is shared between rows.
    key = (*size, call.seed % 5)
    return attsvm.random_problem(*size, seed=key[-1]), key


def _norm_refused(row: Row) -> bool:
    return row["norm"] not in _LISTED


def _listing_refused(row: Row) -> bool:
    return _norm_refused(row) or (row["mode"] == "search" and row["top"] is None)


def _listing_options(call: Call) -> dict[str, Any]:
    checkpoint = call.folder / "listing.npz" if call.given("checkpoint") else None
    return call.options(
        "norm", "mode", "progress", limit=1, top=2, max_nodes=100_000, time_limit=60.0
    ) | {"checkpoint": checkpoint}  # fmt: skip


@case("attsvm.locally_optimal_selections", refused=_listing_refused, work=3_000_000)
def _listing(call: Call) -> Iterator[str]:
    problem, key = _sized(call)
    options = _listing_options(call)
    found = call.run(attsvm.locally_optimal_selections, problem, **options)
    yield from _judge_listing(call, found, key)
    if call.given("checkpoint"):
        again = attsvm.locally_optimal_selections(problem, **options)
        if [item.tokens for item in again] != [item.tokens for item in found]:
            yield "the checkpoint leads to another list"


def _judge_listing(call: Call, found: Any, key: tuple[int, int, int, int]) -> Iterator[str]:
    known = _every(*key, call["norm"])
    for item in found:
        margin, local = known[item.tokens]
        if local is False:
            yield f"{item.tokens} is listed, but not locally optimal"
        yield from close(f"margin of {item.tokens}", item.margin, margin, 1e-5)
    if found.undecided:
        yield f"{len(found.undecided)} selections are undecided"
    others = {tokens: margin for tokens, (margin, local) in known.items() if local and tokens not in found}
    if found.complete and others:
        yield f"called complete, but {next(iter(others))} is missing"
    if others and not max(others.values()) <= found.bound * (1 + 1e-5):
        yield f"a selection outside has margin {max(others.values()):.6g}, above the bound {found.bound:.6g}"
    if call["limit"] is not None or call["mode"] == "heuristic":
        return
    if not found.proved_best:
        yield "nothing is proved, though no limit was given"
    if call["top"] is None and not found.complete:
        yield "all were asked for, and the list is not complete"


@case("attsvm.iter_locally_optimal", refused=_listing_refused, work=3_000_000)
def _iterated(call: Call) -> Iterator[str]:
    problem, key = _sized(call)
    found = call.run(lambda: list(attsvm.iter_locally_optimal(problem, **_listing_options(call))))
    known = _every(*key, call["norm"])
    for item in found:
        if known[item.tokens][1] is False:
            yield f"{item.tokens} is yielded, but not locally optimal"
    wanted = {tokens for tokens, (_, local) in known.items() if local}
    missing = wanted - {item.tokens for item in found}
    if missing and call["limit"] is None and call["top"] is None and call["mode"] != "heuristic":
        yield f"{missing} were never yielded"


@case("attsvm.selection_graph", refused=_norm_refused, work=1_500_000)
def _graph(call: Call) -> Iterator[str]:
    problem, key = _sized(call)
    graph = call.run(attsvm.selection_graph, problem, norm=call["norm"])
    known = _every(*key, call["norm"])
    if set(graph.nodes) != set(known):
        yield "the nodes are not the selections"
    scores = _scores(problem)
    for node, (margin, local) in known.items():
        data = graph.nodes[node]
        yield from close(f"margin of {node}", data["margin"], margin, 1e-5)
        if local is not None and data["locally_optimal"] != (local and margin > 0):
            yield f"{node} is called {'' if data['locally_optimal'] else 'not '}locally optimal"
        own = scores[np.arange(problem.n), list(node)]
        yield from close(f"score of {node}", data["score"], own.mean())
        for target, edge in graph[node].items():
            gain = scores[edge["query"], edge["token"]] - own[edge["query"]]
            if gain < 0 or target[edge["query"]] != edge["token"]:
                yield f"the swap {node} to {target} does not raise the score"


@case("attsvm.enumeration.basins", work=200_000)
def _basins(call: Call) -> Iterator[str]:
    import networkx as nx

    problem, _ = _sized(call)
    graph = attsvm.selection_graph(problem)
    found = call.run(basins, graph)
    feasible = {node: data["feasible"] for node, data in graph.nodes(data=True)}
    for node in graph:
        ends = {end for end in (node, *nx.descendants(graph, node)) if graph.out_degree(end) == 0}
        wanted = {end for end in ends if feasible[end]} if feasible[node] else set()
        if set(found.reach[node]) != wanted:
            yield f"{node} reaches {sorted(found.reach[node])}, wanted {sorted(wanted)}"


@case("attsvm.enumeration.count_selections")
def _count(call: Call) -> Iterator[str]:
    n, T = call.pick((2, 3), (3, 5), (6, 9))
    mask = call.rng.random((n, T)) < 0.6
    mask[:, 0] = True
    problem = attsvm.AttentionProblem(call.rng.standard_normal((n, T, 3)), Z=np.ones((n, 2)), mask=mask)
    found = call.run(count_selections, problem)
    yield from close("count", found, np.prod(mask.sum(axis=1)), 0.0)


@case("attsvm.enumeration.draw_selection_graph", work=3_000_000)
def _drawn(call: Call) -> Iterator[str]:
    from matplotlib import pyplot

    problem, _ = _sized(call)
    graph = attsvm.selection_graph(problem)
    axis = pyplot.subplots()[1]
    shown = call.run(draw_selection_graph, graph, axis if call.given("axis") else None, labels=call["labels"])
    if call.given("axis") and shown is not axis:
        yield "another axis was drawn on"
    points = sum(len(np.asarray(part.get_offsets())) for part in shown.collections if hasattr(part, "get_offsets"))
    if points < graph.number_of_nodes():
        yield f"{points} points for {graph.number_of_nodes()} nodes"
    pyplot.close("all")


@case("attsvm.enumeration.write_graphml", work=300_000)
def _graphml(call: Call) -> Iterator[str]:
    import networkx as nx

    problem, _ = _sized(call)
    graph = attsvm.selection_graph(problem)
    call.run(write_graphml, graph, call.folder / "graph.graphml")
    read = nx.read_graphml(call.folder / "graph.graphml")
    if (len(read), read.number_of_edges()) != (len(graph), graph.number_of_edges()):
        yield "the file holds another graph"


@case("attsvm.enumeration.solve_every_selection", work=1_500_000)
def _solved_all(call: Call) -> Iterator[str]:
    problem, key = _sized(call)
    yield from _judge_table(call, call.run(solve_every_selection, problem, norm=call["norm"]), key)


@case("attsvm.enumeration.solve_selections", work=1_500_000)
def _solved_some(call: Call) -> Iterator[str]:
    problem, key = _sized(call)
    indices = call.rng.integers(problem.T, size=(5, problem.n))
    yield from _judge_table(call, call.run(solve_selections, problem, indices, norm=call["norm"]), key)


def _judge_table(call: Call, table: Any, key: tuple[int, int, int, int]) -> Iterator[str]:
    known = _every(*key, call["norm"])
    for k, tokens in enumerate(table.indices):
        margin, local = known[tuple(int(t) for t in np.ravel(tokens))]
        yield from close(f"margin of {tokens}", table.margin[k], margin, 1e-5)
        if not table.decided[k] and call["norm"] in _LISTED:
            yield f"{tokens} is undecided"
        elif table.decided[k] and local is not None and bool(table.locally_optimal[k]) != (local and margin > 0):
            yield f"{tokens} is called {'' if table.locally_optimal[k] else 'not '}locally optimal"


@case("attsvm.is_locally_optimal", forms=FORMS, work=400_000)
def _is_local(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 3), (4, 4, 6), (6, 3, 5))
    problem = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    shape = problem.query_shape if call.batch is None else (call.batch, n)
    chosen = call.rng.integers(T, size=shape) if call.given("selection") else None
    options = call.options("norm", "solver")
    if call.given("solution"):
        options["solution"] = attsvm.att_svm(problem, chosen, norm=call["norm"])
    try:
        found = np.atleast_1d(call.run(attsvm.is_locally_optimal, problem, chosen, **options))
    except RuntimeError as error:  # documented: neither is proved
        if call["norm"] == "frobenius" or "undecided" not in str(error):
            yield f"RuntimeError: {error}"
        return
    for k, local in enumerate(found):
        one: Any = problem[k] if call.batch else problem
        tokens = _scores(one).argmax(axis=1) if chosen is None else (chosen[k] if call.batch else chosen)
        known = _verdict(one, tokens, call["norm"])[1]
        if known is not None and known != bool(local):
            yield f"problem {k} is called {'' if local else 'not '}locally optimal"


@case("attsvm.low_score_tokens", "attsvm.high_score_tokens", forms=FORMS)
def _score_sets(call: Call) -> Iterator[str]:
    """Low: support tokens that score strictly less; high: tokens that score at least as much."""
    n, T, d = call.pick((2, 3, 4), (4, 5, 6), (7, 6, 8))
    problem = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    scores = _scores_of(problem)
    chosen = call.rng.integers(T, size=scores.shape[:-1]) if call.given("selection") else None
    index = scores.argmax(axis=-1) if chosen is None else chosen
    own = np.take_along_axis(scores, index[..., None], axis=-1)
    selected = np.arange(T) == index[..., None]
    if call.name == "low_score_tokens":
        yield from close("low", call.run(attsvm.low_score_tokens, problem, chosen), scores < own)
    else:
        yield from close("high", call.run(attsvm.high_score_tokens, problem, chosen), (scores >= own) & ~selected)


def _scores_of(problem: Any) -> FloatArray:
    v = np.asarray(problem.head.v)
    return np.asarray(problem.Y[..., None] * np.einsum("...ntd,...d->...nt", problem.X, v))


@case("attsvm.separating_cone")
def _cone(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 4), (4, 5, 6), (7, 6, 8))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    scores = _scores_of(problem)
    chosen = call.rng.integers(T, size=n) if call.given("selection") else None
    index = scores.argmax(axis=-1) if chosen is None else chosen
    cone = call.run(attsvm.separating_cone, problem, chosen)
    W = call.rng.standard_normal((d, d))
    values = np.einsum("ntd,de,ne->nt", problem.X, W / np.linalg.norm(W), problem.Z)
    worst = np.inf
    for i in range(n):
        own = scores[i, index[i]]
        high = [t for t in range(T) if t != index[i] and scores[i, t] >= own]
        low = [t for t in range(T) if scores[i, t] < own]
        if high:
            best = max((min(values[i, t] - values[i, tau] for tau in high) for t in low), default=-np.inf)
            worst = min(worst, best)
    yield from close("value", call.run(cone.value, W), worst)


@case("attsvm.support_indices")
def _support(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 4), (4, 5, 6), (7, 6, 8))
    solution: Any = attsvm.att_svm(attsvm.random_problem(n, T, d, seed=call.seed))
    tolerance = 0.3 if call.given("tolerance") else None
    found = call.run(attsvm.support_indices, solution, tolerance)
    problem, chosen = solution.problem, solution.selection.indices
    values = np.einsum("ntd,de,ne->nt", problem.X, solution.W, problem.Z)
    margins = values[np.arange(n), chosen][:, None] - values
    margins[np.arange(n), chosen] = np.inf
    for i in range(n):
        wanted = np.flatnonzero(margins[i] <= 1.0 + (tolerance or solution.support_tolerance))
        if found[i].tolist() != wanted.tolist():
            yield f"support of query {i} is {found[i]}, wanted {wanted}"


@case("attsvm.diagnose", work=2_000_000)
def _diagnose(call: Call) -> Iterator[str]:
    """Verdicts that are plain definitions: the size, unique tokens, feasibility and local optimality."""
    n, T, d = call.pick((2, 3, 12), (3, 3, 4), (4, 4, 5))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    chosen = call.rng.integers(T, size=n) if call.given("selection") else None
    found = call.run(attsvm.diagnose, problem, chosen, **call.options("loss", "norm"))
    index = _scores(problem).argmax(axis=1) if chosen is None else chosen
    margin, local = _verdict(problem, index, call["norm"])
    verdicts = {check.name: check.verdict for check in (*found.checks, *found.theorems)}
    if unsettled := [name for name, verdict in verdicts.items() if verdict not in _VERDICTS]:
        yield f"{unsettled[0]} is called {verdicts[unsettled[0]]!r}"
    wanted = {"feasible": margin > 0, "linear head": True, "local": None if local is None else local and margin > 0}
    for name, truth in wanted.items():
        for key in (key for key in verdicts if key.lower().startswith(name)):
            if truth is not None and verdicts[key] != ("holds" if truth else "fails"):
                yield f"{key} is said to be {verdicts[key]!r}, and is {truth}"


@case(
    "attsvm.attraction", skip={"device": "there is one device here"},
    refused=lambda row: row["graph"] and row["norm"] not in (None, *_LISTED), work=2_000_000,
)  # fmt: skip
def _attraction(call: Call) -> Iterator[str]:
    size = call.pick((2, 3, 4), (2, 4, 5), (3, 3, 4))
    problem = attsvm.random_problem(*size, seed=call.seed)
    found = call.run(
        attsvm.attraction, problem, 12, steps=40, seed=3, **call.options("parameterization", "norm", "graph")
    )
    ends = attsvm.train(problem.repeat(12), call["parameterization"], 40, seed=3).selection.indices
    tally = {tuple(row.selection.indices.tolist()): row.count for row in found.rows}
    counted = {tuple(end): int((ends == end).all(axis=1).sum()) for end in np.unique(ends, axis=0).tolist()}
    if tally != counted:
        yield f"tally {tally}, wanted {counted}"
    norm = call["norm"] or ("nuclear" if call["parameterization"] == "KQ" else "frobenius")
    if norm in _LISTED:
        for row in found.rows:
            margin, local = _verdict(problem, row.selection.indices, norm)
            yield from close("margin", row.margin, margin, 1e-5)
            if local is not None and row.kind.is_local != (local and margin > 0):
                yield f"{row.selection.indices} is called {row.kind}"


@case("attsvm.compare", forms=FORMS, words={"others": (0, 1, 2)}, work=400_000)
def _compare(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 4), (3, 4, 6), (4, 5, 8))
    problem: Any = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    run = attsvm.train(problem, steps=60, snapshots=4)
    others = [attsvm.att_svm(problem), attsvm.att_svm(problem, norm="nuclear")][: call["others"]]
    report: Any = call.run(attsvm.compare, run, *others, solver=call["solver"])
    singles = [report] if call.batch is None else [report[k] for k in range(call.batch)]
    for k, one in enumerate(singles):
        history = run.history.W if call.batch is None else run.history.W[:, k]
        for comparison in one.comparisons:
            if comparison.solution.status.has_solution:
                W = comparison.solution.W
                cosine = [float((V * W).sum() / np.linalg.norm(V) / np.linalg.norm(W)) for V in history]
                yield from close("correlation", comparison.correlation, cosine, 1e-7)
        if len(one.comparisons) < 1 + call["others"] - 1:
            yield f"{len(one.comparisons)} comparisons"
