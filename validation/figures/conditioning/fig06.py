"""Figure 6: joint training of W, p and v beside training with W frozen."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import student_teacher
from attsvm.sweeps import columns_of
from attsvm.validation.figures.conditioning.students import SUCCESS, record_steps
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, share_of, subplots

__all__ = ["FIGURE", "draw", "joint_student", "run"]


def joint_student(
    trials: int, seed: int, *, N: int, d: int, sigma_p: float, lr: float, steps: int, train_w: bool
) -> dict[str, Any]:
    """Gradient descent on (p, v), and on W from the identity if asked, on the labels of a softmax teacher.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.fig06 import joint_student
    >>> found = joint_student(1, 0, N=8, d=4, sigma_p=0.1, lr=0.1, steps=120, train_w=True)
    >>> found["loss"][0][-1] < found["loss"][0][0]
    True
    """
    import torch

    every = record_steps(steps)

    def row(trial: int) -> dict[str, Any]:
        teacher = student_teacher(N, d, d, sigma_p=sigma_p, seed=np.random.default_rng([seed, trial]))
        X, y = (torch.tensor(np.array(part)) for part in (teacher.problem.X, teacher.problem.y))
        starts = teacher.student(np.random.default_rng([seed, trial, 1]))
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
        moved = float(torch.linalg.matrix_norm(W.detach() - torch.eye(d, dtype=W.dtype))) / d**0.5
        return {"loss": losses, "final": losses[-1], "moved": moved}

    return columns_of(map(row, range(trials)))


def run(context: Context) -> Outcome:
    """Every width and teacher, with and without training W."""
    s = context.settings
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {}
    ends: dict[tuple[int, float, bool], Any] = {}
    cells = [
        {"N": s["N"], "d": d, "sigma_p": sigma, "lr": s["lr"], "steps": s["steps"], "train_w": train_w}
        for d in s["widths"]
        for sigma in (0.1, 1.0)
        for train_w in (False, True)
    ]
    found = context.sweep(joint_student, cells, chunk=1, name="joint students")
    for cell, columns in zip(cells, found.columns, strict=True):
        final = np.asarray(columns["final"], dtype=float)
        ends[cell["d"], cell["sigma_p"], cell["train_w"]] = final
        name = f"d = {cell['d']}, sigma_p = {cell['sigma_p']:g}, {'W trained' if cell['train_w'] else 'W frozen'}"
        rows.append((cell["d"], cell["sigma_p"], "yes" if cell["train_w"] else "no", float(np.median(final)),
                     share_of(final < SUCCESS), float(np.mean(columns["moved"]))))  # fmt: skip
        curves[name] = {"loss": np.asarray(columns["loss"].tolist(), dtype=float), "dense": cell["sigma_p"] == 0.1}
    same = [
        (np.median(ends[d, 1.0, w]) > np.median(ends[d, 0.1, w])) for d in s["widths"] for w in (False, True)
    ]  # sparse teachers end higher
    columns_ = ("d", "sigma_p", "W trained", "median final loss", f"share below {SUCCESS:g}", "|W - I|_F / sqrt(d)")
    notes = [
        f"The sparse teacher ends at a higher median loss than the dense one in {sum(same)} of {len(same)} "
        "settings (width, W "
        "frozen or trained); the paper sees no qualitative difference between W frozen and trained.",
    ]
    steps = np.arange(len(next(iter(curves.values()))["loss"][0])) * record_steps(s["steps"])
    return Outcome([Table(f"After {s['steps']} steps", columns_, rows)], {"steps": steps, "runs": curves}, notes)


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="conditioning",
    name="fig6",
    title="Joint training of W, p and v beside training with W frozen",
    protocol="""As Figure 1: N = 100, n = d, squared loss, full-batch gradient descent; W starts at the identity and
        is trained or frozen. Learning rate, steps and widths of the paper's Figure 6 are not given.""",
    full={"trials": 3, "N": 100, "widths": (20, 60), "lr": 0.05, "steps": 3000},
    quick={"trials": 2, "N": 40, "widths": (10,), "lr": 0.05, "steps": 600},
    run=run,
    draw=draw,
)
