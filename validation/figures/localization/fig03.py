"""Figures 3 and 4: localization at the middle site, and the least attention entropy against the norm of the logits."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import entropy_lower_bound, limit_window, rho, summarize
from attsvm.softmax import entropy, log_softmax
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots

__all__ = ["FIGURE", "draw", "least_entropy", "run"]

_THETA = np.linspace(0, 1, 1001)


def least_entropy(trials: int, seed: int, nu: float, T: int, steps: int) -> dict[str, Any]:
    """Entropy reached by descent over logits of norm nu, one random start per trial.

    Examples
    --------
    >>> from attsvm.validation.figures.localization.fig03 import least_entropy
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


def run(context: Context) -> Outcome:
    """Curves at eta = 0.01 and their windows; the bounds on the entropy against the least one found."""
    s = context.settings
    eta, T = s["eta"], s["T"]
    curves: dict[str, Any] = {"theta": _THETA, "xi": list(s["xis"]), "T": T}
    rows: list[tuple[Any, ...]] = []
    for xi in s["xis"]:
        for form in ("printed", "corrected"):
            values = rho(_THETA, xi, eta, form)
            curves[f"{form} {xi}"] = values
            found = summarize(values, _THETA)
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="localization",
    name="fig3",
    aliases=("fig4",),
    title="Localization at the middle site; bounds on the attention entropy",
    protocol="""Figure 3: xi = 128 and 512 at eta = 0.01 (printed 0.02). Figure 4: the bound (9) against nu; T is not
        stated, chosen 64. The least entropy is searched by projected descent from random logits.""",
    full={"trials": 64, "eta": 0.01, "xis": (128.0, 512.0), "T": 64, "nus": (1.0, 2.0, 4.0, 6.0, 8.0), "steps": 2000},
    quick={"trials": 16, "nus": (2.0, 4.0, 8.0), "steps": 500},
    run=run,
    draw=draw,
)
