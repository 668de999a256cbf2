"""Figures 8 to 12: LocAteR with 1, 3 and 6 layers and two widths."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.models.corpora import synthetic_corpus

__all__ = ["FIGURE", "deep_runs", "draw", "run"]

_NAMES = ("trace", "scale", "entropy", "perplexity")
_PUBLISHED = (("scale", "falls"), ("entropy", "rises"), ("perplexity", "falls"))


def deep_runs(
    trials: int, seed: int, *, layers: int, d: int, k1: float, k2: float, T: int, steps: int, lr: float, tokens: int,
    vocabulary: int, device: str | None,
) -> dict[str, Any]:  # fmt: skip
    """One row per trained model: the end of training, means over layers.

    Examples
    --------
    >>> from attsvm.validation.figures.localization.fig08 import deep_runs
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


def run(context: Context) -> Outcome:
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="localization",
    name="fig8",
    aliases=("fig9", "fig10", "fig11", "fig12"),
    title="LocAteR with 1, 3 and 6 layers",
    protocol="""Published: WikiText-2, d = 32 and 128, 1, 3 and 6 layers, one head, Post-LN, kappa_1 = 100, kappa_2
        = 0, 1e-3, ..., 1, 50,000 steps. Here the same architectures at d = 32 (64 for 128) on generated text.""",
    full={"trials": 2, "shapes": ((32, 1), (32, 3), (32, 6), (64, 3), (64, 6)), "k1": 100.0,
          "strengths": (1e-2, 1.0), "T": 32, "steps": 200, "lr": 3e-3, "tokens": 30_000, "vocabulary": 200},
    quick={"trials": 2, "shapes": ((8, 1), (8, 2)), "T": 8, "steps": 25, "lr": 1e-2, "tokens": 2_000, "vocabulary": 50},
    run=run,
    draw=draw,
)  # fmt: skip
