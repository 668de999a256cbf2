"""Whether all backends agree, their certificates say so, and Theorem 1 holds.

Run as ``python -m attsvm.validation.agreement``: random instances from (n, T, d) = (1, 2, 1) to (10, 10, 20),
cross- and self-attention, masked and unmasked, both norms; then feasibility at d = max(T - 1, n).
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

import attsvm
from attsvm.solvers import Status
from attsvm.validation.report import console, environment

__all__ = ["Comparison", "compare_backends", "feasible_fraction", "instances", "main"]

BACKENDS = {
    "frobenius": ("cvxpy:CLARABEL", "cvxpy:SCS", "cvxpy:OSQP", "active_set", "projected"),
    "nuclear": ("cvxpy:CLARABEL", "cvxpy:SCS", "nuclear_interior", "nuclear_factored", "nuclear_conic"),
}
_CORNERS = ((1, 2, 1), (1, 2, 2), (10, 10, 20), (10, 2, 20), (1, 10, 20))


@dataclass(frozen=True)
class Comparison:
    """One instance, one norm, one backend, against the backend with the best certificate.

    Attributes
    ----------
    relative_difference : float
        Of the norm; 0 when both say infeasible, infinite when they disagree on feasibility.
    span_residual : float
        Relative size of the part of W outside the spans of the token differences and of the queries.
    rank_excess : int
        Numerical rank minus min(n, d): Lemma 1 says that it is never positive.
    """

    size: tuple[int, int, int]
    kind: str
    masked: bool
    norm: str
    backend: str
    status: Status
    relative_difference: float
    gap: float
    span_residual: float
    rank_excess: int


def instances(count: int, seed: int = 0) -> Iterator[tuple[attsvm.AttentionProblem, str, bool]]:
    """Random problems: (problem, "cross" or "self", masked?).

    Examples
    --------
    >>> from attsvm.validation.agreement import instances
    >>> [problem.X.shape for problem, _, _ in instances(2)]
    [(1, 2, 1), (1, 2, 2)]
    """
    rng = np.random.default_rng(seed)
    for j in range(count):
        n, T, d = _CORNERS[j] if j < len(_CORNERS) else map(int, rng.integers((1, 2, 1), (11, 11, 21)))
        kind: Literal["cross", "self"] = "self" if j % 2 else "cross"
        masked = bool((j // 2) % 2) and T > 2
        # On the unit sphere of one dimension tokens are +-1 and coincide; draw Gaussians there.
        problem = attsvm.random_problem(
            n=n, T=T, d=d, seed=rng, kind=kind, distribution="sphere" if d > 1 else "gaussian"
        )
        if masked:
            lengths = rng.integers(2, T + 1, size=n)
            problem = replace(problem, mask=np.arange(T) < lengths[:, None])
        yield problem, kind, masked


def _outside(W: np.ndarray, rows: attsvm.solvers.MarginProblem) -> float:
    left = np.linalg.svd(rows.a.T, full_matrices=False)
    right = np.linalg.svd(rows.queries.T, full_matrices=False)
    P = left[0][:, left[1] > 1e-10 * left[1][0]]
    R = right[0][:, right[1] > 1e-10 * right[1][0]]
    return float(np.linalg.norm(W - P @ (P.T @ W @ R) @ R.T) / np.linalg.norm(W))


def compare_backends(count: int, seed: int = 0) -> list[Comparison]:
    """Solve every instance with every backend and compare with the best certificate.

    Examples
    --------
    >>> from attsvm.validation.agreement import compare_backends
    >>> max(row.relative_difference for row in compare_backends(1)) < 1e-6
    True
    """
    found = []
    for problem, kind, masked in instances(count, seed):
        for norm, backends in BACKENDS.items():
            solutions = {backend: attsvm.att_svm(problem, norm=norm, solver=backend) for backend in backends}
            feasible = [s for s in solutions.values() if s.status.has_solution]
            best = min(feasible, key=lambda s: s.certificate.worst, default=None)
            for backend, solution in solutions.items():
                difference = float("inf")
                if best is None and solution.status is Status.INFEASIBLE:
                    difference = 0.0
                elif best is not None and solution.status.has_solution:
                    difference = abs(solution.norm - best.norm) / best.norm
                has = solution.status.has_solution
                found.append(
                    Comparison(
                        size=(problem.n, problem.T, problem.dx),
                        kind=kind,
                        masked=masked,
                        norm=norm,
                        backend=backend,
                        status=solution.status,
                        relative_difference=difference,
                        gap=solution.certificate.gap if has else 0.0,
                        span_residual=_outside(solution.W, solution.rows.margin_problem) if has else 0.0,
                        rank_excess=solution.rank - min(problem.n, problem.dx) if has else 0,
                    )
                )
    return found


def feasible_fraction(draws: int, kind: Literal["cross", "self"], seed: int = 0) -> float:
    """Share of feasible draws at d = max(T - 1, n) with random sizes and random selections (Theorems 1 and 6).

    Examples
    --------
    >>> from attsvm.validation.agreement import feasible_fraction
    >>> feasible_fraction(5, "self")
    1.0
    """
    rng = np.random.default_rng(seed)
    feasible = 0
    for _ in range(draws):
        n, T = int(rng.integers(1, 9)), int(rng.integers(2, 10))
        d = max(T - 1, n)
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, kind=kind, distribution="gaussian")
        solution = attsvm.att_svm(problem, selection=rng.integers(T, size=n))
        feasible += solution.status is Status.OPTIMAL
    return feasible / draws


def main(arguments: list[str] | None = None) -> None:
    """Print the worst disagreement per norm and backend."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.agreement", description=__doc__)
    parser.add_argument("--instances", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    rows = compare_backends(options.instances, options.seed)
    out = console()
    out.print(f"{options.instances} instances from (n,T,d) = (1,2,1) to (10,10,20), seed {options.seed}")
    out.print(
        f"{'norm':10} {'backend':17} {'optimal':>7} {'infeas.':>7} {'other':>5} {'worst norm diff':>15} "
        f"{'worst gap':>9} {'off span':>8} {'rank>min(n,d)':>13}"
    )
    for norm, backends in BACKENDS.items():
        for backend in backends:
            mine = [r for r in rows if r.norm == norm and r.backend == backend]
            optimal = sum(r.status is Status.OPTIMAL for r in mine)
            infeasible = sum(r.status is Status.INFEASIBLE for r in mine)
            out.print(
                f"{norm:10} {backend:17} {optimal:7d} {infeasible:7d} {len(mine) - optimal - infeasible:5d} "
                f"{max(r.relative_difference for r in mine):15.1e} {max(r.gap for r in mine):9.1e} "
                f"{max(r.span_residual for r in mine):8.0e} {sum(r.rank_excess > 0 for r in mine):13d}"
            )
    kinds: tuple[Literal["cross", "self"], ...] = ("cross", "self")
    for kind in kinds:
        share = feasible_fraction(options.instances, kind, options.seed)
        out.print(f"Theorem 1, {kind}-attention, d = max(T-1, n): {share:.0%} of {options.instances} draws feasible")
    out.print(f"{time.perf_counter() - start:.0f} s; {environment()}")


if __name__ == "__main__":
    main()
