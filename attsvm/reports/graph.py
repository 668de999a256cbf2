"""The graph of selections, laid out for the page: margin to the right, mean score upwards."""

from __future__ import annotations

from typing import Any

from attsvm.enumeration.space import SelectionSpace
from attsvm.problem import AttentionProblem

__all__ = ["MOST_EDGES", "graph_content"]

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
        ends = found.reach[node]
        if node in colour:
            kind, paint = ("best" if data["globally_optimal"] else "sink"), colour[node]
        elif not data["feasible"]:
            kind, paint = "infeasible", None
        elif len(ends) == 1 and not found.dead_end[node]:
            kind, paint = "one", colour[next(iter(ends))]
        else:
            kind, paint = "several", None
        place = round(data["margin"], 6), round(data["score"], 6)
        nodes.append(["-".join(map(str, node)), *place, kind, paint])
    edges = [[number[a], number[b]] for a, b in graph.edges]
    if len(edges) > MOST_EDGES:  # those that matter most: into a local optimum
        edges = [[number[a], number[b]] for a, b in graph.edges if b in colour][:MOST_EDGES]
    return {
        "norm": norm,
        "nodes": nodes,
        "edges": edges,
        "edge_count": graph.number_of_edges(),
        "sinks": len(sinks),
        "optima": [
            {
                "tokens": "-".join(map(str, node)),
                "margin": graph.nodes[node]["margin"],
                "score": graph.nodes[node]["score"],
                "globally_optimal": graph.nodes[node]["globally_optimal"],
                "reaching": found.reaching[node],
                "only": found.only[node],
                "colour": colour[node],
            }
            for node in sinks[:_LISTED]
        ],
    }


def _by_margin(graph: Any) -> Any:
    return lambda node: -graph.nodes[node]["margin"]
