"""Figures 4 and 5: attention maps of small vision transformers trained on dense and on sparse teachers."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots

__all__ = ["FIGURE", "draw", "maps", "run"]


def maps(
    trials: int, seed: int, *, log10_ratio: float, lr: float, epochs: int, limit: int, dim: int, layers: int, patch:
    int, device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a student of a teacher with a given ratio and read the class token's attention over the patches.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.fig04 import maps
    >>> found = maps(1, 0, log10_ratio=1.0, lr=0.1, epochs=1, limit=64, dim=8, layers=1, patch=4)
    >>> np.shape(found["map"][0])
    (1, 4, 2, 2)
    """
    import torch

    from attsvm.validation.figures.conditioning.images import load_images
    from attsvm.validation.figures.conditioning.vit import SmallViT, scaled_teacher, train_on_teacher

    pixels, _, _ = load_images(limit=limit)
    images = torch.tensor(pixels, device=device)
    shape = {"side": images.shape[1], "patch": patch, "dim": dim, "layers": layers, "hidden": 2 * dim}
    cells = images.shape[1] // patch

    def row(trial: int) -> dict[str, Any]:
        base = seed % 2**31 + 2 * trial
        teacher = scaled_teacher(SmallViT(**shape, seed=base).to(device), images, log10_ratio * np.log(10))
        student = SmallViT(**shape, seed=base + 1).to(device)
        with torch.no_grad():
            logits = teacher(images)
        train_on_teacher(student, images, 2 * (logits - logits.mean()) / logits.std(), lr=lr, epochs=epochs, seed=base)
        found: dict[str, Any] = {"image": images[0].cpu().numpy()}
        for who, model in (("teacher", teacher), ("student", student)):
            with torch.no_grad():
                logs = torch.stack([layer["log_attention"][:, :, 0] for layer in model(images, inside=True)[1]])
            ratio = (logs.amax(-1) - logs.amin(-1)) / np.log(10)  # (layers, examples, heads)
            weights = logs.exp()
            found[f"{who}_ratio"] = float(ratio.median())
            found[f"{who}_entropy"] = float((-(weights * logs).sum(-1)).mean() / np.log(logs.shape[-1]))
            if who == "student":
                found["map"] = weights[:, 0, :, 1:].reshape(layers, -1, cells, cells).cpu().numpy()
        return found

    return columns_of(map(row, range(trials)))


def run(context: Context) -> Outcome:
    """A dense and a sparse teacher."""
    s = context.settings
    shape = context.cell("lr", "epochs", "limit", "dim", "layers", "patch")
    cells = [shape | {"log10_ratio": ratio} for ratio in s["log10_ratios"]]
    found = context.sweep(maps, cells, chunk=1, name="maps")
    rows = []
    curves: dict[str, Any] = {}
    for ratio, columns in zip(s["log10_ratios"], found.columns, strict=True):
        values = {name: np.asarray(columns[name], dtype=float) for name in columns if name not in ("map", "image")}
        rows.append((f"{ratio:g}", *(mean_of(values[f"{who}_{what}"]) for who in ("teacher", "student")
                                     for what in ("ratio", "entropy"))))  # fmt: skip
        curves[f"{ratio:g}"] = {"map": np.asarray(columns["map"][0], dtype=float), "entropy": values["student_entropy"]}
        curves["image"] = np.asarray(columns["image"][0], dtype=float)
    dense, sparse = (curves[f"{ratio:g}"]["entropy"].mean() for ratio in (s["log10_ratios"][0], s["log10_ratios"][-1]))
    names = ("log10 R asked", "teacher log10 R", "teacher entropy", "student log10 R", "student entropy")
    return Outcome(
        tables=[Table("Attention of the class token (entropy relative to that of even attention)", names, rows)],
        curves=curves,
        notes=[
            f"Students of the sparse teacher have {'lower' if sparse < dense else 'no lower'} relative entropy "
            "than those of the "
            f"dense one ({sparse:.2f} and {dense:.2f}).",
            "REDUCED: 8 x 8 digits instead of MNIST, and teachers made sparse by one factor on their logits.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Maps of the first image: one row per teacher and layer, one column per head."""
    c = outcome.curves
    kinds = [name for name in c if name != "image"]
    stack = [(name, layer, np.asarray(c[name]["map"])[layer]) for name in kinds for layer in range(len(c[name]["map"]))]
    heads = stack[0][2].shape[0]
    picture, axes = subplots(len(stack), heads + 1, (1.5 * (heads + 1), 1.5 * len(stack)), squeeze=False)
    for row, (name, layer, patches) in zip(axes, stack, strict=True):
        row[0].imshow(np.asarray(c["image"]), cmap="gray_r")
        row[0].set_ylabel(rf"$\log_{{10}}R$ = {name}" + f"\nlayer {layer + 1}", fontsize=7)
        for head, axis in enumerate(row[1:]):
            axis.imshow(patches[head], cmap="viridis", vmin=0, vmax=patches[head].max())
            axis.set_title(f"head {head + 1}, max {patches[head].max():.2f}", fontsize=6)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    return picture


FIGURE = Figure(
    paper="conditioning",
    name="fig4",
    aliases=("fig5",),
    title="Attention maps of students of dense and sparse teachers",
    protocol="""The students of Figure 2(b): vision transformers on the 8 x 8 digits, SGD on the divergence from
        teachers with max/min of the class token's attention near 20 (Figure 4) and 1e7 (Figure 5).""",
    full={
        "trials": 2,
        "log10_ratios": (1.3, 7.0),
        "lr": 0.1,
        "epochs": 12,
        "limit": 1797,
        "dim": 32,
        "layers": 3,
        "patch": 2,
    },
    quick={"trials": 1, "epochs": 2, "limit": 300, "dim": 16, "layers": 2},
    run=run,
    draw=draw,
)
