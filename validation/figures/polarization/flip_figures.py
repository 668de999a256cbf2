"""Figures 6 and 18 to 21: predictions of set classifiers flipped by exchanging one token.

18 to 20: flip rates over the vocabulary, with and without MLP and LayerNorm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_share_of, subplots
from attsvm.validation.figures.polarization.flow_figures import KINDS, legacy_seeds


def flips(
    trials: int, seed: int, kind: str, lr: float, vocabulary: int, layers: int, heads: int, plain: bool, scale: float,
    dim: int, steps: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one classifier per trial and flip its predictions; ``plain`` is without MLP and LayerNorm.

    Examples
    --------
    >>> found = flips(1, 0, "softmax", 1e-3, 41, 1, 1, True, 1.0, dim=8, steps=2, device=None)
    >>> 0 <= found["rate"][0] <= 1
    True
    """
    import torch

    torch.set_num_threads(1)
    chosen = {str(k): k for k in pol.ATTENTION_KINDS}[kind]
    task = models.SetTask(vocabulary)

    def row(draw: int) -> dict[str, float]:
        model = models.train_classifier(
            chosen, task=task, layers=layers, heads=heads, dim=dim, mlp=not plain, layer_norm=not plain,
            embedding_scale=scale, lr=lr, steps=steps, batch=256, seed=draw, device=device,
        )  # fmt: skip
        found = models.flip_rates(model, task, pairs=500)
        return {"rate": found.worst, "control": found.control, "accuracy": found.accuracy}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_6(context: Context) -> Outcome:
    """Kinds of attention; then softmax with more heads and layers; then other embeddings and another vocabulary."""
    s = context.settings
    base: dict[str, Any] = {"vocabulary": 41, "layers": 1, "heads": 1, "plain": False, "scale": 1.0}
    base |= {"dim": s["dim"], "steps": s["steps"], "device": context.device}
    kinds = [{**base, "kind": kind, "lr": lr} for kind in s["kinds"] for lr in s["rates"]]
    shapes = [
        {**base, "kind": "softmax", "lr": 1e-3, "plain": True, "layers": layers, "heads": heads}
        for layers, heads in s["shapes"]
    ]
    others = [{**base, "kind": "softmax", "lr": 1e-3, "scale": scale} for scale in s["embeddings"]]
    others += [{**base, "kind": kind, "lr": 1e-3, "vocabulary": 81, "steps": s["steps_81"]} for kind in s["kinds_81"]]
    many = context.sweep(flips, [*kinds, *shapes, *others], chunk=1, name="flips")

    def cells(chosen: list[dict[str, Any]], name: str) -> np.ndarray[Any, Any]:
        return np.concatenate([np.asarray(many.where(**cell)[name], dtype=float) for cell in chosen])

    by_kind = []
    curves: dict[str, Any] = {"kinds": list(s["kinds"]), "rates": [], "shapes": [], "shape_rates": []}
    for kind in s["kinds"]:
        mine = [cell for cell in kinds if cell["kind"] == kind]
        rate = cells(mine, "rate")
        by_kind.append(
            (
                kind,
                len(rate),
                mean_share_of(rate),
                mean_share_of(cells(mine, "control")),
                float(cells(mine, "accuracy").min()),
            )
        )
        curves["rates"].append(rate)
    by_shape = []
    for cell in shapes:
        rate = cells([cell], "rate")
        by_shape.append((cell["layers"], cell["heads"], mean_share_of(rate), float(cells([cell], "accuracy").min())))
        curves["shapes"].append(f"L{cell['layers']} H{cell['heads']}")
        curves["shape_rates"].append(float(rate.mean()))
    rest = [
        (cell["kind"], cell["vocabulary"], cell["scale"], mean_share_of(cells([cell], "rate")),
         float(cells([cell], "accuracy").min()))
        for cell in others
    ]  # fmt: skip
    return Outcome(
        tables=[
            Table(
                "One layer, one head, MLP and LayerNorm, |V| = 41, all learning rates",
                ("attention", "runs", "flip rate", "random token", "lowest accuracy"),
                by_kind,
            ),
            Table(
                "Softmax without MLP and LayerNorm (Figure 21)",
                ("layers", "heads", "flip rate", "lowest accuracy"),
                by_shape,
            ),
            Table(
                "Other embeddings and vocabulary",
                ("attention", "|V|", "embedding scale", "flip rate", "lowest accuracy"),
                rest,
            ),
        ],
        curves=curves,
        notes=[
            f"REDUCED: width {s['dim']} (published 128), {s['steps']} steps (400), {s['trials']} seed(s) (5), learning "
            f"rates {', '.join(f'{x:g}' for x in s['rates'])}.",
            "|V| = 41 has only four distinct inputs; training uses them with the weights of a batch of 256, the same "
            "gradient. |V| = 81 is drawn as published.",
            "The flip rate depends on the scale of the initial embeddings (torch's default is 1): see the last table.",
        ],
    )


def draw_figure_6(outcome: Outcome) -> Picture:
    """Mean flip rates with the single runs as dots."""
    c = outcome.curves
    picture, axes = subplots(1, 2, (12, 4), width_ratios=[2, 1])
    means = [float(np.mean(rate)) for rate in c["rates"]]
    colors = [
        "tab:red" if kind == "softmax" else "tab:orange" if kind.endswith("_norm") else "tab:blue"
        for kind in c["kinds"]
    ]
    axes[0].bar(range(len(means)), means, color=colors, alpha=0.7)
    for k, rate in enumerate(c["rates"]):
        axes[0].plot(np.full(len(rate), k), rate, "k.", ms=4)
    axes[0].set_xticks(range(len(means)), c["kinds"], rotation=50, ha="right", fontsize=8)
    axes[0].set(ylabel="flip rate", ylim=(0, 1.05), title="one token exchanged, one layer, one head")
    axes[1].bar(range(len(c["shapes"])), c["shape_rates"], color="tab:red", alpha=0.7)
    axes[1].set_xticks(range(len(c["shapes"])), c["shapes"])
    axes[1].set(ylim=(0, 1.05), title="softmax, more heads and layers")
    return picture


FIGURE_6 = Figure(
    paper="polarization",
    name="fig6",
    aliases=("fig21",),
    title="One exchanged token flips softmax classifiers",
    protocol="""Sets of 10 of |V| - 1 tokens in 4 disjoint groups, CLS last, no positions, not causal, AdamW, batch
        256; the token that CLS attends to most is exchanged between two inputs with different labels; a flip is a
        prediction of the donor's label; 500 pairs, maximum over heads and layers (as published); sizes are reduced,
        see the notes.""",
    full={"trials": 1, "kinds": KINDS, "rates": (1e-2, 1e-3, 1e-4), "dim": 64, "steps": 400, "steps_81": 200,
          "shapes": ((1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (2, 4)), "embeddings": (0.02, 0.2),
          "kinds_81": ("softmax", "sigmoid_unnorm")},
    quick={"trials": 1, "kinds": ("softmax", "sigmoid_unnorm"), "rates": (1e-3,), "dim": 32, "steps": 150,
           "steps_81": 40, "shapes": ((1, 1), (1, 4)), "embeddings": (0.02,), "kinds_81": ("softmax",)},
    run=run_figure_6,
    draw=draw_figure_6,
)  # fmt: skip


def flip_cell(
    trials: int, seed: int, kind: str, vocabulary: int, mlp: bool, layer_norm: bool, dim: int, lr: float, batch: int,
    steps: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """Train one classifier per trial and flip its predictions.

    Examples
    --------
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


def run_figure_20(context: Context) -> Outcome:
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


def draw_figure_20(outcome: Outcome) -> Picture:
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


FIGURE_20 = Figure(
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
    run=run_figure_20,
    draw=draw_figure_20,
)  # fmt: skip
