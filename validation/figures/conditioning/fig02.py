"""Figure 2: (a) linear attention on the same data; (b) a small vision transformer with dense and sparse teachers."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.conditioning.students import linear_student, record_steps
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, mean_of, subplots

__all__ = ["FIGURE", "draw", "run", "vision_student"]


def vision_student(
    trials: int, seed: int, *, log10_ratio: float, lr: float, epochs: int, limit: int, dim: int, layers: int,
    patch: int, device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train students of a random teacher whose class-token attention has a given sparsity ratio.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.fig02 import vision_student
    >>> found = vision_student(1, 0, log10_ratio=1.0, lr=0.1, epochs=1, limit=64, dim=8, layers=1, patch=4)
    >>> found["loss"][0].shape, bool(abs(found["teacher"][0] - 1.0) < 0.1)
    ((2,), True)
    """
    import torch

    from attsvm.validation.figures.conditioning.images import load_images
    from attsvm.validation.figures.conditioning.vit import SmallViT, cls_log_ratio, scaled_teacher, train_on_teacher

    pixels, _, _ = load_images(limit=limit)
    images = torch.tensor(pixels, device=device)
    shape = {"side": images.shape[1], "patch": patch, "dim": dim, "layers": layers, "hidden": 2 * dim}

    def row(trial: int) -> dict[str, Any]:
        base = seed % 2**31 + 2 * trial
        teacher = scaled_teacher(SmallViT(**shape, seed=base).to(device), images, log10_ratio * np.log(10))
        with torch.no_grad():
            logits = teacher(images)
        # The same divergence to learn for either teacher: class logits of unit spread.
        logits = 2.0 * (logits - logits.mean()) / logits.std()
        student = SmallViT(**shape, seed=base + 1).to(device)
        losses, ratio = train_on_teacher(student, images, logits, lr=lr, epochs=epochs, seed=base)
        reached = {"teacher": cls_log_ratio(teacher, images) / np.log(10), "student": ratio / np.log(10)}
        return {"loss": losses, **reached}

    return columns_of(map(row, range(trials)))


def _panel_a(context: Context) -> tuple[Table, dict[str, Any]]:
    s = context.settings
    rows, curves = [], {}
    for teacher in ("softmax", "linear"):
        for sigma in (0.1, 1.0):
            cells = [
                {"N": 100, "d": 20, "sigma_p": sigma, "lr": lr, "steps": s["steps"], "teacher": teacher}
                for lr in s["linear_rates"]
            ]
            found = context.sweep(linear_student, cells, chunk=s["trials"], name=f"linear student, {teacher} {sigma}")
            best = int(np.argmin([np.median(c["final"]) for c in found.columns]))
            columns = found.columns[best]
            rows.append((teacher, sigma, s["linear_rates"][best], float(np.median(columns["final"])),
                         mean_of(columns["final"] / columns["label"]),
                         float(np.nanmedian(columns["steps"]))))  # fmt: skip
            curves[rf"{teacher} teacher, $\sigma_p$ = {sigma}"] = columns["loss"]
    title = "(a) Linear-attention student, best of the learning rates"
    names = ("teacher", "sigma_p", "lr", "median final loss", "share of label energy left", "steps to 1 % of its end")
    return Table(title, names, rows), {
        "a": curves,
        "a_steps": np.arange(next(iter(curves.values())).shape[1]) * record_steps(s["steps"]),
    }


def _panel_b(context: Context) -> tuple[Table, dict[str, Any]]:
    s = context.settings
    rows, curves = [], {}
    shape = context.cell("epochs", "limit", "dim", "layers", "patch")
    for ratio in s["vit_log10_ratios"]:
        cells = [shape | {"log10_ratio": ratio, "lr": lr} for lr in s["vit_rates"]]
        found = context.sweep(vision_student, cells, chunk=1, name=f"vision student, R=1e{ratio:g}").columns
        losses = [columns["loss"] for columns in found]
        relative = [loss[:, -1] / loss[:, 0] for loss in losses]
        best = int(np.nanargmin([np.nanmean(end) for end in relative]))
        rows.append((f"{np.mean(found[best]['teacher']):.2f}", s["vit_rates"][best],
                     mean_of(losses[best][:, 0]), mean_of(losses[best][:, -1]), mean_of(relative[best]),
                     float(np.median(found[best]["student"]))))  # fmt: skip
        curves[rf"$\log_{{10}}R$ = {ratio:g}"] = losses[best]
    names = ("log10 R teacher", "lr", "first loss", "last loss", "last over first", "log10 R student")
    return Table("(b) Small vision transformer, SGD, best of the learning rates", names, rows), {"b": curves}


def run(context: Context) -> Outcome:
    """Both panels."""
    table_a, curves_a = _panel_a(context)
    table_b, curves_b = _panel_b(context)
    return Outcome(
        tables=[table_a, table_b],
        curves=curves_a | curves_b,
        notes=[
            "(a) What a linear student converges to is its own floor: on labels of a softmax teacher a share of the "
            "label energy remains (fifth column), on labels of a linear teacher nothing would.",
            "(b) How the paper's teacher reaches its ratio, its loss, batch and epochs are not given. Ours: random "
            "transformers whose attention logits share one factor, class logits scaled to unit spread, divergence "
            "from their probabilities. Set ATTSVM_MNIST to a folder of idx files to use MNIST.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Loss curves of both panels."""
    curves = outcome.curves
    picture, (left, right) = subplots(1, 2, (10, 4))
    for (name, loss), colour in zip(
        curves["a"].items(), ("tab:blue", "tab:red", "tab:cyan", "tab:orange"), strict=True
    ):
        median = np.median(np.asarray(loss, dtype=float), axis=0)
        left.semilogy(np.asarray(curves["a_steps"]), np.maximum(median, 1e-16), color=colour, label=name)
    left.set(title="(a) linear attention", xlabel="steps", ylabel="median loss")
    for (name, loss), colour in zip(curves["b"].items(), ("tab:blue", "tab:red"), strict=True):
        each = np.asarray(loss, dtype=float)
        epochs = np.arange(each.shape[1])
        right.semilogy(epochs, each.mean(axis=0), color=colour, label=name)
        right.fill_between(epochs, each.min(axis=0), each.max(axis=0), color=colour, alpha=0.2)  # all runs
    right.set(title="(b) small vision transformer", xlabel="epochs", ylabel="divergence from the teacher")
    return finish(picture, (left, right))


FIGURE = Figure(
    paper="conditioning",
    name="fig2",
    title="Linear attention, and a small vision transformer, under dense and sparse teachers",
    protocol="""(a) As Figure 1 with d = 20 and a linear-attention student, scores over n; labels of the softmax
        teachers and, for comparison, of linear ones; best of the learning rates. (b) Vision transformer on the 8 x 8
        digits of scikit-learn (patch 2, 4 heads), SGD, learning rates 0.01 and 0.1 (the paper's grid also has 0.001),
        teachers with max/min of the class token's attention near 20 and 1e7, three runs.""",
    full={"trials": 3, "steps": 3000, "linear_rates": (0.01, 0.03, 0.1, 0.3), "vit_rates": (0.01, 0.1),
          "vit_log10_ratios": (1.3, 7.0), "epochs": 12, "limit": 1797, "dim": 32, "layers": 3, "patch": 2},
    quick={"trials": 1, "steps": 1200, "linear_rates": (0.03, 0.1), "vit_rates": (0.1,), "epochs": 3, "limit": 400,
           "dim": 16, "layers": 2},
    run=run,
    draw=draw,
)  # fmt: skip
