"""Attention at its real size: rows that share tokens against rows written out, soft margins against LinearSVC.

All on structured problems (`attsvm.structured_problem`), every position a query, ours and the peer in one process, each
after a small problem that loads what it needs. Seconds are of the processor where the machine is busy.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

import attsvm
from attsvm.rows import selection_rows
from attsvm.solvers import MarginProblem, MarginSolution, solve
from attsvm.validation.bench.measure import Stopwatch, Timed, measure

__all__ = ["large_solve", "nuclear_size", "rank_in_time", "shared_against_pairs", "soft_against_linear_svc"]

Numbers = dict[str, dict[str, float]]


def _solved(n: int, T: int, d: int, seed: int, *, shared: bool, **options: Any) -> Timed:
    """Rows built and solved, with time and peak memory beside the tokens."""
    problem, selection = attsvm.structured_problem(n, T, d, seed=seed)

    def work(_: object) -> MarginSolution:
        return solve(selection_rows(problem, selection, shared=shared).margin_problem, solver="working_set", **options)

    return measure(work, lambda: None)


def shared_against_pairs(seed: int, size: tuple[int, int, int] = (16, 64, 384)) -> Numbers:
    """Frobenius solves through shared rows and through rows written out.

    Examples
    --------
    >>> from attsvm.validation.bench.real_size import shared_against_pairs
    >>> found = shared_against_pairs(0, (2, 8, 16))
    >>> found["shared rows"]["difference of norms"] < 1e-8
    True
    """
    for shared in (True, False):  # as many queries as the method for many of them needs
        _solved(16, 16, 16, seed, shared=shared)
    ours, pairs = (_solved(*size, seed, shared=shared) for shared in (True, False))
    found, known = ours.answer, pairs.answer
    numbers = {
        "seconds": ours.seconds,
        "MB": ours.memory / 1e6,
        "times as fast as rows written out": pairs.seconds / ours.seconds,
        "times less memory": pairs.memory / max(ours.memory, 1.0),
        "difference of norms": abs(found.norm / known.norm - 1.0),
        "gap": found.certificate.proved,
        "support": float((found.multipliers > 0).sum()),
        "rounds": float(found.iterations),
        "products": float(found.extras.products),
    }
    peer = {"seconds": pairs.seconds, "MB": pairs.memory / 1e6, "gap": known.certificate.proved}
    return {"shared rows": numbers, "rows written out": peer}


def soft_against_linear_svc(seed: int, size: tuple[int, int, int] = (2, 14, 384), C: float = 0.1) -> Numbers:
    """Squared hinge, one slack per row: ours against LinearSVC on the rows written out as features.

    Examples
    --------
    >>> from attsvm.validation.bench.real_size import soft_against_linear_svc
    >>> soft_against_linear_svc(0, (2, 6, 8))["attsvm"]["difference of W"] < 1e-6
    True
    """
    from sklearn.svm import LinearSVC

    problem, selection = attsvm.structured_problem(*size, seed=seed)
    rows = selection_rows(problem, selection).margin_problem
    scale = float(rows.row_norms.max())
    soft = _scaled(rows, 1.0 / scale).soft(C, "row", "squared_hinge")
    solve(_scaled(rows.gather([0, 1]), 1.0 / scale).soft(C, "row", "squared_hinge"))
    ours = measure(lambda _: solve(soft), lambda: None, repeats=3)
    # LinearSVC wants two classes: a row with label 1 is the negative row with label -1.
    labels = np.where(np.arange(soft.m) % 2, -1.0, 1.0)
    features = soft.features() * labels[:, None]
    peer = LinearSVC(
        C=C, loss="squared_hinge", fit_intercept=False, dual=False, tol=1e-10, max_iter=100_000, random_state=0
    )
    watch = Stopwatch()
    peer.fit(features, labels)
    seconds = watch.seconds()
    W = ours.answer.W
    numbers = {
        "seconds": ours.seconds,
        "times as fast as LinearSVC": seconds / ours.seconds,
        "difference of W": float(np.abs(W.ravel() - peer.coef_.ravel()).max() / np.abs(W).max()),
        "gap": ours.answer.certificate.proved,
    }
    return {"attsvm": numbers, "LinearSVC": {"seconds": seconds}}


def _scaled(rows: MarginProblem, factor: float) -> MarginProblem:
    """The same rows with left factors times a number."""
    pair = rows.rows.gather(np.arange(rows.m))
    return MarginProblem(pair.a * factor, pair.queries, pair.owner)


def nuclear_size(seed: int, size: tuple[int, int, int] = (8, 64, 384), time_limit: float = 600.0) -> Numbers:
    """Nuclear norm through shared rows."""
    problem, selection = attsvm.structured_problem(*size, seed=seed)
    rows = selection_rows(problem, selection, shared=True).margin_problem

    def work(_: object) -> MarginSolution:
        return solve(rows, "nuclear", "reweighted", tolerance=1e-5, time_limit=time_limit)

    timed = measure(work, lambda: None)
    certificate = timed.answer.certificate
    numbers = {
        "rows": float(rows.m),
        "seconds": timed.seconds,
        "MB": timed.memory / 1e6,
        "gap": certificate.proved,
        "certified rank": float(certificate.rank),
        "resolution": certificate.rank_certificate.resolution,
    }
    return {"attsvm": numbers}


def rank_in_time(
    seed: int, size: tuple[int, int, int] = (48, 64, 64), rank: int = 8, limits: tuple[float, float] = (4.0, 16.0)
) -> Numbers:
    """Rank-limited solves with little and with more time: how far from the convex bound, and how punctual.

    Examples
    --------
    >>> from attsvm.validation.bench.real_size import rank_in_time
    >>> found = rank_in_time(0, (3, 4, 6), 2, (1.0, 2.0))
    >>> found["attsvm"]["norm with more time over norm with less"] <= 1.0 + 1e-6
    True
    """
    rows = selection_rows(attsvm.random_problem(*size, seed=seed)).margin_problem
    norms, punctual, gap = [], [], math.nan
    for limit in limits:
        begin = time.perf_counter()
        solved = solve(rows, "nuclear", rank=rank, time_limit=limit, seed=seed)
        punctual.append((time.perf_counter() - begin) / limit)
        norms.append(solved.norm)
        gap = solved.certificate.gap
    numbers = {
        "rows": float(rows.m),
        "gap to the convex bound": gap,
        "norm with more time over norm with less": norms[1] / norms[0],
        "time taken over time asked": max(punctual),
    }
    return {"attsvm": numbers}


def large_solve(
    seed: int, size: tuple[int, int, int] = (32, 128, 384), *, parts: tuple[int, ...] = (8, 16, 32)
) -> Numbers:
    """Causal Frobenius solves of growing numbers of sequences, float32 tokens; support, rounds and growth in rows."""
    _, T, d = size
    found: Numbers = {}
    points: list[tuple[float, float]] = []
    for n in parts:
        problem, selection = attsvm.structured_problem(n, T, d, causal=True, dtype=np.float32, seed=seed)

        def work(_: object, problem: Any = problem, selection: Any = selection) -> MarginSolution:
            return solve(selection_rows(problem, selection, shared=True).margin_problem, solver="working_set")

        timed = measure(work, lambda: None)
        solved = timed.answer
        points.append((math.log(solved.problem.m), math.log(timed.seconds)))
        found[f"{n} x {T} causal"] = {
            "rows": float(solved.problem.m),
            "seconds": timed.seconds,
            "MB": timed.memory / 1e6,
            "gap": solved.certificate.proved,
            "support": float((solved.multipliers > 0).sum()),
            "rounds": float(solved.iterations),
            "products": float(solved.extras.products),
        }
    if len(points) > 1:
        (x0, y0), (x1, y1) = points[0], points[-1]
        found[f"{parts[-1]} x {T} causal"]["growth exponent in rows"] = (y1 - y0) / (x1 - x0)
    return found
