"""Which SVM does each optimizer follow? Margins reached in seven norms."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment, reached_margin
from attsvm.records import median_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "NORMS", "OPTIMIZERS", "margins_reached", "run"]

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
    >>> from attsvm.validation.figures.own.geometry import margins_reached
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


def run(context: Context) -> Outcome:
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


FIGURE = Figure(
    paper="own",
    name="geometry",
    title="Which SVM each optimizer follows: margins reached in seven norms",
    protocol="""Normalized steepest descent in a norm should maximize the margin of that norm. Solutions of the spectral
        and the entrywise maximum norm need not be unique, so the first table shows margins, which are: the margin of
        the normalized iterate in a norm, relative to the largest possible. n = 4, T = 5, d = 8, the step decays as 1/k
        after a quarter, the problems of random_problem(seed=SEED). ridge_decay trains (K, Q), all others W.""",
    full={"trials": 30, "steps": 20_000},
    quick={"trials": 3, "steps": 800},
    run=run,
)
