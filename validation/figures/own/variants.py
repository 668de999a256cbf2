"""Several heads, softmax-1, sigmoid, sparsemax and entmax attention: which margin problem does training follow."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment
from attsvm.records import median_of, share_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots
from attsvm.validation.models.attention_variants import FINITE_MAPS, SUMMED, descend_finite, descend_summed

__all__ = ["FIGURE", "draw", "finite", "run", "summed"]

_MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000)
_WHAT = {
    "softmax": "Att-SVM",
    "softmax-1": "Att-SVM with one more token, x = 0, of score 0",
    "sigmoid": "x_t^T W z >= 1 for tokens that are on, <= -1 for those that are off",
    "2 heads, own W": "one Att-SVM per head, side by side in one norm",
    "2 heads, one W": "the rows of both heads together",
}


def summed(trials: int, seed: int, *, variant: str, steps: int) -> dict[str, Any]:
    """1 - corr of W with the SVM of the variant's own rows, and with Att-SVM of softmax, at the marks: (trials, marks).

    Examples
    --------
    >>> from attsvm.validation.figures.own.variants import summed
    >>> found = summed(3, 0, variant="softmax-1", steps=500)
    >>> found["own"].shape, len(found["best"])
    ((3, 3), 3)
    """
    rng = np.random.default_rng(seed)
    batch = attsvm.random_problem(n=4, T=4, d=8, batch=trials, seed=seed)
    layer = SUMMED[variant](batch, rng)
    marks = [k for k in _MARKS if k <= steps]
    W = descend_summed(layer, steps, 0.1, marks, seed)
    chosen = attsvm.attention.likeliest(layer.problem, W[-1])
    own = attsvm.att_svm(layer.problem, chosen)
    plain = attsvm.att_svm(batch)
    same_shape = plain.W.shape == own.W.shape
    scores = layer.data.scores
    assert scores is not None
    allowed = np.where(layer.problem.allowed, scores.expand(layer.data.allowed.shape).numpy(), -np.inf)
    return {
        "own": np.stack([misalignment(w, own.W) for w in W], axis=1),
        "plain": misalignment(W[-1], plain.W) if same_shape else np.full(trials, np.nan),
        "solved": [status is attsvm.Status.OPTIMAL for status in own.status],
        "best": (allowed.argmax(axis=-1) == chosen).reshape(trials, -1).all(axis=1),
    }


def finite(trials: int, seed: int, *, name: str, steps: int) -> dict[str, Any]:
    """Where sparsemax or entmax stop: margins over the lead that makes them one-hot, and distances from Att-SVM.

    Examples
    --------
    >>> from attsvm.validation.figures.own.variants import finite
    >>> sorted(finite(2, 0, name="sparsemax", steps=500))[:3]
    ['best', 'error', 'last']
    """
    batch = attsvm.random_problem(n=4, T=4, d=8, batch=trials, seed=seed)
    W, last, stopped = descend_finite(batch, name, steps, 0.02, seed)
    lead = FINITE_MAPS[name][1]
    logits = attsvm.attention.logits(batch, W)
    chosen = logits.argmax(axis=-1)
    solved = attsvm.att_svm(batch, chosen)
    ranked = np.sort(logits, axis=-1)
    softmax = attsvm.train(batch, steps=2000, lr=0.02, seed=seed, snapshots=100, stop_norm=None).history
    # The softmax run when it is as long as this W, for comparison.
    at = np.abs(softmax.norm - np.linalg.norm(W, axis=(1, 2))).argmin(axis=0)
    there = softmax.W[at, np.arange(trials)]
    return {
        "stopped": stopped,
        "last": last,
        "one_hot": ((ranked[..., -1] - ranked[..., -2]).min(axis=-1) >= lead),
        "margin": (ranked[..., -1] - ranked[..., -2]).min(axis=-1) / lead,
        "size": np.linalg.norm(W, axis=(1, 2)) / (lead * solved.norm),
        "error": misalignment(W, solved.W),
        "softmax_error": misalignment(there, solved.W),
        "best": (chosen == np.asarray(batch.optimal_tokens())).all(axis=-1),
    }


def run(context: Context) -> Outcome:
    """Variants that saturate at infinity, then those that stop."""
    s = context.settings
    cells = [{"variant": name, "steps": s["steps"]} for name in SUMMED]
    infinite = context.sweep(summed, cells, chunk=s["trials"], name="sums").columns
    names = [{"name": name, "steps": s["finite_steps"]} for name in FINITE_MAPS]
    ended = context.sweep(finite, names, chunk=s["trials"], name="finite").columns
    marks = [k for k in _MARKS if k <= s["steps"]]
    curves = {
        "steps": marks,
        "own": {v: np.asarray(c["own"], dtype=float) for v, c in zip(SUMMED, infinite, strict=True)},
    }
    tables = [_summed_table(infinite, s), _finite_table(ended, s)]
    return Outcome(tables, curves, [*_summed_notes(infinite), *_finite_notes(ended)])


def _summed_table(infinite: Any, s: Any) -> Table:
    rows = []
    for name, c in zip(SUMMED, infinite, strict=True):
        own = np.asarray(c["own"], dtype=float)
        plain = median_of(np.asarray(c["plain"], dtype=float)) if "heads" not in name else "-"
        rows.append(
            (
                name,
                _WHAT[name],
                str(median_of(own[:, -1])),
                str(plain),
                str(share_of(c["solved"])),
                str(share_of(c["best"])),
            )
        )
    heads = (
        "attention",
        "its rows",
        "1 - corr with them",
        "with Att-SVM of softmax",
        "rows feasible",
        "best tokens selected",
    )
    return Table(f"{s['trials']} problems, {s['steps']} steps: medians and shares with 95 % intervals", heads, rows)


def _finite_table(ended: Any, s: Any) -> Table:
    rows = []
    for name, c in zip(FINITE_MAPS, ended, strict=True):
        medians = (
            median_of(np.asarray(c[k], dtype=float)) for k in ("last", "margin", "size", "error", "softmax_error")
        )
        rows.append((name, str(share_of(c["stopped"])), *map(str, medians), str(share_of(c["best"]))))
    heads = (
        "attention", "gradient exactly 0", "last step", "margin / lead", "|W| / (lead |W_svm|)", "1 - corr: Att-SVM",
        "softmax at that |W|", "optimal tokens",
    )  # fmt: skip
    return Table(f"Maps that become one-hot at finite logits: {s['trials']} problems", heads, rows)


def _summed_notes(infinite: Any) -> list[str]:
    notes = []
    for name, c in zip(SUMMED, infinite, strict=True):
        own = np.asarray(c["own"], dtype=float)
        solved = np.isfinite(own[:, -1])
        falling = share_of(own[solved, -1] < own[solved, 0])
        verdict = (
            "follows the SVM of its own rows" if np.nanmedian(own[:, -1]) < 1e-2 else "has not come near its own rows"
        )
        notes.append(f"{name} {verdict}; 1 - corr fell from the first mark to the last in {falling}")
        away = np.flatnonzero(solved & (own[:, -1] > 1e-2))
        if len(away):
            shown = ", ".join(f"{b} ({own[b, -1]:.1e})" for b in away[:8])
            notes.append(
                f"exceptions: {name}: {len(away)} runs above 1e-2, draws {shown}{' ...' if len(away) > 8 else ''}"
            )
    return notes


def _finite_notes(ended: Any) -> list[str]:
    notes = []
    for name, c in zip(FINITE_MAPS, ended, strict=True):
        error, other = (np.asarray(c[k], dtype=float) for k in ("error", "softmax_error"))
        size = median_of(np.asarray(c["size"], dtype=float))
        nearer = share_of(error < other)
        notes.append(
            f"{name}: training ends where every selected token leads by {FINITE_MAPS[name][1]:g}, at {size} times the "
            "least norm that does so, and follows no margin problem further; nearer to Att-SVM of its tokens than a "
            f"softmax run of the same norm: {nearer}"
        )
    return notes


def draw(outcome: Outcome) -> Picture:
    """Medians and quartiles over the steps."""
    picture, axis = subplots(1, 1, size=(5.6, 3.8))
    for name, values in outcome.curves["own"].items():
        low, middle, high = np.nanquantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75), axis=0)
        axis.fill_between(outcome.curves["steps"], low, high, alpha=0.15)
        axis.plot(outcome.curves["steps"], middle, marker="o", markersize=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel="steps", ylabel=r"$1 - $ correlation with its own SVM")
    axis.set_xticks(outcome.curves["steps"], [f"{k:,}" for k in outcome.curves["steps"]], minor=False)
    axis.xaxis.minorticks_off()
    return finish(picture, [axis], legend=8)


FIGURE = Figure(
    paper="own",
    name="variants",
    title="Other attention maps and several heads: which margin problem training follows",
    protocol="""Normalized gradient descent on W, logistic loss, n = 4, T = 4, d = 8, fixed linear heads, exact
        gradients in the log domain. Softmax-1 is softmax with a null token, sigmoid attention a sum of T softmaxes over
        {token, null token}, H heads a sum of H softmaxes; so each has rows of its own, solved for the tokens selected
        at the end. Sparsemax and 1.5-entmax are trained with lr 0.02 until their gradient is exactly 0. An experiment:
        no theorem is tested.""",
    full={"trials": 200, "steps": 5000, "finite_steps": 3000},
    quick={"trials": 6, "steps": 500, "finite_steps": 600},
    run=run,
    draw=draw,
)
