"""Trials shared by the figures that classify where gradient descent ends: Global, Local or Not local.

Descent runs in the span of the queries, with fewer numbers: logits ``x^T W z_i`` and gradients ``X_i^T g z_i^T`` (15)
know W only there. With an orthonormal basis B of that span, descent on ``W B`` with queries ``B^T z_i`` takes the
same steps as descent on W and selects the same tokens; off the span W stays as it was at the start. For (K, Q) the
same holds for ``B^T Q`` until the ridge, of the size of the machine epsilon, is felt: it then no longer shrinks the
part of Q that no logit sees. By that time the softmax has saturated to about e^-36 and the tokens are settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.comparison import correlation, misalignment
from attsvm.optimality import convergence_of
from attsvm.solvers.arrays import FloatArray
from attsvm.theory.support_assumptions import check_all_support
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, share_of, subplots

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic
    from attsvm.training.run_result import Run

NORM_OF = {"W": "frobenius", "KQ": "nuclear"}  # the norm whose support decides local optimality

# (K, Q) as published: both factors by their joint gradient, with a ridge of the size of the machine epsilon.
PUBLISHED_KQ: dict[str, Any] = {
    "optimizer": "normalized_gd",
    "normalization": "factor",
    "log_ridge": float(np.log(2.2e-16)),
}


def ends_of_descent(
    trials: int,
    seed: int,
    *,
    n: int,
    T: int,
    d: int,
    parameterization: str,
    steps: int,
    min_score_gap: float | None = 0.1,
    arithmetic: Arithmetic = "log",
    device: str | None = None,
) -> dict[str, Any]:
    """Draw problems, train them, and say of each whether its tokens are globally or locally optimal.

    Local optimality (Definition 2) is judged by the certified solution in the norm of the parameterization.

    Examples
    --------
    >>> ends = ends_of_descent(3, 0, n=2, T=3, d=6, parameterization="W", steps=200)
    >>> len(ends["is_global"]), all(ends["is_local"])
    (3, True)
    """
    rng = np.random.default_rng(seed)
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=rng, min_score_gap=min_score_gap)
    options = PUBLISHED_KQ if parameterization == "KQ" else {}
    run = attsvm.train(
        problems, parameterization, steps=steps, lr=0.1, seed=rng, arithmetic=arithmetic, device=device,
        snapshots=[steps], **options,
    )  # fmt: skip
    solutions = attsvm.att_svm(problems, run.selection, norm=NORM_OF[parameterization])
    kinds = convergence_of(solutions)
    return {
        "is_global": kinds == "Global",
        "is_local": np.array([kind.is_local for kind in kinds]),
        "undecided": kinds == "Undecided",
        "saturated": run.history.log_rest[-1] < np.log(1e-6),
        "margin": solutions.margin,
        "empty_support": (solutions.support.sum(axis=-1) == 0).any(axis=-1),
    }


def support_assumption(trials: int, seed: int, *, n: int, T: int, d: int, min_score_gap: float = 0.1) -> dict[str, Any]:
    """Assumption B.1 for the optimal tokens: exactly, and by the published proxy (average margin below 1.1).

    Examples
    --------
    >>> found = support_assumption(2, 0, n=2, T=3, d=30)
    >>> sorted(found)
    ['exact', 'feasible', 'proxy']
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed, min_score_gap=min_score_gap)
    solutions = attsvm.att_svm(problems)
    checks = [check_all_support(solution) for solution in solutions]
    return {
        "feasible": [status is attsvm.Status.OPTIMAL for status in solutions.status],
        "exact": [exact.verdict == "holds" for exact, _ in checks],
        "proxy": [proxy.verdict == "holds" for _, proxy in checks],
    }


def in_query_span(problems: attsvm.AttentionProblem) -> tuple[attsvm.AttentionProblem, FloatArray]:
    """Problems with queries in coordinates of their span, and the bases, shape (batch, d, min(n, d)).

    Examples
    --------
    >>> reduced, basis = in_query_span(attsvm.random_problem(n=2, T=3, d=7, batch=4))
    >>> reduced.Z.shape, basis.shape
    ((4, 2, 2), (4, 7, 2))
    """
    Z = problems.Z
    if Z.shape[-2] >= Z.shape[-1]:
        return problems, np.broadcast_to(np.eye(Z.shape[-1]), (len(Z), Z.shape[-1], Z.shape[-1]))
    basis = np.linalg.qr(Z.transpose(0, 2, 1)).Q
    return attsvm.AttentionProblem(problems.X, problems.Y, Z @ basis, problems.head), basis


def train_in_span(
    problems: attsvm.AttentionProblem,
    parameterization: str,
    *,
    steps: int,
    seed: int | np.random.Generator,
    lr: float = 0.1,
    device: str | None = None,
) -> attsvm.Run:
    """Normalized gradient descent from uniform(+-1/sqrt(d)) weights, with m = d and the published ridge for (K, Q).

    Returns
    -------
    Run
        Its ``selection`` is that of the full descent; its W has min(n, d) columns.

    Examples
    --------
    >>> run = train_in_span(attsvm.random_problem(n=2, T=3, d=7, batch=4), "W", steps=50, seed=0)
    >>> run.W.shape, run.selection.indices.shape
    ((4, 7, 2), (4, 2))
    """
    if parameterization not in ("W", "KQ"):
        raise ValueError(f"parameterization must be 'W' or 'KQ', got {parameterization!r}")
    reduced, basis = in_query_span(problems)
    rng = np.random.default_rng(seed)
    d = problems.dx

    def uniform() -> FloatArray:
        return np.asarray(rng.uniform(-1.0, 1.0, size=(len(problems.X), d, d)) * d**-0.5)

    options: dict[str, Any] = {}
    if parameterization == "W":
        start: Any = uniform() @ basis
    else:
        start, options = (uniform(), basis.transpose(0, 2, 1) @ uniform()), {**PUBLISHED_KQ, "m": d}
    return attsvm.train(
        reduced, parameterization, steps=steps, lr=lr, init=start, device=device, snapshots=[steps], **options
    )


_LABELS_FIGURE_5 = {"W": "(a) W", "KQ": "(b) (K, Q)"}


def run_figure_5(context: Context) -> Outcome:
    """Train every problem, classify its end, and test Assumption B.1 exactly and by the published proxy."""
    s = context.settings
    size = {"n": s["n"], "T": s["T"]}
    cells = [
        {**size, "d": d, "parameterization": p, "steps": s["steps"], "device": context.device}
        for p in _LABELS_FIGURE_5
        for d in s["dimensions"]
    ]
    ends = context.sweep(ends_of_descent, cells, chunk=s["chunk"], name="ends")
    support = context.sweep(
        support_assumption, [{**size, "d": d} for d in s["dimensions"]], chunk=s["chunk"], name="support"
    )
    rows: list[tuple[Any, ...]] = []
    curves: dict[str, Any] = {"d": list(s["dimensions"])}
    for p, label in _LABELS_FIGURE_5.items():
        shares: dict[str, list[float]] = {"global": [], "local": [], "not_local": []}
        for d in s["dimensions"]:
            found = ends.where(d=d, parameterization=p)
            local, undecided = found["is_local"], found["undecided"]
            rows.append((
                label, d, share_of(found["is_global"]), share_of(local), share_of(~local & ~undecided),
                int(undecided.sum()), share_of(found["saturated"]), share_of(found["empty_support"]),
            ))  # fmt: skip
            shares["global"].append(float(found["is_global"].mean()))
            shares["local"].append(float(local.mean()))
            shares["not_local"].append(float((~local & ~undecided).mean()))
        curves[p] = shares
    assumption = []
    for d in s["dimensions"]:
        found = support.where(d=d)
        assumption.append((d, share_of(found["feasible"]), share_of(found["proxy"]), share_of(found["exact"])))
    for name in ("proxy", "exact"):
        curves[name] = [float(support.where(d=d)[name].mean()) for d in s["dimensions"]]
    columns = ("trained", "d", "Global", "Local (with Global)", "Not local", "undecided", "saturated", "some T_i empty")
    return Outcome(
        tables=[
            Table("Where descent ends", columns, rows),
            Table(
                "Assumption B.1 (all tokens support)",
                ("d", "feasible", "proxy: average margin < 1.1", "exact"),
                assumption,
            ),
        ],
        curves=curves,
        notes=[
            "The paper tests B.1 by an average margin below 1.1; the exact test (G^-1 1 >= 0) holds far less often.",
            "Gradients are exact (log domain). W, (K, Q) and the test of B.1 use different draws.",
        ],
    )


def draw_figure_5(outcome: Outcome) -> Picture:
    """Stacked bars as in the paper, with the two tests of B.1 over them."""
    picture, axes = subplots(1, 2, (10, 3.9), sharey=True)
    curves = outcome.curves
    places = np.arange(len(curves["d"]))
    for axis, (p, label) in zip(axes, _LABELS_FIGURE_5.items(), strict=True):
        share = {k: 100 * np.asarray(v) for k, v in curves[p].items()}
        axis.bar(places, share["global"], color="tab:red", label="Global")
        axis.bar(places, share["local"] - share["global"], bottom=share["global"], color="tab:blue", label="Local")
        axis.bar(places, share["not_local"], bottom=share["local"], color="0.7", label="Not local")
        axis.plot(
            places, 100 * np.asarray(curves["proxy"]), "o--", color="tab:green", label="B.1 by the published proxy"
        )
        axis.plot(places, 100 * np.asarray(curves["exact"]), "s-", color="black", label="B.1 exactly")
        axis.set(title=label, xlabel="d", xticks=places, xticklabels=curves["d"])
    axes[0].set_ylabel("% of problems")
    picture.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=8)
    return picture


FIGURE_5 = Figure(
    paper="svm",
    name="fig5",
    aliases=("fig2",),
    title="Global and local convergence of gradient descent on W and (K, Q) against d",
    protocol="""n = T = 5, tokens, queries and v uniform on the sphere, labels +-1 fair, each sequence redrawn until
        the score gap is at least 0.1, 500 instances per d, normalized gradient descent, lr 0.1, logistic loss (as
        published). The paper does not state d, steps, initial weights and tolerance; chosen: d = 2..30, 2,000 steps,
        uniform(+-1/sqrt(d)), support tolerance of the certified solution; (K, Q) with m = d, a ridge of 2.2e-16, each
        factor normalized, and the support of the nuclear-norm solution. Figure 2 is panel (a) without B.1.""",
    full={"trials": 500, "n": 5, "T": 5, "dimensions": (2, 3, 4, 5, 6, 8, 10, 15, 20, 30), "steps": 2000, "chunk": 125},
    quick={"trials": 40, "dimensions": (2, 5, 10, 20), "steps": 1000, "chunk": 40},
    run=run_figure_5,
    draw=draw_figure_5,
)

_COLOURS = ("tab:blue", "tab:green", "tab:red")

_STYLES = {"W": "-", "KQ": "--"}

_NAMES = {"W": "W", "KQ": "(K, Q)"}


def global_trials(
    trials: int, seed: int, *, n: int, T: int, d: int, parameterization: str, steps: int, device: str | None = None
) -> dict[str, Any]:
    """Draw problems with a score gap of 0.1, train them, and say which end at the optimal tokens.

    No margin problem needs to be solved: weights whose largest logits are those of the optimal tokens separate them, so
    Att-SVM is feasible there in every norm, and with a positive gap no other token scores as much, so that the optimal
    tokens are locally optimal by Definition 2 whatever their support.

    Examples
    --------
    >>> found = global_trials(3, 0, n=2, T=3, d=8, parameterization="KQ", steps=200)
    >>> sorted(found), len(found["is_global"])
    (['is_global', 'saturated'], 3)
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed, min_score_gap=0.1)
    start = np.random.default_rng((seed, 1))  # a stream of its own: the start must not share draws with the data
    ended = train_in_span(problems, parameterization, steps=steps, seed=start, device=device)
    reached = (ended.selection.indices == problems.optimal_tokens().indices).all(axis=-1)
    return {"is_global": reached, "saturated": ended.history.log_rest[-1] < np.log(1e-6)}


def run_figure_6(context: Context) -> Outcome:
    """Percentages of global convergence for both panels."""
    s = context.settings
    curves_of = {"a": [(n, s["T"]) for n in s["many_n"]], "b": [(s["n"], T) for T in s["many_T"]]}
    sizes = list(dict.fromkeys(size for curves in curves_of.values() for size in curves))
    cells = [
        {"n": n, "T": T, "d": d, "parameterization": p, "steps": s["steps"], "device": context.device}
        for n, T in sizes
        for d in s["dimensions"]
        for p in _STYLES
    ]
    found = context.sweep(global_trials, cells, chunk=s["chunk"], name="global")
    rows = []
    shares: dict[str, Any] = {}
    for n, T in sizes:
        for p in _STYLES:
            shares[f"{n},{T},{p}"] = {
                name: [getattr(share_of(found.where(n=n, T=T, d=d, parameterization=p)["is_global"]), name)
                       for d in s["dimensions"]]
                for name in ("value", "low", "high")
            }  # fmt: skip
        for d in s["dimensions"]:
            ends = {p: found.where(n=n, T=T, d=d, parameterization=p) for p in _STYLES}
            rows.append((
                f"n={n}, T={T}", d, *(share_of(ends[p]["is_global"]) for p in _STYLES),
                *(share_of(ends[p]["saturated"]) for p in _STYLES),
            ))  # fmt: skip
    columns = ("size", "d", "Global, W", "Global, (K, Q)", "saturated, W", "saturated, (K, Q)")
    return Outcome(
        tables=[Table("Runs that end at the optimal tokens", columns, rows)],
        curves={"d": list(s["dimensions"]), "panels": curves_of, "shares": shares},
        notes=[
            "Saturated: every query has probability above 1 - 1e-6 on one token. Other runs may still change tokens.",
            "Training works in the span of the queries, which takes the same steps; Global needs no margin problem, as "
            "weights that select the optimal tokens separate them.",
        ],
    )


def draw_figure_6(outcome: Outcome) -> Picture:
    """Percentages against d: W solid, (K, Q) dashed, 95 % intervals shaded."""
    picture, axes = subplots(1, 2, (10, 3.8), sharey=True)
    curves = outcome.curves
    for axis, (panel, sizes) in zip(axes, curves["panels"].items(), strict=True):
        for (n, T), colour in zip(sizes, _COLOURS, strict=False):
            for p, style in _STYLES.items():
                share = {name: 100 * np.asarray(v) for name, v in curves["shares"][f"{n},{T},{p}"].items()}
                varied = f"n = {n}" if panel == "a" else f"T = {T}"
                axis.plot(curves["d"], share["value"], style, color=colour, marker="o", markersize=4,
                          label=f"{varied}, {_NAMES[p]}")  # fmt: skip
                axis.fill_between(curves["d"], share["low"], share["high"], color=colour, alpha=0.12, linewidth=0)
        fixed = f"T = {sizes[0][1]}" if panel == "a" else f"n = {sizes[0][0]}"
        axis.set(title=f"({panel}) {fixed}", xlabel="d", ylim=(-3, 103))
        axis.grid(alpha=0.4)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("global convergence, %")
    return picture


FIGURE_6 = Figure(
    paper="svm",
    name="fig6",
    title="Global convergence of gradient descent on W and (K, Q) against d, n and T",
    protocol="""(a) T = 5, n = 5, 10, 20; (b) n = 5, T = 5, 10, 20; tokens, queries and v uniform on the sphere, labels
        +-1 fair, each sequence redrawn until the score gap is at least 0.1, normalized gradient descent, lr
        0.1, logistic loss (as published). The paper does not state d, trials, steps and initial weights;
        chosen: d = 5, 10, 15, 20, 500 trials (as in Figure 5), 2,000 steps, uniform(+-1/sqrt(d)); (K, Q)
        with m = d, a ridge of 2.2e-16 and each factor normalized. Gradients are exact (log domain). Global:
        every selected token is the optimal one.""",
    full={"trials": 500, "n": 5, "T": 5, "many_n": (5, 10, 20), "many_T": (5, 10, 20), "dimensions": (5, 10, 15, 20),
          "steps": 2000, "chunk": 250},
    quick={"trials": 40, "many_n": (5, 10), "many_T": (5, 10), "dimensions": (5, 20), "steps": 500, "chunk": 40},
    run=run_figure_6,
    draw=draw_figure_6,
)  # fmt: skip

_LABELS_FIGURE_7 = {"W": "W", "KQ": "(K, Q)"}

_ARITHMETIC: dict[Arithmetic, str] = {"naive": "published", "log": "exact"}


def alignment(
    trials: int, seed: int, *, n: int, T: int, d: int, steps: int, every: int, device: str | None = None
) -> dict[str, Any]:
    """Train W and (K, Q) in both kinds of arithmetic on the same problems from the same start.

    Columns are named ``"<parameterization> <arithmetic> <what>"``: the mean largest probability and the correlations
    with both solutions along training, and 1 - corr and optimality at the end, all for the tokens that the run ends at.

    Examples
    --------
    >>> found = alignment(2, 0, n=2, T=3, d=4, steps=100, every=50)
    >>> found["W log frobenius"].shape, found["KQ naive max_probability"].shape
    ((2, 3), (2, 3))
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed)
    columns: dict[str, Any] = {}
    for p in _LABELS_FIGURE_7:
        for a in _ARITHMETIC:
            run = attsvm.train(
                problems, p, steps=steps, lr=0.1, seed=seed + 1, arithmetic=a, device=device,
                snapshots=list(range(0, steps + 1, every)), **(PUBLISHED_KQ if p == "KQ" else {}),
            )  # fmt: skip
            columns |= {f"{p} {a} {name}": values for name, values in _followed(problems, run).items()}
    return columns


def _followed(problems: attsvm.ProblemBatch, run: Run) -> dict[str, Any]:
    """Columns of one batched run."""
    columns: dict[str, Any] = {"max_probability": run.history.max_probability.T}
    for norm in ("frobenius", "nuclear"):
        solutions = attsvm.att_svm(problems, run.selection, norm=norm)
        columns[norm] = correlation(run.history.W, solutions.W).T
        columns[f"{norm}_final"] = misalignment(run.W, solutions.W)
        if norm == NORM_OF[run.parameterization]:  # Definition 2 in the norm of the parameterization
            columns["is_local"] = np.array([kind.is_local for kind in convergence_of(solutions)])
    columns["is_global"] = (run.selection.indices == problems.optimal_tokens().indices).all(axis=-1)
    return columns


def run_figure_7(context: Context) -> Outcome:
    """Train W and (K, Q) in both kinds of arithmetic."""
    s = context.settings
    cell = context.cell("n", "T", "d", "steps", "every")
    columns = context.sweep(alignment, [cell], chunk=s["chunk"], name="alignment").columns[0]
    steps = np.arange(0, s["steps"] + 1, s["every"])
    marks = [k for k in s["marks"] if k <= s["steps"]]
    rows, ends = [], []
    curves: dict[str, Any] = {"steps": steps, "shown": s["shown"]}
    for p, label in _LABELS_FIGURE_7.items():
        for a, name in _ARITHMETIC.items():
            largest, fro, nuclear = (
                columns[f"{p} {a} {c}"].astype(float) for c in ("max_probability", "frobenius", "nuclear")
            )
            for k in marks:
                at = int(np.searchsorted(steps, k))
                rows.append((label, name, k, mean_of(1 - largest[:, at]), mean_of(fro[:, at]), mean_of(nuclear[:, at])))
            own = columns[f"{p} {a} {NORM_OF[p]}_final"].astype(float)
            ends.append((
                label, name, NORM_OF[p], mean_of(own), float(np.nanmedian(own)), float(np.nanmax(own)),
                share_of(columns[f"{p} {a} is_global"]), share_of(columns[f"{p} {a} is_local"]),
            ))  # fmt: skip
            curves[f"{p} {a}"] = {
                "max_probability": largest.mean(axis=0),
                "frobenius": np.nanmean(fro, axis=0),
                "nuclear": np.nanmean(nuclear, axis=0),
            }
    return Outcome(
        tables=[
            Table("Means over the trials", ("trained", "arithmetic", "steps", "1 - (a), max softmax",
                  "(b) corr with W_mm,alpha", "(c) corr with W*_mm,alpha"), rows),
            Table(f"1 - corr after {s['steps']} steps with the solution in the own norm, for each run's tokens",
                  ("trained", "arithmetic", "norm", "mean", "median", "max", "optimal tokens", "locally optimal"),
                  ends),
        ],
        curves=curves,
        notes=["alpha are the tokens that the run itself selects at its last step; local optimality is judged by the "
               "support in the own norm.",
               "Exact gradients (log domain) and the published arithmetic part once probabilities round to 1."],
    )  # fmt: skip


def draw_figure_7(outcome: Outcome) -> Picture:
    """The three panels: solid for the published arithmetic, dashed for exact gradients."""
    curves = outcome.curves
    steps = np.asarray(curves["steps"])
    shown = steps <= curves["shown"]
    picture, axes = subplots(1, 3, (13, 3.8))
    panels = {
        "max_probability": "(a) mean largest softmax probability",
        "frobenius": r"(b) corr with $W^{mm}_\alpha$",
        "nuclear": r"(c) corr with $W^{mm}_{\star,\alpha}$",
    }
    for axis, (column, title) in zip(axes, panels.items(), strict=True):
        for p, label in _LABELS_FIGURE_7.items():
            for a, style in zip(_ARITHMETIC, ("-", "--"), strict=True):
                values = np.asarray(curves[f"{p} {a}"][column], dtype=float)[shown]
                colour = "tab:blue" if p == "W" else "tab:red"
                axis.plot(steps[shown], values, style, color=colour, label=f"{label}, {_ARITHMETIC[a]}")
        axis.set(title=title, xlabel="iterations")
        axis.grid(alpha=0.3)
    axes[0].legend(fontsize=8)
    return picture


FIGURE_7 = Figure(
    paper="svm",
    name="fig7",
    title="Bias of W towards the Frobenius-norm and of (K, Q) towards the nuclear-norm solution, along training",
    protocol="""n = 6, T = 8, d = m = 10, tokens, queries and v uniform on the sphere, labels +-1 fair, 100 trials,
        logistic loss, normalized gradient descent, lr 0.1, 2,000 steps of which 1,000 are shown, initial weights
        uniform(+-1/sqrt(d)); (K, Q) with each factor normalized and a ridge of 2.2e-16. Published arithmetic,
        and exact gradients on the same problems from the same start.""",
    full={"trials": 100, "n": 6, "T": 8, "d": 10, "steps": 2000, "shown": 1000, "every": 20,
          "marks": (200, 500, 1000, 2000), "chunk": 25},
    quick={"trials": 20, "steps": 1000, "marks": (200, 500, 1000), "chunk": 20},
    run=run_figure_7,
    draw=draw_figure_7,
)  # fmt: skip


def margin_trials(
    trials: int, seed: int, *, n: int, T: int, d: int, steps: int, device: str | None = None
) -> dict[str, Any]:
    """Train W and compare the margin of the tokens it ends at with the margin of the optimal tokens.

    Margins are ``1 / |W|_F`` of the certified Att-SVM solutions, 0 where infeasible.

    Examples
    --------
    >>> found = margin_trials(3, 0, n=1, T=3, d=5, steps=300)
    >>> len(found["optimal_margin"]), bool((found["optimal_margin"] > 0).all())
    (3, True)
    """
    size: dict[str, Any] = {"n": n, "T": T, "d": d, "min_score_gap": None}
    ends = ends_of_descent(trials, seed, parameterization="W", steps=steps, device=device, **size)
    optimal = attsvm.att_svm(attsvm.random_problem(batch=trials, seed=seed, **size))
    return {
        "is_global": ends["is_global"],
        "is_local": ends["is_local"],
        "undecided": np.asarray(ends["undecided"]) | [not status.is_certified for status in optimal.status],
        "margin": ends["margin"],
        "optimal_margin": optimal.margin,
    }


def run_figure_8(context: Context) -> Outcome:
    """Margins and percentages for both halves of the figure."""
    s = context.settings
    panels = {
        "n": [(n, s["T"], s["d"]) for n in s["many_n"]],
        "d": [(s["n"], s["T"], d) for d in s["many_d"]],
    }
    sizes = list(dict.fromkeys(size for panel in panels.values() for size in panel))
    cells = [{"n": n, "T": T, "d": d, "steps": s["steps"], "device": context.device} for n, T, d in sizes]
    found = context.sweep(margin_trials, cells, chunk=s["chunk"], name="margins")
    ends_rows: list[tuple[Any, ...]] = []
    margin_rows: list[tuple[Any, ...]] = []
    numbers: dict[str, dict[str, float]] = {}
    pairs: list[bool] = []  # over every run that ends locally
    for n, T, d in sizes:
        c = found.where(n=n, T=T, d=d)
        label = f"n={n}, T={T}, d={d}"
        local = c["is_local"] & ~c["is_global"]
        neither = ~c["is_local"] & ~c["undecided"]
        feasible = c["optimal_margin"] > 0
        ends_rows.append((label, share_of(feasible), share_of(c["is_global"]), share_of(local), share_of(neither),
                          int(c["undecided"].sum())))  # fmt: skip
        margins = {
            "optimal, all": mean_of(c["optimal_margin"]),
            "optimal, Global runs": mean_of(c["optimal_margin"][c["is_global"]]),
            "optimal, Local runs": mean_of(c["optimal_margin"][local]),
            "selected, Local runs": mean_of(c["margin"][local]),
            "selected, all": mean_of(c["margin"]),
        }
        larger = (c["margin"] > c["optimal_margin"])[local]
        pairs.extend(larger)
        margin_rows.append((label, *margins.values(), share_of(larger)))
        numbers[f"{n},{T},{d}"] = {
            **{key: value.value for key, value in margins.items()},
            "global": float(c["is_global"].mean()),
            "local": float(local.mean()),
            "neither": float(neither.mean()),
        }
    return Outcome(
        tables=[
            Table("Where descent ends", ("size", "optimal tokens feasible", "Global", "Local (not Global)", "Not local",
                                         "undecided"), ends_rows),
            Table("Margins 1 / |W|_F (0 where infeasible)",
                  ("size", "optimal, all", "optimal, Global runs", "optimal, Local runs", "selected, Local runs",
                   "selected, all", "selected > optimal, Local runs"), margin_rows),
        ],
        curves={"panels": panels, "numbers": numbers},
        notes=[
            f"Of the {len(pairs)} runs that end locally {share_of(pairs)} select tokens of a larger margin than the "
            "optimal ones (compared run by run), which is what the paper concludes from averages.",
            "Not local: the selected tokens are no local optimum of Definition 2, so far or for good; the two bars of "
            "the paper do not show such runs.",
        ],
    )  # fmt: skip


def draw_figure_8(outcome: Outcome) -> Picture:
    """Margins above, percentages below: n varies on the left, d on the right."""
    picture, axes = subplots(2, 2, (10, 6.4), sharex="col", sharey="row")
    lines = (
        ("optimal, all", "-", "tab:red", "optimal tokens, all runs"),
        ("optimal, Local runs", "--", "tab:red", "optimal tokens, runs that end locally"),
        ("selected, Local runs", "-", "tab:blue", "selected tokens, runs that end locally"),
    )
    for column, (varied, sizes) in enumerate(outcome.curves["panels"].items()):
        numbers = [outcome.curves["numbers"][",".join(map(str, size))] for size in sizes]
        values = [size[0] if varied == "n" else size[2] for size in sizes]
        places = np.arange(len(sizes))
        upper, lower = axes[:, column]
        for key, style, colour, label in lines:
            upper.plot(places, [x[key] for x in numbers], style, color=colour, marker="o", label=label)
        fixed = sizes[0][2] if varied == "n" else sizes[0][0]
        upper.set(title=f"T = {'d' if varied == 'n' else 'n'} = {fixed}", ylim=(0, None))
        upper.grid(alpha=0.4)
        for shift, key, colour in ((-0.27, "global", "tab:red"), (0, "local", "tab:blue"), (0.27, "neither", "0.6")):
            label = {"global": "Global", "local": "Local (not Global)", "neither": "Not local"}[key]
            lower.bar(places + shift, [100 * x[key] for x in numbers], 0.25, color=colour, label=label)
        lower.set(xlabel=varied, xticks=places, xticklabels=values)
    axes[0, 0].set_ylabel("SVM margin 1 / |W|")
    axes[1, 0].set_ylabel("% of problems")
    axes[0, 0].legend(fontsize=8)
    axes[1, 1].legend(fontsize=8)
    return picture


FIGURE_8 = Figure(
    paper="svm",
    name="fig8",
    title="Margins of selected and optimal tokens, and where descent on W ends",
    protocol="""Left: T = d = 5, n = 1, 5, 10, 15; right: T = n = 5, d = 2, 5, 10, 15; tokens, queries and v uniform on
        the sphere, labels +-1 fair, no score gap; margins 1/|W|_F of the globally optimal and of the selected
        tokens, 0 when infeasible (as published). The paper does not state trials, steps and initial
        weights; chosen: 500 trials, 4,000 steps of normalized gradient descent on W, lr 0.1, logistic loss,
        exact gradients (log domain), uniform(+-1/sqrt(d)). Nor does it say over which runs the margins are
        averaged; the table has all of them.""",
    full={"trials": 500, "n": 5, "T": 5, "d": 5, "many_n": (1, 5, 10, 15), "many_d": (2, 5, 10, 15), "steps": 4000,
          "chunk": 250},
    quick={"trials": 40, "many_n": (1, 5, 15), "many_d": (2, 5, 15), "steps": 800, "chunk": 40},
    run=run_figure_8,
    draw=draw_figure_8,
)  # fmt: skip
