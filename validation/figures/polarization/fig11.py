"""Figure 11: the tied model R softmax(R a): one score wins and one column of R diverges."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots

__all__ = ["FIGURE", "draw", "run", "tied"]


def tied(trials: int, seed: int, D: int, steps: int, transposed: bool, device: str | None) -> dict[str, Any]:
    """Gradient descent from R = I, a = 1 + 0.1 randn, unit target, as one batch; the first trial has legacy seed 42.

    Examples
    --------
    >>> from attsvm.validation.figures.polarization.fig11 import tied
    >>> tied(1, 0, D=5, steps=20, transposed=False, device=None)["largest"][0] > 0
    True
    """
    first = np.random.RandomState(42)
    beta = first.randn(D)
    beta /= np.linalg.norm(beta)
    others = np.random.default_rng(seed).standard_normal((trials - 1, D))
    a0 = 1 + 0.1 * np.concatenate([first.randn(1, D), others])
    R0 = np.tile(np.eye(D), (trials, 1, 1))
    run = pol.descend_tied(R0, a0, beta, transposed=transposed, lr=0.05, steps=steps, snapshots=40, device=device)
    norms = run.V.norm(dim=3 if transposed else 2)  # (snapshots, trial, token): rows of R when transposed
    winner = run.scores[-1].argmax(-1)
    return {
        "largest": run.scores[-1].amax(-1).tolist(),
        "winner_norm": norms[-1].gather(-1, winner[:, None])[:, 0].tolist(),
        "median_norm": norms[-1].median(-1).values.tolist(),
        "same_as_a": (run.a[-1].argmax(-1) == winner).tolist(),
        "times": [run.times.tolist()] * trials,
        "score_curve": run.scores.gather(-1, winner[None, :, None].expand(len(run.steps), -1, 1))[..., 0].T.tolist(),
        "norm_curve": norms.gather(-1, winner[None, :, None].expand(len(run.steps), -1, 1))[..., 0].T.tolist(),
        "median_curve": norms.median(-1).values.T.tolist(),
    }


def run(context: Context) -> Outcome:
    """Both forms for every D."""
    s = context.settings
    cells = [
        {"D": D, "steps": s["steps"], "transposed": form, "device": context.device}
        for form in (False, True)
        for D in s["dimensions"]
    ]
    many = context.sweep(tied, cells, chunk=s["trials"], name="tied")
    rows, curves = [], {}
    for cell in cells:
        got = many.where(**cell)
        rows.append((
            "R^T softmax(R a)" if cell["transposed"] else "R softmax(R a)", cell["D"], float(np.mean(got["largest"])),
            float(np.min(got["largest"])), float(np.mean(got["winner_norm"])), float(np.mean(got["median_norm"])),
            f"{int(np.sum(got['same_as_a']))} of {len(got['largest'])}",
        ))  # fmt: skip
        if not cell["transposed"]:
            curves[str(cell["D"])] = {
                name: np.asarray(got[name])[0] for name in ("times", "score_curve", "norm_curve", "median_curve")
            }
    total = sum(len(many.where(**cell)["same_as_a"]) for cell in cells)
    differ = total - sum(int(np.sum(many.where(**cell)["same_as_a"])) for cell in cells)
    columns = ("model", "D", "mean largest score", "smallest", "norm of its vector", "median norm",
               "argmax a = argmax s")  # fmt: skip
    return Outcome(
        tables=[Table(f"After {s['steps']} steps", columns, rows)],
        curves=curves,
        notes=[
            f"The diverging column belongs to the largest score; the largest element of a, which the caption names, is "
            f"another token in {differ} of {total} runs.",
            "The order of the published draws is not known: the instance is one of the same distribution.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """Largest score and norms against time for each D."""
    from matplotlib import pyplot as plt

    picture, axes = subplots(1, 2, (10, 3.6))
    for k, (D, c) in enumerate(outcome.curves.items()):
        color = plt.get_cmap("viridis")(k / 4)
        axes[0].semilogx(c["times"][1:], c["score_curve"][1:], color=color, label=f"D = {D}")
        axes[1].semilogx(c["times"][1:], c["norm_curve"][1:], color=color, label=f"D = {D}")
        axes[1].semilogx(c["times"][1:], c["median_curve"][1:], color=color, ls=":")
    axes[0].set(title="largest score", xlabel="t", ylim=(0, 1.02))
    axes[1].set(title="norm of the winning column (dotted: median)", xlabel="t")
    axes[0].legend(fontsize=8)
    return picture


FIGURE = Figure(
    paper="polarization",
    name="fig11",
    title="The tied model polarizes too, and the norm of one column grows like log t",
    protocol="""R = I, a = 1 + 0.1 randn, unit beta_*, logistic loss, D = 10, 20, 50, 100, step 0.05 for 1e4 steps
        (as published); also the transposed form that the residual stream implies, and further seeds (ours).""",
    full={"trials": 4, "dimensions": (10, 20, 50, 100), "steps": 10_000},
    quick={"trials": 2, "dimensions": (10, 20), "steps": 1_500},
    run=run,
    draw=draw,
)
