"""Figure 2: the propagation probability over positions, xi and eta, with the printed and the corrected variance."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import QKSpectrum, normal_interval, rho, signal_moments, simulate_signals, summarize
from attsvm.validation.figures.framework import Context, Figure, Interval, Outcome, Picture, Table, subplots

__all__ = ["FIGURE", "draw", "run", "walk_signals"]

_THETA = np.linspace(0, 1, 101)
_PLACES = (0.05, 0.25, 0.5, 0.75, 1.0)


def _eigenvalues(d: int, xi: float) -> Any:
    """Normal quantiles, shifted and scaled to ``sum w = xi`` and ``sum w^2 = 1``."""
    from scipy.special import ndtri

    w = ndtri((np.arange(d) + 0.5) / d)
    return w * np.sqrt((1 - xi**2 / d) / (w @ w)) + xi / d


def walk_signals(trials: int, seed: int, xi: float, eta: float, d: int, T: int, walks: int) -> dict[str, Any]:
    """Groups of simulated walks, one row per group: mean powers of the signal and share inside [0, 1], per token.

    Examples
    --------
    >>> from attsvm.validation.figures.localization.fig02 import walk_signals
    >>> found = walk_signals(3, 0, xi=2.0, eta=1.0, d=8, T=5, walks=20)
    >>> len(found["inside"]), len(found["powers"][0]), len(found["powers"][0][0])
    (3, 4, 5)
    """
    rng = np.random.default_rng(seed)
    W = np.diag(_eigenvalues(d, xi))
    powers, inside = [], []
    for _ in range(trials):
        signal = simulate_signals(W, T, walks, temperature=1 / eta, seed=rng)
        powers.append([(signal**k).mean(axis=0).tolist() for k in (1, 2, 3, 4)])
        inside.append(((signal >= 0) & (signal <= 1)).mean(axis=0).tolist())
    return {"powers": powers, "inside": inside}


def _variance_of(powers: Any) -> tuple[Any, Any]:
    """Variance and the standard deviation of the squared deviation, from the first four mean powers."""
    m1, m2, m3, m4 = powers
    variance = m2 - m1**2
    fourth = m4 - 4 * m1 * m3 + 6 * m1**2 * m2 - 3 * m1**4
    return variance, np.sqrt(fourth - variance**2)


def run(context: Context) -> Outcome:
    """Curves on a grid of xi and eta; Monte Carlo of the variance and of rho at some of them."""
    s = context.settings
    d, T = s["d"], s["T"]
    cells = [{"xi": xi, "eta": eta, "d": d, "T": T, "walks": s["walks"]} for xi, eta in s["simulated"]]
    total = s["trials"] * s["walks"]
    walks = context.sweep(walk_signals, cells, chunk=s["chunk"], name="walks")
    variance_rows: list[tuple[Any, ...]] = []
    error_rows: list[tuple[Any, ...]] = []
    theta = np.arange(1, T + 1) / T
    for cell in cells:
        xi, eta = cell["xi"], cell["eta"]
        mine = walks.where(xi=xi, eta=eta)
        measured, spread = _variance_of(np.asarray(mine["powers"].tolist(), dtype=np.float64).mean(axis=0))
        frequency = np.asarray(mine["inside"].tolist(), dtype=np.float64).mean(axis=0)
        spectrum = QKSpectrum(np.diag(_eigenvalues(d, xi)), d, d)
        exact, printed = (signal_moments(spectrum, T, None, 1 / eta, form) for form in ("exact", "printed"))
        error_rows.append((
            xi, eta, np.abs(rho(theta, xi, eta, "printed") - frequency).max(),
            np.abs(rho(theta, xi, eta) - frequency).max(),
            np.abs(normal_interval(exact.mean, exact.variance) - frequency).max(), 2 * np.sqrt(0.25 / total),
        ))  # fmt: skip
        if (xi, eta) != tuple(s["simulated"][0]):
            continue
        for place in _PLACES:
            i = max(round(place * T) - 1, 0)
            half = 1.96 * spread[i] / np.sqrt(total)
            values = exact.variance[i], printed.variance[i]
            z = (measured[i] - values[0]) / (half / 1.96)
            interval = Interval(measured[i], measured[i] - half, measured[i] + half)
            variance_rows.append((place, interval, *values, f"{z:+.1f}", values[1] / measured[i]))
    sites = [
        (
            eta,
            *(summarize(rho(_THETA, xi, eta, form)).site for xi in s["table_xi"] for form in ("printed", "corrected")),
        )
        for eta in s["etas"]
    ]
    xis = np.linspace(-s["largest_xi"], s["largest_xi"], 121)
    curves = {
        form: [[rho(_THETA, xi, eta, form).tolist() for xi in xis] for eta in s["etas"]]
        for form in ("printed", "corrected")
    }
    names = [f"xi={xi:g} {form}" for xi in s["table_xi"] for form in ("printed", "corrected")]
    return Outcome(
        tables=[
            Table(
                f"Variance of the signal, xi = {s['simulated'][0][0]:g}, eta = {s['simulated'][0][1]:g}, T = {T}",
                ("theta", "Monte Carlo", "exact", "printed", "exact: deviation / SE", "printed / Monte Carlo"),
                variance_rows,
            ),
            Table(
                f"Largest error of rho against {total} walks, d = {d}, T = {T}",
                ("xi", "eta", "printed", "corrected", "Gaussian at this T", "2 SE"),
                error_rows,
            ),
            Table("Site that keeps a signal", ("eta", *names), sites),
        ],
        curves={"theta": _THETA, "xi": xis, "eta": list(s["etas"]), **curves},
        notes=[
            "The printed variance 2 theta^2 + 7/12 is replaced by 2 (theta - 1/2)^2 + 1/12 in the corrected curves.",
            "Early and late sites then mirror each other; |xi| <= 1 is not uniform: xi = 0 has a bump in the middle.",
            "The curve drops the offset 1/T of the signal: most of its error; 'Gaussian at this T' keeps it.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """One panel per eta, printed above corrected: position against xi."""
    c = outcome.curves
    picture, axes = subplots(2, len(c["eta"]), (2.9 * len(c["eta"]), 5.4), sharex=True, sharey=True)
    for row, form in zip(axes, ("printed", "corrected"), strict=True):
        for axis, eta, values in zip(row, c["eta"], c[form], strict=True):
            mesh = axis.pcolormesh(c["xi"], c["theta"], np.asarray(values).T, vmin=0, vmax=1, cmap="viridis")
            axis.set_title(rf"{form}, $\eta$ = {eta:g}", fontsize=9)
        row[0].set_ylabel(r"position $\theta$ = i / T")
    for axis in axes[1]:
        axis.set_xlabel(r"$\xi$")
    picture.colorbar(mesh, ax=axes, label=r"$\rho(\theta)$")
    return picture


FIGURE = Figure(
    paper="localization",
    name="fig2",
    title="Signal propagation probability over positions, xi and eta",
    protocol="""rho(theta) of equation (6) over xi and eta; the grid is not stated, chosen: |xi| <= 20, eta from
        0.001 to 5. Checked by random walks with eigenvalues at normal quantiles of the given xi and eta; d, T and the
        number of walks are chosen.""",
    full={
        "trials": 40, "chunk": 10, "walks": 500, "d": 64, "T": 40, "etas": (0.001, 0.1, 0.5, 1.0, 5.0),
        "largest_xi": 20.0,
        "table_xi": (-10, 0, 1, 10), "simulated": ((2.0, 1.0), (0.0, 1.0), (5.0, 0.5), (-7.0, 0.3), (0.0, 5.0)),
    },
    quick={"trials": 8, "chunk": 8, "d": 32, "etas": (0.001, 0.5, 1.0, 5.0), "table_xi": (0, 10),
           "simulated": ((2.0, 1.0), (0.0, 1.0))},
    run=run,
    draw=draw,
)  # fmt: skip
