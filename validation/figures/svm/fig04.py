"""Figure 4: ranks of Att-SVM and Att-SVM* solutions against d, certified and as the published protocol counts them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, share_of, subplots
from attsvm.validation.figures.svm.ranks_published import optimal_differences, published_ranks

__all__ = ["FIGURE", "certified_ranks", "draw", "rank_trials", "run"]

_COLOURS = ("tab:blue", "tab:green", "tab:red")
_MARKERS = ("v", "o", "d")


def certified_ranks(problems: attsvm.ProblemBatch, norm: str) -> dict[str, npt.NDArray[Any]]:
    """Ranks of the certified solutions for the optimal tokens of a batch.

    Returns
    -------
    dict
        ``feasible`` and ``undecided`` flags, ``rank`` (certified by the dual matrix for the nuclear norm, numerical for
        the Frobenius norm) and ``numerical`` (of the returned W); NaN where there is no certified solution.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.fig04 import certified_ranks
    >>> found = certified_ranks(attsvm.random_problem(n=3, T=3, d=6, batch=4), "nuclear")
    >>> bool((found["rank"] <= 3).all()), bool((found["rank"] == found["numerical"]).all())
    (True, True)
    """
    B = len(problems.X)
    found = {
        "feasible": np.zeros(B, dtype=bool),
        "undecided": np.zeros(B, dtype=bool),
        "rank": np.full(B, np.nan),
        "numerical": np.full(B, np.nan),
    }
    # A token equal to the optimal one asks for 0 >= 1: infeasible without a solver (d = 1, where tokens are +-1).
    differ = optimal_differences(problems).reshape(B, -1, problems.dx).any(axis=-1)
    distinct = np.flatnonzero(np.asarray(differ).all(axis=-1))
    if not len(distinct):
        return found
    solutions = attsvm.att_svm(_take(problems, distinct), norm=norm)
    for b, status in zip(distinct, solutions.status, strict=True):
        found["undecided"][b] = not status.is_certified
        found["feasible"][b] = status is attsvm.Status.OPTIMAL
    solved = found["feasible"][distinct]
    ranks = np.where(solved, solutions.rank, np.nan)
    found["numerical"][distinct] = ranks
    if norm == "nuclear":
        certified = [s.certificate.rank if ok else np.nan for s, ok in zip(solutions, solved, strict=True)]
        ranks = np.array(certified, dtype=np.float64)
    found["rank"][distinct] = ranks
    return found


def _take(problems: attsvm.ProblemBatch, index: npt.NDArray[np.intp]) -> attsvm.ProblemBatch:
    if len(index) == len(problems.X):
        return problems
    head = problems.head
    assert isinstance(head, attsvm.LinearHead)
    return attsvm.ProblemBatch(
        problems.X[index], problems.Y[index], problems.Z[index], attsvm.LinearHead(head.v[index])
    )


def rank_trials(trials: int, seed: int, *, n: int, T: int, d: int) -> dict[str, Any]:
    """Ranks of the same draws in both norms, certified and by the published protocol.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.fig04 import rank_trials
    >>> found = rank_trials(2, 0, n=3, T=3, d=4)
    >>> sorted(found)[:3], len(found["certified_nuclear"])
    (['certified_frobenius', 'certified_nuclear', 'feasible'], 2)
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed)
    columns: dict[str, Any] = {}
    for norm in ("frobenius", "nuclear"):
        certified, published = certified_ranks(problems, norm), published_ranks(problems, norm)
        columns[f"certified_{norm}"] = certified["rank"]
        columns[f"numerical_{norm}"] = certified["numerical"]
        columns[f"undecided_{norm}"] = certified["undecided"]
        columns[f"published_{norm}"] = published["rank"]
        columns[f"published_feasible_{norm}"] = published["feasible"]
        columns["feasible"] = certified["feasible"]  # the same for both norms: the rows are the same
    return columns


def run(context: Context) -> Outcome:
    """Ranks of every cell, and what the published protocol makes of them."""
    s = context.settings
    curves_of = {"a": [(n, s["T"]) for n in s["many_n"]], "b": [(s["n"], T) for T in s["many_T"]]}
    sizes = list(dict.fromkeys(size for curves in curves_of.values() for size in curves))
    cells = [{"n": n, "T": T, "d": d} for n, T in sizes for d in s["dimensions"]]
    found = context.sweep(rank_trials, cells, chunk=s["chunk"], name="ranks")
    rows: list[tuple[Any, ...]] = []
    means: dict[str, dict[str, list[float]]] = {}
    agree = total = undecided = failed = beyond = impossible = 0
    for n, T in sizes:
        mean: dict[str, list[float]] = {}
        for d in s["dimensions"]:
            c = found.where(n=n, T=T, d=d)
            ok = c["feasible"]
            rank = c["certified_nuclear"]
            rows.append((
                f"n={n}, T={T}", d, min(n, d), share_of(ok),
                mean_of(c["certified_frobenius"]), mean_of(c["published_frobenius"]),
                mean_of(rank), mean_of(c["published_nuclear"]), mean_of(c["published_nuclear"][ok]),
                int(np.nanmax(rank)) if ok.any() else "-",
            ))  # fmt: skip
            agree += int((rank[ok] == c["numerical_nuclear"][ok]).sum())
            total += int(ok.sum())
            undecided += int(c["undecided_nuclear"].sum() + c["undecided_frobenius"].sum())
            failed += int(np.isnan(c["published_nuclear"]).sum() + np.isnan(c["published_frobenius"]).sum())
            beyond += int((np.fmax(rank, c["certified_frobenius"])[ok] > min(n, d)).sum())
            impossible += int((c["published_nuclear"][ok] > min(n, d)).sum())
            for kind in ("certified", "published"):
                for norm in ("frobenius", "nuclear"):
                    mean.setdefault(f"{kind}_{norm}", []).append(mean_of(c[f"{kind}_{norm}"]).value)
        means[f"{n},{T}"] = mean
    columns = ("size", "d", "min(n, d)", "feasible", "W certified", "W published", "W* certified", "W* published",
               "W* published, feasible draws", "largest W* certified")  # fmt: skip
    return Outcome(
        tables=[Table("Mean rank of Att-SVM (W) and Att-SVM* (W*) solutions", columns, rows)],
        curves={"d": list(s["dimensions"]), "panels": curves_of, "means": means},
        notes=[
            "Certified: feasible draws only; for W* the number of dual singular values equal to 1, which bounds the "
            f"rank of every solution and equals the numerical rank of the returned W in {agree} of {total} feasible "
            f"draws; for W the numerical rank of the certified solution. {undecided} solves ended without certificate.",
            "Published: the modelling package's default accuracy and an absolute cut of 1e-7, every infeasible draw "
            f"counted as rank 1, on the same draws ({failed} solver failures, which the published code draws again).",
            "The published ranks of W* near n are an artefact of the solver's accuracy; those near 1 at small d are "
            "infeasible draws.",
            "The text and caption bound the ranks by max(n, d); Lemma 1 gives min(n, d), which of the "
            f"{total} feasible draws {beyond} exceed by certified ranks and {impossible} by published ranks of W*.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Mean rank against d, W solid and W* dashed: the published protocol above, certified ranks below."""
    picture, axes = subplots(2, 2, (10, 7), sharex=True, sharey="col")
    curves = outcome.curves
    titles = {"published": "published protocol", "certified": "certified, feasible draws"}
    for axis_row, (kind, title) in zip(axes, titles.items(), strict=True):
        for axis, (panel, sizes) in zip(axis_row, curves["panels"].items(), strict=True):
            for (n, T), colour, marker in zip(sizes, _COLOURS, _MARKERS, strict=False):
                mean = curves["means"][f"{n},{T}"]
                label = f"n = {n}" if panel == "a" else f"T = {T}"
                look = {"color": colour, "marker": marker, "markersize": 5}
                axis.plot(curves["d"], mean[f"{kind}_frobenius"], "-", label=label, **look)
                axis.plot(curves["d"], mean[f"{kind}_nuclear"], "--", **look)
            fixed = f"T = {sizes[0][1]}" if panel == "a" else f"n = {sizes[0][0]}"
            axis.set(title=f"({panel}) {fixed}: {title}", ylabel="mean rank")
            axis.grid(alpha=0.4)
    for axis in axes[-1]:
        axis.set_xlabel("d")
        axis.set_xticks(curves["d"], curves["d"], fontsize=8)
    for axis in axes[0]:
        axis.plot([], [], "k-", label="W (Att-SVM)")
        axis.plot([], [], "k--", label="W* (Att-SVM*)")
        axis.legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig4",
    title="Ranks of Att-SVM and Att-SVM* solutions against d",
    protocol="""Optimal tokens, no rank constraint (m = d), tokens, queries and v uniform on the sphere, labels +-1
        fair, no score gap, 100 trials per point: (a) T = 5, n = 5, 10, 15; (b) n = 5, T = 5, 10, 15; d = 1, 2, 3, 4,
        5, 10, 15, 20 (as in the published code). Published ranks: modelling package with default settings
        (SCS for the nuclear norm, an interior-point method for the Frobenius norm), singular values above
        an absolute 1e-7, infeasible draws counted as rank 1. Beside them, on the same draws, ranks of
        certified solutions.""",
    full={"trials": 100, "n": 5, "T": 5, "many_n": (5, 10, 15), "many_T": (5, 10, 15),
          "dimensions": (1, 2, 3, 4, 5, 10, 15, 20), "chunk": 50},
    quick={"trials": 10, "many_n": (5, 15), "many_T": (5, 15), "dimensions": (2, 5, 10), "chunk": 10},
    run=run,
    draw=draw,
)  # fmt: skip
