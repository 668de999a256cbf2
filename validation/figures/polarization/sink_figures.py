"""Figures 1, 4, 5 and 14 to 17: sink heads of small transformers.

4 (and 1): two layers on the induction task, for the attentions of Table 1. 5: attention of the class token over
training, for two inputs with different labels. 14 to 17: sinks and accuracy over positions, the auxiliary loss and t'
= t.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_share_of, subplots
from attsvm.validation.figures.polarization.flow_figures import KINDS, legacy_seeds


def induction(
    trials: int, seed: int, kind: str, auxiliary: float, lr: float, heads: int, dim: int, batch: int, steps: int,
    symbols: int, length: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one model per trial and report its second layer.

    Examples
    --------
    >>> found = induction(1, 0, "softmax", 0.2, 1e-3, 1, dim=8, batch=4, steps=1, symbols=6, length=3, device=None)
    >>> len(found["scores"][0])
    1
    """
    import torch

    torch.set_num_threads(1)  # one core per run: the sweep fills the others
    chosen = {str(k): k for k in pol.ATTENTION_KINDS}[kind]
    task = models.InductionTask(symbols=symbols, length=length)

    def row(draw: int) -> dict[str, Any]:
        model = models.train_induction(
            chosen, task=task, heads=heads, dim=dim, auxiliary=auxiliary, lr=lr, batch=batch, steps=steps, seed=draw,
            device=device,
        )  # fmt: skip
        report = models.induction_report(model, task, samples=500)
        tokens, _ = task.sample(200, torch.Generator().manual_seed(7), device)
        with torch.no_grad():
            attention = model(tokens, attention=True)[1]
        assert attention is not None
        return {
            "accuracy": report.accuracy,
            "scores": sorted(report.scores.tolist(), reverse=True),
            "pooled": sorted(report.pooled_scores.tolist(), reverse=True),
            "share": report.sink_share,
            "pattern": attention[-1, int(report.scores.argmax())].mean(0).tolist(),
        }

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_4(context: Context) -> Outcome:
    """Every kind with the auxiliary loss, and softmax without it."""
    s = context.settings
    size = context.cell("lr", "heads", "dim", "batch", "steps", "symbols", "length")
    cells = [{"kind": kind, "auxiliary": 0.2, **size} for kind in s["kinds"]]
    cells.append({"kind": "softmax", "auxiliary": 0.0, **size})
    many = context.sweep(induction, cells, chunk=1, name="induction")
    rows, curves = [], {}
    for cell in cells:
        got = many.where(**cell)
        accuracy, share = np.asarray(got["accuracy"], dtype=float), np.asarray(got["share"], dtype=float)
        learned = accuracy > 0.95
        scores = np.asarray(got["scores"], dtype=float)
        pooled = np.asarray(got["pooled"], dtype=float)
        rows.append((
            cell["kind"], cell["auxiliary"], f"{int(learned.sum())} of {len(learned)}", float(accuracy.mean()),
            float(share[learned].mean()) if learned.any() else float("nan"),
            ", ".join(f"{x:.2f}" for x in scores.mean(axis=0)), ", ".join(f"{x:.2f}" for x in pooled.mean(axis=0)),
        ))  # fmt: skip
        label = cell["kind"] if cell["auxiliary"] else f"{cell['kind']}, lambda 0"
        curves[label] = {
            "learned": learned.tolist(),
            "share": share,
            "scores": scores,
            "pattern": np.asarray(got["pattern"], dtype=float)[0],
        }
    columns = ("attention", "lambda", "learned (> 0.95)", "accuracy", "share of sink heads", "mean of ratios",
               "ratio of sums")  # fmt: skip
    return Outcome(
        tables=[Table(f"Second layer after {s['steps']} steps", columns, rows)],
        curves=curves,
        notes=[
            f"REDUCED: width {s['dim']} (published 128), batch {s['batch']} (256), {s['steps']} steps on fresh samples "
            f"(3,910), {s['heads']} heads (1, 2, 4, 8), k = {s['length']} (10) of {s['symbols']} symbols (49), "
            f"learning rate {s['lr']:g} (three), {s['trials']} seed(s) (5). "
            "Shares of sink heads vary widely between seeds; only directions can be read off.",
            "Runs that have not learned the task within these steps are not counted, as published. The task is small, "
            "so that most kinds learn it in seconds.",
            "At this size the published contrast between a normalized kind and its unnormalized twin can be weak: "
            f"unnormalized heads reach high sink scores too, since with k = {s['length']} much of uniform attention "
            "is on BOS.",
            "Figure 1 shows single patterns; here it is the mean pattern of the head with the largest sink score.",
        ],
    )


def draw_figure_4(outcome: Outcome) -> Picture:
    """Sink scores per head for every kind, and mean attention patterns of three."""
    labels = list(outcome.curves)
    picture, axes = subplots(1, 4, (16, 4), width_ratios=[2.2, 1, 1, 1])
    for k, label in enumerate(labels):
        c = outcome.curves[label]
        for scores, learned in zip(np.asarray(c["scores"]), c["learned"], strict=True):
            color = "tab:blue" if learned else "0.75"
            axes[0].plot(np.full(len(scores), k), np.clip(scores, -0.1, 1.1), "o", color=color, ms=6, alpha=0.7)
    axes[0].axhline(0.9, color="tab:red", lw=0.8)
    axes[0].set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=8)
    axes[0].set(ylim=(-0.12, 1.12), title="sink score of each head (grey: task not learned)")
    chosen = [
        name for name in ("softmax", "sigmoid_unnorm", "linear_unnorm", "elu_norm", "sigmoid_norm") if name in labels
    ]
    for axis, label in zip(axes[1:], list(dict.fromkeys([*chosen, *labels]))[:3], strict=True):
        axis.imshow(np.asarray(outcome.curves[label]["pattern"]), cmap="viridis")
        axis.set(title=label, xlabel="key", ylabel="query")
    return picture


FIGURE_4 = Figure(
    paper="polarization",
    name="fig4",
    aliases=("fig1",),
    title="Sink heads on the induction task",
    protocol="""Two-layer causal pre-norm transformers on BOS t_1 .. t_k t' t_(i+1) with t' != t, additive
        positions, lambda = 0.2, AdamW, sink score = mean share of the first token at queries 1..-2, sink head above
        0.9, runs below 95 % accuracy dropped (as published); sizes are reduced, see the notes.""",
    full={"trials": 3, "kinds": KINDS, "lr": 3e-3, "heads": 4, "dim": 32, "batch": 64, "steps": 800, "symbols": 12,
          "length": 4},
    quick={"trials": 1, "kinds": ("softmax", "sigmoid_unnorm"), "heads": 2, "steps": 200},
    run=run_figure_4,
    draw=draw_figure_4,
)  # fmt: skip


def trajectories(
    trials: int,
    seed: int,
    kind: str,
    vocabulary: int,
    dim: int,
    lr: float,
    records: tuple[int, ...],
    device: str | None,
) -> dict[str, Any]:
    """Attention of CLS to the tokens of two inputs after some numbers of steps of one training run.

    A run is repeated up to each record: training depends on its seed alone.

    Examples
    --------
    >>> found = trajectories(1, 0, "softmax", 41, 8, 1e-3, (1, 2), None)
    >>> np.shape(found["scores"][0])
    (2, 2, 10)
    """
    import torch

    torch.set_num_threads(1)
    chosen, task = {str(k): k for k in pol.ATTENTION_KINDS}[kind], models.SetTask(vocabulary)

    def row(draw: int) -> dict[str, Any]:
        tokens, labels = task.sample(64, torch.Generator().manual_seed(draw), device)
        first = 0
        second = int((labels != labels[first]).nonzero()[0])
        scores = []
        for steps in records:
            model = models.train_classifier(
                chosen, task=task, dim=dim, lr=lr, steps=int(steps), seed=draw, device=device
            )
            with torch.no_grad():
                attention = model(tokens[[first, second]], attention=True)[1]
            assert attention is not None
            weights = attention[0, 0] if attention.dim() == 5 else attention[0]
            scores.append(weights.reshape(2, task.width, task.width)[:, -1, :-1].abs().tolist())
        return {"scores": scores}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_5(context: Context) -> Outcome:
    """Softmax and an unnormalized sigmoid."""
    s = context.settings
    shared = context.cell("vocabulary", "dim", "lr", "records")
    cells = [{"kind": kind, **shared} for kind in s["kinds"]]
    found = context.sweep(trajectories, cells, chunk=1, name="trajectories")
    rows, curves = [], {"records": s["records"]}
    share: dict[str, Any] = {}
    for kind, columns in zip(s["kinds"], found.columns, strict=True):
        scores = np.asarray(columns["scores"].tolist(), dtype=float)  # (trials, records, 2, tokens)
        largest = scores.max(axis=-1) / np.maximum(scores.sum(axis=-1), 1e-12)
        share[kind] = largest[:, -1].mean(axis=1)
        rows.append((kind, mean_share_of(largest[:, 0].mean(axis=1)), mean_share_of(share[kind]),
                     mean_share_of((largest[:, -1] > 0.9).mean(axis=1))))  # fmt: skip
        curves[kind] = scores[0]
    return Outcome(
        tables=[
            Table(
                f"Largest share of the class token's attention, {s['trials']} run(s)",
                (
                    "attention",
                    f"after {s['records'][0]} step(s)",
                    f"after {s['records'][-1]}",
                    "share of inputs above 0.9",
                ),
                rows,
            )
        ],
        curves=curves,
        notes=[
            "; ".join(f"{kind}: largest share {float(value.mean()):.2f} at the end" for kind, value in share.items())
            + " (an even share would be "
            f"{1 / np.asarray(curves[s['kinds'][0]]).shape[-1]:.2f}).",
            f"REDUCED: width {s['dim']} (published 128), {s['records'][-1]} steps (400).",
        ],
    )


def draw_figure_5(outcome: Outcome) -> Picture:
    """One panel per kind and input: every token's score against the step."""
    c = outcome.curves
    kinds = [name for name in c if name != "records"]
    picture, axes = subplots(1, 2 * len(kinds), (3 * 2 * len(kinds), 3), squeeze=False)
    steps = np.asarray(c["records"], dtype=float)
    for block, kind in enumerate(kinds):
        scores = np.asarray(c[kind])
        for sample in range(2):
            axis = axes[0, 2 * block + sample]
            axis.plot(steps, scores[:, sample], lw=1)
            axis.set(title=f"{kind}, input {sample + 1}", xlabel="step", xscale="log")
            axis.set_ylim(bottom=0)
    axes[0, 0].set_ylabel(r"attention of CLS, $s_j$")
    return picture


FIGURE_5 = Figure(
    paper="polarization",
    name="fig5",
    title="Attention of the class token over training, two inputs with different labels",
    protocol="""Set classification of Figure 6, one layer, one head, MLP and LayerNorm, |V| = 81 (with 41 there are
        four inputs); scores of the class token for one input of each of two labels.""",
    full={"trials": 3, "kinds": ("softmax", "sigmoid_unnorm"), "vocabulary": 81, "dim": 32, "lr": 1e-3,
          "records": (1, 5, 10, 20, 40, 80, 120)},
    quick={"trials": 1, "kinds": ("softmax",), "vocabulary": 41, "dim": 16, "records": (1, 10, 60)},
    run=run_figure_5,
    draw=draw_figure_5,
)  # fmt: skip


def grid_cell(
    trials: int, seed: int, kind: str, auxiliary: float, positions: str, shifted: bool, heads: int, dim: int, lr: float,
    batch: int, steps: int, symbols: int, length: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one model per trial; accuracy, and the share of sink heads in the second layer.

    Examples
    --------
    >>> found = grid_cell(1, 0, "softmax", 0.0, "add", True, 1, 8, 1e-3, batch=4, steps=1, symbols=6, length=3,
    ...                   device=None)
    >>> sorted(found)
    ['accuracy', 'share', 'top']
    """
    import torch

    torch.set_num_threads(1)
    chosen = {str(k): k for k in pol.ATTENTION_KINDS}[kind]
    task = models.InductionTask(symbols=symbols, length=length, shifted=shifted)

    def row(draw: int) -> dict[str, float]:
        model = models.train_induction(
            chosen, task=task, heads=heads, dim=dim, positions=positions, auxiliary=auxiliary, lr=lr, batch=batch,
            steps=steps, seed=draw, device=device,
        )  # fmt: skip
        report = models.induction_report(model, task, samples=300)
        return {"accuracy": report.accuracy, "share": report.sink_share, "top": float(report.scores.max())}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_14(context: Context) -> Outcome:
    """The grid of lambda, positions, t' and kinds."""
    s = context.settings
    size = context.cell("heads", "dim", "lr", "batch", "steps", "symbols", "length")
    cells = [
        {"kind": kind, "auxiliary": auxiliary, "positions": positions, "shifted": shifted, **size}
        for auxiliary in (0.0, 0.2)
        for positions in s["positions"]
        for shifted in s["shifted"]
        for kind in s["kinds"]
    ]
    found = context.sweep(grid_cell, cells, chunk=1, name="grid")
    rows, table = [], {}
    for cell, columns in zip(cells, found.columns, strict=True):
        accuracy, share, top = (np.asarray(columns[name], dtype=float) for name in ("accuracy", "share", "top"))
        learned = accuracy > 0.95
        key = (cell["auxiliary"], cell["positions"], cell["shifted"], cell["kind"])
        table[key] = (accuracy, share, learned)
        rows.append((
            cell["auxiliary"], cell["positions"], "t' != t" if cell["shifted"] else "t' = t", cell["kind"],
            mean_share_of(accuracy),
            f"{int(learned.sum())} of {len(learned)}", mean_share_of(share[learned]) if learned.any() else float("nan"),
            float(top.mean()),
        ))  # fmt: skip
    columns_ = ("lambda", "positions", "task", "attention", "induction accuracy", "learned", "share of sink heads",
                "largest sink score")  # fmt: skip
    return Outcome(
        tables=[Table(f"Second layer after {s['steps']} steps, {s['trials']} seed(s)", columns_, rows)],
        curves=_curves(table),
        notes=_notes(table, s),
    )


def _curves(table: Any) -> dict[str, Any]:
    return {
        "labels": [f"{k[1]}, {'t!=' if k[2] else 't='}, {k[3]}" for k in table if k[0] == 0.0],
        "accuracy": {f"{a:g}": [v[0].tolist() for k, v in table.items() if k[0] == a] for a in (0.0, 0.2)},
        "share": {
            f"{a:g}": [(v[1][v[2]].tolist() or [float("nan")]) for k, v in table.items() if k[0] == a]
            for a in (0.0, 0.2)
        },
    }


def _notes(table: Any, s: Any) -> list[str]:
    def mean(chosen: list[Any]) -> tuple[float, int]:
        values = np.concatenate([share[learned] for _, share, learned in chosen]) if chosen else np.empty(0)
        return (float(values.mean()) if len(values) else float("nan")), len(values)

    off, on = (mean([v for k, v in table.items() if k[0] == a]) for a in (0.0, 0.2))
    notes = []
    if not off[1] or not on[1]:
        notes.append(
            f"Runs that learned the task: {off[1]} without the auxiliary loss, {on[1]} with it; nothing to compare."
        )
    else:
        notes.append(
            f"Mean share of sink heads over the runs that learned the task: {off[0]:.2f} without the auxiliary "
            f"loss ({off[1]} "
            f"runs), {on[0]:.2f} with lambda = 0.2 ({on[1]} runs). The paper: almost none at lambda = 0."
        )
    if len(set(s["shifted"])) == 2:
        same, other = (mean([v for k, v in table.items() if k[2] is flag and k[0] == 0.2]) for flag in (False, True))
        notes.append(
            f"With lambda = 0.2: {same[0]:.2f} for t' = t ({same[1]} runs), {other[0]:.2f} for t' != t ({other[1]} "
            "runs); the paper "
            "sees fewer for t' != t."
        )
    notes.append(
        f"REDUCED: width {s['dim']} (128), batch {s['batch']} (256), {s['steps']} steps (3,910), {s['heads']} "
        "heads (1, 2, 4, 8), "
        f"k = {s['length']} (10) of {s['symbols']} symbols (49), {s['trials']} seed(s) (5)."
    )
    return notes


def draw_figure_14(outcome: Outcome) -> Picture:
    """Accuracy and share of sink heads by setting, for both values of lambda."""
    c = outcome.curves
    places = np.arange(len(c["labels"]))
    picture, axes = subplots(2, 1, (max(6.0, 0.55 * len(places)), 6), sharex=True)
    for offset, (value, color) in zip((-0.18, 0.18), (("0", "tab:blue"), ("0.2", "tab:orange")), strict=True):
        for axis, name in zip(axes, ("accuracy", "share"), strict=True):
            runs = [np.asarray(x, dtype=float) for x in c[name][value]]
            axis.bar(places + offset, [float(np.mean(x)) for x in runs], 0.34, color=color, alpha=0.6,
                     label=rf"$\lambda$ = {value}")  # fmt: skip
            for place, x in zip(places, runs, strict=True):
                axis.plot(np.full(len(x), place + offset), x, "k.", ms=3)
    axes[0].set(ylabel="induction accuracy", ylim=(0, 1.05), title="Figures 16 and 17")
    axes[1].set(ylabel="share of sink heads", ylim=(0, 1.05), title="Figures 14 and 15 (runs that learned the task)")
    if np.isnan([np.mean(x) for value in ("0", "0.2") for x in c["share"][value]]).all():
        axes[1].text(0.5, 0.5, "no run learned the task", ha="center", transform=axes[1].transAxes)
    axes[1].set_xticks(places, c["labels"], rotation=60, ha="right", fontsize=7)
    axes[0].legend(fontsize=8)
    return picture


FIGURE_14 = Figure(
    paper="polarization",
    name="fig14",
    aliases=("fig15", "fig16", "fig17"),
    title="Sink heads and induction accuracy over positions, the auxiliary loss and t' = t",
    protocol="""Induction task of Figure 4; additive, concatenated and no positions; lambda = 0 (Figures 14, 16) and
        0.2 (15, 17); t' = t and t' != t; share of heads of the second layer with a sink score above 0.9 among runs
        above 95 % accuracy.""",
    full={"trials": 2, "kinds": ("softmax", "sigmoid_unnorm", "linear_unnorm"), "positions": ("add", "concat", "none"),
          "shifted": (True, False), "heads": 2, "dim": 32, "lr": 3e-3, "batch": 64, "steps": 400, "symbols": 12,
          "length": 4},
    quick={"trials": 1, "kinds": ("softmax",), "positions": ("add", "none"), "shifted": (True,), "dim": 16, "batch": 32,
           "steps": 80, "symbols": 8, "length": 3},
    run=run_figure_14,
    draw=draw_figure_14,
)  # fmt: skip
