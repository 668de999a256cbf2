"""Constant, normalized and Polyak steps: how fast W turns towards its SVM and attention becomes one-hot, measured."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import fitted_rate, misalignment
from attsvm.records import median_of, share_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots

__all__ = ["FIGURE", "STEPS", "descents", "draw", "run"]

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
    >>> from attsvm.validation.figures.own.steps import descents
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


def run(context: Context) -> Outcome:
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


FIGURE = Figure(
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
    run=run,
    draw=draw,
)
