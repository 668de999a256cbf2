"""Figure 5: simulated propagation probabilities and attention entropy against the eigenspectrum of W_QK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.dynamics.localization import (
    attention_entropy,
    linear_softmax,
    qk_spectrum,
    random_walks,
    signal_propagation,
    summarize,
    token_logits,
)
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots

__all__ = ["FIGURE", "draw", "eigenspectrum_draws", "run"]

_METHODS = ("gaussian", "asymptotic", "printed")


def eigenspectrum_draws(
    trials: int, seed: int, mean: float, scale: float, anisotropic: bool, d: int, T: int, walks: int
) -> dict[str, Any]:
    """One row per draw of W_QK (and of the covariance): frequencies over its walks, predictions, entropies.

    Examples
    --------
    >>> from attsvm.validation.figures.localization.fig05 import eigenspectrum_draws
    >>> found = eigenspectrum_draws(2, 0, mean=0.5, scale=0.1, anisotropic=False, d=8, T=5, walks=10)
    >>> len(found["rho"]), len(found["rho"][0])
    (2, 5)
    """
    rng = np.random.default_rng(seed)

    def row() -> dict[str, Any]:
        basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
        W = (basis * rng.normal(mean, scale, d)) @ basis.T
        covariance = None
        if anisotropic:
            R = rng.uniform(-2.5, 2.5, (d, d))
            covariance = R.T @ R / d
        X = random_walks(walks, T, d, covariance, seed=rng)
        signal = linear_softmax(token_logits(X, W))
        spectrum = qk_spectrum(W, covariance)
        return {
            "rho": ((signal >= 0) & (signal <= 1)).mean(axis=0),
            **{m: signal_propagation(spectrum, T, method=m).rho for m in _METHODS},  # type: ignore[arg-type]
            "entropy": float(attention_entropy(X, W).mean()),
            "last_entropy": float(attention_entropy(X, W, query="last").mean()),
            "r": spectrum.strength(),
            "eta": spectrum.eta(),
        }

    return columns_of(row() for _ in range(trials))


def run(context: Context) -> Outcome:
    """Every pair of mean and scale, with the identity and with random covariances."""
    s = context.settings
    cells = [
        {"mean": m, "scale": c, "anisotropic": a, "d": s["d"], "T": s["T"], "walks": s["walks"]}
        for a in (False, True)
        for m in s["means"]
        for c in s["scales"]
    ]
    found = context.sweep(eigenspectrum_draws, cells, chunk=s["chunk"], name="draws")
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {"means": list(s["means"]), "scales": list(s["scales"]), "T": s["T"]}
    for cell in cells:
        mine = found.where(mean=cell["mean"], scale=cell["scale"], anisotropic=cell["anisotropic"])
        profile = np.asarray(mine["rho"], dtype=np.float64)
        average = profile.mean(axis=0)
        error = {m: np.abs(np.asarray(mine[m], dtype=np.float64).mean(axis=0) - average).max() for m in _METHODS}
        summary = summarize(average)
        label = "anisotropic" if cell["anisotropic"] else "isotropic"
        rows.append((
            label, cell["mean"], cell["scale"], mean_of(mine["r"]), mean_of(mine["eta"]), summary.site, summary.peak,
            round(summary.peak_theta * s["T"]), summary.participation, mean_of(mine["entropy"]),
            mean_of(mine["last_entropy"]), *(error[m] for m in _METHODS),
        ))  # fmt: skip
        key = f"{label} {cell['mean']:g} {cell['scale']:g}"
        curves[key] = {"rho": average, "gaussian": np.asarray(mine["gaussian"], dtype=np.float64).mean(axis=0),
                       "entropy": float(np.mean(mine["entropy"]))}  # fmt: skip
    return Outcome(
        tables=[
            Table(
                f"d = {s['d']}, T = {s['T']}, {s['walks']} walks per draw of W_QK, {s['trials']} draws",
                ("covariance", "mean", "scale", "r", "eta", "site", "peak", "at i", "participation", "entropy",
                 "entropy, last query", "error: Gaussian", "asymptotic", "printed"),
                rows,
            ),
            Table(
                "Trends between the smallest and the largest value, over the other parameter and both covariances",
                ("statement", "true in", "of"),
                tuple(_trends(rows, s["means"], s["scales"])),
            ),
        ],
        curves=curves,
        notes=[
            "The entropy is highest for W_QK = 0; a larger mean, which localizes, lowers it.",
            "'Gaussian' keeps the offset 1/T and the exact variance; 'asymptotic' is (6) with the corrected variance.",
        ],
    )  # fmt: skip


def _trends(rows: Sequence[tuple[Any, ...]], means: Sequence[float], scales: Sequence[float]) -> list[tuple[Any, ...]]:
    """How often the published statements are true among the rows of the table."""
    found = {row[:3]: {"participation": row[8], "entropy": row[9].value, "last": row[10].value} for row in rows}
    covariances = sorted({row[0] for row in rows})
    by_scale = [(found[c, m, scales[0]], found[c, m, scales[-1]]) for c in covariances for m in means if m > 0]
    by_mean = [(found[c, means[0], x], found[c, means[-1], x]) for c in covariances for x in scales]
    statements = (
        ("a larger mean localizes", [high["participation"] < low["participation"] for low, high in by_mean]),
        (
            "a smaller scale localizes (mean > 0)",
            [low["participation"] < high["participation"] for low, high in by_scale],
        ),
        ("a smaller scale raises the entropy (mean > 0)", [low["entropy"] > high["entropy"] for low, high in by_scale]),
        ("the same for the last query alone", [low["last"] > high["last"] for low, high in by_scale]),
        ("a larger mean lowers the entropy", [high["entropy"] < low["entropy"] for low, high in by_mean]),
    )
    return [(text, int(np.sum(truths)), len(truths)) for text, truths in statements]


def draw(outcome: Outcome) -> Picture:
    """Rows: isotropic, anisotropic; columns: one per mean, and the entropy."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    means, scales = c["means"], c["scales"]
    picture, axes = subplots(2, len(means) + 1, (2.7 * (len(means) + 1), 5.2))
    colors = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(scales)))
    position = np.arange(1, c["T"] + 1)
    for row, label in zip(axes, ("isotropic", "anisotropic"), strict=True):
        for axis, mean in zip(row, means, strict=False):
            for color, scale in zip(colors, scales, strict=True):
                found = c[f"{label} {mean:g} {scale:g}"]
                axis.plot(position, found["rho"], "o", ms=2.5, color=color)
                axis.plot(position, found["gaussian"], color=color, lw=1, label=f"scale {scale:g}")
            axis.set(title=f"{label}, mean {mean:g}", ylim=(-0.03, 1.03), xlabel="token i")
            axis.title.set_fontsize(9)
        values = [[c[f"{label} {mean:g} {scale:g}"]["entropy"] for scale in scales] for mean in means]
        for mean, line in zip(means, values, strict=True):
            row[-1].semilogx(scales, line, "o-", ms=3, label=f"mean {mean:g}")
        row[-1].set(title=f"{label}: entropy", xlabel="scale")
        row[-1].title.set_fontsize(9)
        row[-1].legend(fontsize=7)
        row[0].set_ylabel(r"$\rho$ (dots: walks, lines: Gaussian)")
    axes[0][0].legend(fontsize=7)
    return picture


FIGURE = Figure(
    paper="localization",
    name="fig5",
    title="Simulated propagation and attention entropy against the eigenspectrum",
    protocol="""d = 128, T = 40, 300 walks, 10 draws of W_QK = B diag(w) B^T with w ~ N(mean, scale^2) and random B;
        covariance I or R^T R / d with R uniform on (-2.5, 2.5), one per draw. Temperature, means and scales are not
        stated; chosen sqrt(d), 0, 0.1, 0.5, 1 and 0.01, 0.1, 0.5, 1. Entropy over all keys (no mask), averaged over
        queries.""",
    full={
        "trials": 10, "chunk": 10, "d": 128, "T": 40, "walks": 300, "means": (0.0, 0.1, 0.5, 1.0),
        "scales": (0.01, 0.1, 0.5, 1.0),
    },
    quick={"trials": 2, "chunk": 2, "walks": 100, "means": (0.0, 0.1, 0.5), "scales": (0.01, 0.1, 1.0)},
    run=run,
    draw=draw,
)  # fmt: skip
