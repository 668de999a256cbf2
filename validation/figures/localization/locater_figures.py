"""Figures 6 to 12: language models with LocAteR.

6 and 7: spectrum, entropy, perplexity and propagation of a small model over training. 8 to 12: 1, 3 and 6 layers and
two widths.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.models.language_model import read_wikitext, synthetic_corpus

_NAMES = ("trace", "scale", "entropy", "perplexity")


def language_runs(
    trials: int,
    seed: int,
    k2: float | None,
    k1: float,
    d: int,
    T: int,
    steps: int,
    lr: float,
    tokens: int,
    vocabulary: int,
    wikitext: str | None,
    device: str | None,
) -> dict[str, Any]:
    """One row per trained model; without penalty if k2 is None. The text is the same for every model.

    Examples
    --------
    >>> found = language_runs(1, 0, 1.0, 100.0, d=8, T=6, steps=4, lr=1e-3, tokens=500, vocabulary=50, wikitext=None,
    ...                       device=None)
    >>> sorted(found)
    ['entropy', 'largest', 'perplexity', 'propagation', 'scale', 'steps', 'trace']
    """
    import torch

    from attsvm.validation.models import train_language_model

    corpus = synthetic_corpus(tokens, vocabulary) if wikitext is None else read_wikitext(wikitext, vocabulary)
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # small matrices; the other cores train other models
    try:
        runs = [
            train_language_model(
                corpus,
                0.0 if k2 is None else k1,
                k2 or 0.0,
                d=d,
                T=T,
                steps=steps,
                lr=lr,
                record_every=max(1, steps // 25),
                seed=int(word),
                device=device,
            )
            for word in np.random.SeedSequence(seed).generate_state(trials)
        ]
    finally:
        torch.set_num_threads(before)
    columns: dict[str, Any] = {name: [getattr(run, name).tolist() for run in runs] for name in (*_NAMES, "propagation")}
    return {
        **columns,
        "steps": [run.steps.tolist() for run in runs],
        "largest": [run.largest_entropy for run in runs],
    }


def run_figure_6(context: Context) -> Outcome:
    """Train at every strength and without penalty; summarize the end of training and the profiles."""
    s = context.settings
    wikitext = os.environ.get("ATTSVM_WIKITEXT")
    shared = {name: s[name] for name in ("k1", "d", "T", "steps", "lr", "tokens")}
    shared |= {"vocabulary": s["vocabulary"] if wikitext is None else 10_000, "wikitext": wikitext}
    cells = [{"k2": k2, **shared, "device": context.device} for k2 in (None, *s["strengths"])]
    found = context.sweep(language_runs, cells, chunk=1, name="models")
    rows: list[tuple[Any, ...]] = []
    ends: dict[str, dict[str, Any]] = {}
    curves: dict[str, Any] = {"labels": [], "text": "generated text" if wikitext is None else "WikiText-2"}
    for k2 in (None, *s["strengths"]):
        mine = found.where(k2=k2)
        label = "none" if k2 is None else f"{k2:g}"
        columns = {name: np.asarray(mine[name].tolist(), dtype=np.float64) for name in (*_NAMES, "propagation")}
        profile = columns["propagation"][:, -1]
        ends[label] = {name: columns[name][:, -1] for name in _NAMES}
        ends[label] |= {"rho": profile.mean(axis=1), "unevenness": profile.std(axis=1)}
        rows.append((label, *(mean_of(end) if len(end) > 1 else float(end[0]) for end in ends[label].values())))
        curves["labels"].append(label)
        curves["steps"] = np.asarray(mine["steps"].tolist()[0])
        curves["largest"] = float(np.asarray(mine["largest"], dtype=np.float64)[0])
        curves[label] = {name: columns[name].mean(axis=0) for name in _NAMES}
        curves[label]["propagation"] = columns["propagation"][0]
    return Outcome(
        tables=[
            Table(
                f"After {s['steps']} steps, {curves['text']}, d = {s['d']}, T = {s['T']}, k1 = {s['k1']:g}, "
                f"{s['trials']} models each (uniform attention has entropy {curves['largest']:.3f})",
                ("k2", "trace", "scale", "entropy", "perplexity", "mean rho", "unevenness of rho"),
                rows,
            ),
            Table(
                "From the weakest to the strongest k2",
                ("quantity", "published", "found", "weakest k2", "strongest k2", "no penalty"),
                tuple(_trends(ends, curves["labels"])),
            ),
        ],
        curves=curves,
        notes=[
            "k1 weighs the trace and k2 the scale; with the printed roles (100 on the scale) attention is uniform.",
            "The generated text has names to look up, which even attention cannot do: perplexity depends on the text.",
        ],
    )


def _trends(ends: Mapping[str, Mapping[str, Any]], labels: Sequence[str]) -> list[tuple[Any, ...]]:
    """What became of each quantity from the weakest to the strongest k2, against the published direction.

    "unclear" if the difference is within two standard errors over the models.
    """
    first, last = labels[1], labels[-1]
    rows: list[tuple[Any, ...]] = []
    for name, published in (("scale", "falls"), ("entropy", "rises"), ("perplexity", "falls"), ("unevenness", "rises")):
        weak, strong = ends[first][name], ends[last][name]
        error = np.sqrt((weak.var(ddof=1) + strong.var(ddof=1)) / len(weak)) if len(weak) > 1 else 0.0
        change = float(strong.mean() - weak.mean())
        found = "unclear" if abs(change) <= 2 * error else "rises" if change > 0 else "falls"
        values = (float(ends[label][name].mean()) for label in (first, last, "none"))
        rows.append((name, published, found if len(weak) > 1 else f"{found} (one model)", *values))
    return rows


def draw_figure_6(outcome: Outcome) -> Picture:
    """Above: scale, entropy and perplexity against the step; below: profiles with and without the penalty."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    picture, axes = subplots(2, 3, (11, 6))
    colors = ["black", *plt.get_cmap("viridis")(np.linspace(0, 0.9, len(c["labels"]) - 1))]
    for axis, name in zip(axes[0], ("scale", "entropy", "perplexity"), strict=True):
        for label, color in zip(c["labels"], colors, strict=True):
            axis.plot(
                c["steps"],
                c[label][name],
                color=color,
                label=rf"$\kappa_2$ = {label}" if label != "none" else "no penalty",
            )
        axis.set(title=name, xlabel="step", yscale="linear" if name == "entropy" else "log")
    axes[0][1].axhline(c["largest"], color="0.5", ls=":", label="uniform")
    axes[0][1].legend(fontsize=7)
    last = c["labels"][-1]
    for axis, label in zip(axes[1], ("none", last), strict=False):
        values = np.asarray(c[label]["propagation"])
        edges = np.append(c["steps"], c["steps"][-1] + 1)
        mesh = axis.pcolormesh(edges, np.arange(values.shape[1] + 1) + 0.5, values.T, vmin=0, vmax=1, cmap="viridis")
        axis.set(
            title=r"$\rho$, no penalty" if label == "none" else rf"$\rho$, $\kappa_2$ = {label}",
            xlabel="step",
            ylabel="token i",
        )
    picture.colorbar(mesh, ax=axes[1][1])
    for label, color in zip(c["labels"], colors, strict=True):
        values = np.asarray(c[label]["propagation"])[-1]
        axes[1][2].plot(np.arange(1, len(values) + 1), values, color=color)
    axes[1][2].set(title=r"$\rho$ at the end", xlabel="token i", ylim=(-0.03, 1.03))
    return picture


FIGURE_6 = Figure(
    paper="localization",
    name="fig6",
    aliases=("fig7",),
    title="LocAteR on a small language model",
    protocol="""Published: WikiText-2, one layer, one head, Post-LN, d = 128, T = 64, batch 64, Adam, weight decay 0.01,
        lr 2.5e-5, 50,000 steps, kappa_1 = 100, kappa_2 = 0, 1e-3, ..., 1. Here: the same architecture with d = 64,
        T = 32, batch 32, lr 3e-3 and 400 steps on generated text, or on WikiText-2 if its folder is named by the
        environment variable ATTSVM_WIKITEXT; kappa_1 on the trace and kappa_2 on the scale (printed: exchanged).
        Figure 7 is the second row: the share of validation sequences in which token i passes a gradient.""",
    full={
        "trials": 2, "k1": 100.0, "strengths": (1e-3, 1e-2, 1e-1, 1.0), "d": 64, "T": 32, "steps": 400, "lr": 3e-3,
        "tokens": 60_000, "vocabulary": 300,
    },
    quick={"trials": 1, "strengths": (1e-2, 1.0), "d": 32, "T": 16, "steps": 100, "lr": 5e-3, "tokens": 10_000,
           "vocabulary": 100},
    run=run_figure_6,
    draw=draw_figure_6,
)  # fmt: skip

_PUBLISHED = (("scale", "falls"), ("entropy", "rises"), ("perplexity", "falls"))


def deep_runs(
    trials: int, seed: int, *, layers: int, d: int, k1: float, k2: float, T: int, steps: int, lr: float, tokens: int,
    vocabulary: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """One row per trained model: the end of training, means over layers.

    Examples
    --------
    >>> found = deep_runs(1, 0, layers=2, d=8, k1=100.0, k2=1.0, T=6, steps=4, lr=1e-3, tokens=500, vocabulary=50,
    ...                   device=None)
    >>> sorted(found)
    ['entropy', 'perplexity', 'scale', 'trace']
    """
    import torch

    from attsvm.validation.models import train_language_model

    corpus = synthetic_corpus(tokens, vocabulary)
    torch.set_num_threads(1)  # small matrices; the other cores train other models

    def row(word: int) -> dict[str, float]:
        found = train_language_model(
            corpus, k1 if k2 else 0.0, k2, d=d, T=T, layers=layers, steps=steps, lr=lr, record_every=steps, seed=word,
            device=device,
        )  # fmt: skip
        return {name: float(np.asarray(getattr(found, name))[-1]) for name in _NAMES}

    return columns_of(row(int(word)) for word in np.random.SeedSequence(seed).generate_state(trials))


def run_figure_8(context: Context) -> Outcome:
    """Weak and strong regularization for every depth and width."""
    s = context.settings
    shared = context.cell("k1", "T", "steps", "lr", "tokens", "vocabulary")
    cells = [
        {"layers": layers, "d": d, "k2": k2, **shared} for d, layers in s["shapes"] for k2 in (0.0, *s["strengths"])
    ]
    found = context.sweep(deep_runs, cells, chunk=1, name="deep models")
    rows: list[tuple[Any, ...]] = []
    trends: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {}
    for d, layers in s["shapes"]:
        ends = {k2: found.where(d=d, layers=layers, k2=k2) for k2 in (0.0, *s["strengths"])}
        for k2, columns in ends.items():
            rows.append((d, layers, f"{k2:g}" if k2 else "none", *_means(columns)))
        weak, strong = (ends[k2] for k2 in (s["strengths"][0], s["strengths"][-1]))
        for name, published in _PUBLISHED:
            seen = _trend(*(np.asarray(end[name], dtype=float) for end in (weak, strong)))
            trends.append((d, layers, name, published, seen, "yes" if seen == published else "no"))
        curves[f"d = {d}, {layers} layers"] = {
            "k2": [k2 or 1e-4 for k2 in ends],
            **{name: [_triple(np.asarray(end[name], dtype=float)) for end in ends.values()] for name in _NAMES},
        }
    agreed = sum(row[-1] == "yes" for row in trends)
    return Outcome(
        tables=[
            Table(f"After {s['steps']} steps, {s['trials']} models each", ("d", "layers", "k2", *_NAMES), rows),
            Table(
                "From the weakest to the strongest k2",
                ("d", "layers", "quantity", "published", "found", "agrees"),
                trends,
            ),
        ],
        curves=curves,
        notes=[
            f"{agreed} of {len(trends)} published directions are found at this size; 'unclear' where the difference is "
            "within two standard errors over the models.",
            "REDUCED: generated text instead of WikiText-2, "
            f"{s['steps']} steps (50,000), T = {s['T']} (64); kappa_1 on the trace and kappa_2 on the scale (printed: "
            "exchanged). Trace, scale and entropy are means over the layers.",
        ],
    )


def _means(columns: Any) -> list[Any]:
    return [mean_of(np.asarray(columns[name], dtype=float)) for name in _NAMES]


def _trend(a: Any, b: Any) -> str:
    """From values a to values b, or "unclear" within two standard errors."""
    error = float(np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a))) if len(a) > 1 else 0.0
    change = float(b.mean() - a.mean())
    return "unclear" if abs(change) <= 2 * error else "rises" if change > 0 else "falls"


def _triple(values: Any) -> list[float]:
    """Mean and the ends of its interval."""
    found = mean_of(values)
    return [float(found.value), float(found.low), float(found.high)]


def draw_figure_8(outcome: Outcome) -> Picture:
    """Scale, entropy and perplexity against the strength, with intervals."""
    picture, axes = subplots(1, 3, (11, 3.4))
    for axis, name in zip(axes, ("scale", "entropy", "perplexity"), strict=True):
        for label, curve in outcome.curves.items():
            mid, low, high = np.asarray(curve[name], dtype=float).T
            x = np.asarray(curve["k2"], dtype=float)
            line = axis.plot(x, mid, "o-", ms=4, label=label)[0]
            axis.vlines(x, low, high, color=line.get_color(), lw=1)
        axis.set(title=name, xlabel=r"$\kappa_2$ (leftmost: no penalty)", xscale="log")
        if name != "entropy":
            axis.set_yscale("log")
    axes[0].legend(fontsize=7)
    return picture


FIGURE_8 = Figure(
    paper="localization",
    name="fig8",
    aliases=("fig9", "fig10", "fig11", "fig12"),
    title="LocAteR with 1, 3 and 6 layers",
    protocol="""Published: WikiText-2, d = 32 and 128, 1, 3 and 6 layers, one head, Post-LN, kappa_1 = 100, kappa_2
        = 0, 1e-3, ..., 1, 50,000 steps. Here the same architectures at d = 32 (64 for 128) on generated text.""",
    full={"trials": 2, "shapes": ((32, 1), (32, 3), (32, 6), (64, 3), (64, 6)), "k1": 100.0,
          "strengths": (1e-2, 1.0), "T": 32, "steps": 200, "lr": 3e-3, "tokens": 30_000, "vocabulary": 200},
    quick={"trials": 2, "shapes": ((8, 1), (8, 2)), "T": 8, "steps": 25, "lr": 1e-2, "tokens": 2_000, "vocabulary": 50},
    run=run_figure_8,
    draw=draw_figure_8,
)  # fmt: skip
