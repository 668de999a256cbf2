"""Whether all backends agree, their certificates say so, and Theorem 1 holds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import attsvm
from attsvm.solvers import MarginProblem, Status
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table, share_of

__all__ = ["BACKENDS", "FIGURE", "PAIRS", "compare_backends", "feasible_draws", "instances", "run"]

BACKENDS = {
    "frobenius": ("cvxpy:CLARABEL", "cvxpy:SCS", "cvxpy:OSQP", "active_set", "working_set"),
    "nuclear": ("cvxpy:CLARABEL", "cvxpy:SCS", "interior", "factored", "nuclear_batch"),
}
PAIRS = [(norm, backend) for norm, backends in BACKENDS.items() for backend in backends]
_CORNERS = ((1, 2, 1), (1, 2, 2), (10, 10, 20), (10, 2, 20), (1, 10, 20))
_KINDS: tuple[Literal["cross", "self"], ...] = ("cross", "self")


def instances(count: int, seed: int = 0, corners: bool = True) -> Iterator[attsvm.AttentionProblem]:
    """Random problems, cross- and self-attention, masked and unmasked; the first few of extreme sizes.

    Examples
    --------
    >>> from attsvm.validation.figures.own.agreement import instances
    >>> [problem.X.shape for problem in instances(2)]
    [(1, 2, 1), (1, 2, 2)]
    """
    rng = np.random.default_rng(seed)
    for j in range(count):
        extreme = corners and j < len(_CORNERS)
        n, T, d = _CORNERS[j] if extreme else map(int, rng.integers((1, 2, 1), (11, 11, 21)))
        # On the unit sphere of one dimension tokens are +-1 and coincide; draw Gaussians there.
        distribution: Literal["sphere", "gaussian"] = "sphere" if d > 1 else "gaussian"
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, kind=_KINDS[j % 2], distribution=distribution)
        if (j // 2) % 2 and T > 2:
            lengths = rng.integers(2, T + 1, size=n)
            problem = replace(problem, mask=np.arange(T) < lengths[:, None])
        yield problem


def _outside(W: np.ndarray, rows: MarginProblem) -> float:
    """Relative size of the part of W outside the spans of the token differences and of the queries."""
    pairs = rows.rows.gather(np.arange(rows.m))
    left, right = (np.linalg.svd(part.T, full_matrices=False) for part in (pairs.a, pairs.queries))
    P, R = (basis[0][:, basis[1] > 1e-10 * basis[1][0]] for basis in (left, right))
    return float(np.linalg.norm(W - P @ (P.T @ W @ R) @ R.T) / np.linalg.norm(W))


def _against_the_best(problem: attsvm.AttentionProblem, norm: str) -> Iterator[tuple[Any, ...]]:
    """Status, difference, gap, part outside the spans and excess rank of every backend of a norm."""
    solutions = [attsvm.att_svm(problem, norm=norm, solver=backend) for backend in BACKENDS[norm]]
    solved = [s for s in solutions if s.status.has_solution]
    best = min(solved, key=lambda s: s.certificate.worst, default=None)
    for s in solutions:
        if best is not None and s.status.has_solution:
            difference, excess = abs(s.norm - best.norm) / best.norm, s.rank - min(problem.n, problem.dx)
            yield str(s.status), difference, s.certificate.gap, _outside(s.W, s.rows.margin_problem), excess
        else:
            agreed = best is None and s.status is Status.INFEASIBLE
            yield str(s.status), 0.0 if agreed else float("inf"), 0.0, 0.0, 0


def compare_backends(trials: int, seed: int, *, corners: bool) -> dict[str, Any]:
    """Solve every instance with every backend and compare with the best certificate in its norm.

    Every column has one list per instance, with one entry per pair of `PAIRS`: ``difference`` of the norm (0 when both
    say infeasible, infinite when they disagree on feasibility), ``gap``, ``outside`` of the spans, and ``excess``, the
    numerical rank minus min(n, d), which Lemma 1 says is never positive.

    Examples
    --------
    >>> from attsvm.validation.figures.own.agreement import compare_backends
    >>> found = compare_backends(1, 0, corners=True)
    >>> max(found["difference"][0]) < 1e-6
    True
    """

    def row(problem: attsvm.AttentionProblem) -> dict[str, Any]:
        values = zip(*(found for norm in BACKENDS for found in _against_the_best(problem, norm)), strict=True)
        return dict(zip(("status", "difference", "gap", "outside", "excess"), values, strict=True))

    return columns_of(map(row, instances(trials, seed, corners)))


def feasible_draws(trials: int, seed: int, *, kind: Literal["cross", "self"]) -> dict[str, Any]:
    """Which draws at d = max(T - 1, n), with random sizes and random selections, are feasible (Theorems 1 and 6).

    Examples
    --------
    >>> from attsvm.validation.figures.own.agreement import feasible_draws
    >>> all(feasible_draws(5, 0, kind="self")["feasible"])
    True
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(trials):
        n, T = int(rng.integers(1, 9)), int(rng.integers(2, 10))
        problem = attsvm.random_problem(n=n, T=T, d=max(T - 1, n), seed=rng, kind=kind, distribution="gaussian")
        found.append(attsvm.att_svm(problem, selection=rng.integers(T, size=n)).status is Status.OPTIMAL)
    return {"feasible": found}


def run(context: Context) -> Outcome:
    """The worst disagreement per norm and backend, and feasibility."""
    s = context.settings
    parts = [
        context.sweep(compare_backends, [{"corners": corners}], trials, chunk=20, name=name).columns[0]
        for corners, trials, name in ((True, len(_CORNERS), "corners"), (False, s["trials"], "random sizes"))
    ]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows, refuted = [], []
    for k, (norm, backend) in enumerate(PAIRS):
        status, difference, gap, outside, excess = (found[name][:, k] for name in found)
        optimal, infeasible = (int((status == str(x)).sum()) for x in (Status.OPTIMAL, Status.INFEASIBLE))
        worst = (f"{float(values.max()):.1e}" for values in (difference, gap, outside))
        above = int((excess > 0).sum())
        rows.append((norm, backend, optimal, infeasible, len(status) - optimal - infeasible, *worst, above))
        if above:
            refuted.append(f"Lemma 1: rank <= min(n, d), {norm}, {backend}")
    feasible = context.sweep(feasible_draws, [{"kind": kind} for kind in _KINDS], chunk=50, name="feasible")
    shares = {cell["kind"]: columns["feasible"] for cell, columns in feasible}
    refuted += [f"Theorem 1, {kind}-attention: every draw is feasible" for kind in _KINDS if not shares[kind].all()]
    columns = ("norm", "backend", "optimal", "infeasible", "other", "worst norm difference", "worst gap", "off span",
               "rank > min(n, d)")  # fmt: skip
    return Outcome(
        tables=[
            Table("Every backend against the best certificate", columns, rows, align="llrrrrrrr"),
            Table("Theorem 1 at d = max(T - 1, n)", ("attention", "feasible"),
                  [(kind, share_of(flags)) for kind, flags in shares.items()]),
        ],
        curves={},
        refuted=refuted,
    )  # fmt: skip


FIGURE = Figure(
    paper="own",
    name="agreement",
    title="Whether all backends agree, their certificates say so, and Theorem 1 holds",
    protocol="""Random instances from (n, T, d) = (1, 2, 1) to (10, 10, 20), the five extreme sizes among them, cross-
        and self-attention, masked and unmasked, both norms; then feasibility at d = max(T - 1, n) for random sizes and
        selections.""",
    full={"trials": 200},
    quick={"trials": 8},
    run=run,
)
