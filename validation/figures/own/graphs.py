"""Next-token graphs: Graph-SVM against a model of all pairs, and descent against direction plus finite part."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.next_token import decompose, graph_svm, graph_svms, random_corpus, token_graphs, train
from attsvm.next_token.graph_svm import GraphSolution
from attsvm.solvers.exact.measures import exact_certificate
from attsvm.sweeps import columns_of
from attsvm.validation.bench.graphs import Modelled, all_pairs_model, vocabularies
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, share_of, subplots

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["FIGURE", "compared", "descended", "run"]

_CHECKPOINTS = (200, 500, 1000, 2000, 5000, 10_000, 20_000)


def _accurate_model(sequences: Any, table: npt.NDArray[np.float64], norm: str) -> Modelled:
    """The model at the tightest accuracy at which its solver calls the answer optimal, with or without all equations.

    The last answer where it never does.
    """
    found = Modelled(None, np.nan, "broken")
    for accuracy in (1e-11, 1e-10, 1e-9):
        for independent in (False, True):
            tight = dict.fromkeys(("tol_gap_rel", "tol_gap_abs", "tol_feas"), accuracy)
            found = all_pairs_model(sequences, table, norm, independent=independent, solver="CLARABEL", **tight)
            if found.status == "optimal":
                return found
    return found


def compared(trials: int, seed: int, *, norm: str) -> dict[str, Any]:
    """Norms, times and ranks of both on random `vocabularies`.

    Each side is called once before it is timed, the peer at its default accuracy; ours is timed over several calls in a
    row, also as one batch of all. Where the peer's solver never calls its answer optimal there is nothing to compare
    with: exact arithmetic then says how far our norm may be from the least.

    Examples
    --------
    >>> from attsvm.validation.figures.own.graphs import compared
    >>> max(compared(2, 0, norm="frobenius")["difference"]) < 1e-8
    True
    """
    data = vocabularies(trials, seed, norm)
    together = graph_svms(*zip(*data, strict=True), norm=norm)
    of_batch = _seconds(lambda: graph_svms(*zip(*data, strict=True), norm=norm), 3) / trials
    all_pairs_model(data[0][0], data[0][1], norm, solver="CLARABEL")

    def row(k: int) -> dict[str, Any]:
        sequences, table = data[k]
        svm = graph_svm(sequences, table, norm=norm)
        own = _seconds(lambda: graph_svm(sequences, table, norm=norm), 20 if norm == "frobenius" else 4)
        begin = time.process_time()
        all_pairs_model(sequences, table, norm, solver="CLARABEL")
        peer = time.process_time() - begin
        model = _accurate_model(sequences, table, norm)
        loose = all_pairs_model(sequences, table, norm, solver="SCS").W if norm == "nuclear" else None
        published = -1 if loose is None else int((np.linalg.svd(loose, compute_uv=False) > 1e-7).sum())
        rank = svm.certificate.rank_certificate
        both, short = (svm, together[k]), model.status != "optimal"
        return {
            "difference": np.nan if short else max(abs(one.norm - model.value) / model.value for one in both),
            "exact_gap": max(_exact_gap(one) for one in both) if short else np.nan,
            "gap": max(one.certificate.gap for one in both),
            "ratio": peer / own,
            "batch_ratio": peer / of_batch,
            "certified": svm.rank if rank is None else rank.rank,
            "published": published,
        }

    return columns_of(row(k) for k in range(trials))


def _exact_gap(svm: GraphSolution) -> float:
    result = svm.result
    return exact_certificate(result.problem, result.W, result.multipliers, result.norm_kind).gap


def _seconds(work: Callable[[], object], calls: int) -> float:
    """Processor time of one of several calls in a row: the clock of a processor may be coarse."""
    begin = time.process_time()
    for _ in range(calls):
        work()
    return (time.process_time() - begin) / calls


def descended(trials: int, seed: int, *, acyclic: bool, steps: int) -> dict[str, Any]:
    """Distance of training W from direction and finite part, at marked steps.

    Examples
    --------
    >>> from attsvm.validation.figures.own.graphs import descended
    >>> found = descended(2, 0, acyclic=True, steps=500)
    >>> bool(found["misalignment"].shape == (2, 2)), bool(found["recovered"].all())
    (True, True)
    """
    rng = np.random.default_rng(seed)
    corpora: list[list[list[int]]] = []
    tables: list[npt.NDArray[np.float64]] = []
    while len(corpora) < trials:  # what theory covers: a feasible SVM that orders something
        sequences, table = random_corpus(6, 5, 7, 8, labels="realizable" if acyclic else "random", seed=rng)
        if token_graphs(sequences).is_acyclic != acyclic:
            continue
        svm = graph_svm(sequences, table)
        if svm.status == "optimal" and svm.norm > 0:
            corpora.append(sequences)
            tables.append(table)
    marks = [k for k in _CHECKPOINTS if k <= steps]
    run = train(corpora, np.stack(tables), steps=steps, batch=True, snapshots=marks, seed=seed)
    at = np.searchsorted(run.steps, marks)
    parts = [
        [decompose(s, e, W) for s, e, W in zip(corpora, tables, run.history[k], strict=True)] for k in at
    ]  # marks x trials
    return {
        name: np.array([[getattr(p, name) for p in row] for row in parts]).T
        for name in ("misalignment", "share_error", "recovered")
    }


def run(context: Context) -> Outcome:
    """Both comparisons."""
    s = context.settings
    cells = [{"norm": norm} for norm in ("frobenius", "nuclear")]
    solved = context.sweep(compared, cells, s["vocabularies"], chunk=s["vocabularies"], name="all pairs").columns
    both = [{"acyclic": acyclic, "steps": s["steps"]} for acyclic in (True, False)]
    trained = context.sweep(descended, both, s["trials"], chunk=s["trials"], name="descent").columns
    marks = [k for k in _CHECKPOINTS if k <= s["steps"]]
    tables = [
        _solve_table(cells, solved, s["vocabularies"]),
        _descent_table(trained, marks, s["trials"]),
    ]
    refuted = [
        f"{cell['norm']}: a norm differs by {np.nanmax(found['difference']):.1e} from the model of all pairs"
        for cell, found in zip(cells, solved, strict=True)
        if np.nanmax(found["difference"]) > 1e-8  # what CLARABEL calls optimal is within 1e-9 of the certified norm
    ]
    refuted += [
        f"{cell['norm']}: exact arithmetic leaves a gap of {np.nanmax(found['exact_gap']):.1e}"
        for cell, found in zip(cells, solved, strict=True)
        if np.any(np.asarray(found["exact_gap"]) > 1e-8)
    ]
    curves = {
        "steps": marks,
        "acyclic": np.asarray(trained[0]["misalignment"]).T,
        "cyclic": np.asarray(trained[1]["misalignment"]).T,
        "shares": np.asarray(trained[1]["share_error"]).T,
    }
    return Outcome(tables, curves, _notes(solved, trained), refuted)


def _solve_table(cells: list[dict[str, str]], solved: Any, trials: int) -> Table:
    rows = [
        (
            cell["norm"],
            f"{np.nanmax(found['difference']):.0e}",
            f"{max(found['gap']):.0e}",
            f"{np.median(found['ratio']):.0f}x",
            f"{np.median(found['batch_ratio']):.0f}x",
            mean_of(found["certified"]),
            mean_of(found["published"]) if cell["norm"] == "nuclear" else "",
        )
        for cell, found in zip(cells, solved, strict=True)
    ]
    heads = (
        "norm",
        "worst difference",
        "worst gap",
        "cvxpy / own",
        "cvxpy / batch",
        "certified rank",
        "rank by default SCS",
    )
    return Table(f"Graph-SVM against one cvxpy constraint per pair, {trials} vocabularies each", heads, rows)


def _descent_table(trained: Any, marks: list[int], trials: int) -> Table:
    acyclic, cyclic, shares = (
        np.asarray(found[name])
        for found, name in ((trained[0], "misalignment"), (trained[1], "misalignment"), (trained[1], "share_error"))
    )
    rows = [
        (k, *(f"{np.median(part[:, i]):.1e}" for part in (acyclic, cyclic)), f"{shares[:, i].max():.1e}")
        for i, k in enumerate(marks)
    ]
    heads = ("steps", "1 - corr, acyclic", "1 - corr, cyclic", "worst share, cyclic")
    return Table(f"Descent on W: medians over {trials} draws (the last column is a maximum)", heads, rows)


def _notes(solved: Any, trained: Any) -> list[str]:
    recovered = [np.asarray(found["recovered"])[:, -1] for found in trained]
    return [
        f"components recovered at the last step: acyclic {share_of(recovered[0])}, cyclic {share_of(recovered[1])}",
        *(
            f"{norm}: cvxpy takes {np.median(found['ratio']):.0f} times as long as one call of ours, "
            f"{np.median(found['batch_ratio']):.0f} times as long as one problem of a batch (goal 50){_short(found)}"
            for norm, found in zip(("Frobenius", "nuclear"), solved, strict=True)
        ),
        f"exceptions: {_exceptions(trained)}",
    ]


def _short(found: Any) -> str:
    """How often the peer's solver never calls its answer optimal, and what exact arithmetic says of ours there."""
    gaps = np.asarray(found["exact_gap"])
    gaps = gaps[~np.isnan(gaps)]
    if not len(gaps):
        return ""
    return (
        f"; on {len(gaps)} of {len(found['gap'])} its solver never calls its answer optimal, where exact arithmetic "
        f"proves our norms to {gaps.max():.0e}"
    )


def _exceptions(trained: Any) -> str:
    """Draws that theory covers and that training did not bring to where it says."""
    found = []
    for kind, part in zip(("acyclic", "cyclic"), trained, strict=True):
        far = np.asarray(part["misalignment"])[:, -1] > 1e-4
        shares = np.asarray(part["share_error"])[:, -1] > 1e-3
        lost = ~np.asarray(part["recovered"])[:, -1].astype(bool)
        found.append(
            f"{kind}: {int(far.sum())} of {len(far)} above 1e-4, {int(shares.sum())} with a share off by 1e-3, "
            f"{int(lost.sum())} without their components"
        )
    return "; ".join(found)


def draw(outcome: Outcome) -> Picture:
    """Medians of the misalignment over the steps, with the quartiles."""
    picture, axes = subplots(1, 1, size=(5.2, 3.6))
    for name in ("acyclic", "cyclic"):
        values = np.asarray(outcome.curves[name])
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=1)
        axes.fill_between(outcome.curves["steps"], low, high, alpha=0.25)
        axes.plot(outcome.curves["steps"], middle, marker="o", label=f"{name} graphs")
    axes.set(xscale="log", yscale="log", xlabel="steps", ylabel=r"$1 - $ correlation with Graph-SVM")
    axes.legend()
    return picture


FIGURE = Figure(
    paper="own",
    name="graphs",
    title="Next-token graphs: their SVM, and descent towards it",
    protocol="""Random vocabularies on the unit sphere (d = 8); contexts of T tokens drawn with repetition; next tokens
        at random among the context's, or those that a hidden W prefers (acyclic). Descent takes normalized steps of 0.1
        outside the cyclic subspace and gradient steps inside it, cross-entropy; only draws with a feasible SVM that
        orders something, which is what the theorem covers.""",
    full={"trials": 100, "vocabularies": 200, "steps": 20_000},
    quick={"trials": 4, "vocabularies": 4, "steps": 1000},
    run=run,
    draw=draw,
)
