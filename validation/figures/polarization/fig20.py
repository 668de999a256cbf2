"""Figures 18 to 20: flip rates over the vocabulary, with and without MLP and LayerNorm."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_share_of, subplots
from attsvm.validation.figures.polarization._protocols import legacy_seeds

__all__ = ["FIGURE", "draw", "flip_cell", "run"]


def flip_cell(
    trials: int, seed: int, kind: str, vocabulary: int, mlp: bool, layer_norm: bool, dim: int, lr: float, batch: int,
    steps: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one classifier per trial and flip its predictions.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig20 import flip_cell
    >>> found = flip_cell(1, 0, "softmax", 41, False, False, 8, 1e-3, batch=8, steps=2, device=None)
    >>> 0 <= found["rate"][0] <= 1
    True
    """
    import torch

    torch.set_num_threads(1)
    chosen, task = {str(k): k for k in pol.ATTENTION_KINDS}[kind], models.SetTask(vocabulary)

    def row(draw: int) -> dict[str, float]:
        model = models.train_classifier(
            chosen, task=task, dim=dim, mlp=mlp, layer_norm=layer_norm, lr=lr, steps=steps, batch=batch, seed=draw,
            device=device,
        )  # fmt: skip
        found = models.flip_rates(model, task, pairs=200)
        return {"rate": found.worst, "control": found.control, "accuracy": found.accuracy}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run(context: Context) -> Outcome:
    """Vocabularies, MLP and LayerNorm, kinds."""
    s = context.settings
    size = context.cell("dim", "lr", "batch", "steps")
    cells = [
        {"kind": kind, "vocabulary": vocabulary, "mlp": mlp, "layer_norm": norm, **size}
        for vocabulary in s["vocabularies"]
        for mlp, norm in s["shapes"]
        for kind in s["kinds"]
    ]
    found = context.sweep(flip_cell, cells, chunk=1, name="flips")
    rows, rates = [], []
    for cell, columns in zip(cells, found.columns, strict=True):
        rate, control, accuracy = (np.asarray(columns[name], dtype=float) for name in ("rate", "control", "accuracy"))
        rates.append(rate)
        rows.append((cell["vocabulary"], "yes" if cell["mlp"] else "no", "yes" if cell["layer_norm"] else "no",
                     cell["kind"], mean_share_of(rate), mean_share_of(control), float(accuracy.min())))  # fmt: skip
    pairs = [
        (np.mean(rates[i]), np.mean(rates[i + 1]))
        for i in range(0, len(cells), len(s["kinds"]))
        if s["kinds"][:2] == ("softmax", "sigmoid_unnorm")
    ]
    above = sum(a > b for a, b in pairs)
    labels = [
        f"{c['vocabulary']}, {'MLP' if c['mlp'] else '-'}, {'LN' if c['layer_norm'] else '-'}, {c['kind']}"
        for c in cells
    ]
    names = ("|V|", "MLP", "LayerNorm", "attention", "flip rate", "random token", "lowest accuracy")
    return Outcome(
        tables=[Table(f"One layer, one head, {s['trials']} seed(s)", names, rows)],
        curves={"labels": labels, "rates": rates, "kinds": [c["kind"] for c in cells]},
        notes=[
            f"Softmax is flipped more often than the unnormalized sigmoid in {above} of {len(pairs)} settings "
            "(published: in all).",
            f"REDUCED: width {s['dim']} (128), {s['steps']} steps of {s['batch']} (400 of 256), {s['trials']} "
            "seed(s) (5), one "
            f"learning rate {s['lr']:g} (three). |V| = 41 has four distinct inputs.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Mean flip rates with the single runs as dots."""
    c = outcome.curves
    places = np.arange(len(c["labels"]))
    picture, axis = subplots(1, 1, (max(6.0, 0.6 * len(places)), 4))
    colors = ["tab:red" if kind == "softmax" else "tab:blue" for kind in c["kinds"]]
    axis.bar(places, [float(np.mean(rate)) for rate in c["rates"]], color=colors, alpha=0.7)
    for place, rate in zip(places, c["rates"], strict=True):
        axis.plot(np.full(len(rate), place), np.asarray(rate, dtype=float), "k.", ms=4)
    axis.set_xticks(places, c["labels"], rotation=60, ha="right", fontsize=7)
    axis.set(ylabel="flip rate", ylim=(0, 1.05), title=r"one token exchanged, by $|V|$, MLP and LayerNorm")
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig20",
    aliases=("fig18", "fig19"),
    title="Flip rates over the vocabulary, with and without MLP and LayerNorm",
    protocol="""Set classification of Figure 6, one layer, one head, |V| = 41 (Figure 18), 81 (19) and 161 (20),
        with and without MLP and LayerNorm; sizes are reduced, see the notes.""",
    full={"trials": 2, "kinds": ("softmax", "sigmoid_unnorm"), "vocabularies": (41, 81, 161),
          "shapes": ((True, True), (True, False), (False, True), (False, False)), "dim": 32, "lr": 1e-3, "batch": 128,
          "steps": 150},
    quick={"trials": 1, "vocabularies": (41,), "shapes": ((False, False),), "dim": 16, "batch": 64, "steps": 60},
    run=run,
    draw=draw,
)  # fmt: skip
