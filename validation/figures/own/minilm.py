"""MiniLM on English text: what its 72 heads select, how firmly, and whether their W lean towards the SVM's."""

from __future__ import annotations

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, finish, subplots
from attsvm.validation.figures.own.real_heads import kinds_table, measures_table, paired_table, probed
from attsvm.validation.pretrained.transformer_models import english_paragraphs, installed_model

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """Probe once per seed of the SVM sample."""
    from attsvm.probing import SvmBudget  # torch, which a list of figures does without

    s = context.settings
    loaded = installed_model("minilm")
    texts = english_paragraphs(s["sequences"])
    tables = [probed(loaded, texts, context, seed=context.seed + k) for k in range(s["trials"])]
    first = tables[0]
    names = [name for name in ("correlation_frobenius", "correlation_frobenius_random") if name in first.columns]
    curves = {"grids": {name: first.grid(name) for name in (*names, "sink_share_any")}, "names": names}
    gaps = {name.removeprefix("gap_"): first.column(name) for name in first.columns if name.startswith("gap_")}
    worst = ", ".join(f"{name.replace('_', ' ')} {float(np.nanmax(g)):.1e}" for name, g in gaps.items())
    notes = [
        f"Recomputed attention within {first.about['error']:.0e} of the model's own on {first.about['tokens']} tokens.",
        f"Largest relative gaps of the SVM solves: {worst} (asked: {s['tolerance']:g}; soft nuclear "
        f"{SvmBudget().nuclear_gap:g}).",
        "Theorems speak of one layer trained to saturation; a deep model is compared with baselines, not predicted.",
    ]
    told = [
        kinds_table("What the heads do", first),
        measures_table(f"{len(first)} heads, {first.about['sequences']} sequences", first),
        paired_table(f"Against their own SVM, {s['trials']} seeds of the sample", tables),
    ]
    return Outcome(told, curves, notes)


def draw(outcome: Outcome) -> Picture:
    """Sinks, and correlations with the SVM beside the random baseline."""
    picture, axes = subplots(1, 2, (10, 4))
    grid = np.array(outcome.curves["grids"]["sink_share_any"], dtype=float)
    shown = axes[0].imshow(grid, vmin=0, vmax=1, aspect="auto", cmap="viridis")
    axes[0].set(xlabel="head", ylabel="layer", title="share of attention on one token")
    picture.colorbar(shown, ax=axes[0])
    drawn = [np.array(outcome.curves["grids"][name], dtype=float).ravel() for name in outcome.curves["names"]]
    known = [values[np.isfinite(values)] for values in drawn]
    bins = np.histogram_bin_edges(np.concatenate(known or [np.zeros(1)]), bins=24)
    for values, label in zip(known, ("head", "random W of its spectrum"), strict=False):
        axes[1].hist(values, bins=list(bins), alpha=0.6, label=label)
    axes[1].set(xlabel="cosine with the Att-SVM of its own selections", ylabel="heads")
    return finish(picture, axes[1:])


FIGURE = Figure(
    paper="own",
    name="minilm",
    title="MiniLM: 72 heads on English text, by all five theories",
    protocol="""Paragraphs of Python's language reference; every head probed; SVM of its own selections on a sample of
        sequences and queries, hard and soft, against a random W of the same spectrum with its own selections.""",
    full={"trials": 3, "sequences": 32, "length": 128, "svm_sequences": 8, "svm_held_out": 8, "svm_queries": 4,
          "tolerance": 1e-3, "removal": 4, "pruning": 12, "nuclear": True},
    quick={"trials": 1, "sequences": 4, "length": 24, "svm_sequences": 2, "svm_held_out": 1, "svm_queries": 2,
           "tolerance": 1e-3, "removal": 0, "pruning": 0, "nuclear": False},
    run=run,
    draw=draw,
)  # fmt: skip
