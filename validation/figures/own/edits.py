"""Smallest edits against cvxpy on random heads, and what must hold of every edit."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.sweeps import columns_of
from attsvm.trained_head import TrainedHead
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "edit_trials", "run"]

_OF = ("W", "K", "Q")


def _distance(head: TrainedHead, problem: attsvm.AttentionProblem, wanted: Any, of: str, norm: str) -> float:
    """Norm of the smallest change by cvxpy, from the formula: ``scale (K x)'(Q z)`` with one of the maps free."""
    import cvxpy as cp

    K, Q, scale = head.key_map, head.query_map, head.scale
    base = {"W": head.W, "K": K, "Q": Q}[of]
    D = cp.Variable(base.shape)
    i, t = np.nonzero((wanted[:, None] >= 0) & (np.arange(problem.T) != wanted[:, None]))
    a, z = problem.X[i, wanted[i]] - problem.X[i, t], problem.Z[i]
    if of == "W":
        left, right = a @ (head.W + D), z
    elif of == "K":
        left, right = scale * (a @ (K + D).T), z @ Q.T
    else:
        left, right = scale * (a @ K.T) @ (Q + D), z
    size = cp.sum_squares(D) if norm == "frobenius" else cp.normNuc(D)
    solved = cp.Problem(cp.Minimize(size), [cp.sum(cp.multiply(left, right), axis=1) >= 1])
    solved.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10)
    return float(np.sqrt(solved.value)) if norm == "frobenius" else float(solved.value)


def edit_trials(trials: int, seed: int, *, norm: str, of: str) -> dict[str, Any]:
    """Random heads and demands: distance to cvxpy's answer, rows missed, an edit that is none, an impossible one.

    Examples
    --------
    >>> from attsvm.validation.figures.own.edits import edit_trials
    >>> found = edit_trials(2, 0, norm="frobenius", of="K")
    >>> max(found["difference"]) < 1e-7, max(found["kept"]) <= 1e-9, all(found["nothing"]), all(found["named"])
    (True, True, True, True)
    """
    return columns_of(_trial(np.random.default_rng([seed, k]), norm, of) for k in range(trials))


def _trial(rng: np.random.Generator, norm: str, of: Any) -> dict[str, Any]:
    d_head, d, n = (int(rng.integers(*span)) for span in ((3, 6), (6, 11), (3, 7)))
    T = int(rng.integers(3, d_head + 2))  # more candidates than d_head + 1 may be too many for one query's map
    weights = [rng.normal(size=(d_head, d)) for _ in range(2)] + [rng.normal(size=d_head) for _ in range(2)]
    head = TrainedHead.from_weights(*weights)
    X, Z = head.extend(rng.normal(size=(n, T, d))), head.extend(rng.normal(size=(n, d)))
    problem = attsvm.AttentionProblem(X, Z=Z)
    now = attsvm.attention.likeliest(problem, head.W)
    asked = int(rng.integers(1, 3))
    wanted = np.where(np.arange(n) < asked, (now + rng.integers(1, T, size=n)) % T, -1)
    found = attsvm.edit(head, problem, wanted, of=of, norm=norm)
    expected = _distance(head, problem, wanted, of, norm)
    kept = attsvm.edit(head, problem, wanted, of=of, norm=norm, keep=True)
    lead = np.sort(attsvm.attention.logits(problem, head.W), axis=1)
    none = attsvm.edit(head, problem, now, of=of, norm=norm, margin=0.99 * float((lead[:, -1] - lead[:, -2]).min()))
    twice = attsvm.AttentionProblem(np.concatenate([X, X[:1]]), Z=np.concatenate([Z, Z[:1]]))
    clash = attsvm.edit(head, twice, [0, *[-1] * (n - 1), 1], of=of, norm=norm)
    return {
        "difference": abs(found.norm - expected) / max(expected, 1.0),
        "gap": found.certificate.gap,
        "missed": found.violation,
        "kept": kept.violation if kept.status.has_solution else 0.0,
        "keep": str(kept.status),
        "nothing": not none.change.any() and none.norm == 0.0,
        "named": str(clash.status) == "infeasible" and {row.query[0] for row in clash.conflicts} == {0, n},
    }


def run(context: Context) -> Outcome:
    """The worst of every measure, by norm and by what is edited."""
    trials = context.settings["trials"]
    cells = [{"norm": norm, "of": of} for norm in ("frobenius", "nuclear") for of in _OF]
    share = -(-trials // len(cells))
    found = context.sweep(edit_trials, cells, share, chunk=10, name="edits").columns
    rows, refuted = [], []
    for cell, c in zip(cells, found, strict=True):
        label = f"{cell['norm']}, {cell['of']}"
        kept = sum(status == "optimal" for status in c["keep"])
        rows.append((label, len(c["gap"]), max(c["difference"]), max(c["gap"]), max(c["missed"]), kept, max(c["kept"]),
                     sum(c["nothing"]), sum(c["named"])))  # fmt: skip
        for name, bad in (
            ("equals cvxpy's answer to 1e-7", max(c["difference"]) > 1e-7),
            ("meets its demands to 1e-9", max(c["missed"]) > 1e-9),
            ("keeps what is to be kept to 1e-9", max(c["kept"]) > 1e-9),
            ("changes nothing where nothing is missing", not all(c["nothing"])),
            ("names the queries of a contradiction", not all(c["named"])),
        ):
            refuted += [f"{label}: every edit {name}"] if bad else []
    columns = (
        "",
        "problems",
        "against cvxpy",
        "gap",
        "missed",
        "with keep",
        "kept missed",
        "nothing to do",
        "proved, named",
    )
    total = sum(len(c["gap"]) for c in found)
    return Outcome([Table(f"The worst over {total} random heads", columns, rows)], {}, [], refuted)


FIGURE = Figure(
    paper="own",
    name="edits",
    title="Smallest edits equal cvxpy's, keep what they must and prove what is impossible",
    protocol="""Random heads (d_head 3 to 5, d 6 to 10, with biases), 3 to 6 queries, 3 to 6 tokens: one or two queries
        are asked for another token. The same change by cvxpy with CLARABEL at 1e-10; again with keep=True; with the
        head's own tokens at less than its margins (no change is due); with two demands that contradict each other.""",
    full={"trials": 500},
    quick={"trials": 12},
    run=run,
)
