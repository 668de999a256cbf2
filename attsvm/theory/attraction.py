"""Where does gradient descent go? Many random starts of one problem in one batch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.enumeration import count_selections, solve_selections
from attsvm.optimality import Convergence
from attsvm.problem import AttentionProblem, require_single
from attsvm.records import html_listing, plain, share
from attsvm.selection import Selection
from attsvm.solvers import get_norm
from attsvm.user_input import require_choice, require_count

if TYPE_CHECKING:
    import torch

    from attsvm.training.run_result import Run

# A run counts as saturated when no query keeps more than this probability off its most likely token: the
# selection no longer changes on the scale of the run.
SATURATED = 1e-6

GRAPH_LIMIT = 20_000


@dataclass(frozen=True, eq=False)
class Reached:
    """One selection that descent reached.

    Attributes
    ----------
    selection : Selection
    count : int
        Starts that ended there.
    share : float
    interval : tuple of float
        95 % Wilson interval of the share.
    margin : float
        1 / norm of its SVM; 0 when infeasible.
    score : float
        Mean score of the selected tokens.
    kind : Convergence
        Definition 2 with the run's norm.
    unsaturated : int
        How many of the starts still spread their attention at the end.
    examples : tuple of int
        The first starts that ended there.
    """

    selection: Selection
    count: int
    share: float
    interval: tuple[float, float]
    margin: float
    score: float
    kind: Convergence
    unsaturated: int
    examples: tuple[int, ...]

    @property
    def feasible(self) -> bool:
        """Whether the selection has a solution."""
        return self.margin > 0

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        names = ("count", "share", "interval", "margin", "score", "kind", "unsaturated", "examples")
        return {"selection": plain(self.selection.indices)} | {name: plain(getattr(self, name)) for name in names}


@dataclass(frozen=True, eq=False, repr=False)
class Attraction:
    """Tally of the selections reached from many starts; ``print`` shows it as a table.

    Attributes
    ----------
    problem : AttentionProblem
    norm : str
        Norm whose support decides local optimality.
    rows : tuple of Reached
        Most frequent first.
    run : Run
        The batched run; start b is problem b.
    graph : networkx.DiGraph or None
        The selection graph with node attributes "reached" and "share".
    """

    problem: AttentionProblem
    norm: str
    rows: tuple[Reached, ...]
    run: Run
    graph: Any = None

    @property
    def starts(self) -> int:
        """Number of starts."""
        return int(self.run.batch or 0)

    @cached_property
    def counts(self) -> dict[str, int]:
        """Starts that ended Global, Local, Not local or Undecided."""
        tally = {kind: sum(row.count for row in self.rows if row.kind is kind) for kind in Convergence}
        return {str(kind): count for kind, count in tally.items() if count}

    @property
    def exceptions(self) -> tuple[Reached, ...]:
        """Selections reached that are not locally optimal."""
        return tuple(row for row in self.rows if row.kind is Convergence.NOT_LOCAL)

    @cached_property
    def spearman(self) -> float:
        """Rank correlation of starts with margin over the feasible selections reached; NaN below three of them.

        With ``graph=True`` over all locally optimal selections, those never reached included.
        """
        if self.graph is not None:
            nodes = [data for _, data in self.graph.nodes(data=True) if data["locally_optimal"]]
            return _spearman([data["reached"] for data in nodes], [data["margin"] for data in nodes])
        rows = [row for row in self.rows if row.feasible]
        return _spearman([row.count for row in rows], [row.margin for row in rows])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "starts": self.starts,
            "parameterization": self.run.parameterization,
            "norm": self.norm,
            "steps": self.run.options.steps,
            "counts": self.counts,
            "spearman": plain(self.spearman),
            "selections": [row.to_dict() for row in self.rows],
        }

    def __repr__(self) -> str:
        ends = ", ".join(f"{count} {kind}" for kind, count in self.counts.items())
        return f"Attraction({self.starts} starts, {self.norm}, {len(self.rows)} selections reached: {ends})"

    def _repr_html_(self) -> str:
        rows = [
            (str(row.selection.indices.ravel().tolist()[:20]), row.count, row.share, row.margin, str(row.kind))
            for row in self.rows
        ]
        title = f"Selections reached from {self.starts} starts, {self.norm} norm"
        return html_listing(title, ("tokens", "starts", "share", "margin", "kind"), rows)

    def __str__(self) -> str:
        from attsvm.theory.diagnosis import attraction_text

        return attraction_text(self)


def _spearman(counts: list[int], margins: list[float]) -> float:
    from scipy.stats import spearmanr

    if len(counts) < 3 or len(set(counts)) < 2 or len(set(margins)) < 2:
        return float("nan")  # a rank correlation of constants does not exist
    return float(spearmanr(counts, margins).statistic)


def attraction(
    problem: AttentionProblem,
    starts: int = 1000,
    *,
    steps: int = 2000,
    parameterization: str = "W",
    seed: int | np.random.Generator = 0,
    norm: str | None = None,
    device: str | torch.device | None = None,
    graph: bool = False,
    **options: Any,
) -> Attraction:
    """Train one problem from many random starts at once and tally the selections reached.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with a head.
    starts : int
    steps : int
    parameterization : {"W", "KQ"}
    seed : int or Generator
        Of the starts.
    norm : str, optional
        Whose support decides local optimality; that of the run by default: nuclear for (K, Q), else the norm that
        its optimizer follows (Frobenius when theory names none).
    device : optional
        Where to train.
    graph : bool
        Join the tally to `attsvm.enumeration.selection_graph` (Frobenius or nuclear norm, at most 20,000 selections).
    **options
        Passed to `attsvm.train` (``lr``, ``optimizer``, ``init``, ``loss``, ``snapshots``, ...); ``progress=True``
        shows a bar for the steps and one for the SVMs of the selections reached.

    Returns
    -------
    Attraction

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import attraction
    >>> found = attraction(attsvm.random_problem(n=2, T=3, d=6, seed=0), starts=20, steps=300)
    >>> found.starts, sum(row.count for row in found.rows), set(found.counts) <= {"Global", "Local"}
    (20, 20, True)
    """
    require_single(problem, "attraction takes one problem")
    require_count("starts", starts)
    if norm is not None:
        norm = get_norm(norm).name
    require_choice("parameterization", parameterization, "W", "KQ")
    if graph and count_selections(problem) > GRAPH_LIMIT:  # found out now, not after training
        raise ValueError(
            f"graph=True lists all {count_selections(problem)} selections, more than {GRAPH_LIMIT}; "
            "leave it out, or list the locally optimal ones alone with attsvm.locally_optimal_selections"
        )
    from attsvm.training import train

    options = {"snapshots": 2} | options  # the end is what counts, and W of every start is kept at every snapshot
    run = train(problem.repeat(int(starts)), parameterization, steps, seed=seed, device=device, **options)
    kind = norm or run.norm or "frobenius"
    shown = run.options.progress
    rows = _tally(problem, run, kind, shown)
    return Attraction(problem, kind, rows, run, _join(problem, rows, kind, shown) if graph else None)


def _tally(problem: AttentionProblem, run: Run, norm: str, progress: bool) -> tuple[Reached, ...]:
    ends = run.selection.indices
    distinct, member, counts = np.unique(ends.reshape(len(ends), -1), axis=0, return_inverse=True, return_counts=True)
    table = solve_selections(problem, distinct.reshape(-1, *problem.query_shape), norm=norm, progress=progress)
    best = problem.optimal_tokens().indices.reshape(-1)
    scores = problem.scores().reshape(-1, problem.T)
    spread = run.history.log_rest[-1] > np.log(SATURATED)
    rows = []
    for k in np.lexsort((np.arange(len(counts)), -table.margin, -counts)):
        here = np.flatnonzero(member.reshape(-1) == k)
        found = share(int(counts[k]), len(ends))
        rows.append(
            Reached(
                Selection(table.indices[k]),
                int(counts[k]),
                found.value,
                (found.low, found.high),
                float(table.margin[k]),
                float(scores[np.arange(len(best)), distinct[k]].mean()),
                Convergence.of(
                    local=bool(table.locally_optimal[k]),
                    undecided=not table.decided[k],
                    optimal=np.array_equal(distinct[k], best),
                ),
                int(spread[here].sum()),
                tuple(int(b) for b in here[:5]),
            )
        )
    return tuple(rows)


def _join(problem: AttentionProblem, rows: tuple[Reached, ...], norm: str, progress: bool) -> Any:
    from attsvm.enumeration import selection_graph

    graph = selection_graph(problem, norm=norm, limit=GRAPH_LIMIT, progress=progress)
    total = sum(row.count for row in rows)
    for node in graph.nodes:
        graph.nodes[node].update(reached=0, share=0.0)
    for row in rows:
        node = tuple(int(t) for t in row.selection.indices.reshape(-1))
        graph.nodes[node].update(reached=row.count, share=row.count / total)
    return graph
