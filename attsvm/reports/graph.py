"""The graph of selections, laid out for the page: margin to the right, mean score upwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attsvm.enumeration.space import SelectionSpace
from attsvm.problem import AttentionProblem

if TYPE_CHECKING:
    from attsvm.enumeration import Basins

__all__ = ["MOST_EDGES", "graph_content"]

Node = tuple[int, ...]
MOST_EDGES = 4000
_COLORS = 8
_LISTED = 20


def graph_content(problem: AttentionProblem, norm: str, limit: int) -> dict[str, Any]:
    """Nodes, edges and the list of local optima as plain data, or why there is no graph.

    Nodes are ``[tokens, margin, score, kind, colour]``: kind is "sink", "best" (globally optimal), "infeasible",
    "one" (leads to one sink only) or "several"; colour numbers the sink.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.graph import graph_content
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
    sinks = sorted((node for node in graph if graph.nodes[node]["locally_optimal"]), key=_by_margin(graph))
    colour = {node: i % _COLORS for i, node in enumerate(sinks)}
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
        "local_optima": len(sinks),
        "optima": [_optimum(graph, found, node) | {"colour": colour[node]} for node in sinks[:_LISTED]],
    }


def _kind(node: Node, data: Any, found: Basins, colour: dict[Node, int]) -> tuple[str, int | None]:
    """What becomes of a node, and the number of the sink that it is or leads to."""
    ends = found.reach[node]
    if node in colour:
        return "best" if data["globally_optimal"] else "sink", colour[node]
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
