"""Which max-margin solution each optimizer trains: angles and margins in four norms, of W in attention and of classes.

Largest entry and spectral norm have many max-margin solutions. The angle is therefore the one to the nearest of them: a
projection onto the cone of matrices that reach the largest margin to one part in a million, by cvxpy.

A unit step of a method adds at most the largest margin of its norm to the smallest margin, so with ``lr = pace /
margin`` the logarithm of the loss falls by about ``pace`` in a step at most. What a momentum keeps of a gradient must
fall faster than that, or the first gradients decide for ever.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

import attsvm
from attsvm.comparison import angle, misalignment
from attsvm.multiclass import multiclass_svm
from attsvm.records import median_of
from attsvm.solvers import MarginSolution, get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.bench.fit_cases import standardized
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, subplots

NORMS = ("frobenius", "nuclear", "spectral", "linf")

# Solutions of these norms are not unique.
_FLAT = ("spectral", "linf")


class Rule(NamedTuple):
    """A way to train: what a step adds at most to the margin, its norm, and how many times the steps it is given."""

    optimizer: str
    pace: float | None
    norm: str
    form: str = "W"
    times: int = 1


RULES = {
    "gradient descent": Rule("gd", None, "frobenius"),
    "normalized GD": Rule("normalized_gd", 0.2, "frobenius"),
    "spectral descent": Rule("spectral", 0.05, "spectral"),
    "Muon, 0.95": Rule("muon", 0.03, "spectral"),
    "sign descent": Rule("sign", 0.02, "linf", times=4),
    "Signum, 0.95": Rule("signum", 0.03, "linf", times=2),
    "Adam, 0.9, 0.9": Rule("adam:0.9,0.9", 0.03, "linf", times=2),
    "factors": Rule("ridge_decay", 0.1, "nuclear", "KQ"),
}

# What a momentum keeps against how fast the loss falls: beta and pace.
MEMORY = (
    ("muon:0.95", 0.02), ("muon:0.95", 0.1), ("signum:0.95", 0.02), ("signum:0.95", 0.1),
    ("adam:0.9,0.9", 0.02), ("adam:0.9,0.9", 0.1), ("adam:0.9,0.99", 0.004), ("adam:0.9,0.99", 0.02),
)  # fmt: skip

# Sign descent to about the same loss by steps of other lengths: pace, and times the steps.
PACES = ((0.08, 1), (0.02, 4), (0.005, 16))

# Methods that are also run on one sample per step, with moments that last for several epochs of 8 steps.
BATCHES = {
    "normalized GD": ("normalized_gd", 0.05, "frobenius"), "sign descent": ("sign", 0.02, "linf"),
    "Signum, 0.99": ("signum:0.99", 0.008, "linf"), "Adam, 0.9, 0.99": ("adam:0.9,0.99", 0.004, "linf"),
}  # fmt: skip

DATA = ("Gaussian", "attention", "wine", "digits")


# -- the nearest of many solutions -------------------------------------------------------------------------------------


def nearest_angle(W: FloatArray, solution: MarginSolution) -> float:
    """Degrees between W and the nearest matrix whose margin in the norm is the largest one, to one part in a million.

    NaN where cvxpy ends without an answer.

    Examples
    --------
    Of the largest entry, every W of this margin problem with first entry 1 and a second of at most 1 is a solution:

    >>> from attsvm.solvers import MarginProblem, solve
    >>> solution = solve(MarginProblem([[1.0, 0.0]], [[1.0]], [0]), "linf")
    >>> [round(nearest_angle(np.array([[1.0], [second]]), solution), 1) for second in (-0.5, 0.0, 1.0, 1e6)]
    [0.0, 0.0, 0.0, 45.0]
    """
    import cvxpy as cp

    rows = solution.problem
    unit = W / np.linalg.norm(W)
    V, s = cp.Variable(unit.shape), cp.Variable(nonneg=True)
    size = solution.norm_kind.expression(V)
    held = [sp.csr_array(rows.features()) @ cp.vec(V, order="C") >= s, size <= solution.norm * (1 + 1e-6) * s]
    program = cp.Problem(cp.Minimize(cp.sum_squares(V - unit)), held)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": to 1e-8 instead of 1e-9
        try:
            program.solve(solver="CLARABEL")
        except cp.SolverError:
            return float("nan")
    if V.value is None:
        return float("nan")
    return float(np.degrees(np.arcsin(np.clip(np.linalg.norm(V.value - unit), 0.0, 1.0))))


# -- data --------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def drawn_classes(data: str, trials: int, seed: int) -> tuple[FloatArray, Any]:
    """Separable data sets, samples (trials, n, d) and labels (trials, n), balanced as far as possible.

    "Gaussian" has 8 samples of 4 classes in 10 dimensions, which are always separable; "wine" and "digits" are random
    subsets of 90 and 100 samples, standardized.

    Examples
    --------
    >>> [part.shape for part in drawn_classes("wine", 2, 0)]
    [(2, 90, 13), (2, 90)]
    """
    rng = np.random.default_rng([seed, DATA.index(data)])
    if data == "Gaussian":
        labels = np.stack([rng.permutation(np.arange(8) % 4) for _ in range(trials)])
        return rng.standard_normal((trials, 8, 10)), labels
    samples, classes = standardized(data)
    chosen = [rng.permutation(len(samples))[: 90 if data == "wine" else 100] for _ in range(trials)]
    return samples[np.stack(chosen)], classes[np.stack(chosen)]


@lru_cache(maxsize=8)
def _solved(data: str, trials: int, seed: int) -> list[dict[str, MarginSolution]]:
    """The max-margin classifier of every norm, per data set."""
    H, y = drawn_classes(data, trials, seed)
    return [{norm: multiclass_svm(H[b], y[b], norm=norm).result for norm in NORMS} for b in range(trials)]


# -- runs --------------------------------------------------------------------------------------------------------------


def ends(
    trials: int, _: int, *, draw: int, data: str, optimizer: str, pace: float | None, norm: str, form: str, steps: int,
    batch_size: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Where a method ends on each data set.

    Columns ``angle`` and ``share`` have shape (trials, norms): degrees to the solution of the norm (the nearest one for
    the method's own), and the margin in the norm over the largest one. At about 40 log-spaced steps, ``path`` is the
    angle to the solution of ``norm`` that the solver returns, and ``log_loss`` the logarithm of the loss (NaN for
    attention).

    Examples
    --------
    >>> rule = {"optimizer": "normalized_gd", "pace": 0.2, "norm": "frobenius", "form": "W"}
    >>> found = ends(2, 0, draw=0, data="Gaussian", steps=500, **rule)
    >>> bool((found["angle"][:, 0] < 6.0).all()), found["share"].shape
    (True, (2, 4))
    """
    if data == "attention":
        batch = attsvm.random_problem(n=4, T=5, d=8, batch=trials, seed=draw)
        largest = attsvm.att_svm(batch, norm=norm).margin
        run: Any = attsvm.train(
            batch, form, steps=steps, optimizer=optimizer, lr=_rate(pace, form, largest), seed=draw, snapshots=40
        )
        final, history = run.W, run.history.W
        log_loss = np.full(history.shape[:2], np.nan)
        solved = [{n: attsvm.att_svm(batch[b], run.selection[b], norm=n).result for n in NORMS} for b in range(trials)]
    else:
        solved, (H, y) = _solved(data, trials, draw), drawn_classes(data, trials, draw)
        largest = np.array([1.0 / one[norm].norm for one in solved])
        run = attsvm.multiclass.train(
            H, y, form, steps=steps, optimizer=optimizer, lr=_rate(pace, form, largest), init="uniform", seed=draw,
            snapshots=40, batch_size=batch_size,
        )  # fmt: skip
        final, history, log_loss = run.W, run.history, run.log_loss
    found = np.full((2, trials, len(NORMS)), np.nan)
    path = np.full((trials, len(history)), np.nan)
    for b, solutions in enumerate(solved):
        for k, name in enumerate(NORMS):
            if solutions[name].status.has_solution:
                found[:, b, k] = _judged(final[b], solutions[name], near=name in _FLAT and name == norm)
        if solutions[norm].status.has_solution:
            path[b] = angle(misalignment(history[:, b], np.broadcast_to(solutions[norm].W, history[:, b].shape)))
    return {"angle": found[0], "share": found[1], "path": path, "log_loss": log_loss.T}


def _rate(pace: float | None, form: str, largest: FloatArray) -> float | None:
    """A step in which the median margin grows by at most ``pace``; factors have no such bound."""
    return pace if pace is None or form == "KQ" else pace / float(np.median(largest[largest > 0]))


def _judged(W: FloatArray, solution: MarginSolution, *, near: bool) -> tuple[float, float]:
    """The angle to a solution, to the nearest one where there are many, and the share of the largest margin."""
    share = solution.problem.margins(W).min() / float(get_norm(solution.norm_kind.name)(W)) * solution.norm
    return nearest_angle(W, solution) if near else float(angle(misalignment(W, solution.W))), float(share)


# -- the study ---------------------------------------------------------------------------------------------------------


def run_multiclass(context: Context) -> Outcome:
    """Momentum against pace, batch sizes, and every method on every kind of data."""
    s = context.settings
    extra = [_memory(context), _batches(context), _paces(context)] if s["experiments"] else []
    tables, refuted, curves = [], [], {}
    for data in s["sets"]:
        trials = s["trials"] if data in ("attention", "Gaussian") else s["subsets"]
        cells = [{"draw": context.seed, "data": data, **_of_rule(rule, s["steps"])} for rule in RULES.values()]
        found = context.sweep(ends, cells, trials, chunk=trials, name=data).columns
        tables.append(_table(data, trials, RULES, [rule.norm for rule in RULES.values()], found))
        curves[data] = {
            name: {key: np.asarray(c[key], dtype=float) for key in ("path", "log_loss")}
            for name, c in zip(RULES, found, strict=True)
        }
        refuted += _above(data, found)
    tables += [_same_loss(curves), *extra]
    return Outcome(tables, curves, _NOTES, refuted)


def _memory(context: Context) -> Table:
    """Momentum against pace."""
    few = context.settings["few"]
    cells = [_cell(context, name, pace, "spectral" if name.startswith("muon") else "linf") for name, pace in MEMORY]
    found = context.sweep(ends, cells, few, chunk=few, name="memory").columns
    rows = []
    for (name, pace), cell, columns in zip(MEMORY, cells, found, strict=True):
        own = NORMS.index(cell["norm"])
        kept = [float(beta) for beta in name.partition(":")[2].split(",")]
        forgets = -np.log(kept[0]) if len(kept) == 1 else -0.5 * np.log(kept[1])
        angles, shares = (np.asarray(columns[key], dtype=float)[:, own] for key in ("angle", "share"))
        fall = -float(np.median(np.asarray(columns["log_loss"], dtype=float)[:, -1])) / cell["steps"]
        rows.append((name, f"{pace:g}", f"{forgets:.4f}", "yes" if pace < forgets else "no", str(median_of(angles)),
                     str(median_of(100.0 * (1.0 - shares))), f"{fall:.4f}"))  # fmt: skip
    heads = (
        "method",
        "pace",
        "moment falls by, per step",
        "forgets the start",
        "degrees",
        "margin short, %",
        "loss fell by",
    )
    steps = context.settings["steps"]
    return Table(
        f"Gaussian: momentum against the pace of the loss, {few} draws, {2 * steps} steps, own norm", heads, rows
    )


def _batches(context: Context) -> Table:
    """All samples in a step, and one."""
    few, labels, cells = context.settings["few"], [], []
    for label, (optimizer, pace, norm) in BATCHES.items():
        for size in (None, 1):
            labels.append(f"{label}: {'all' if size is None else size}")
            cells.append(_cell(context, optimizer, pace, norm) | {"batch_size": size})
    found = context.sweep(ends, cells, few, chunk=few, name="batches").columns
    return _table("Gaussian, by the samples of a step", few, labels, [cell["norm"] for cell in cells], found)


def _paces(context: Context) -> Table:
    """Sign descent to the same loss by longer and shorter steps."""
    few = context.settings["few"]
    cells = [_cell(context, "sign", pace, "linf", times) for pace, times in PACES]
    found = context.sweep(ends, cells, few, chunk=few, name="paces").columns
    labels = [f"pace {pace:g}, {cell['steps']} steps" for (pace, _), cell in zip(PACES, cells, strict=True)]
    return _table("Gaussian, sign descent by the length of its steps", few, labels, ["linf"] * len(cells), found)


def _cell(context: Context, optimizer: str, pace: float, norm: str, times: int = 2) -> dict[str, Any]:
    rule = {"draw": context.seed, "data": "Gaussian", "optimizer": optimizer, "pace": pace, "norm": norm, "form": "W"}
    return rule | {"steps": times * context.settings["steps"]}


_NOTES = (
    "Angles: medians with 95 % intervals, in degrees; in a method's own norm (marked) to the nearest solution if that "
    "is the spectral norm or the largest entry, otherwise to the solution that the solver returns.",
    "margin short: what the margin of the run lacks of the largest one in the method's own norm; theory promises that "
    "this tends to 0.",
)


def _of_rule(rule: Rule, steps: int) -> dict[str, Any]:
    cell = {name: value for name, value in rule._asdict().items() if name != "times"}
    return cell | {"steps": rule.times * steps}


def _table(data: str, trials: int, labels: Any, norms: Sequence[str], found: Any) -> Table:
    rows = []
    for label, norm, columns in zip(labels, norms, found, strict=True):
        angles, shares = (np.asarray(columns[key], dtype=float) for key in ("angle", "share"))
        own, fall = NORMS.index(norm), np.asarray(columns["log_loss"], dtype=float)[:, -1]
        cells = [f"{median_of(angles[:, k])}{' *' if k == own else ''}" for k in range(len(NORMS))]
        rows.append((label, *cells, f"{np.nanmax(angles[:, own]):.2f}", str(median_of(100.0 * (1.0 - shares[:, own]))),
                     "" if np.isnan(fall).any() else f"{np.median(fall):.0f}"))  # fmt: skip
    heads = ("method", *NORMS, "largest *", "margin short *, %", "log loss")
    return Table(f"{data}: degrees to the solution of each norm, {trials} draws", heads, rows)


def _same_loss(curves: Any) -> Table:
    """The angle at which gradient descent ends, and that of normalized steps where their loss is the same."""
    rows = []
    for data, runs in curves.items():
        plain, unit = runs["gradient descent"], runs["normalized GD"]
        fall = -plain["log_loss"][:, -1]
        if np.isnan(fall).any():
            continue
        there = [
            np.interp(np.log(x), np.log(np.maximum(-ll, 1e-9)), path)
            for x, ll, path in zip(fall, unit["log_loss"], unit["path"], strict=True)
        ]
        rows.append((data, str(median_of(-fall)), str(median_of(plain["path"][:, -1])), str(median_of(there))))
    heads = ("data", "log loss", "gradient descent, degrees", "normalized GD at this loss, degrees")
    return Table("Gradient descent at its end, and normalized steps at the same loss: Frobenius norm", heads, rows)


def _above(data: str, found: Any) -> list[str]:
    """A share above 1 contradicts the certificate of the solution."""
    most = {name: float(np.nanmax(np.asarray(c["share"], dtype=float))) for name, c in zip(RULES, found, strict=True)}
    return [f"{data}: {name} reaches {x:.6f} of the largest margin" for name, x in most.items() if x > 1 + 1e-6]


def draw(outcome: Outcome) -> Picture:
    """Angles to the solution of the own norm against the logarithm of the loss, medians, of those that are unique."""
    kinds = [data for data in outcome.curves if data != "attention"]
    picture, axes = subplots(1, max(1, len(kinds)), size=(3.6 * max(1, len(kinds)), 3.6), squeeze=False)
    for axis, data in zip(axes[0], kinds, strict=False):
        for name, curve in outcome.curves[data].items():
            if RULES[name].norm in _FLAT:
                continue
            path, fall = (np.median(np.asarray(curve[key], dtype=float), axis=0) for key in ("path", "log_loss"))
            axis.loglog(np.maximum(-fall, 1e-2), path, label=name)
        axis.set(title=data, xlabel="-log loss", ylabel="degrees")
    return finish(picture, axes[0], legend=7)


FIGURE_MULTICLASS = Figure(
    paper="own",
    name="multiclass",
    title="Which max-margin classifier each optimizer trains, in four norms",
    protocol="""Attention: W of random_problem(n=4, T=5, d=8), logistic loss, SVMs of the tokens selected at the end.
        Classes: cross-entropy on 8 Gaussian samples of 4 classes in 10 dimensions, on random subsets of wine (90
        samples) and of digits (100), standardized, all certified separable; random starts. Steps are constant, as long
        as lets the median margin grow by at most the pace of the method per step.""",
    full={"trials": 50, "subsets": 10, "few": 20, "steps": 8000, "sets": DATA, "experiments": True},
    quick={"trials": 3, "subsets": 2, "few": 3, "steps": 300, "sets": ("attention", "Gaussian", "wine")},
    run=run_multiclass,
    draw=draw,
)
