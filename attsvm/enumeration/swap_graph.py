"""All selections of a problem with what is proved about each, as a table and as a graph.

An edge of the graph exchanges one token for a support token of at least its score; the feasible nodes without an
outgoing edge are the locally optimal selections, and `basins` says which selections lead to which of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import reduce
from operator import or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.enumeration.selection_solves import Verdicts, full_verdicts
from attsvm.enumeration.selection_space import SelectionSpace
from attsvm.problem import AttentionProblem
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.user_input import require_choice, require_count

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes

Node = tuple[int, ...]
_STEP = 4096
_COLORS = 10  # of the default colour cycle
# How nodes of each kind are drawn, in this order.
_STYLES: dict[str, dict[str, Any]] = {
    "leads to several ends": {"color": "w", "edgecolor": "0.3", "s": 26},
    "leads to the local optimum of its colour only": {"s": 26},
    "leads to infeasible selections only": {"color": "0.3", "marker": "v", "s": 26},
    "infeasible": {"color": "0.3", "marker": "x", "s": 30},
    "locally optimal": {"marker": "s", "s": 70, "edgecolor": "k"},
    "globally optimal": {"marker": "*", "s": 260, "edgecolor": "k"},
}


# -- the table ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SelectionTable:
    """Selections and the solutions of their SVMs.

    Attributes
    ----------
    indices : ndarray of int, shape (S,) + query_shape
    feasible : ndarray of bool, shape (S,)
        Proved to have a solution.
    decided : ndarray of bool, shape (S,)
        False where local optimality is neither proved nor refuted.
    margin : ndarray, shape (S,)
        0 where infeasible, NaN where no solution is certified.
    support : ndarray of bool, shape (S,) + query_shape + (T,)
        Support tokens; none where infeasible. Proved in the Frobenius norm.
    doubtful : ndarray of bool, shape (S,) + query_shape + (T,)
        Tokens that may be in the support: neither proved to lie on the margin nor beyond it.
    locally_optimal : ndarray of bool, shape (S,)
        Definition 2 / 4, proved: feasible, and every support token scores strictly less than the selected one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_selections
    >>> table = solve_selections(attsvm.random_problem(n=2, T=3, d=4, seed=0), [[0, 1], [2, 2]])
    >>> len(table), table.feasible, table.margin.round(3)
    (2, array([ True,  True]), array([0.865, 0.791]))
    """

    indices: IntArray
    feasible: BoolArray
    decided: BoolArray
    margin: FloatArray
    support: BoolArray
    doubtful: BoolArray
    locally_optimal: BoolArray

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        counts = f"{int(self.feasible.sum())} feasible, {int(self.locally_optimal.sum())} locally optimal"
        return f"SelectionTable({len(self)} selections: {counts}, {int((~self.decided).sum())} undecided)"


def count_selections(problem: AttentionProblem) -> int:
    """How many selections a problem has: the product over queries of the tokens that each may see.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import count_selections
    >>> count_selections(attsvm.random_problem(n=3, T=4, d=5))
    64
    """
    return SelectionSpace(problem).size


def solve_selections(
    problem: AttentionProblem, indices: npt.ArrayLike, *, norm: str = "frobenius", progress: bool = False
) -> SelectionTable:
    """Solve the SVMs of given selections of one problem in batches.

    Parameters
    ----------
    problem : AttentionProblem
        With a head: local optimality needs scores.
    indices : array_like of int, shape (S,) + query_shape
    norm : str
    progress : bool
        Show a progress bar.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_selections
    >>> solve_selections(attsvm.random_problem(n=2, T=3, d=4), [[0, 1], [2, 2]]).feasible
    array([ True,  True])
    """
    space = SelectionSpace(problem)
    chosen = np.asarray(indices, dtype=np.int64)
    if chosen.shape[1:] != problem.query_shape:
        raise ValueError(f"indices must have shape (S,) + {problem.query_shape}, got {chosen.shape}")
    flat = chosen.reshape(len(chosen), -1)
    verdicts = full_verdicts(space, flat, norm, support=True, progress=progress)
    assert verdicts.support is not None
    grid = (len(chosen), *problem.query_shape, problem.T)
    return SelectionTable(
        chosen,
        verdicts.feasible,
        ~verdicts.undecided,
        np.asarray(1.0 / verdicts.norm),
        verdicts.support.tokens.reshape(grid),
        verdicts.support.doubtful.reshape(grid),
        verdicts.locally_optimal,
    )


def solve_every_selection(
    problem: AttentionProblem, *, norm: str = "frobenius", limit: int = 20_000, progress: bool = False
) -> SelectionTable:
    """Solve the SVMs of all selections of a problem, in lexicographic order.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem; K queries and masks count as they are.
    norm : str
    limit : int
        Most selections that are solved.
    progress : bool
        Show a progress bar.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_every_selection
    >>> table = solve_every_selection(attsvm.random_problem(n=3, T=3, d=4, seed=0))
    >>> len(table), int(table.feasible.sum()), table.indices[table.locally_optimal].tolist()
    (27, 27, [[1, 0, 0], [1, 1, 0]])
    """
    space = SelectionSpace(problem)
    if space.size > limit:
        raise ValueError(
            f"the problem has {space.size} selections, more than the limit of {limit}; raise limit, or use "
            "attsvm.locally_optimal_selections(problem, top=k), which searches without listing"
        )
    everything = space.selections(0, space.size)
    return solve_selections(problem, everything.reshape(-1, *problem.query_shape), norm=norm, progress=progress)


# -- the graph ---------------------------------------------------------------------------------------------------------


def selection_graph(
    problem: AttentionProblem, *, norm: str = "frobenius", limit: int = 20_000, progress: bool = False
) -> nx.DiGraph:
    """All selections, joined by swaps of one token for a support token of higher score.

    Nodes are tuples of token indices (queries in C order) with the attributes ``margin`` (0 when infeasible), ``norm``
    (infinite when infeasible), ``score`` (mean over the queries), ``feasible``, ``locally_optimal`` and
    ``globally_optimal`` (tokens of highest score). An edge goes from a feasible selection to the selection in
    which one token is replaced by a support token that scores at least as much; its attributes are ``query``, ``token``
    and ``gain`` (in score, 0 only for ties). In the Frobenius norm every edge is proved; in the nuclear norm edges read
    the support of the solution returned, within `attsvm.solution.SUPPORT_TOLERANCE`.

    An infeasible selection has no support and so no outgoing edge. The feasible nodes without an outgoing edge are
    exactly the locally optimal selections. Without tied scores every edge raises the mean score, so the graph has no
    cycle.

    Parameters
    ----------
    problem : AttentionProblem
        Not a batch.
    norm : str
        "frobenius" or "nuclear".
    limit : int
        Most selections to list.
    progress : bool
        Show a progress bar.

    Returns
    -------
    networkx.DiGraph

    Raises
    ------
    RuntimeError
        When local optimality or the support of some selection could not be proved.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import selection_graph
    >>> graph = selection_graph(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> graph.number_of_nodes(), sorted(node for node in graph if graph.out_degree(node) == 0)
    (64, [(2, 3, 3), (3, 2, 3), (3, 3, 1), (3, 3, 3)])
    """
    require_choice("norm", norm, "frobenius", "nuclear")
    require_count("limit", limit)
    space = SelectionSpace(problem)
    if space.size > limit:
        raise ValueError(
            f"the graph would have {space.size:.3g} nodes, more than limit = {limit}; raise limit, or list the locally "
            "optimal selections alone with locally_optimal_selections"
        )
    import networkx as nx

    best = space.order.max(axis=1, where=space.allowed, initial=space.order.min())
    graph = nx.DiGraph(norm=norm)
    for start in range(0, space.size, _STEP):
        selections = space.selections(start, min(start + _STEP, space.size))
        verdicts = full_verdicts(space, selections, norm, support=True, progress=progress)
        swaps = _proved_swaps(space, selections, verdicts)
        scores = space.mean_scores(selections)
        own = np.take_along_axis(space.scores[None], selections[..., None], axis=2)[..., 0]
        rank = np.take_along_axis(space.order[None], selections[..., None], axis=2)[..., 0]
        for row, tokens in enumerate(selections):
            node = tuple(int(t) for t in tokens)
            graph.add_node(
                node,
                margin=float(1.0 / verdicts.norm[row]),
                norm=float(verdicts.norm[row]),
                score=float(scores[row]),
                feasible=bool(verdicts.feasible[row]),
                locally_optimal=bool(verdicts.locally_optimal[row]),
                globally_optimal=bool((rank[row] == best).all()),
            )
            for query, token in np.argwhere(swaps[row]):
                target = (*node[:query], int(token), *node[query + 1 :])
                gain = float(space.scores[query, token] - own[row, query])
                graph.add_edge(node, target, query=int(query), token=int(token), gain=gain)
    return graph


def _proved_swaps(space: SelectionSpace, selections: IntArray, verdicts: Verdicts) -> BoolArray:
    """Support tokens of no lower score, (B, q, T); RuntimeError where that is not certain."""
    assert verdicts.support is not None
    higher = space.higher(selections)
    swaps = verdicts.support.tokens & higher
    open_ones = verdicts.undecided | (verdicts.support.doubtful & higher).any(axis=(1, 2))
    # By Definition 2 a feasible selection is locally optimal exactly if there is no swap.
    open_ones |= verdicts.feasible & (verdicts.locally_optimal == swaps.any(axis=(1, 2)))
    if open_ones.any():
        row = int(np.flatnonzero(open_ones)[0])
        node = tuple(int(t) for t in selections[row])
        reason = verdicts.reasons.get(row, "whether some token lies on the margin is not proved")
        raise RuntimeError(f"the graph is undecided at selection {node}: {reason}")
    return np.asarray(swaps)


@dataclass(frozen=True, eq=False)
class Basins:
    """Where swaps lead.

    Attributes
    ----------
    reach : mapping from node to frozenset of nodes
        Local optima that can be reached; empty for infeasible selections and where every path ends in one.
    dead_end : mapping from node to bool
        Whether an infeasible selection can be reached (an infeasible selection reaches itself).
    reaching : mapping from local optimum to int
        Nodes that can reach the local optimum, itself included.
    only : mapping from local optimum to int
        Nodes that can reach this local optimum and nothing else.
    """

    reach: Mapping[Node, frozenset[Node]]
    dead_end: Mapping[Node, bool]
    reaching: Mapping[Node, int]
    only: Mapping[Node, int]


def basins(graph: nx.DiGraph) -> Basins:
    """Reachability of the local optima of a selection graph.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import basins, selection_graph
    >>> graph = selection_graph(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> found = basins(graph)
    >>> {optimum: (found.reaching[optimum], found.only[optimum]) for optimum in sorted(found.only)}[(3, 2, 3)]
    (42, 3)
    """
    optima = [node for node in graph if graph.nodes[node]["feasible"] and graph.out_degree(node) == 0]
    number = {node: i for i, node in enumerate(optima)}
    dead = 1 << len(optima)  # one more bit, for infeasible selections
    own = {node: 0 if graph.nodes[node]["feasible"] else dead for node in graph}
    codes = _gathered(graph, own | {optimum: 1 << i for optimum, i in number.items()})
    sets: dict[int, frozenset[Node]] = {
        code: frozenset(optimum for i, optimum in enumerate(optima) if code >> i & 1) for code in set(codes.values())
    }
    every = Counter(optimum for code in codes.values() for optimum in sets[code])
    alone = Counter(codes.values())
    reaching = {optimum: every[optimum] for optimum in optima}
    only = {optimum: alone[1 << number[optimum]] for optimum in optima}
    reach = {node: sets[code] for node, code in codes.items()}
    return Basins(reach, {node: bool(code & dead) for node, code in codes.items()}, reaching, only)


def _gathered(graph: nx.DiGraph, own: dict[Node, int]) -> dict[Node, int]:
    """Union of the bits of every node that can be reached, itself included."""
    import networkx as nx

    groups = nx.condensation(graph)  # tied scores make cycles, whose nodes reach the same
    bits: dict[Hashable, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        here = [own[node] for node in groups.nodes[group]["members"]]
        bits[group] = reduce(or_, [*here, *(bits[follower] for follower in groups.successors(group))])
    return {node: bits[groups.graph["mapping"][node]] for node in graph}


# -- files and pictures ------------------------------------------------------------------------------------------------


def write_graphml(graph: nx.DiGraph, path: str | Path) -> None:
    """Write a selection graph as GraphML; nodes are named by their tokens, as in ``"3-2-3"``.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import attsvm
    >>> from attsvm.enumeration import selection_graph, write_graphml
    >>> graph = selection_graph(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_graphml(graph, Path(folder) / "graph.graphml")
    ...     (Path(folder) / "graph.graphml").read_text().count("<node ")
    9
    """
    import networkx as nx

    names = {node: "-".join(map(str, node)) for node in graph}
    nx.write_graphml(nx.relabel_nodes(graph, names), str(path))


def draw_selection_graph(graph: nx.DiGraph, axis: Axes | None = None, *, labels: bool | None = None) -> Axes:
    """Draw a selection graph: margin to the right, mean score upwards, swaps as arrows.

    Without ties every arrow points up. Infeasible selections stand at margin 0.

    Parameters
    ----------
    graph : networkx.DiGraph
        From `selection_graph`.
    axis : matplotlib axes, optional
    labels : bool, optional
        Name the local optima by their tokens; by default when there are at most 12.

    Returns
    -------
    matplotlib axes

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import draw_selection_graph, selection_graph
    >>> graph = selection_graph(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> axis = draw_selection_graph(graph)  # doctest: +SKIP
    """
    if axis is None:
        with needs("draw_selection_graph"):
            import matplotlib.pyplot as plt

        axis = plt.subplots(figsize=(7.5, 5.5), layout="constrained")[1]
    place = {node: (data["margin"], data["score"]) for node, data in graph.nodes(data=True)}
    width = 0.9 if graph.number_of_edges() < 300 else 0.3
    for source, target in graph.edges:
        arrow = {"arrowstyle": "-|>", "color": "0.6", "lw": width, "shrinkA": 4, "shrinkB": 5, "mutation_scale": 8}
        axis.annotate("", xy=place[target], xytext=place[source], arrowprops=arrow, zorder=1)
    optima = [node for node, data in graph.nodes(data=True) if data["locally_optimal"]]
    reach = basins(graph).reach
    color = {optimum: f"C{i}" if len(optima) <= _COLORS else "C3" for i, optimum in enumerate(optima)}
    for kind, nodes in _by_kind(graph).items():
        style = dict(_STYLES[kind])
        if "color" not in style:  # of the local optimum that it is, or leads to
            style["color"] = [color[next(iter(reach[node]))] for node in nodes]
        x, y = zip(*(place[node] for node in nodes), strict=True)
        axis.scatter(x, y, zorder=3, label=kind, **style)
    if labels if labels is not None else len(optima) <= 12:
        for node in optima:
            text = ",".join(map(str, node))
            axis.annotate(text, place[node], xytext=(7, 5), textcoords="offset points", fontsize=8, zorder=4)
    axis.set(xlabel="margin 1 / ||W||", ylabel="mean score of the selected tokens")
    axis.legend(fontsize=8, loc="lower right")
    return axis


def _by_kind(graph: nx.DiGraph) -> dict[str, list[Node]]:
    """Nodes by what becomes of them, in the order of `_STYLES`, without kinds that do not occur."""
    found = basins(graph)
    kinds: dict[str, list[Node]] = {kind: [] for kind in _STYLES}
    for node, data in graph.nodes(data=True):
        if not data["feasible"]:
            kind = "infeasible"
        elif data["locally_optimal"]:
            kind = "globally optimal" if data["globally_optimal"] else "locally optimal"
        elif len(found.reach[node]) + found.dead_end[node] > 1:
            kind = "leads to several ends"
        elif found.dead_end[node]:
            kind = "leads to infeasible selections only"
        else:
            kind = "leads to the local optimum of its colour only"
        kinds[kind].append(node)
    return {kind: nodes for kind, nodes in kinds.items() if nodes}
