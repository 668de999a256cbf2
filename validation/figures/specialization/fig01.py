"""Figures 1, 9 and 10: SGD in dimension D against the flow of its order parameters; specialization time against D."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, mean_of, subplots
from attsvm.validation.figures.specialization.runs import NAMES, flow_cell, flow_paths, make_prior, sgd_beside_flow

__all__ = ["FIGURE", "draw", "run"]

# (figure, prior, activation, L, H)
_PROTOCOLS = (
    ("1", ("flip", 2, 2.0, 2.0), "softmax", 10, 2),
    *(("9", ("flip", 2, 2.0, 2.0), activation, 5, 2) for activation in NAMES),
    *(("10", ("gaussian", 2, 8.0, 2.0), activation, 5, 4) for activation in NAMES),
)
_COLUMNS = ("largest |dm|", "rms dm", "its error", "ratio", "largest |dloss|", "rms dloss", "its error", "ratio")
_LEVEL = 0.5  # of |m_12 - m_22| at which heads count as specialized


def run(context: Context) -> Outcome:
    """Every protocol from one start; the long run of Figure 1; crossing times of the flow for many D."""
    s = context.settings
    shared = {name: s[name] for name in ("times", "D", "lr", "samples")} | {"start_seed": context.seed}
    cells = [{"prior": prior, "activation": a, "L": L, "H": H, **shared} for _, prior, a, L, H in _PROTOCOLS]
    short = context.sweep(sgd_beside_flow, cells, chunk=1, name="sgd and flow")
    long_cell = {**cells[0], "times": s["long_times"], "lr": s["long_lr"]}
    long = context.sweep(sgd_beside_flow, [long_cell], s["long_trials"], chunk=1, name="long")
    tried, grid = s["growth_trials"], {"times": s["growth_times"], "samples": s["growth_samples"]}
    starts = [flow_cell(("flip", 2, 2.0, 2.0), 5, 2, grid, 1.0, D=D) for D in s["dimensions"]]
    growth = context.sweep(flow_paths, starts, tried, chunk=tried, name="specialization time")
    rows, curves = [], []
    for (figure, prior, activation, L, H), columns in zip(_PROTOCOLS, short.columns, strict=True):
        found = _compare(columns)
        rows.append((figure, prior[0], NAMES[activation], L, H, *found["row"]))
        curves.append({"figure": figure, "activation": activation, **found["curves"]})
    times, fit, table = _times_against_D(s, growth.columns)
    found = _compare(long.columns[0])
    tables = [
        Table(
            f"SGD at D = {s['D']} against the flow, tau <= {s['times'][-1]:g}, {s['trials']} runs of each",
            ("figure", "theta", "activation", "L", "H", *_COLUMNS),
            rows,
        ),
        Table(
            f"Figure 1 through specialization, tau <= {s['long_times'][-1]:g}, {s['long_trials']} runs of each",
            _COLUMNS,
            (tuple(found["row"]),),
        ),
        table,
    ]
    notes = [
        "Differences of the means over runs, over all recorded times, and the standard error expected of them from the "
        "spread over runs (independent data for SGD, independent samples for the flow): a ratio near 1 is agreement "
        "within Monte-Carlo error. After the escape from the saddle the error is that of the escape time. Both losses "
        "take tokens of norm 1; the loss that SGD descends adds terms of the order |spike|^2 / D.",
        f"Specialization time = {fit.intercept:.1f} + {fit.slope:.2f} log D (error of the slope {fit.error:.2f}); "
        f"predicted slope 1/(2 rate) = {_predicted(s):.2f} with the rate measured at r = 0 where the heads wait.",
        f"Figure 1's phases: m_11 is {_at(found, s, 1.0):.2f} at the first time from tau = 1 on, and half of the final "
        f"split is reached at tau = {_half_split(found, s):.0f}: the paper's 'tau_u about 1' and 'tau_s about 10' are "
        "onsets.",
    ]
    return Outcome(
        tables,
        {
            "protocols": curves,
            "long": {"times": s["long_times"], **found["curves"]},
            "times": s["times"],
            "growth": times,
            "fit": (fit.slope, fit.intercept),
        },
        notes,
    )


def _compare(columns: Any) -> dict[str, Any]:
    """Differences of means over runs, their standard errors, and the mean curves."""
    numbers: list[float] = []
    curves: dict[str, Any] = {}
    for what in ("m", "loss"):
        sgd, flow = columns[f"sgd_{what}"], columns[f"flow_{what}"]
        gap = np.abs(sgd.mean(0) - flow.mean(0))
        error = np.full_like(gap, np.nan)
        if len(sgd) > 1:
            error = np.sqrt((sgd.var(0, ddof=1) + flow.var(0, ddof=1)) / len(sgd))
        rms, expected = (float(np.sqrt(np.mean(x[1:] ** 2))) for x in (gap, error))  # all runs share the start
        numbers += [float(gap.max()), rms, expected, rms / expected]
        curves |= {f"sgd_{what}": sgd.mean(0), f"flow_{what}": flow.mean(0)}
    return {"row": numbers, "curves": curves}


def _at(found: dict[str, Any], s: Any, time: float) -> float:
    return float(found["curves"]["flow_m"][int(np.searchsorted(s["long_times"], time)), 0, 0])


def _half_split(found: dict[str, Any], s: Any) -> float:
    from attsvm.dynamics.specialization import crossing_time

    m = found["curves"]["flow_m"]
    split = np.abs(m[:, 0, 1] - m[:, 1, 1])
    return crossing_time(s["long_times"], split, 0.5 * split[-1])


def _times_against_D(s: Any, columns: Any) -> tuple[Any, Any, Table]:
    from attsvm.dynamics.specialization import LogFit, crossing_time, log_fit

    rows, all_D, all_times, onset = [], [], [], []
    for D, found in zip(s["dimensions"], columns, strict=True):
        m = found["m"]  # (trials, times, H, F)
        split = np.abs(m[:, :, 0, 1] - m[:, :, 1, 1])
        times = [crossing_time(s["growth_times"], one, _LEVEL) for one in split]
        onset = [crossing_time(s["growth_times"], one, _LEVEL) for one in m[:, :, 0, 0]]
        rows.append((f"{D:.0e}", mean_of(onset).value, mean_of(times).value, _spread(times)))
        all_D += [D] * len(times)
        all_times += times
    crossed = {D for D, time in zip(all_D, all_times, strict=True) if np.isfinite(time)}
    fit = log_fit(all_D, all_times) if len(crossed) > 1 else LogFit(float("nan"), float("nan"), float("nan"))
    table = Table(
        "Flow, flipping spike nu = 2, L = 5, H = 2, softmax: times of the two phases",
        ("D", "m_11 > 0.5", "|m_12 - m_22| > 0.5", "its spread over starts"),
        rows,
    )
    return {"D": all_D, "times": all_times}, fit, table


def _spread(times: Any) -> float:
    finite = np.array([t for t in times if np.isfinite(t)])
    return float(finite.std()) if len(finite) else float("nan")


def _predicted(s: Any) -> float:
    import torch

    import attsvm.dynamics.specialization as sp

    prior = make_prior("flip", 2, 2.0, 2.0)
    samples = sp.draw_samples(prior, 5, 0, s["growth_samples"], generator=torch.Generator().manual_seed(0))
    point = sp.unspecialized_point(prior, samples, "softmax", 2)
    return 1.0 / (2.0 * sp.measured_escape(point, samples, "softmax"))


def draw(outcome: Outcome) -> Picture:
    """Figure 1's three panels, Figures 9 and 10 by activation, and the specialization time."""
    curves = outcome.curves
    picture, axes = subplots(3, 3, (13, 10.5))
    long = curves["long"]
    axes[0, 0].plot(long["times"], long["flow_loss"], color="k", label="flow")
    axes[0, 0].plot(long["times"], long["sgd_loss"], ".", color="tab:red", label="SGD")
    axes[0, 0].set(xlabel=r"$\tau$", ylabel="loss", title="Figure 1: loss")
    axes[0, 0].legend()
    for h in range(2):
        for f, style in ((0, "-"), (1, "--")):
            label = f"head {h + 1}, " + ("constant" if f == 0 else "flipping")
            axes[0, 1].plot(long["times"], np.asarray(long["flow_m"])[:, h, f], style, color=f"C{h}", label=label)
            axes[0, 1].plot(long["times"], np.asarray(long["sgd_m"])[:, h, f], ".", color=f"C{h}", ms=4)
    axes[0, 1].set(xlabel=r"$\tau$", ylabel="m", title="Figure 1: alignments (dots: SGD)")
    axes[0, 1].legend(fontsize=8)
    growth = curves["growth"]
    slope, intercept = curves["fit"]
    D = np.array(growth["D"], dtype=float)
    axes[0, 2].semilogx(D, growth["times"], "o", ms=4, alpha=0.6)
    axes[0, 2].semilogx(D, intercept + slope * np.log(D), "k-", label=f"{intercept:.1f} + {slope:.1f} log D")
    axes[0, 2].set(xlabel="D", ylabel=r"$\tau$ at which $|m_{12} - m_{22}| > 0.5$", title="specialization time")
    axes[0, 2].legend()
    for row, figure in ((1, "9"), (2, "10")):
        chosen = [c for c in curves["protocols"] if c["figure"] == figure]
        for axis, c in zip(axes[row], chosen, strict=True):
            flow, sgd = np.asarray(c["flow_m"]), np.asarray(c["sgd_m"])
            for h in range(flow.shape[1]):
                for f, style in ((0, "-"), (1, "--")):
                    axis.plot(curves["times"], flow[:, h, f], style, color=f"C{h}", lw=1)
                    axis.plot(curves["times"], sgd[:, h, f], ".", color=f"C{h}", ms=4)
            axis.set(xlabel=r"$\tau$", ylabel="m", title=f"Figure {figure}: {NAMES[c['activation']]}")
    return picture


FIGURE = Figure(
    paper="specialization",
    name="fig1",
    aliases=("fig9", "fig10"),
    title="SGD follows the flow of its order parameters, and heads specialize after a time of order log D",
    protocol="""Figure 1: flipping spike nu = 2, L = 10, H = F = 2, softmax. Figure 9: the same with L = 5, three
        activations. Figure 10: Gaussian with variances 8 and 2, L = 5, H = 4. SGD with batches of D,
        initial size eta = 1, D = 2,000 instead of 10,000, simulated on its overlaps (exact in law up to the
        normality of sums over a batch). The flow starts from the overlaps of SGD, with the actual overlaps
        of the spikes and the kick of the learning rate. Learning rate 0.02 up to tau = 10; 0.1 for the long
        run of Figure 1 (the paper: 0.02). Runge-Kutta steps of 0.5 on 1e5 samples (the paper: Euler steps
        of 0.02). Specialization time: flow from starts of size D^-1/2, several starts per D.""",
    full={"trials": 3, "D": 2000, "times": tuple(float(t) for t in range(11)), "lr": 0.02, "samples": 100_000,
          "long_times": (0.0, 1.0, *(4.0 * t for t in range(1, 31))), "long_lr": 0.1, "long_trials": 3,
          "dimensions": (1e2, 1e3, 1e4, 1e6, 1e8), "growth_times": tuple(2.0 * t for t in range(121)),
          "growth_samples": 20_000, "growth_trials": 4},
    quick={"trials": 2, "D": 200, "times": (0.0, 1.0, 2.0), "lr": 0.2, "samples": 2000,
           "long_times": (0.0, 2.0, *(10.0 * t for t in range(1, 7))), "long_lr": 0.5, "long_trials": 2,
           "dimensions": (1e2, 1e4), "growth_times": tuple(10.0 * t for t in range(27)), "growth_samples": 1000,
           "growth_trials": 2},
    run=run,
    draw=draw,
)  # fmt: skip
