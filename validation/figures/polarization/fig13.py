"""Figure 13: square and logistic losses with other maps from logits to scores."""

from __future__ import annotations

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.polarization._protocols import figure_13

__all__ = ["FIGURE", "draw", "run"]

_KINDS = {"l1": "L1", "sum": "Sum", "square": "L2", "softmax": "Softmax", "relu_norm": "Relu (normalized)",
          "sigmoid": "Sigmoid", "relu": "Relu (elementwise)", "sigmoid_norm": "Sigmoid (normalized)",
          "elu_norm": "Elu + 1 (normalized)"}  # fmt: skip


def run(context: Context) -> Outcome:
    """The flow of both losses for every map, gradient descent beside it, and the logistic flow at t = 1e12."""
    s = context.settings
    V, a, beta = figure_13()
    rows, curves = [], {}
    for loss_name, loss, t_end, lr in (
        ("square", pol.SquareLoss(beta), 500.0, 0.1),
        ("logistic", pol.LogisticLoss(beta), 5e4, 0.5),
    ):
        for kind, label in _KINDS.items():
            times = np.concatenate([[0.0], np.geomspace(0.1, t_end, 80)])
            flow = pol.full_flow(V, a, loss, normalization=kind, times=times, rtol=1e-7, atol=1e-10)
            steps = min(s["steps"], round(t_end / lr))
            descent = pol.descend(
                V, a, loss, normalization=kind, lr=lr, steps=steps, snapshots=3, device=context.device
            )
            beside = pol.full_flow(V, a, loss, normalization=kind, times=[0.0, lr * steps], rtol=1e-7, atol=1e-10)
            last = np.abs(flow.scores[-1])
            late = float("nan")
            if loss_name == "logistic":
                far = pol.aligned_flow(V.T @ beta, a, normalization=kind, t_end=1e12, points=3)
                late = float(np.abs(far.scores[-1]).max() / np.abs(far.scores[-1]).sum())
            rows.append((
                loss_name, label, flow.scores[-1].max(), flow.scores[-1].min(), last.max() / last.sum(),
                int(last.argmax()),
                float((descent.scores[-1, 0] - descent.scores.new_tensor(beside.scores[-1])).abs().max()), late,
            ))  # fmt: skip
            curves[f"{loss_name}:{kind}"] = {"t": flow.times[1:], "scores": flow.scores[1:]}
    columns = ("loss", "map", "largest score", "smallest", "its share", "token", "descent - flow", "share at t = 1e12")
    return Outcome(
        tables=[Table("Scores at t = 500 (square) and t = 5e4 (logistic)", columns, rows)],
        curves=curves,
        notes=[
            "Figure 13's 'Relu' is normalized and becomes one-hot exactly; the elementwise one does not.",
            "The winner is argmax a(0) = 6, not argmax u(0) = 1: Assumption 3.1 (a(0) = 0) does not hold here.",
            "Entropy is undefined for Sum (signed scores) and for elementwise maps; shares of |s| are shown instead.",
            f"Descent - flow compares after at most {s['steps']} steps of the published size.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """A panel for each loss and map of the published figure."""
    kinds = list(_KINDS)[:6]
    picture, axes = subplots(2, 6, (16, 5), sharex="row")
    for row, loss in enumerate(("square", "logistic")):
        for axis, kind in zip(axes[row], kinds, strict=True):
            c = outcome.curves[f"{loss}:{kind}"]
            axis.semilogx(c["t"], np.asarray(c["scores"]), lw=1)
            axis.set_title(f"{loss}, {_KINDS[kind]}", fontsize=9)
        axes[row][0].set_ylabel("score")
    for axis in axes[1]:
        axis.set_xlabel("t")
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig13",
    title="Which maps polarize: normalized positive ones under the logistic loss",
    protocol="""dim 10, V = 0.1 randn, a = 1 + 0.1 randn, unit beta_*, legacy seed 42 reset between draws; square
        loss 5,000 steps of 0.1, logistic loss 1e5 steps of 0.5 (as published); here the flow to the same times,
        descent over its first steps, and three more maps.""",
    full={"trials": 1, "steps": 5_000},
    quick={"trials": 1, "steps": 200},
    run=run,
    draw=draw,
)
