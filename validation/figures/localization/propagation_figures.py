"""Figures 1 to 5: the piecewise-linear softmax, and which tokens pass a gradient.

1: the softmax beside its approximation, for two logits. 2: the propagation probability over positions, xi and eta,
with the printed and the corrected variance. 3 and 4: localization at the middle site, and the least entropy against
the norm of the logits. 5: simulated probabilities and entropies against the eigenspectrum of W_QK.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.dynamics.localization import (
    QKSpectrum,
    attention_entropy,
    entropy_lower_bound,
    limit_window,
    linear_softmax,
    normal_interval,
    qk_spectrum,
    random_walks,
    rho,
    signal_moments,
    signal_propagation,
    simulate_signals,
    summarize,
    token_logits,
)
from attsvm.softmax import entropy, log_softmax
from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import Context, Figure, Interval, Outcome, Picture, Table, mean_of, subplots


def run_figure_1(context: Context) -> Outcome:
    """Both functions on a grid of logits (omega_1, omega_2), first component."""
    from attsvm.dynamics.localization import piecewise_softmax
    from attsvm.softmax import softmax

    s = context.settings
    axis = np.linspace(-s["width"], s["width"], s["points"])
    logits = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    exact, clipped = softmax(logits)[..., 0], np.asarray(piecewise_softmax(logits))[..., 0]
    gap = np.abs(logits[..., 0] - logits[..., 1])
    rows = []
    for low, high in ((0.0, 0.5), (0.5, 2.0), (2.0, 4.0), (4.0, np.inf)):
        chosen = (gap >= low) & (gap < high)
        if chosen.any():
            rows.append(
                (
                    f"{low:g} to {high:g}",
                    int(chosen.sum()),
                    float(np.abs(exact - clipped)[chosen].max()),
                    float(np.abs(exact - clipped)[chosen].mean()),
                )
            )
    worst = np.unravel_index(np.abs(exact - clipped).argmax(), exact.shape)
    at = abs(float(axis[worst[0]] - axis[worst[1]]))
    return Outcome(
        tables=[Table("Softmax less its approximation", ("|omega_1 - omega_2|", "points", "largest", "mean"), rows)],
        curves={"axis": axis, "softmax": exact, "piecewise": clipped},
        notes=[
            "For two tokens both depend on omega_1 - omega_2 alone, and the approximation is clipped from a "
            "difference of 2 "
            f"on. The largest error, {float(np.abs(exact - clipped).max()):.3f}, is at a difference of {at:.2f}.",
        ],
    )


def draw_figure_1(outcome: Outcome) -> Picture:
    """The two functions and their difference."""
    c = outcome.curves
    axis = np.asarray(c["axis"])
    picture, axes = subplots(1, 3, (11, 3.4))
    fields = (np.asarray(c["softmax"]), np.asarray(c["piecewise"]))
    titles = (r"$S(\omega)_1$", r"$\tilde S(\omega)_1$", r"$S(\omega)_1-\tilde S(\omega)_1$")
    for place, field, title in zip(axes, (*fields, fields[0] - fields[1]), titles, strict=True):
        limit = float(np.abs(field).max()) if title.count("-") else None
        mesh = place.pcolormesh(axis, axis, field.T, cmap="RdBu" if limit else "viridis", vmin=-limit if limit else 0,
                                vmax=limit if limit else 1)  # fmt: skip
        place.set(title=title, xlabel=r"$\omega_1$", ylabel=r"$\omega_2$", aspect="equal")
        picture.colorbar(mesh, ax=place)
    return picture


FIGURE_1 = Figure(
    paper="localization",
    name="fig1",
    title="The softmax and its piecewise-linear approximation, two logits",
    protocol="""First component of the softmax of (omega_1, omega_2) and of its expansion at zero clipped to [0, 1],
        on a grid. Nothing is drawn at random.""",
    full={"trials": 1, "width": 4.0, "points": 161},
    quick={"trials": 1, "points": 41},
    run=run_figure_1,
    draw=draw_figure_1,
)

_THETA_FIGURE_2 = np.linspace(0, 1, 101)

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


def run_figure_2(context: Context) -> Outcome:
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
            *(
                summarize(rho(_THETA_FIGURE_2, xi, eta, form)).site
                for xi in s["table_xi"]
                for form in ("printed", "corrected")
            ),
        )
        for eta in s["etas"]
    ]
    xis = np.linspace(-s["largest_xi"], s["largest_xi"], 121)
    curves = {
        form: [[rho(_THETA_FIGURE_2, xi, eta, form).tolist() for xi in xis] for eta in s["etas"]]
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
        curves={"theta": _THETA_FIGURE_2, "xi": xis, "eta": list(s["etas"]), **curves},
        notes=[
            "The printed variance 2 theta^2 + 7/12 is replaced by 2 (theta - 1/2)^2 + 1/12 in the corrected curves.",
            "Early and late sites then mirror each other; |xi| <= 1 is not uniform: xi = 0 has a bump in the middle.",
            "The curve drops the offset 1/T of the signal: most of its error; 'Gaussian at this T' keeps it.",
        ],
    )


def draw_figure_2(outcome: Outcome) -> Picture:
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


FIGURE_2 = Figure(
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
    run=run_figure_2,
    draw=draw_figure_2,
)  # fmt: skip

_THETA_FIGURE_3 = np.linspace(0, 1, 1001)


def least_entropy(trials: int, seed: int, nu: float, T: int, steps: int) -> dict[str, Any]:
    """Entropy reached by descent over logits of norm nu, one random start per trial.

    Examples
    --------
    >>> round(float(min(least_entropy(4, 0, nu=3.0, T=8, steps=300)["entropy"])), 2)
    0.96
    """
    rng = np.random.default_rng(seed)
    u = rng.standard_normal((trials, T))
    u *= nu / np.linalg.norm(u, axis=1, keepdims=True)
    for _ in range(steps):  # projected gradient on the sphere
        log_p = log_softmax(u)
        p = np.exp(log_p)
        slope = -p * (log_p + entropy(log_attention=log_p)[:, None])
        u = u - 0.5 * nu * slope / np.maximum(np.linalg.norm(slope, axis=1, keepdims=True), 1e-300)
        u *= nu / np.linalg.norm(u, axis=1, keepdims=True)
    return {"entropy": entropy(log_attention=log_softmax(u))}


def run_figure_3(context: Context) -> Outcome:
    """Curves at eta = 0.01 and their windows; the bounds on the entropy against the least one found."""
    s = context.settings
    eta, T = s["eta"], s["T"]
    curves: dict[str, Any] = {"theta": _THETA_FIGURE_3, "xi": list(s["xis"]), "T": T}
    rows: list[tuple[Any, ...]] = []
    for xi in s["xis"]:
        for form in ("printed", "corrected"):
            values = rho(_THETA_FIGURE_3, xi, eta, form)
            curves[f"{form} {xi}"] = values
            found = summarize(values, _THETA_FIGURE_3)
            limit = limit_window(xi * eta)
            rows.append((
                xi, xi * eta, form, found.site, found.peak, f"{found.window[0]:.3f} - {found.window[1]:.3f}",
                f"{limit[0]:.3f} - {limit[1]:.3f}", found.participation,
            ))  # fmt: skip
    cells = [{"nu": nu, "T": T, "steps": s["steps"]} for nu in s["nus"]]
    found_least = context.sweep(least_entropy, cells, chunk=s["trials"], name="least entropy")
    grid = np.linspace(0, 12, 121)
    for form in ("tight", "asymptotic", "printed"):
        curves[form] = entropy_lower_bound(grid, T, form)  # type: ignore[arg-type]
    curves["nu"] = grid
    reached = [float(np.min(found_least.where(nu=nu)["entropy"])) for nu in s["nus"]]
    curves["reached"] = [list(s["nus"]), reached]
    bounds = []
    for nu, least in zip(s["nus"], reached, strict=True):
        forms = (float(entropy_lower_bound(nu, T, form)) for form in ("tight", "asymptotic", "printed"))
        bounds.append((nu, least, *forms))
    return Outcome(
        tables=[
            Table(
                f"Figure 3: rho at eta = {eta:g}",
                ("xi", "xi eta", "form", "site", "peak", "window at half height", "its limit", "participation"),
                rows,
            ),
            Table(
                f"Figure 4: least entropy over logits of norm nu, T = {T} (log T = {np.log(T):.3f})",
                ("nu", "least found", "tight", "large T", "printed (9)"),
                bounds,
            ),
        ],
        curves=curves,
        notes=[
            "The text says eta = 0.02 for xi eta = 5.12; 512 * 0.01 = 5.12, so eta = 0.01.",
            "The window is [1/2, 1/2 + 1/r], off the centre; both variances agree in the limit.",
            "(9) as printed exceeds log T; the least entropy decreases in nu and has no peak.",
        ],
    )


def draw_figure_3(outcome: Outcome) -> Picture:
    """Left Figure 3, right Figure 4."""
    c = outcome.curves
    picture, (left, right) = subplots(1, 2, (10, 3.8))
    for xi, color in zip(c["xi"], ("tab:blue", "tab:red"), strict=True):
        left.plot(c["theta"], c[f"corrected {xi}"], color=color, label=rf"$\xi$ = {xi:g}, corrected")
        left.plot(c["theta"], c[f"printed {xi}"], color=color, ls="--", label=rf"$\xi$ = {xi:g}, printed")
    left.set(xlabel=r"position $\theta$", ylabel=r"$\rho(\theta)$", title=r"Figure 3: $\eta$ = 0.01")
    left.legend(fontsize=8)
    for form, color in (("printed", "tab:red"), ("asymptotic", "tab:orange"), ("tight", "tab:blue")):
        right.plot(c["nu"], c[form], color=color, label={"asymptotic": "large T"}.get(form, form))
    right.plot(*c["reached"], "ko", ms=4, label="least found by descent")
    right.axhline(np.log(c["T"]), color="0.5", ls=":", label="log T")
    right.set(xlabel=r"$\nu$", ylabel="entropy", title=f"Figure 4: bounds on the entropy, T = {c['T']}")
    right.legend(fontsize=8)
    return picture


FIGURE_3 = Figure(
    paper="localization",
    name="fig3",
    aliases=("fig4",),
    title="Localization at the middle site; bounds on the attention entropy",
    protocol="""Figure 3: xi = 128 and 512 at eta = 0.01 (printed 0.02). Figure 4: the bound (9) against nu; T is not
        stated, chosen 64. The least entropy is searched by projected descent from random logits.""",
    full={"trials": 64, "eta": 0.01, "xis": (128.0, 512.0), "T": 64, "nus": (1.0, 2.0, 4.0, 6.0, 8.0), "steps": 2000},
    quick={"trials": 16, "nus": (2.0, 4.0, 8.0), "steps": 500},
    run=run_figure_3,
    draw=draw_figure_3,
)

_METHODS = ("gaussian", "asymptotic", "printed")


def eigenspectrum_draws(
    trials: int, seed: int, mean: float, scale: float, anisotropic: bool, d: int, T: int, walks: int
) -> dict[str, Any]:
    """One row per draw of W_QK (and of the covariance): frequencies over its walks, predictions, entropies.

    Examples
    --------
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


def run_figure_5(context: Context) -> Outcome:
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


def draw_figure_5(outcome: Outcome) -> Picture:
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


FIGURE_5 = Figure(
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
    run=run_figure_5,
    draw=draw_figure_5,
)  # fmt: skip
