"""Figure 5: attention of the class token over training, for two inputs with different labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.sweeps import columns_of
from attsvm.validation import models
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_share_of, subplots
from attsvm.validation.figures.polarization._protocols import legacy_seeds

__all__ = ["FIGURE", "draw", "run", "trajectories"]


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
    >>> from attsvm.validation.figures.polarization.fig05 import trajectories
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


def run(context: Context) -> Outcome:
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="polarization",
    name="fig5",
    title="Attention of the class token over training, two inputs with different labels",
    protocol="""Set classification of Figure 6, one layer, one head, MLP and LayerNorm, |V| = 81 (with 41 there are
        four inputs); scores of the class token for one input of each of two labels.""",
    full={"trials": 3, "kinds": ("softmax", "sigmoid_unnorm"), "vocabulary": 81, "dim": 32, "lr": 1e-3,
          "records": (1, 5, 10, 20, 40, 80, 120)},
    quick={"trials": 1, "kinds": ("softmax",), "vocabulary": 41, "dim": 16, "records": (1, 10, 60)},
    run=run,
    draw=draw,
)  # fmt: skip
