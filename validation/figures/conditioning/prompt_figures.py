"""Figures 1, 2, 6 and 7: gradient descent on the prompt model.

1: fewer and more dimensions than examples. 2: (a) linear attention on the same data, (b) a small vision transformer
with dense and sparse teachers. 6: W, p and v trained together beside W frozen. 7: success and speed against the
teacher's sparsity ratio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import StudentTeacher, curvature, descend, joint_curvature, student_teacher
from attsvm.softmax import condition_bounds
from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    finish,
    mean_of,
    share_of,
    subplots,
)

SUCCESS = 1e-7  # a loss below it counts as success

_RECORDS = 120


def record_steps(steps: int) -> int:
    """Steps between two records of a run.

    Examples
    --------
    >>> record_steps(1200)
    10
    """
    return max(1, steps // _RECORDS)


def _teacher(seed: int, trial: int, *, N: int, d: int, sigma_p: float, log_ratio: float | None) -> StudentTeacher:
    rng = np.random.default_rng([seed, trial])
    return student_teacher(N, d, d, sigma_p=sigma_p, log_ratio=log_ratio, seed=rng)


def _padded(values: Any, length: int) -> Any:
    """A curve of full length: a run that reached its target stays there."""
    curve = np.asarray(values, dtype=np.float64)[:length]
    return np.concatenate([curve, np.full(length - len(curve), curve[-1])])


def softmax_student(
    trials: int,
    seed: int,
    *,
    N: int,
    d: int,
    lr: float,
    steps: int,
    sigma_p: float = 1.0,
    log_ratio: float | None = None,
    newton_steps: int = 0,
    target: float = 1e-12,
    spectrum: bool = True,
) -> dict[str, Any]:
    """Train p and v of a softmax student from N(0, 1/d) on the labels of a softmax teacher, W = I, n = d.

    With ``newton_steps`` the same students are trained by Levenberg-Marquardt as well (column ``newton``).

    Examples
    --------
    >>> found = softmax_student(2, 0, N=10, d=4, lr=0.1, steps=240, sigma_p=0.1)
    >>> np.shape(found["loss"]), sorted(found)[:3]
    ((2, 121), ['cosine', 'final', 'kappa'])
    """
    every = record_steps(steps)

    def row(trial: int) -> dict[str, Any]:
        teacher = _teacher(seed, trial, N=N, d=d, sigma_p=sigma_p, log_ratio=log_ratio)
        problem = teacher.problem
        p0, v0 = teacher.student(np.random.default_rng([seed, trial, 1]))
        run = descend(problem, p0, v0, lr=lr, steps=steps, target=target, every=every)
        reached = run.first_below(SUCCESS)
        norms = np.linalg.norm(run.p) * np.linalg.norm(teacher.p_star)
        logs = problem.log_weights(teacher.p_star)
        own, both = (c(problem, teacher.p_star) if spectrum else None for c in (curvature, joint_curvature))
        newton = np.nan
        if newton_steps:
            second = descend(problem, p0, v0, optimizer="gauss_newton", steps=newton_steps, target=target, every=5)
            newton = second.losses[-1]
        return {
            "loss": _padded(run.losses, steps // every + 1),
            "final": run.losses[-1],
            "steps": reached[0] if reached else np.nan,
            "teacher": np.median(teacher.log_ratios()) / np.log(10),
            "student": run.log_ratio / np.log(10),
            "cosine": float(run.p @ teacher.p_star / norms) if np.isfinite(norms) else np.nan,
            "khat": np.median(condition_bounds(log_attention=logs, log=True)[0]) / np.log(10),
            "kappa": np.log10(own.range_condition_number) if own else np.nan,
            "kappa_joint": np.log10(both.range_condition_number) if both else np.nan,
            "label": 0.5 * float(np.mean(problem.y**2)),
            "newton": newton,
        }

    return columns_of(map(row, range(trials)))


def linear_student(
    trials: int, seed: int, *, N: int, d: int, sigma_p: float, lr: float, steps: int, teacher: str
) -> dict[str, Any]:
    """Train a linear-attention student (scores over n) on the labels of a softmax or of a linear teacher.

    Examples
    --------
    >>> found = linear_student(1, 0, N=10, d=4, sigma_p=0.1, lr=0.1, steps=120, teacher="linear")
    >>> np.shape(found["loss"])
    (1, 121)
    """
    if teacher not in ("softmax", "linear"):
        raise ValueError(f"teacher must be 'softmax' or 'linear', got {teacher!r}")
    every = record_steps(steps)

    def row(trial: int) -> dict[str, Any]:
        made = _teacher(seed, trial, N=N, d=d, sigma_p=sigma_p, log_ratio=None)
        problem = replace(made.problem, attention="linear")
        if teacher == "linear":
            problem = problem.with_labels(problem.predict(made.p_star))
        p0, v0 = made.student(np.random.default_rng([seed, trial, 1]))
        run = descend(problem, p0, v0, lr=lr, steps=steps, target=1e-24, every=every)
        good = run.status != "diverged"
        curve = _padded(run.losses, steps // every + 1)
        within = np.flatnonzero(run.losses <= 1.01 * run.losses[-1])
        return {
            "loss": curve if good else np.full_like(curve, np.inf),
            "final": run.losses[-1] if good else np.inf,
            "steps": int(run.steps[within[0]]) if good else np.nan,
            "label": 0.5 * float(np.mean(problem.y**2)),
        }

    return columns_of(map(row, range(trials)))


def run_figure_1(context: Context) -> Outcome:
    """Train every cell."""
    s = context.settings
    rows, curves = [], {}
    for d, sigma, lr, steps, trials in s["cells"]:
        tried = min(trials, s["trials"])
        cell = {"N": s["N"], "d": d, "sigma_p": sigma, "lr": lr, "steps": steps, "spectrum": d <= 150}
        name = f"d={d} sigma_p={sigma}"
        found = context.sweep(softmax_student, [cell], tried, chunk=1, name=name).columns[0]
        loss, taken = found["loss"], found["steps"]
        middle = {name_: float(np.median(values)) for name_, values in found.items() if name_ != "loss"}
        rows.append((
            d, sigma, lr, tried, share_of(found["final"] < SUCCESS), middle["final"],
            float(np.nanmedian(taken)) if np.isfinite(taken).any() else float("nan"), middle["teacher"],
            middle["student"], float(np.median(np.abs(found["cosine"]))), middle["kappa"], middle["kappa_joint"],
        ))  # fmt: skip
        recorded = np.arange(loss.shape[1]) * record_steps(steps)
        curves[name] = {"steps": recorded, "loss": loss, "d": d, "N": s["N"], "sigma": sigma}
    columns = ("d", "sigma_p", "lr", "runs", f"loss < {SUCCESS:g}", "median final loss", "median steps to it",
               "log10 R teacher", "log10 R student", "|cos(p, p*)|", "log10 kappa(H_p)",
               "log10 kappa(joint)")  # fmt: skip
    return Outcome(
        tables=[Table("Students at the end; kappa at the teacher, on the range where d > N", columns, rows)],
        curves={"cells": curves},
        notes=[
            "Where a run stalls, |cos(p, p*)| and log10 R of the student tell a wrong basin (small cosine, a student "
            "sparser than its teacher) from slow convergence to the teacher (cosine near 1); kappa(H_p) says what "
            "conditioning alone would do.",
            "v is trained here; Theorem 1, which the right panel is to show, freezes it.",
            "log10 R is the median over examples; at sigma_p = 0.1 and 1 it differs tenfold, so the printed pair "
            "(10, 1e25) belongs to no single d.",
        ],
    )


def draw_figure_1(outcome: Outcome) -> Picture:
    """Loss curves, one panel for d < N and one for d > N."""
    picture, axes = subplots(1, 2, (10, 4))
    labelled: set[Any] = set()
    for name, cell in outcome.curves["cells"].items():
        axis = axes[int(cell["d"] > cell["N"])]
        colour = "tab:blue" if cell["sigma"] < 0.5 else "tab:red"
        style = "-" if cell["d"] in (20, 150) else "--"
        label = rf"$d = {cell['d']}$, $\sigma_p = {cell['sigma']:g}$"
        for curve in np.asarray(cell["loss"], dtype=float):
            axis.semilogy(np.asarray(cell["steps"]), np.maximum(curve, 1e-13), style, color=colour, lw=0.9, alpha=0.8,
                          label=None if name in labelled else label)  # fmt: skip
            labelled.add(name)
    for axis, title in zip(axes, ("fewer dimensions than examples", "more dimensions than examples"), strict=True):
        axis.set(title=title, xlabel="steps", ylabel="loss")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    return picture


FIGURE_1 = Figure(
    paper="conditioning",
    name="fig1",
    title="Gradient descent on softmax attention under a dense and a sparse teacher",
    protocol="""f = softmax(X p)^T X v, X standard Gaussian, n = d, N = 100, full-batch gradient descent on p and v from
        N(0, 1/d), teacher p ~ N(0, sigma_p^2), v ~ N(0, 1), sigma_p in {0.1, 1}, d in {20, 150, 400}. Our choices
        (the paper gives none): half the squared error, learning rates and steps as in the table, stop at 1e-12.""",
    full={"trials": 6, "N": 100, "cells": ((20, 0.1, 0.05, 20000, 6), (20, 1.0, 0.05, 20000, 6),
          (150, 0.1, 0.1, 1200, 2), (150, 1.0, 0.02, 1600, 2), (400, 0.1, 0.03, 400, 1), (400, 1.0, 0.005, 500, 1))},
    quick={"trials": 2, "N": 100, "cells": ((20, 0.1, 0.05, 6000, 2), (20, 1.0, 0.05, 6000, 2),
           (120, 0.1, 0.1, 150, 1), (120, 1.0, 0.02, 150, 1))},
    run=run_figure_1,
    draw=draw_figure_1,
)  # fmt: skip


def vision_student(
    trials: int, seed: int, *, log10_ratio: float, lr: float, epochs: int, limit: int, dim: int, layers: int,
    patch: int, device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train students of a random teacher whose class-token attention has a given sparsity ratio.

    Examples
    --------
    >>> found = vision_student(1, 0, log10_ratio=1.0, lr=0.1, epochs=1, limit=64, dim=8, layers=1, patch=4)
    >>> found["loss"][0].shape, bool(abs(found["teacher"][0] - 1.0) < 0.1)
    ((2,), True)
    """
    import torch

    from attsvm.validation.figures.conditioning.vision_model import (
        SmallViT,
        cls_log_ratio,
        load_images,
        scaled_teacher,
        train_on_teacher,
    )

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


def run_figure_2(context: Context) -> Outcome:
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


def draw_figure_2(outcome: Outcome) -> Picture:
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


FIGURE_2 = Figure(
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
    run=run_figure_2,
    draw=draw_figure_2,
)  # fmt: skip


def _descend(X: Any, y: Any, starts: Any, *, lr: float, steps: int, train_w: bool) -> tuple[list[float], float]:
    """Losses of gradient descent on (p, v) and, if asked, W from the identity; and how far W moved."""
    import torch

    d, every = X.shape[-1], record_steps(steps)
    p, v = (torch.tensor(np.array(part), requires_grad=True) for part in starts)
    W = torch.eye(d, dtype=torch.float64, requires_grad=train_w)
    parameters = [p, v, W] if train_w else [p, v]
    losses = []
    for step in range(steps + 1):
        weights = torch.softmax(X @ (W @ p), dim=-1)
        loss = 0.5 * ((weights * (X @ v)).sum(-1) - y).square().mean()
        if step % every == 0:
            losses.append(float(loss.detach()))
        for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= lr * slope
    return losses, float(torch.linalg.matrix_norm(W.detach() - torch.eye(d, dtype=W.dtype))) / d**0.5


def joint_student(trials: int, seed: int, *, N: int, d: int, sigma_p: float, lr: float, steps: int) -> dict[str, Any]:
    """The same students of a softmax teacher with W frozen at the identity and with W trained.

    Examples
    --------
    >>> found = joint_student(1, 0, N=8, d=4, sigma_p=0.1, lr=0.1, steps=120)
    >>> found["frozen"][0][0] == found["trained"][0][0], found["moved"][0] > 0
    (True, True)
    """
    import torch

    def row(trial: int) -> dict[str, Any]:
        teacher = student_teacher(N, d, d, sigma_p=sigma_p, seed=np.random.default_rng([seed, trial]))
        X, y = (torch.tensor(np.array(part)) for part in (teacher.problem.X, teacher.problem.y))
        starts = teacher.student(np.random.default_rng([seed, trial, 1]))
        frozen, _ = _descend(X, y, starts, lr=lr, steps=steps, train_w=False)
        trained, moved = _descend(X, y, starts, lr=lr, steps=steps, train_w=True)
        return {"frozen": frozen, "trained": trained, "moved": moved}

    return columns_of(map(row, range(trials)))


def run_figure_6(context: Context) -> Outcome:
    """Every width and teacher, with and without training W."""
    s = context.settings
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {}
    ends: dict[tuple[int, float, str], Any] = {}
    cells = [
        {"N": s["N"], "d": d, "sigma_p": sigma, "lr": s["lr"], "steps": s["steps"]}
        for d in s["widths"]
        for sigma in (0.1, 1.0)
    ]
    found = context.sweep(joint_student, cells, chunk=1, name="joint students")
    for cell, columns in zip(cells, found.columns, strict=True):
        for which in ("frozen", "trained"):
            loss = np.asarray(columns[which].tolist(), dtype=float)
            ends[cell["d"], cell["sigma_p"], which] = loss[:, -1]
            moved = float(np.mean(columns["moved"])) if which == "trained" else 0.0
            rows.append((cell["d"], cell["sigma_p"], which, float(np.median(loss[:, -1])),
                         share_of(loss[:, -1] < SUCCESS), moved))  # fmt: skip
            name = f"d = {cell['d']}, sigma_p = {cell['sigma_p']:g}, W {which}"
            curves[name] = {"loss": loss, "dense": cell["sigma_p"] == 0.1}
    kinds = ("frozen", "trained")
    same = [np.median(ends[d, 1.0, w]) > np.median(ends[d, 0.1, w]) for d in s["widths"] for w in kinds]
    names = ("d", "sigma_p", "W", "median final loss", f"share below {SUCCESS:g}", "|W - I|_F / sqrt(d)")
    notes = [
        f"The sparse teacher ends at a higher median loss than the dense one in {sum(same)} of {len(same)} settings "
        "(width, W frozen or trained); the paper sees no qualitative difference between W frozen and trained.",
    ]
    steps = np.arange(len(next(iter(curves.values()))["loss"][0])) * record_steps(s["steps"])
    return Outcome([Table(f"After {s['steps']} steps", names, rows)], {"steps": steps, "runs": curves}, notes)


def draw_figure_6(outcome: Outcome) -> Picture:
    """Median loss curves with the range of the runs; dashed: W frozen."""
    picture, axes = subplots(1, 2, (10, 3.8), sharey=True)
    steps = np.asarray(outcome.curves["steps"])
    shown = [0, 0]
    for name, entry in outcome.curves["runs"].items():
        place = 0 if entry["dense"] else 1
        loss = np.maximum(np.asarray(entry["loss"], dtype=float), 1e-16)
        frozen = "frozen" in name
        color = f"C{shown[place] // 2}"
        axes[place].semilogy(steps, np.median(loss, axis=0), "--" if frozen else "-", color=color, label=name.replace(
            "sigma_p", r"$\sigma_p$"))  # fmt: skip
        axes[place].fill_between(steps, loss.min(axis=0), loss.max(axis=0), color=color, alpha=0.12)
        shown[place] += 1
    axes[0].set(title=r"dense teacher, $\sigma_p$ = 0.1", xlabel="steps", ylabel="loss: median and range")
    axes[1].set(title=r"sparse teacher, $\sigma_p$ = 1", xlabel="steps")
    return finish(picture, axes, legend=7)


FIGURE_6 = Figure(
    paper="conditioning",
    name="fig6",
    title="Joint training of W, p and v beside training with W frozen",
    protocol="""As Figure 1: N = 100, n = d, squared loss, full-batch gradient descent; W starts at the identity and
        is trained or frozen. Learning rate, steps and widths of the paper's Figure 6 are not given.""",
    full={"trials": 3, "N": 100, "widths": (20, 60), "lr": 0.05, "steps": 3000},
    quick={"trials": 2, "N": 40, "widths": (10,), "steps": 600},
    run=run_figure_6,
    draw=draw_figure_6,
)


def run_figure_7(context: Context) -> Outcome:
    """Train students of teachers with exact sparsity ratios, by gradient descent and by Levenberg-Marquardt."""
    s = context.settings
    base = {name: s[name] for name in ("N", "d", "lr", "steps", "newton_steps")}
    grid = [base | {"log_ratio": float(r * np.log(10))} for r in s["log10_ratios"]]
    found = context.sweep(softmax_student, grid, chunk=1, name="students").columns
    rows, curves = [], []
    for ratio, gd in zip(s["log10_ratios"], found, strict=True):
        final, newton = gd["final"], gd["newton"]
        good = final < SUCCESS
        taken = gd["steps"][good]
        lost = np.abs(gd["cosine"][~good])
        rows.append((
            ratio, share_of(good), float(np.median(taken)) if good.any() else float("nan"), float(np.median(final)),
            float(np.median(lost)) if (~good).any() else float("nan"), share_of(newton < SUCCESS),
            float(np.median(gd["khat"])), float(np.mean(gd["kappa"])),
            float(np.mean(gd["kappa_joint"])),
        ))  # fmt: skip
        curves.append(gd["loss"])
    columns = ("log10 R", f"GD loss < {SUCCESS:g}", "median steps (successes)", "median final loss",
               "median |cos(p, p*)| (failures)", "LM success", "median log10 khat(J)", "log10 kappa(H_p)",
               "log10 kappa(joint)")  # fmt: skip
    return Outcome(
        tables=[Table("Students by the teacher's sparsity ratio", columns, rows)],
        curves={
            "ratios": s["log10_ratios"],
            "steps": np.arange(curves[0].shape[1]) * record_steps(s["steps"]),
            "loss": curves,
        },
        notes=_notes(found),
    )


def _notes(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """What separates a stall from slow convergence, in the numbers of this run."""
    first, last = found[0], found[-1]

    def middle(columns: Mapping[str, Any], name: str) -> float:
        return float(np.median(columns[name]))

    final = np.concatenate([columns["final"] for columns in found])
    newton = np.concatenate([columns["newton"] for columns in found])
    cosine = np.abs(np.concatenate([columns["cosine"] for columns in found]))
    failed = final >= SUCCESS
    stuck = failed & (final > 1e-3)
    direction = float(np.median(cosine[stuck])) if stuck.any() else float("nan")
    notes = [
        f"From the first to the last R the median log10 khat(J) goes from {middle(first, 'khat'):.2f} to "
        f"{middle(last, 'khat'):.2f}, log10 kappa(H_p) at the teacher from {middle(first, 'kappa'):.2f} to "
        f"{middle(last, 'kappa'):.2f}, log10 kappa(joint) from {middle(first, 'kappa_joint'):.2f} to "
        f"{middle(last, 'kappa_joint'):.2f}.",
        f"{int(failed.sum())} of {len(final)} runs of gradient descent fail, {int(stuck.sum())} of them above 1e-3, "
        f"with median |cos(p, p*)| {direction:.2f}: a small one means another basin, not slow convergence.",
        f"Levenberg-Marquardt from the same starts, which ill-conditioning does not slow, fails in "
        f"{int((newton >= SUCCESS).sum())} of {len(newton)}.",
        "The caption speaks of five orders of magnitude for R from 1 to 1e8, and gives 1e-7 both for convergence and "
        "for stagnation.",
    ]
    return notes


def draw_figure_7(outcome: Outcome) -> Picture:
    """Median loss curves, and the share of successes."""
    from matplotlib import pyplot as plt

    curves = outcome.curves
    picture, (left, right) = subplots(1, 2, (10, 4))
    ratios = np.asarray(curves["ratios"], dtype=float)
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(ratios)))
    for ratio, colour, loss in zip(ratios, shades, curves["loss"], strict=True):
        median = np.maximum(np.median(np.asarray(loss, dtype=float), axis=0), 1e-13)
        left.semilogy(np.asarray(curves["steps"]), median, color=colour, label=rf"$\log_{{10}} R = {ratio:g}$")
    left.set(xlabel="steps", ylabel="median loss")
    left.legend(fontsize=7)
    found = [share_of(np.asarray(loss, dtype=float)[:, -1] < SUCCESS) for loss in curves["loss"]]
    shares = np.array([share.value for share in found])
    right.errorbar(
        ratios, shares, [shares - [s.low for s in found], [s.high for s in found] - shares], fmt="o-", capsize=2
    )
    right.set(xlabel=r"$\log_{10} R$ of the teacher", ylabel="share of runs that find the teacher", ylim=(-0.05, 1.05))
    return finish(picture, (left, right), legend=None)


FIGURE_7 = Figure(
    paper="conditioning",
    name="fig7",
    title="Gradient descent against the sparsity ratio of the teacher",
    protocol="""d = n = 20, N = 100 as in Figure 1; the teacher's prompt is scaled so that the median over examples of
        max a / min a is R exactly. Gradient descent on p and v, learning rate 0.05; Levenberg-Marquardt from the same
        starts. Success: loss below 1e-7.""",
    full={"trials": 6, "N": 100, "d": 20, "lr": 0.05, "steps": 20000, "newton_steps": 300,
          "log10_ratios": (0.03, 0.7, 1.4, 2.7, 4.0, 5.5, 6.8, 8.0)},
    quick={"trials": 2, "steps": 9000, "newton_steps": 50, "log10_ratios": (0.03, 2.7, 8.0)},
    run=run_figure_7,
    draw=draw_figure_7,
)  # fmt: skip
