"""Spectral, l1, linf and l_p norms: our own solvers against cvxpy with the quickest of its installed solvers."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from statistics import median
from typing import Any

import numpy as np

from attsvm.solvers import MarginProblem, get_norm, solve
from attsvm.validation.bench.measure import Stopwatch

__all__ = ["agreement", "norm_speed", "sphere_problems"]

# What cvxpy may take; the quickest that solves the norm to the tolerance counts.
_BACKENDS = {
    "l1": ("CLARABEL", "HIGHS"),
    "linf": ("CLARABEL", "HIGHS"),
    "spectral": ("CLARABEL", "SCS"),
    "l3": ("CLARABEL",),
    "l1.5": ("CLARABEL",),
}
NORMS = tuple(_BACKENDS)
Numbers = dict[str, dict[str, float]]


def sphere_problems(count: int, seed: int, size: tuple[int, int, int] = (6, 8, 10)) -> list[MarginProblem]:
    """Problems of n queries with T tokens each on the unit sphere in d dimensions, the first one selected.

    Examples
    --------
    >>> from attsvm.validation.bench.norms import sphere_problems
    >>> sphere_problems(2, 0)[1].m
    42
    """
    n, T, d = size
    rng = np.random.default_rng(seed)
    tokens, queries = rng.normal(size=(count, n, T, d)), rng.normal(size=(count, n, d))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    queries /= np.linalg.norm(queries, axis=-1, keepdims=True)
    a = (tokens[:, :, :1] - tokens[:, :, 1:]).reshape(count, -1, d)
    return [MarginProblem(a[k], queries[k], np.repeat(np.arange(n), T - 1)) for k in range(count)]


def _by_cvxpy(problem: MarginProblem, norm: str, backend: str) -> float:
    """The least norm as a user would ask cvxpy for it: rows in one expression, the solver's own accuracy."""
    import cvxpy as cp

    pair = problem.pairs()
    W = cp.Variable(problem.shape)
    values = cp.sum(cp.multiply(pair.a @ W, pair.right), axis=1)
    program = cp.Problem(cp.Minimize(get_norm(norm).expression(W)), [values >= 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.solve(solver=backend)
    return float(program.value)


def _seconds(work: Any, repeats: int) -> float:
    work()  # loads what it needs
    taken = []
    for _ in range(repeats):
        watch = Stopwatch()
        work()
        taken.append(watch.seconds())
    return median(taken)


def norm_speed(seed: int, norm: str, batch: int = 200, repeats: int = 9) -> Numbers:
    """One problem of (6, 8, 10), and a batch; cvxpy gets the one problem, and its time counts for each of a batch.

    Examples
    --------
    >>> from attsvm.validation.bench.norms import norm_speed
    >>> found = norm_speed(0, "l1", batch=4, repeats=1)
    >>> found["attsvm"]["gap"] <= 1e-7, found["attsvm"]["difference"] < 1e-6
    (True, True)
    """
    problems = sphere_problems(batch, seed)
    first, whole = problems[0], MarginProblem.stack(problems)
    peers = {
        name: _seconds(lambda name=name: _by_cvxpy(first, norm, name), max(1, repeats // 3))
        for name in _BACKENDS[norm]
        if find_spec(name.lower() if name != "HIGHS" else "highspy") is not None
    }
    alone, together = solve(first, norm), solve(whole, norm)
    single = _seconds(lambda: solve(first, norm), repeats)
    many = _seconds(lambda: solve(whole, norm), max(1, repeats // 3)) / batch
    quickest = min(peers.values())
    gap = max(alone.certificate.proved, float(np.max(together.certificate.proved)))
    ours = {
        "seconds": single,
        "seconds in a batch": many,
        "times as fast": quickest / single,
        "times as fast in a batch": quickest / many,
        "gap": gap,
        "difference": abs(_by_cvxpy(first, norm, "CLARABEL") / alone.norm - 1.0),
    }
    return {"attsvm": ours, **{f"cvxpy {name}": {"seconds": value} for name, value in peers.items()}}


def agreement(seed: int, count: int = 100) -> Numbers:
    """Problems of many sizes, also with equality rows, in all five norms: gaps, and distance from certified cvxpy.

    Examples
    --------
    >>> from attsvm.validation.bench.norms import agreement
    >>> agreement(0, count=1)["all norms"]["worst gap"] <= 1e-7
    True
    """
    rng = np.random.default_rng(seed)
    worst, apart, unsettled = 0.0, 0.0, 0
    for k in range(count):
        norm = NORMS[k % len(NORMS)]
        n, T, d = int(rng.integers(2, 8)), int(rng.integers(3, 9)), int(rng.integers(4, 12))
        (plain,) = sphere_problems(1, int(rng.integers(2**31)), (n, T, d))
        equality = np.arange(plain.m) < int(rng.integers(0, 3))
        pair = plain.pairs()
        problem = MarginProblem(pair.a, pair.queries, pair.owner, np.where(equality, 0.0, 1.0), equality)
        own, known = solve(problem, norm), solve(problem, norm, "cvxpy")
        if own.status == known.status == "infeasible":
            continue
        if not (own.status == "optimal" and known.status == "optimal"):
            unsettled += 1
            continue
        worst = max(worst, own.certificate.proved)
        apart = max(apart, abs(own.norm / known.norm - 1.0))
    numbers = {"problems": float(count), "worst gap": worst, "worst difference": apart, "unsettled": float(unsettled)}
    return {"all norms": numbers}
