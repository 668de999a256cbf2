"""Figures 4 (and 1): sink heads of two-layer transformers on the induction task, for the attentions of Table 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.polarization._protocols import KINDS, legacy_seeds

__all__ = ["FIGURE", "draw", "induction", "run"]


def induction(
    trials: int, seed: int, kind: str, auxiliary: float, lr: float, heads: int, dim: int, batch: int, steps: int,
    symbols: int, length: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one model per trial and report its second layer.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig04 import induction
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


def run(context: Context) -> Outcome:
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
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
    run=run,
    draw=draw,
)  # fmt: skip
