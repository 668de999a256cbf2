"""Figures 5 to 7: what the activations reach, and what trained heads look like.

5: softmax, softmax-1 and Bayes-softmax against the Bayes risk, by number of heads and by signal. 6: attention maps.
7: greedy removal of heads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.specialization.time_scale_figures import (
    ACTIVATIONS,
    NAMES,
    make_prior,
    pruned_heads,
    trained_heads,
)

_TRAINED_KINDS = {"one-hot": "one of F spikes", "flip": "flipping spike", "gaussian": "isotropic Gaussian"}


def run_figure_5(context: Context) -> Outcome:
    """Train all settings of both panels."""
    from attsvm.dynamics.specialization import bayes_risk

    s = context.settings
    left = [("one-hot", 4, 10.0, H) for H in s["heads"]] + [("gaussian", 4, 10.0, H) for H in s["heads"]]
    right = [("flip", 2, nu, 4) for nu in s["flip_nu"]] + [("gaussian", 2, nu, 4) for nu in s["gaussian_nu"]]
    options = {"L": 5, "samples": s["samples"], "steps": s["steps"], "test_samples": s["test_samples"]}
    cells = [
        {"prior": (kind, F, nu), "activation": activation, "H": H, **options}
        for kind, F, nu, H in left + right
        for activation in ACTIVATIONS
    ]
    found = context.sweep(trained_heads, cells, chunk=s["trials"])
    losses = {
        (*cell["prior"], cell["H"], cell["activation"]): np.array(list(columns["loss"]), dtype=np.float64)
        for cell, columns in zip(cells, found.columns, strict=True)
    }
    risks = {
        key: bayes_risk(make_prior(*key), 5, s["bayes_samples"], context.seed)
        for key in {(kind, F, nu) for kind, F, nu, _ in left + right}
    }
    tables = [
        _table("Left: F = 4, nu = 10, L = 5, by number of heads", left, losses, risks),
        _table("Right: F = 2, H = 4, L = 5, by signal strength", right, losses, risks),
    ]
    curves: dict[str, Any] = {
        name: [
            {"kind": kind, "nu": nu, "H": H, "risk": risks[kind, F, nu].value}
            | {a: losses[kind, F, nu, H, a] for a in ACTIVATIONS}
            for kind, F, nu, H in panel
        ]
        for name, panel in (("left", left), ("right", right))
    }
    return Outcome(tables, curves, _notes_figure_5(left, right, losses, risks))


def _table(title: str, panel: Any, losses: Any, risks: Any) -> Table:
    rows = []
    for kind, F, nu, H in panel:
        cells: list[Any] = [_TRAINED_KINDS[kind], nu, H]
        for a in ACTIVATIONS:
            values = losses[kind, F, nu, H, a]
            cells.append(f"{values.min():.4f} to {values.max():.4f}")
        risk = risks[kind, F, nu]
        rows.append((*cells, f"{risk.value:.4f} ± {risk.error:.4f}"))
    return Table(title, ("theta", "nu", "H", *NAMES.values(), "Bayes risk"), rows)


def _notes_figure_5(left: Any, right: Any, losses: Any, risks: Any) -> list[str]:
    enough = [key for key in left if key[0] == "one-hot" and key[3] >= 4]
    over = max(float(losses[(*key, "bayes")].min()) - risks[key[:3]].value for key in enough)
    notes = [
        f"Bayes-softmax with at least as many heads as spikes is above the Bayes risk by at most {over:.4f} (best run)."
    ]
    strongest = max(key[2] for key in right if key[0] == "gaussian")
    key = ("gaussian", 2, strongest)
    notes.append(
        f"Isotropic Gaussian at nu = {strongest:g}: softmax {losses[(*key, 4, 'softmax')].min():.3f}, softmax-1 "
        f"{losses[(*key, 4, 'softmax1')].min():.3f}, Bayes-softmax {losses[(*key, 4, 'bayes')].min():.3f}, "
        f"Bayes {risks[key].value:.3f}: "
        "softmax levels off above its floor of 0.2 and the gap grows."
    )
    gaps = [
        (key[2], float(losses[(*key, "softmax")].min()), float(losses[(*key, "softmax1")].min()))
        for key in right
        if key[0] == "flip"
    ]
    shown = ", ".join(f"nu = {nu:g}: {a:.4f} and {b:.4f}" for nu, a, b in gaps)
    notes.append(f"Flipping spike, softmax and softmax-1: {shown} (the paper: about equal at all nu).")
    notes.append("Ranges are over starts; a run of softmax-1 may end on a plateau (equal heads on several spikes).")
    return notes


def draw_figure_5(outcome: Outcome) -> Picture:
    """Loss against heads, and against signal."""
    picture, axes = subplots(2, 2, (10.5, 8))
    for column, (name, variable) in enumerate((("left", "H"), ("right", "nu"))):
        points: list[Any] = list(outcome.curves[name])
        kinds = list(dict.fromkeys(p["kind"] for p in points))
        for axis, kind in zip(axes[:, column], kinds, strict=True):
            chosen = [p for p in points if p["kind"] == kind]
            x = [p[variable] for p in chosen]
            for k, a in enumerate(ACTIVATIONS):
                runs = [np.asarray(p[a], dtype=float) for p in chosen]
                axis.plot(x, [r.min() for r in runs], "o-", color=f"C{k}", label=f"{NAMES[a]} (best run)")
                for place, values in zip(x, runs, strict=True):
                    axis.plot([place] * len(values), values, "x", color=f"C{k}", alpha=0.5, ms=5)
            axis.plot(x, [p["risk"] for p in chosen], "k--", label="Bayes risk")
            axis.set(
                title=f"{_TRAINED_KINDS[kind]}, " + ("F = 4, nu = 10" if name == "left" else "F = 2, H = 4"),
                xlabel=variable if variable == "H" else r"$\nu$",
                ylabel="loss",
                yscale="log",
            )
            if variable == "nu":
                axis.set_xscale("log")
                axis.set_ylim(bottom=max(1e-4, 0.5 * min(p["risk"] for p in chosen)))
    axes[1, 0].legend(fontsize=8, loc="upper right")
    return picture


FIGURE_5 = Figure(
    paper="specialization",
    name="fig5",
    title="Three activations against the Bayes risk",
    protocol="""L = 5. Left: F = 4, nu = 10, H varied, one of F spikes (the flipping spike for F > 2) and isotropic
        Gaussian. Right: F = 2, H = 4, nu varied, flipping spike and isotropic Gaussian. Bayes risk by Monte
        Carlo. Chosen: heavy-ball descent (0.9, lr 1) on fixed samples for the end of the flow (effective
        time 10 per step), starts without orthogonal parts; losses on fresh samples; the paper averages 5
        runs, here the range over runs.""",
    full={"trials": 3, "heads": (1, 2, 3, 4, 6), "flip_nu": (1.0, 4.0, 10.0, 20.0),
          "gaussian_nu": (2.0, 4.0, 10.0, 40.0, 100.0), "samples": 8000, "steps": 600, "test_samples": 50_000,
          "bayes_samples": 200_000},
    quick={"trials": 1, "heads": (2, 4), "flip_nu": (1.0, 4.0), "gaussian_nu": (2.0, 10.0), "samples": 800,
           "steps": 120, "test_samples": 4000, "bayes_samples": 20_000},
    run=run_figure_5,
    draw=draw_figure_5,
)  # fmt: skip

_L = 5


def run_figure_6(context: Context) -> Outcome:
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


def draw_figure_6(outcome: Outcome) -> Picture:
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


FIGURE_6 = Figure(
    paper="specialization",
    name="fig6",
    title="Attention maps of trained heads",
    protocol="""H = 4, L = 5, F = 3, isotropic Gaussian of variance 9, five sequences. Chosen: training as in Figure
        5, the best of the runs; a head misses when its attention to other tokens exceeds that to the
        relevant one.""",
    full={"trials": 2, "samples": 8000, "steps": 600, "test_samples": 20_000, "sequences": 4000},
    quick={"trials": 1, "samples": 800, "steps": 120, "test_samples": 2000, "sequences": 500},
    run=run_figure_6,
    draw=draw_figure_6,
)

_PRUNED_KINDS = {"one-hot": "one of four spikes", "gaussian": "isotropic Gaussian"}


def run_figure_7(context: Context) -> Outcome:
    """Train eight heads, prune them, for both laws and all activations."""
    s = context.settings
    H = s["H"]
    options = {"L": 5, "H": H, "samples": s["samples"], "steps": s["steps"], "test_samples": s["test_samples"]}
    cells = [
        {"prior": (kind, 4, 10.0), "activation": activation, **options}
        for kind in _PRUNED_KINDS
        for activation in ACTIVATIONS
    ]
    found = context.sweep(pruned_heads, cells, chunk=s["trials"])
    rows, curves = [], []
    for cell, columns in zip(cells, found.columns, strict=True):
        kind, activation = cell["prior"][0], str(cell["activation"])
        versions = ["losses", "rescaled"] if activation == "softmax1" else ["losses"]
        for version in versions:
            losses = np.array(list(columns[version]), dtype=np.float64)  # (trials, H)
            name = NAMES[activation] + (", amplitude refitted" if version == "rescaled" else "")
            rows.append((_PRUNED_KINDS[str(kind)], name, *(float(x) for x in losses.mean(axis=0))))
            curves.append({"kind": kind, "name": name, "activation": activation, "losses": losses})
    table = Table(
        f"Mean loss over {s['trials']} runs after removing heads, H = {H}, L = 5, F = 4, nu = 10",
        ("theta", "activation", *(str(k) for k in range(H))),
        rows,
    )
    return Outcome([table], {"curves": curves}, _notes_figure_7(curves, H))


def _notes_figure_7(curves: Any, H: int) -> list[str]:
    notes = []
    spare = H - 4
    if spare > 0:
        shown = ", ".join(
            f"{c['name']} on {_PRUNED_KINDS[c['kind']]}: {mean[0]:.3f} to {mean[spare]:.3f}"
            for c in curves
            for mean in (c["losses"].mean(0),)
        )
        notes.append(
            f"H - F = {spare} heads removed: {shown}. The paper: about H - F heads can go without loss, for both laws."
        )
    last = ", ".join(f"{c['name']} {c['losses'].mean(0)[-1]:.2f}" for c in curves if c["kind"] == "one-hot")
    notes.append(f"One head left, one-hot spikes: {last}.")
    return notes


def draw_figure_7(outcome: Outcome) -> Picture:
    """Loss against the number of removed heads."""
    picture, axes = subplots(1, 2, (10.5, 4.2))
    for axis, kind in zip(axes, _PRUNED_KINDS, strict=True):
        for c in (c for c in outcome.curves["curves"] if c["kind"] == kind):
            losses = np.asarray(c["losses"], dtype=float)
            colour = f"C{ACTIVATIONS.index(c['activation'])}"
            removed = np.arange(losses.shape[1])
            style = ":" if "refitted" in c["name"] else "-"
            axis.plot(removed, losses.mean(axis=0), "o" + style, color=colour, label=c["name"], ms=4)
            axis.fill_between(removed, losses.min(axis=0), losses.max(axis=0), color=colour, alpha=0.15)
        axis.axvline(losses.shape[1] - 4, color="0.6", lw=0.8, ls="--")
        axis.set(title=_PRUNED_KINDS[kind], xlabel="removed heads", ylabel="loss", yscale="log")
    axes[0].legend(fontsize=8)
    return picture


FIGURE_7 = Figure(
    paper="specialization",
    name="fig7",
    title="Greedy pruning of trained heads",
    protocol="""H = 8, L = 5, F = 4, nu = 10, one of four spikes and isotropic Gaussian. The head whose removal
        hurts least goes first; the output is the mean over the kept heads (Bayes-softmax normalizes
        itself), and for softmax-1 also with its amplitude fitted again. Chosen: training as in Figure 5;
        the paper has 5 runs.""",
    full={"trials": 3, "H": 8, "samples": 8000, "steps": 600, "test_samples": 40_000},
    quick={"trials": 1, "H": 6, "samples": 600, "steps": 100, "test_samples": 2000},
    run=run_figure_7,
    draw=draw_figure_7,
)
