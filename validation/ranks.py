"""Ranks of Att-SVM* solutions: what loose solves report against what a certificate proves.

The published protocol solves at the modelling package's default accuracy, one constraint object per row,
and counts singular values above an absolute 1e-7. Run as ``python -m attsvm.validation.ranks``.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import attsvm
from attsvm.rows import selection_rows
from attsvm.validation.report import console, environment, mean_interval

__all__ = ["RankRow", "main", "published_rank", "rank_table"]

PUBLISHED_TOLERANCE = 1e-7


@dataclass(frozen=True)
class RankRow:
    """One trial: ranks by the published protocol with two solvers, and certified."""

    seed: int
    published_scs: int
    published_clarabel: int
    numerical: int
    certified: int
    gap: float
    singular_gap: float


def published_rank(problem: attsvm.AttentionProblem, solver: str) -> int:
    """Rank as the published protocol measures it: default accuracy, absolute tolerance 1e-7.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.ranks import published_rank
    >>> published_rank(attsvm.random_problem(n=4, T=3, d=6, seed=0), "SCS") <= 6
    True
    """
    import cvxpy as cp

    rows = selection_rows(problem).margin_problem
    W = cp.Variable(rows.shape)
    constraints = [a @ W @ rows.queries[o] >= 1 for a, o in zip(rows.a, rows.owner, strict=True)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(cp.normNuc(W)), constraints).solve(solver=solver)
    return int(np.linalg.matrix_rank(W.value, tol=PUBLISHED_TOLERANCE))


def rank_table(n: int, T: int, d: int, trials: int, seed: int = 0) -> list[RankRow]:
    """One row per seed; infeasible draws are dropped (the published code counts them as rank 1).

    Examples
    --------
    >>> from attsvm.validation.ranks import rank_table
    >>> row = rank_table(n=3, T=3, d=5, trials=1)[0]
    >>> row.certified == row.numerical
    True
    """
    rows = []
    for s in range(seed, seed + trials):
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=s)
        solution = attsvm.att_svm(problem, norm="nuclear")
        rank = solution.certificate.rank_certificate
        if rank is None:
            continue
        rows.append(
            RankRow(
                seed=s,
                published_scs=published_rank(problem, "SCS"),
                published_clarabel=published_rank(problem, "CLARABEL"),
                numerical=rank.numerical_rank,
                certified=rank.rank,
                gap=solution.certificate.gap,
                singular_gap=rank.singular_gap,
            )
        )
    return rows


def main(arguments: list[str] | None = None) -> None:
    """Print the table of mean ranks."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.ranks", description=__doc__)
    parser.add_argument("--n", type=int, default=15)
    parser.add_argument("--T", type=int, default=5)
    parser.add_argument("--d", type=int, default=20)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    rows = rank_table(options.n, options.T, options.d, options.trials, options.seed)
    if not rows:
        parser.exit(1, "every draw was infeasible; raise --d\n")
    summary: dict[str, Any] = {
        name: mean_interval([getattr(row, name) for row in rows])
        for name in ("published_scs", "published_clarabel", "numerical", "certified")
    }
    summary["worst_gap"] = max(row.gap for row in rows)
    summary["smallest_singular_gap"] = min(row.singular_gap for row in rows)
    summary["certified_equals_numerical"] = sum(row.certified == row.numerical for row in rows)
    record = {
        "parameters": vars(options),
        "kept": len(rows),
        "summary": summary,
        "seconds": time.perf_counter() - start,
        "environment": environment(),
    }
    if options.json:
        print(json.dumps(record | {"rows": [asdict(row) for row in rows]}, indent=2))
        return
    out = console()
    out.print(
        f"Rank of Att-SVM* solutions: n={options.n}, T={options.T}, d={options.d}, unit sphere, optimal tokens, "
        f"seeds {options.seed}..{options.seed + options.trials - 1}, {len(rows)} feasible"
    )
    for name, label in (
        ("published_scs", "published protocol (tol 1e-7, default accuracy), SCS"),
        ("published_clarabel", "published protocol (tol 1e-7, default accuracy), CLARABEL"),
        ("numerical", "numerical rank of a certified solve"),
        ("certified", "certified rank (dual singular values equal to 1)"),
    ):
        mean, half = summary[name]
        out.print(f"  {mean:6.2f} +- {half:.2f}  {label}")
    out.print(
        f"  certified = numerical in {summary['certified_equals_numerical']} of {len(rows)}; worst relative gap "
        f"{summary['worst_gap']:.0e}; smallest singular-value gap {summary['smallest_singular_gap']:.0e}"
    )
    out.print(f"  {record['seconds']:.0f} s; {record['environment']}")


if __name__ == "__main__":
    main()
