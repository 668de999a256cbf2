"""Where descent and regularization paths go, and how fast.

How often the assumptions hold and whether descent ends at a listed local optimum; paths against the SVM directions of
Theorems 2 and 7; margins in seven norms that each optimizer reaches; the floor of normalized descent and what removes
it; constant, normalized and Polyak steps.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import attsvm
from attsvm.comparison import fitted_rate, misalignment, reached_margin
from attsvm.enumeration import locally_optimal_selections, solve_every_selection
from attsvm.records import median_of, share, share_of
from attsvm.sweeps import columns_of
from attsvm.theory import attraction
from attsvm.theory.assumptions import check_first_step
from attsvm.theory.support_assumptions import check_all_support, misses_optimal_support
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, subplots

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic


def assumption_flags(trials: int, _: int, *, draw: int, n: int, T: int, d: int) -> dict[str, Any]:
    """Which assumptions hold, with every selection of every problem of ``random_problem(seed=draw)`` solved.

    ``violation``: D holds and the optimal tokens are feasible, but another number of selections than one is locally
    optimal. ``listed``: the optimal tokens are in the list of local optima.

    Examples
    --------
    >>> found = assumption_flags(3, 0, draw=0, n=2, T=3, d=10)
    >>> len(found["D"]), any(found["violation"])
    (3, False)
    """

    def row(problem: attsvm.AttentionProblem) -> dict[str, Any]:
        table = solve_every_selection(problem, limit=T**n)
        optimal = problem.optimal_tokens()
        at = int(np.flatnonzero((table.indices == optimal.indices).all(axis=1))[0])
        holds, local = not misses_optimal_support(table, optimal).any(), int(table.locally_optimal.sum())
        exact, proxy = check_all_support(attsvm.att_svm(problem))
        return {
            "feasible": bool(table.feasible[at]),
            "D": holds,
            "local": local,
            "violation": bool(holds and table.feasible[at] and local != 1),
            "listed": bool(table.locally_optimal[at]),
            "exact": bool(exact),
            "proxy": bool(proxy),
            "C": bool(check_first_step(problem, optimal, attsvm.logistic)),
            "undecided": int((~table.decided).sum()),
        }

    return columns_of(map(row, attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=draw)))


def ends_of_starts(
    trials: int, _: int, *, draw: int, n: int, T: int, d: int, starts: int, steps: int
) -> dict[str, Any]:
    """Where random starts of a problem end, against the list of its local optima; problem seeds from ``draw`` on.

    ``outside`` counts starts that end on no selection of the list, ``unsaturated`` those of them that are not done.

    Examples
    --------
    >>> ends_of_starts(1, 0, draw=0, n=2, T=3, d=6, starts=10, steps=300)["outside"]
    [0]
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        optima = locally_optimal_selections(problem)
        if not optima.complete:
            raise RuntimeError(f"the list of locally optimal selections is incomplete at d={d}, seed={seed}")
        listed = {item.tokens for item in optima}
        found = attraction(problem, starts, steps=steps, seed=seed)
        outside = [end for end in found.rows if tuple(end.selection.indices.tolist()) not in listed]
        return {
            "listed": len(listed),
            "reached": len(found.rows) - len(outside),
            "outside": sum(end.count for end in outside),
            "unsaturated": sum(end.unsaturated for end in outside),
            "counts": {name: int(found.counts.get(name, 0)) for name in ("Global", "Local", "Not local")},
            "examples": [[end.selection.indices.tolist(), list(end.examples)] for end in outside[:3]],
            "spearman": found.spearman,
        }

    return columns_of(row(draw + k) for k in range(trials))


def run_assumptions(context: Context) -> Outcome:
    """Assumptions for every dimension, then the ends of many starts."""
    s = context.settings
    cells = [{"draw": context.seed, "n": 4, "T": 4, "d": d} for d in s["dimensions"]]
    found = context.sweep(assumption_flags, cells, chunk=s["trials"], name="assumptions")
    total = {name: sum(int(c[name].sum()) for c in found.columns) for name in found.columns[0]}
    rows = []
    converse = 0
    for cell, c in found:
        single = c["local"] == 1
        converse += int((single & ~c["D"]).sum())
        counts = (c["feasible"], c["D"], single, c["violation"], single & ~c["D"])
        optima = f"{c['local'].mean():.2f}, {c['local'].max()}"
        rows.append((cell["d"], *(int(x.sum()) for x in counts), optima,
                     *(int(c[name].sum()) for name in ("exact", "proxy", "C"))))  # fmt: skip
    draws = range(context.seed, context.seed + s["end_problems"])
    size = {"n": 5, "T": 5, "starts": s["starts"], "steps": s["steps"]}
    cells = [{"draw": draw, "d": d, **size} for d in s["ends"] for draw in draws]
    ends, notes, outside, unsaturated = [], [], 0, 0
    for cell, columns in context.sweep(ends_of_starts, cells, 1, chunk=1, name="ends"):
        r = {name: values[0] for name, values in columns.items()}
        outside, unsaturated = outside + int(r["outside"]), unsaturated + int(r["unsaturated"])
        ends.append((cell["d"], cell["draw"], r["listed"], r["reached"], r["counts"]["Global"], r["counts"]["Local"],
                     share(int(r["outside"]), s["starts"]), r["unsaturated"], float(r["spearman"])))  # fmt: skip
        for tokens, starts in columns["examples"].tolist()[0]:
            notes.append(f"d={cell['d']}, problem seed {cell['draw']}: {tokens} from starts {starts}")
    tried = len(cells) * s["starts"]
    notes = [
        f"D implies one local optimum: {total['violation']} violations; not conversely: {converse} problems have one "
        f"without D. Feasible optimal selections missing from their list: {total['feasible'] - total['listed']}. "
        f"Undecided solves: {total['undecided']}.",
        f"Ends outside the list: {outside} of {tried}, {share(outside, tried)}, {unsaturated} of them not saturated.",
        *notes,
    ]
    refuted = f"{total['violation']} problems satisfy D but have another number of local optima than one"
    return Outcome(
        tables=[
            Table(f"Out of {s['trials']} problems, n = T = 4, unit sphere, every selection solved",
                  ("d", "feasible", "D", "one local optimum", "D without one", "one without D",
                   "local optima: mean, max", "B.1 exact", "B.1 proxy", "C"), rows),
            Table(f"Ends of {s['starts']} random starts, {s['steps']} steps, n = T = 5, W",
                  ("d", "seed", "listed", "reached", "Global", "Local", "outside", "unsaturated", "Spearman"), ends),
        ],
        curves={},
        notes=notes,
        refuted=[refuted] if total["violation"] else [],
    )  # fmt: skip


FIGURE_ASSUMPTIONS = Figure(
    paper="own",
    name="assumptions",
    title="How often the assumptions hold, and whether descent ends in the list of local optima",
    protocol="""Assumption D implies that the optimal tokens are the only locally optimal selection, not conversely; B.1
        exactly and by the published proxy; the problems of random_problem(seed=SEED). Then random starts of one problem
        per seed and dimension: every selection reached should be in the list of local optima.""",
    full={"trials": 100, "dimensions": (3, 5, 8, 10, 15, 20), "ends": (5, 8, 10), "end_problems": 3, "starts": 1000,
          "steps": 2000},
    quick={"trials": 4, "dimensions": (4, 12), "ends": (6,), "end_problems": 1, "starts": 20, "steps": 500},
    run=run_assumptions,
)  # fmt: skip

LOSSES = ("logistic", "exponential", "correlation")

_NORMS = {"W": "frobenius", "KQ": "nuclear"}


def global_distances(
    trials: int, _: int, *, draw: int, parameterization: str, loss: str, radii: list[float]
) -> dict[str, Any]:
    """1 - corr with the predicted direction at every radius; n=3, T=4, d=4, problem seeds from ``draw`` on.

    Examples
    --------
    >>> found = global_distances(1, 0, draw=0, parameterization="W", loss="logistic", radii=[5.0, 80.0])
    >>> far, near = found["distances"][0][0]
    >>> bool(near < 0.1 * far)
    True
    """
    problems = (attsvm.random_problem(n=3, T=4, d=4, seed=draw + k) for k in range(trials))
    paths = (attsvm.regularization_path(problem, radii, parameterization, loss=loss) for problem in problems)
    return {"distances": [[path.distance.tolist()] for path in paths]}


def local_distances(trials: int, _: int, *, draw: int, parameterization: str, radii: list[float]) -> dict[str, Any]:
    """1 - corr with the local direction for every locally optimal, non-global selection; n=2, T=4, d=3.

    Only selections with non-empty support sets: Lemma 5 fails without (and so does the theorem).

    Examples
    --------
    >>> len(local_distances(2, 0, draw=0, parameterization="W", radii=[5.0])["distances"])
    2
    """
    found: list[list[Any]] = [[] for _ in range(trials)]
    for k, tokens in itertools.product(range(trials), itertools.product(range(4), repeat=2)):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=draw + k)
        solution = attsvm.att_svm(problem, list(tokens), norm=_NORMS[parameterization])
        best = problem.optimal_tokens().indices.tolist()
        if list(tokens) == best or not solution.status.has_solution or not solution.support.any(axis=-1).all():
            continue
        if attsvm.is_locally_optimal(problem, list(tokens), norm=_NORMS[parameterization], solution=solution):
            path = attsvm.regularization_path(problem, radii, parameterization, selection=list(tokens))
            found[k].append(path.distance.tolist())
    return {"distances": found}


def run_paths(context: Context) -> Outcome:
    """Global paths for every loss and local paths, of W and of (K, Q)."""
    s = context.settings
    radii, draws = list(s["radii"]), range(context.seed, context.seed + s["trials"])
    rows, curves = [], {}
    for p, norm in _NORMS.items():
        kinds = {f"Theorem 2: {p}, {loss}": (global_distances, {"loss": loss}) for loss in LOSSES}
        for label, (fn, extra) in (kinds | {f"Theorem 7: {p}, local {norm}": (local_distances, {})}).items():
            cells = [{"draw": draw, "parameterization": p, "radii": radii, **extra} for draw in draws]
            done = context.sweep(fn, cells, 1, chunk=1, name=label).columns
            found = np.array([d for c in done for d in c["distances"].tolist()[0]]).reshape(-1, len(radii))
            curves[label] = found
            shown = (f"{np.median(x):.1e} / {x.max():.1e}" if len(x) else None for x in found.T)
            rows.append((label, len(found), *shown))
    columns = ("path", "paths", *(f"R = {radius:g}" for radius in radii))
    return Outcome([Table("1 - corr with the predicted direction, median / largest", columns, rows)], curves)


FIGURE_PATHS = Figure(
    paper="own",
    name="paths",
    title="Regularization paths approach the directions of Theorems 2 and 7",
    protocol="""The W path against the Frobenius direction and the (K, Q) path against the nuclear one (n = 3, T = d =
        4), and local paths against the local direction (n = 2, T = 4, d = 3, selections whose support sets are not
        empty), with their distances at growing radii; one problem per seed from SEED on.""",
    full={"trials": 10, "radii": (5.0, 20.0, 80.0, 320.0)},
    quick={"trials": 1, "radii": (5.0, 40.0)},
    run=run_paths,
)

NORMS = ("frobenius", "nuclear", "spectral", "linf", "l3", "l1.5", "l1")

_LINEAR = "for attention nothing known to us; in linear classification it maximizes the margin of its norm"

_MIRROR = "mirror descent with this potential converges in direction to its SVM (arXiv 2410.14581, abstract)"


class Rule(NamedTuple):
    """A way to train: its step, the norm it should follow, and what is proved of it for softmax attention."""

    lr: float
    norm: str | None
    theory: str
    form: str = "W"


# Entrywise methods move every entry by lr, hence smaller steps.
OPTIMIZERS: dict[str, Rule] = {
    "normalized_gd": Rule(0.1, "frobenius", "gradient descent: Theorems 4, 5 of arXiv 2308.16898; steps: 2402.05738"),
    "ridge_decay": Rule(0.1, "nuclear", "regularization paths of (K, Q): Theorem 2 of arXiv 2308.16898", "KQ"),
    "spectral": Rule(0.05, "spectral", _LINEAR),
    "muon": Rule(0.05, "spectral", "as for spectral, with momentum"),
    "sign": Rule(0.02, "linf", _LINEAR),
    "steepest:l3": Rule(0.05, "l3", _LINEAR),
    "steepest:l1.5": Rule(0.1, "l1.5", _LINEAR),
    "steepest:l1": Rule(0.1, "l1", _LINEAR),
    "mirror:l3": Rule(0.1, "l3", _MIRROR),
    "mirror:l1.5": Rule(0.1, "l1.5", _MIRROR),
    "adam": Rule(0.02, None, "for attention nothing known to us"),
}


def margins_reached(trials: int, _: int, *, draw: int, optimizer: str, steps: int) -> dict[str, Any]:
    """Share of the largest margin that a run reaches in every norm, and 1 - corr with the SVM of its tokens.

    Columns ``margin`` and ``misalignment`` have shape (trials, norms); NaN where the SVM is not solved.

    Examples
    --------
    >>> margins_reached(1, 0, draw=0, optimizer="sign", steps=50)["margin"].shape
    (1, 7)
    """
    rule = OPTIMIZERS[optimizer]
    batch = attsvm.random_problem(n=4, T=5, d=8, batch=trials, seed=draw)
    run = attsvm.train(
        batch, rule.form, steps=steps, lr=rule.lr, optimizer=optimizer, decay_after=max(1, steps // 4), snapshots=2,
        seed=draw,
    )  # fmt: skip
    found = np.full((2, trials, len(NORMS)), np.nan)
    for b, k in np.ndindex(trials, len(NORMS)):
        solution = attsvm.att_svm(batch[b], run.selection[b], norm=NORMS[k])
        if solution.status is attsvm.Status.OPTIMAL:
            reached = reached_margin(batch[b], run.W[b], run.selection[b], NORMS[k])
            found[:, b, k] = reached / solution.margin, misalignment(run.W[b], solution.W)
    return {"margin": found[0], "misalignment": found[1]}


def run_geometry(context: Context) -> Outcome:
    """Medians over the problems, one row per optimizer."""
    s = context.settings
    cells = [{"draw": context.seed, "optimizer": name, "steps": s["steps"]} for name in OPTIMIZERS]
    columns = context.sweep(margins_reached, cells, chunk=s["trials"], name="optimizers").columns
    values = {
        what: {o: np.asarray(c[what], dtype=float) for o, c in zip(OPTIMIZERS, columns, strict=True)}
        for what in ("margin", "misalignment")
    }
    medians = {what: {o: np.nanmedian(x, axis=0) for o, x in table.items()} for what, table in values.items()}
    forms = {"margin": lambda x: f"{100 * x:.2f} %", "misalignment": lambda x: f"{x:.1e}"}
    titles = {"margin": "Margin reached, share of the largest", "misalignment": "1 - corr with the SVM"}
    tables = [
        Table(title, ("optimizer", *NORMS), [(o, *map(forms[what], medians[what][o])) for o in OPTIMIZERS])
        for what, title in titles.items()
    ]
    tables.append(_own_norms(values))
    return Outcome(
        tables, medians, ["Medians over the problems, for the tokens that each run selects.", *_said(medians)]
    )


def _own_norms(values: dict[str, dict[str, np.ndarray]]) -> Table:
    rows = []
    for name, rule in OPTIMIZERS.items():
        if rule.norm is None:
            rows.append((name, "-", "-", "-", rule.theory))
            continue
        k = NORMS.index(rule.norm)
        shares, errors = (median_of(values[what][name][:, k]) for what in ("margin", "misalignment"))
        rows.append((name, rule.norm, str(shares), str(errors), rule.theory))
    heads = ("optimizer", "its norm", "share of the margin", "1 - corr", "what is proved")
    return Table("In its own norm: medians with 95 % intervals", heads, rows)


def _said(medians: dict[str, dict[str, np.ndarray]]) -> list[str]:
    """Which optimizer is best in each norm, from the numbers of this run."""
    notes = []
    for k, norm in enumerate(NORMS):
        shares = {o: float(medians["margin"][o][k]) for o in OPTIMIZERS if np.isfinite(medians["margin"][o][k])}
        if shares:
            best = max(shares, key=lambda o: shares[o])
            own = [o for o, rule in OPTIMIZERS.items() if rule.norm == norm]
            notes.append(
                f"{norm}: the largest margin is reached by {best} ({shares[best]:.1%}); meant for it: {', '.join(own)}"
            )
    return notes


FIGURE_GEOMETRY = Figure(
    paper="own",
    name="geometry",
    title="Which SVM each optimizer follows: margins reached in seven norms",
    protocol="""Normalized steepest descent in a norm should maximize the margin of that norm. Solutions of the spectral
        and the entrywise maximum norm need not be unique, so the first table shows margins, which are: the margin of
        the normalized iterate in a norm, relative to the largest possible. n = 4, T = 5, d = 8, the step decays as 1/k
        after a quarter, the problems of random_problem(seed=SEED). ridge_decay trains (K, Q), all others W.""",
    full={"trials": 30, "steps": 20_000},
    quick={"trials": 3, "steps": 800},
    run=run_geometry,
)

CHECKPOINTS = (500, 1000, 2000, 5000, 10_000, 20_000, 60_000)

# What is changed against the recipe optimizer="ridge_decay" (joint normalization, ridge e^-200, lr 0.1, decay after a
# quarter of the steps, uniform start).
FACTOR_VARIANTS: dict[str, dict[str, Any]] = {
    "no ridge, no decay, joint": {"optimizer": "normalized_gd"},
    "no ridge, no decay, per factor": {"optimizer": "normalized_gd", "normalization": "factor"},
    "no ridge, decay": {"optimizer": "normalized_gd", "decay": True},
    "ridge e^-36 (machine epsilon)": {"optimizer": "ridge_decay", "log_ridge": -36.0},
    "ridge e^-100": {"optimizer": "ridge_decay", "log_ridge": -100.0},
    "ridge e^-200: the recipe": {"optimizer": "ridge_decay"},
    "ridge e^-400": {"optimizer": "ridge_decay", "log_ridge": -400.0},
    "recipe, per factor": {"optimizer": "ridge_decay", "normalization": "factor"},
    "recipe, lr 0.03": {"optimizer": "ridge_decay", "lr": 0.03},
    "recipe, lr 0.3": {"optimizer": "ridge_decay", "lr": 0.3},
    "recipe, no decay": {"optimizer": "ridge_decay", "decay": False},
    "recipe, start 10x smaller": {"optimizer": "ridge_decay", "scale": 0.1},
    "recipe, start 10x larger": {"optimizer": "ridge_decay", "scale": 10.0},
}


def _problems(trials: int, draw: int) -> attsvm.AttentionProblem:
    return attsvm.random_problem(n=6, T=8, d=10, batch=trials, seed=draw)


def _errors(run: attsvm.Run, snapshot: int, norm: str) -> np.ndarray:
    """1 - correlation with the SVM of the tokens selected at a snapshot, per problem."""
    solved = attsvm.att_svm(run.problem, run.history.selection[snapshot], norm=norm)
    return misalignment(run.history.W[snapshot], solved.W)


def weight_errors(trials: int, _: int, *, draw: int, arithmetic: Arithmetic, marks: list[int]) -> dict[str, Any]:
    """1 - corr of W with Att-SVM at the marked steps, for the batch that ``random_problem(seed=draw)`` gives.

    Examples
    --------
    >>> weight_errors(2, 0, draw=0, arithmetic="log", marks=[500, 1000])["error"].shape
    (2, 2)
    """
    batch = _problems(trials, draw)
    run = attsvm.train(batch, steps=max(marks), arithmetic=arithmetic, snapshots=marks, seed=draw)
    at = np.searchsorted(run.history.steps, marks)
    return {"error": np.stack([_errors(run, int(s), "frobenius") for s in at], axis=1)}


def factor_errors(trials: int, _: int, *, draw: int, variant: str, steps: int) -> dict[str, Any]:
    """1 - corr of K Q^T with Att-SVM* at the end, and its norm, for one way of training (K, Q).

    Examples
    --------
    >>> sorted(factor_errors(1, 0, draw=0, variant="recipe, lr 0.3", steps=20))
    ['error', 'norm']
    """
    batch = _problems(trials, draw)
    start = attsvm.train(batch, "KQ", steps=0, seed=draw).parameters
    options = dict(FACTOR_VARIANTS[variant])
    decay, scale = options.pop("decay", None), options.pop("scale", 1.0)
    if decay is not None:
        options["decay_after"] = max(1, steps // 4) if decay else steps
    init = (scale * start["K"], scale * start["Q"])
    run = attsvm.train(batch, "KQ", steps=steps, init=init, snapshots=2, **options)
    return {"error": _errors(run, -1, "nuclear"), "norm": run.history.norm[-1]}


def run_floor(context: Context) -> Outcome:
    """Both kinds of arithmetic for W, then every variant for (K, Q)."""
    s, trials = context.settings, context.settings["trials"]
    marks = [k for k in CHECKPOINTS if k <= s["steps"]]
    cells = [{"draw": context.seed, "arithmetic": a, "marks": marks} for a in ("log", "naive")]
    log, naive = (c["error"].astype(float) for c in context.sweep(weight_errors, cells, chunk=trials, name="W").columns)
    middle = [(np.nanmean(e, axis=0), np.nanmedian(e, axis=0)) for e in (log, naive)]
    few = min(trials, s["factor_trials"])
    variants = [{"draw": context.seed, "variant": v, "steps": s["factor_steps"]} for v in FACTOR_VARIANTS]
    rows = []
    for cell, columns in context.sweep(factor_errors, variants, few, chunk=few, name="KQ"):
        error = columns["error"].astype(float)
        numbers = (np.nanmedian(error), np.nanmean(error), np.nanmax(error), np.median(columns["norm"]))
        rows.append((cell["variant"], *map(float, numbers)))
    return Outcome(
        tables=[
            Table(f"W, {trials} problems: 1 - corr with Att-SVM of the selected tokens",
                  ("step", "log domain: mean", "median", "published arithmetic: mean", "median"),
                  [(k, *(float(values[j]) for pair in middle for values in pair)) for j, k in enumerate(marks)]),
            Table(f"(K, Q), {s['factor_steps']} steps, {few} problems: 1 - corr with Att-SVM*",
                  ("variant", "median", "mean", "worst", "|W| median"), rows),
        ],
        curves={"steps": marks, "log": log, "naive": naive},
    )  # fmt: skip


FIGURE_FLOOR = Figure(
    paper="own",
    name="floor",
    title="The floor of normalized gradient descent, and what removes it",
    protocol="""Published arithmetic rounds the selected token's gradient away once the softmax saturates: the direction
        stops improving near 1 - corr = 3e-3 and then drifts away. Log-domain gradients go on. For (K, Q) they are not
        enough: the second table varies normalization, ridge, step and initial scale. Normalized gradient descent, lr
        0.1, logistic loss, n = 6, T = 8, d = 10, the problems of random_problem(seed=SEED).""",
    full={"trials": 100, "steps": 60_000, "factor_trials": 20, "factor_steps": 10_000},
    quick={"trials": 5, "steps": 2000, "factor_trials": 2, "factor_steps": 200},
    run=run_floor,
)

STEPS: dict[str, dict[str, Any]] = {
    "constant, 1 / L_W": {"optimizer": "gd"},
    "constant, 10": {"optimizer": "gd", "lr": 10.0},
    "normalized, 0.1": {"optimizer": "normalized_gd", "lr": 0.1},
    "normalized, 1": {"optimizer": "normalized_gd", "lr": 1.0},
    "Polyak, factor 0.5": {"optimizer": "polyak", "lr": 0.5},
    "Polyak, factor 1": {"optimizer": "polyak", "lr": 1.0},
}


def descents(trials: int, seed: int, *, rule: str, steps: int) -> dict[str, Any]:
    """One run per problem: distance of W/|W| from its SVM and saturation at log-spaced steps, and fitted exponents.

    ``distance`` and ``log_rest`` have shape (trials, marks). ``rate`` is r of ``distance ~ steps^-r`` over the last
    decade, ``sparse`` is a of ``-log(probability off the token) ~ steps^a``.

    Examples
    --------
    >>> found = descents(2, 0, rule="normalized, 0.1", steps=300)
    >>> len(found["rate"]), found["distance"].shape[0]
    (2, 2)
    """
    batch = attsvm.random_problem(n=4, T=5, d=8, batch=trials, seed=seed)
    marks = _marks(steps)
    run = attsvm.train(batch, steps=steps, snapshots=marks, init="zero", seed=seed, **STEPS[rule])
    solved = attsvm.att_svm(batch, run.selection)
    h = run.history
    reached = len(h) - 1  # a batch whose problems all stopped early has a shorter history
    at = np.minimum(np.searchsorted(np.asarray(marks), marks) + 1, reached)
    distance = np.sqrt(2.0 * np.stack([misalignment(h.W[k], solved.W) for k in at], axis=1))
    log_rest = h.log_rest[at].T
    best = (np.asarray(run.selection) == np.asarray(batch.optimal_tokens())).all(axis=-1)
    return {
        "distance": distance,
        "log_rest": log_rest,
        "rate": [fitted_rate(marks, row) for row in distance],
        "sparse": [-fitted_rate(marks, -row) for row in log_rest],
        "norm": h.norm[-1],
        "optimal": best,
        "ended": [str(status) for status in run.status],
    }


def _marks(steps: int) -> list[int]:
    return sorted({int(k) for k in np.geomspace(max(1, steps // 1000), steps, 25).round()})


def run_steps(context: Context) -> Outcome:
    """One row per rule."""
    s = context.settings
    cells = [{"rule": rule, "steps": s["steps"]} for rule in STEPS]
    found = context.sweep(descents, cells, chunk=s["trials"], name="rules").columns
    rows = [_row(rule, columns) for rule, columns in zip(STEPS, found, strict=True)]
    heads = (
        "step", "exponent of the distance", "distance at the end", "exponent of -log(1 - s)", "|W|",
        "at the optimal tokens", "finished",
    )  # fmt: skip
    title = f"{s['trials']} problems, {s['steps']} steps: medians with 95 % intervals, runs at the optimal tokens"
    curves = {
        "steps": _marks(s["steps"]),
        "rules": list(STEPS),
        "distance": [np.where(_counted(c)[:, None], np.asarray(c["distance"], dtype=float), np.nan) for c in found],
        "log_rest": [np.where(_counted(c)[:, None], np.asarray(c["log_rest"], dtype=float), np.nan) for c in found],
    }
    return Outcome([Table(title, heads, rows)], curves, _notes(found))


def _counted(columns: Any) -> np.ndarray:
    """Runs that went on to the end, at the optimal tokens: what theory speaks of."""
    finished = np.array([end == "finished" for end in columns["ended"]])
    return np.asarray(np.asarray(columns["optimal"], dtype=bool) & finished)


def _row(rule: str, columns: Any) -> tuple[str, ...]:
    kept = _counted(columns)
    distance, rest = np.asarray(columns["distance"], dtype=float), np.asarray(columns["norm"], dtype=float)
    numbers = [
        np.asarray(columns["rate"], dtype=float),
        distance[:, -1],
        np.asarray(columns["sparse"], dtype=float),
        rest,
    ]
    shares = share_of(columns["optimal"]), share_of([end == "finished" for end in columns["ended"]])
    return (rule, *(str(median_of(x[kept])) for x in numbers), *map(str, shares))


def _notes(found: Any) -> list[str]:
    rates = {
        rule: median_of(np.asarray(c["rate"], dtype=float)[_counted(c)]) for rule, c in zip(STEPS, found, strict=True)
    }
    fast = [rule for rule, rate in rates.items() if rate.low > 0.5]
    notes = [
        "distance: |W/|W| - W_mm/|W_mm||, W_mm the Att-SVM of the tokens selected at the end; it is sqrt(2 (1 - corr))",
        f"exponents whose interval lies above 1/2: {', '.join(fast) or 'none'}",
    ]
    for rule, columns in zip(STEPS, found, strict=True):
        lost = [end for end in columns["ended"] if end != "finished"]
        if lost:
            away = int((~np.asarray(columns["optimal"], dtype=bool)).sum())
            why = "; there L - L* stays while gradients vanish, and the step grows" if "Polyak" in rule else ""
            ends = ", ".join(sorted(set(lost)))
            notes.append(f"exception: {rule}: {len(lost)} runs ended {ends}; {away} not at the optimal tokens{why}")
    return notes


def draw(outcome: Outcome) -> Picture:
    """Distances and saturation over the steps, medians."""
    c = outcome.curves
    picture, (left, right) = subplots(1, 2, size=(9.5, 3.6))
    for k, rule in enumerate(c["rules"]):
        distance, rest = (np.asarray(c[name][k], dtype=float) for name in ("distance", "log_rest"))
        if not np.isfinite(distance).any():
            continue
        left.loglog(c["steps"], np.nanmedian(distance, axis=0), label=rule)
        right.loglog(c["steps"], np.nanmedian(-rest, axis=0), label=rule)
    left.set(xlabel="steps", ylabel=r"$|W/|W| - W_{mm}/|W_{mm}||$")
    right.set(xlabel="steps", ylabel=r"$-\log$ of the probability off the tokens")
    return finish(picture, (left, right), legend=7)


FIGURE_STEPS = Figure(
    paper="own",
    name="steps",
    title="Constant, normalized and Polyak steps: measured rates",
    protocol="""Gradient descent on W from 0 with a fixed linear head, logistic loss, n = 4, T = 5, d = 8, one problem
        per draw. Polyak's step is factor * (L - L*) / |gradient|^2 with L* the loss of the optimal tokens, in the log
        domain. Exponents are least squares in logarithms over the last decade of steps. Finite-time rates for
        normalized and Polyak steps are the subject of arXiv 2402.05738; its abstract names no exponent, so none is
        tested here.""",
    full={"trials": 60, "steps": 10_000},
    quick={"trials": 4, "steps": 500},
    run=run_steps,
    draw=draw,
)
