"""Figure 6: attention maps of trained heads."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.specialization.runs import ACTIVATIONS, NAMES, make_prior, trained_heads

__all__ = ["FIGURE", "draw", "run"]

_L = 5


def run(context: Context) -> Outcome:
    """Train, then look at fresh sequences."""
    import torch

    from attsvm.dynamics.specialization import head_weights

    s = context.settings
    prior = ("gaussian", 3, 9.0)
    options = {"L": _L, "H": 4, "samples": s["samples"], "steps": s["steps"], "test_samples": s["test_samples"]}
    cells = [{"prior": prior, "activation": activation, **options} for activation in ACTIVATIONS]
    found = context.sweep(trained_heads, cells, chunk=s["trials"])
    rng = np.random.default_rng(context.seed)
    n = s["sequences"]
    chi = rng.standard_normal((n, _L, 3))
    index = rng.integers(_L, size=n)
    chi[np.arange(n), index] += make_prior(*prior).sample(n, rng)
    rows, maps = [], {}
    for cell, columns in zip(cells, found.columns, strict=True):
        best = int(np.argmin(list(columns["loss"])))
        m, b, v = (torch.tensor(list(columns[name])[best], dtype=torch.float64) for name in ("m", "b", "v"))
        scores = torch.tensor(chi) @ m.T
        weights = head_weights(scores.transpose(1, 2), b, v, str(cell["activation"])).numpy() / 4  # of the average
        on = weights[np.arange(n), :, index]  # (n, H)
        off = weights.sum(axis=2) - on
        missed = np.where(on < off, off, 0.0)
        rows.append((NAMES[str(cell["activation"])], columns["loss"][best],
                     *(mean_of(part.sum(axis=1)) for part in (on, off, missed, on < off))))  # fmt: skip
        maps[str(cell["activation"])] = weights[:5]
    table = Table(
        f"H = 4, L = 5, F = 3, isotropic Gaussian of variance 9, {n} fresh sequences",
        ("activation", "loss", "attention on the relevant token", "on the others", "of it from heads that miss",
         "heads that miss"),
        rows,
    )  # fmt: skip
    noise = {row[0]: row[4].value for row in rows}
    notes = [
        "Noise from heads that attend to wrong tokens: "
        + ", ".join(f"{name} {value:.3f}" for name, value in noise.items())
        + " (the paper: softmax is noisy, softmax-1 less, Bayes-softmax least).",
        "The paper's maps are images; the five sequences shown here are fresh ones.",
    ]
    return Outcome([table], {"maps": maps, "index": index[:5]}, notes)


def draw(outcome: Outcome) -> Picture:
    """Heads by tokens for five sequences; the frame marks the relevant token."""
    from matplotlib.patches import Rectangle

    maps: dict[str, Any] = dict(outcome.curves["maps"])
    index = list(outcome.curves["index"])
    picture, axes = subplots(len(maps), len(index), (2.1 * len(index), 2.0 * len(maps)))
    for row, (activation, stack) in zip(axes, maps.items(), strict=True):
        for axis, weights, place in zip(row, stack, index, strict=True):
            image: Any = axis.imshow(4 * np.asarray(weights), vmin=0, vmax=2, cmap="viridis")
            axis.add_patch(Rectangle((place - 0.5, -0.5), 1, 4, fill=False, edgecolor="red", lw=2))
            axis.set(xticks=[], yticks=[])
        row[0].set_ylabel(f"{NAMES[activation]}\nheads")
    for axis in axes[-1]:
        axis.set_xlabel("tokens")
    picture.colorbar(image, ax=axes, shrink=0.6, label="attention of a head")
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig6",
    title="Attention maps of trained heads",
    protocol="""H = 4, L = 5, F = 3, isotropic Gaussian of variance 9, five sequences. Chosen: training as in Figure
        5, the best of the runs; a head misses when its attention to other tokens exceeds that to the
        relevant one.""",
    full={"trials": 2, "samples": 8000, "steps": 600, "test_samples": 20_000, "sequences": 4000},
    quick={"trials": 1, "samples": 800, "steps": 120, "test_samples": 2000, "sequences": 500},
    run=run,
    draw=draw,
)
