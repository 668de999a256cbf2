"""Figures 1, 2, 9, 10 and 15: the two time scales of specialization, and trials that other figures share.

1, 9 and 10: SGD in dimension D against the flow of its order parameters, and specialization time against D. 2 and 15:
heads first move along the constant spike, then split along the flipping one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, subplots

if TYPE_CHECKING:
    import torch

    from attsvm.dynamics.specialization import Prior

ACTIVATIONS = ("softmax", "softmax1", "bayes")

NAMES = {"softmax": "softmax", "softmax1": "softmax-1", "bayes": "Bayes-softmax"}


def make_prior(kind: str, F: int, nu1: float, nu2: float | None = None) -> Prior:
    """A law of theta by its name: ``flip`` (F = 2), ``one-hot`` or ``gaussian``.

    Examples
    --------
    >>> make_prior("gaussian", 3, 9.0).features
    3
    """
    from attsvm.dynamics.specialization import flipping_spike, gaussian_spikes, one_hot_spikes

    if kind == "flip":
        return flipping_spike(nu1, nu1 if nu2 is None else nu2)
    if kind == "one-hot":
        return one_hot_spikes(F, nu1)
    if kind == "gaussian":
        return gaussian_spikes(F, nu1, nu2)
    raise ValueError(f"kind must be 'flip', 'one-hot' or 'gaussian', got {kind!r}")


def _generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed % 2**63)


def sgd_beside_flow(
    trials: int,
    seed: int,
    *,
    prior: Sequence[Any],
    activation: str,
    L: int,
    H: int,
    D: int,
    times: Sequence[float],
    lr: float,
    samples: int,
    start_seed: int,
) -> dict[str, Any]:
    """SGD with batches of D, and the flow of its order parameters, from one common start.

    The trials of a cell share the start; SGD draws its own data, the flow its own samples. The flow runs with the
    overlaps of the actual spikes and the kick of the finite learning rate; both losses are those of tokens of norm 1.

    Examples
    --------
    >>> found = sgd_beside_flow(1, 0, prior=("flip", 2, 2.0, 2.0), activation="softmax", L=3, H=2, D=30,
    ...                         times=(0.0, 1.0), lr=0.1, samples=600, start_seed=0)
    >>> len(found["sgd_m"][0]), len(found["flow_loss"][0])
    (2, 2)
    """
    import attsvm.dynamics.specialization as sp

    law = make_prior(*prior)
    start = sp.random_overlaps(H, law.features, D, generator=_generator(start_seed))
    seen = sp.transformed(law, start.whitened()[1].numpy())
    steps = [round(t / lr) for t in times]

    def row(trial: int) -> dict[str, Any]:
        generator = _generator(seed + 7919 * trial)
        path = sp.projected_sgd(
            start, law, activation, L=L, D=D, steps=steps[-1], lr=lr, batch=D, generator=generator, snapshots=steps,
            reduced=True,
        )  # fmt: skip
        drawn = sp.draw_samples(seen, L, H, samples, generator=generator)
        flow = sp.gradient_flow(sp.order_parameters(start), drawn, activation, times, step=0.5, noise=lr)
        runs = {"sgd": path, "flow": flow}
        return {f"{who}_{what}": getattr(run, what) for who, run in runs.items() for what in ("m", "G", "loss")}

    return columns_of(map(row, range(trials)))


def flow_paths(
    trials: int,
    seed: int,
    *,
    prior: Sequence[Any],
    activation: str,
    L: int,
    H: int,
    times: Sequence[float],
    samples: int,
    step: float,
    D: float = 1e4,
) -> dict[str, Any]:
    """The flow from random starts of heads in dimension D; the trials of a chunk share their samples.

    Examples
    --------
    >>> found = flow_paths(2, 0, prior=("flip", 2, 2.0), activation="softmax", L=3, H=2, times=(0.0, 1.0), samples=600, step=0.5)
    >>> len(found["m"]), len(found["m"][0])
    (2, 2)
    """  # noqa: E501
    import attsvm.dynamics.specialization as sp

    law, generator = make_prior(*prior), _generator(seed)
    start = sp.initial_order_parameters(H, law.features, noise=D**-0.5, runs=trials, generator=generator)
    drawn = sp.draw_samples(law, L, H, samples, generator=generator)
    path = sp.gradient_flow(start, drawn, activation, times, step=step)
    size = np.trace(path.G.numpy(), axis1=-2, axis2=-1)
    return {
        "m": [path.m[:, k].tolist() for k in range(trials)],
        "loss": [path.loss[:, k].tolist() for k in range(trials)],
        "orthogonal": [size[:, k].tolist() for k in range(trials)],
    }


def flow_cell(prior: Sequence[Any], L: int, H: int, settings: Mapping[str, Any], step: float, **others: Any) -> Any:
    """A cell of `flow_paths` with the times and samples of a figure's settings; softmax unless told otherwise.

    Examples
    --------
    >>> flow_cell(("flip", 2, 2.0), 3, 2, {"times": (0.0, 1.0), "samples": 9}, 0.5)["activation"]
    'softmax'
    """
    chosen = {"times": settings["times"], "samples": settings["samples"], "activation": "softmax"}
    return {"prior": prior, "L": L, "H": H, **chosen, "step": step, **others}


def _train(trials: int, seed: int, *, prior: Sequence[Any], activation: str, **options: Any) -> Any:
    import attsvm.dynamics.specialization as sp

    return sp.train_heads(make_prior(*prior), activation, runs=trials, generator=_generator(seed), **options)


def trained_heads(trials: int, seed: int, **training: Any) -> dict[str, Any]:
    """Heads at the end of training, and their loss on fresh samples.

    Examples
    --------
    >>> found = trained_heads(1, 0, prior=("one-hot", 2, 9.0), activation="bayes", L=3, H=2, samples=900, steps=80, test_samples=900)
    >>> found["loss"][0] < 0.4
    True
    """  # noqa: E501
    heads = _train(trials, seed, **training)
    return {
        "loss": [loss.value for loss in heads.losses],
        "error": [loss.error for loss in heads.losses],
        "m": heads.point.m.tolist(),
        "b": heads.point.b.tolist(),
        "v": heads.point.v.tolist(),
    }


def pruned_heads(
    trials: int, seed: int, *, prior: Sequence[Any], activation: str, L: int, samples: int, test_samples: int,
    **training: Any,
) -> dict[str, Any]:  # fmt: skip
    """Trained heads, then removed greedily: the loss with 0, ..., H - 1 of them gone.

    ``rescaled`` has the amplitude of softmax-1 fitted again after each removal.

    Examples
    --------
    >>> found = pruned_heads(1, 0, prior=("one-hot", 2, 9.0), activation="bayes", L=3, H=3, samples=900, steps=80, test_samples=900)
    >>> len(found["losses"][0])
    3
    """  # noqa: E501
    import attsvm.dynamics.specialization as sp

    sizes = {"L": L, "samples": samples, "test_samples": 300}
    heads = _train(trials, seed, prior=prior, activation=activation, **sizes, **training)
    law, generator = make_prior(*prior), _generator(seed + 1)
    choose = sp.draw_samples(law, L, 0, samples, generator=generator)
    test = sp.draw_samples(law, L, 0, test_samples, generator=generator)

    def row(trial: int) -> dict[str, Any]:
        point = heads.point[trial]
        path = sp.greedy_pruning(point, choose, activation, test=test)
        again = path
        if activation == "softmax1":
            again = sp.greedy_pruning(point, choose, activation, test=test, rescale="mass")
        return {"losses": list(path.losses), "rescaled": list(again.losses), "removed": list(path.removed)}

    return columns_of(map(row, range(trials)))


# (figure, prior, activation, L, H)
_PROTOCOLS = (
    ("1", ("flip", 2, 2.0, 2.0), "softmax", 10, 2),
    *(("9", ("flip", 2, 2.0, 2.0), activation, 5, 2) for activation in NAMES),
    *(("10", ("gaussian", 2, 8.0, 2.0), activation, 5, 4) for activation in NAMES),
)

_COLUMNS = ("largest |dm|", "rms dm", "its error", "ratio", "largest |dloss|", "rms dloss", "its error", "ratio")

_LEVEL = 0.5  # of |m_12 - m_22| at which heads count as specialized


def run_figure_1(context: Context) -> Outcome:
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


def draw_figure_1(outcome: Outcome) -> Picture:
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


FIGURE_1 = Figure(
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
    run=run_figure_1,
    draw=draw_figure_1,
)  # fmt: skip


def run_figure_2(context: Context) -> Outcome:
    """The flow for several numbers of heads, one start each per trial."""
    from attsvm.dynamics.specialization import crossing_time

    s = context.settings
    cells = [flow_cell(("flip", 2, 2.0, 2.0), 4, H, s, 2.0) for H in s["heads"]]
    found = context.sweep(flow_paths, cells, chunk=s["trials"])
    rows, paths = [], {}
    for H, columns in zip(s["heads"], found.columns, strict=True):
        m = columns["m"]  # (trials, times, H, 2)
        paths[str(H)] = m[0]
        for trial, one in enumerate(m):
            end = one[-1]
            first = crossing_time(s["times"], one[:, :, 0].mean(axis=1), 0.5 * float(end[:, 0].mean()))
            split = one[:, :, 1].max(axis=1) - one[:, :, 1].min(axis=1)
            rows.append((
                H, trial, first, crossing_time(s["times"], split, 0.5 * float(split[-1])),
                int((end[:, 1] > 0.1).sum()), int((end[:, 1] < -0.1).sum()), float(np.abs(end[:, 1]).max()),
                float(columns["loss"][trial][-1]),
            ))  # fmt: skip
    table = Table(
        f"Softmax, flipping spike nu = 2, L = 4, at tau = {s['times'][-1]:g}",
        ("H", "run", "half of m_1 at tau", "half of the split at tau", "heads with m_2 > 0.1", "with m_2 < -0.1",
         "largest |m_2|", "loss"),
        rows,
    )  # fmt: skip
    split_runs = [row for row in rows if row[4] and row[5]]  # heads on both sides of the flipping direction
    later = sum(row[3] > 2 * row[2] for row in split_runs)
    grows = [max(row[6] for row in rows if row[0] == H) for H in s["heads"]]
    notes = [
        f"Heads stand on both sides of the flipping direction in {len(split_runs)} of {len(rows)} runs by tau = "
        f"{s['times'][-1]:g}; in {later} of these they had reached half of the constant direction in less than "
        "half of the time "
        "of the split.",
        "Largest deviation from the average direction by H: "
        + ", ".join(f"H = {H}: {x:.2f}" for H, x in zip(s["heads"], grows, strict=True))
        + " (the paper: some heads deviate more when H grows).",
    ]
    return Outcome([table], {"paths": paths, "times": s["times"]}, notes)


def draw_figure_2(outcome: Outcome) -> Picture:
    """The plane of the two spikes, one panel per number of heads."""
    paths: dict[str, Any] = dict(outcome.curves["paths"])
    picture, axes = subplots(1, len(paths), (3.6 * len(paths), 3.8), squeeze=False)
    for axis, (H, m) in zip(axes[0], paths.items(), strict=True):
        m = np.asarray(m)
        for h in range(m.shape[1]):
            axis.plot(m[:, h, 0], m[:, h, 1], lw=1, color=f"C{h}")
            axis.plot(*m[-1, h], "o", ms=6, color=f"C{h}")
        for sign in (1, -1):
            axis.plot(2**0.5, sign * 2**0.5, "k*", ms=10)
        axis.set(
            title=f"$H = {H}$",
            xlabel="$m$, constant direction",
            aspect="equal",
            xlim=(-0.3, 2.7),
            ylim=(-2.4, 2.4),
        )
    axes[0, 0].set_ylabel("$m$, flipping direction")
    return picture


FIGURE_2 = Figure(
    paper="specialization",
    name="fig2",
    aliases=("fig15",),
    title="Heads follow the mean first and then split along the flipping direction",
    protocol="""Flipping spike nu = 2, F = 2, L = 4, H in {2, 4, 5, 8}, softmax, eta = 1, starts of size D^-1/2 with D =
        10^4; Runge-Kutta steps of 2 on 8,000 mirrored samples (the paper: Euler steps of 0.02 on 1e5).""",
    full={"trials": 2, "heads": (2, 4, 5, 8), "times": tuple(12.0 * t for t in range(76)), "samples": 8000},
    quick={"trials": 1, "heads": (2, 4), "times": tuple(12.0 * t for t in range(21)), "samples": 800},
    run=run_figure_2,
    draw=draw_figure_2,
)
