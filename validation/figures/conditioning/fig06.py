"""Figure 6: joint training of W, p and v beside training with W frozen."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import student_teacher
from attsvm.sweeps import columns_of
from attsvm.validation.figures.conditioning.students import SUCCESS, record_steps
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, share_of, subplots

__all__ = ["FIGURE", "draw", "joint_student", "run"]


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
    >>> from attsvm.validation.figures.conditioning.fig06 import joint_student
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


def run(context: Context) -> Outcome:
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
    quick={"trials": 2, "N": 40, "widths": (10,), "steps": 600},
    run=run,
    draw=draw,
)
