"""Attention at its real size, and fits of selectors and classifiers against LinearSVC and LIBLINEAR.

Sizes are those of structured problems (`attsvm.structured_problem`), every position a query, ours and the peer in one
process, each after a small problem that loads what it needs. Seconds are of the processor where the machine is busy.

LinearSVC sees every row ``(x_right - x_t) z^T`` as dx dz features: at d = 384 they take 1.2 MB each, 73 GB for 2,000
tasks of 32 candidates. Both are therefore measured on growing numbers of tasks as far as memory allows, with the
objectives compared, and LinearSVC's time is carried on to all tasks twice: by its fitted growth exponent, and by
exponent 1 from the largest size measured. The smaller of the two is judged; it is an extrapolation, and said to be one.

Multiclass classification is attention where a class is a one-hot token, a sample a query, and its label the selected
token. Row c of W then scores class c, the margins are those of Crammer and Singer's SVM, and one slack per query is
its slack per sample: ``multiclass_svm(C=C)`` and LIBLINEAR with the same C minimize the same function ``|W|_F^2 / 2 + C
sum_i max_c (1 - (w_y - w_c) . z_i)_+``.
"""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.generate import random_points
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, MarginSolution, solve
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.validation.bench.measurement import Numbers, Stopwatch, Timed, measure, one_thread, peak_memory, reset_peak
from attsvm.validation.bench.solver_cases import fitted_exponent


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


def _tasks(n: int, T: int, d: int, rng: np.random.Generator) -> tuple[attsvm.AttentionProblem, npt.NDArray[np.int64]]:
    """Unit vectors whose right candidate is noisily decided by a bilinear score."""
    X, Z, W = (random_points(rng, shape) for shape in ((n, T, d), (n, d), (d, d)))
    scores = np.einsum("ntd,nd->nt", X, Z @ W.T)
    y = (scores + 0.3 * scores.std() * rng.standard_normal(scores.shape)).argmax(axis=1)
    return attsvm.AttentionProblem(X, Z=Z), y


def _linear_svc(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> tuple[float, float]:
    """Seconds of LinearSVC (features made outside of the time) and its objective."""
    from sklearn.svm import LinearSVC

    others = np.arange(problem.T) != y[:, None]
    a = (problem.X[np.arange(problem.n), y][:, None] - problem.X)[others]
    features = (a[:, :, None] * np.repeat(problem.Z, problem.T - 1, axis=0)[:, None]).reshape(len(a), -1)
    sign = np.where(np.arange(len(a)) % 2, 1.0, -1.0)
    features *= sign[:, None]
    watch = Stopwatch()
    model = LinearSVC(C=C, fit_intercept=False, tol=1e-6, max_iter=5000).fit(features, sign)
    seconds = watch.seconds()
    w = model.coef_[0]
    missed = np.maximum(1.0 - sign * (features @ w), 0.0)
    return seconds, float(0.5 * w @ w + C * missed @ missed)


def _ours(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> tuple[float, attsvm.Solution]:
    watch = Stopwatch()
    solution = attsvm.att_svm(problem, y, C=C, slack="row", loss="squared_hinge")
    return watch.seconds(), solution


def selector_speed(
    seed: int, tasks: int = 2000, candidates: int = 32, d: int = 384, *, few: tuple[int, ...] = (4, 8, 16, 32)
) -> Numbers:
    """Processor times of both, growth, the excess of LinearSVC's objective, our memory in sizes of the tokens.

    Parameters
    ----------
    seed, tasks, candidates, d : int
    few : tuple of int
        Numbers of tasks that both are measured on.

    Examples
    --------
    >>> found = selector_speed(0, 20, 4, 10, few=(5, 10))["attsvm"]
    >>> abs(found["objective of LinearSVC over ours, less 1"]) < 1e-3, found["gap"] < 1e-6
    (True, True)
    """
    rng, C = np.random.default_rng(seed), 1.0
    svc, ours, excess = [], [], []
    with one_thread():
        problem, y = _tasks(tasks, candidates, d, rng)
        for k, n in enumerate(few):
            part = attsvm.AttentionProblem(problem.X[:n], Z=problem.Z[:n])
            if not k:
                _ours(part, y[:n], C)  # imports are not what is measured
            seconds, objective = _linear_svc(part, y[:n], C)
            small, alone = _ours(part, y[:n], C)
            svc.append(seconds)
            ours.append(small)
            excess.append(objective / alone.objective - 1.0)
        before = reset_peak()
        whole, solution = _ours(problem, y, C)
        memory = (peak_memory() - before) / problem.X.nbytes
    exponent, more = fitted_exponent(list(few), svc), tasks / few[-1]
    by_growth, linear = svc[-1] * more**exponent, svc[-1] * more
    numbers = {
        "seconds": whole,
        "times as fast as LinearSVC (extrapolated)": min(by_growth, linear) / whole,
        "seconds on 32 tasks": ours[-1],
        "seconds of LinearSVC on 32 tasks": svc[-1],
        "times as fast on 32 tasks (measured)": svc[-1] / ours[-1],
        "growth exponent in tasks": fitted_exponent([*few, tasks], [*ours, whole]),
        "growth exponent of LinearSVC": exponent,
        "LinearSVC on all tasks by its exponent": by_growth,
        "by exponent 1": linear,
        "objective of LinearSVC over ours, less 1": max(excess, key=abs),
        "gap": float(solution.certificate.gap),
        "memory, in sizes of the tokens": memory,
    }
    return {"attsvm": numbers}


def standardized(data: str) -> tuple[FloatArray, IntArray]:
    """Samples and labels of scikit-learn's iris, wine or digits.

    Every feature has mean 0 and variance 1, but for the constant ones (three pixels of the digits), which are 0.

    Examples
    --------
    >>> standardized("wine")[0].shape
    (178, 13)
    """
    from sklearn import datasets

    samples, labels = getattr(datasets, f"load_{data}")(return_X_y=True)
    spread = samples.std(axis=0)
    return (samples - samples.mean(axis=0)) / np.where(spread > 0, spread, 1.0), labels.astype(np.int64)


def crammer_singer(W: FloatArray, samples: FloatArray, labels: IntArray, C: float) -> float:
    """The objective of Crammer and Singer's SVM at W, shape (classes, d).

    Examples
    --------
    >>> crammer_singer(np.zeros((3, 2)), np.ones((4, 2)), np.zeros(4, dtype=np.int64), 0.5)
    2.0
    """
    scores = samples @ W.T
    right = scores[np.arange(len(labels)), labels]
    short = 1.0 - (right[:, None] - scores)
    short[np.arange(len(labels)), labels] = 0.0
    return float(0.5 * (W * W).sum() + C * short.max(axis=1).sum())


def multiclass_speed(
    seed: int,
    data: tuple[str, ...] = ("iris", "wine", "digits"),
    penalties: tuple[float, ...] = (0.01, 1.0, 10.0),
    repeats: int = 3,
) -> Numbers:
    """Att-SVM with one slack per query against LinearSVC's Crammer-Singer method at tolerance 1e-8, without intercept.

    Examples
    --------
    >>> found = multiclass_speed(0, ("iris",), (1.0,), repeats=1)
    >>> abs(found["iris, C = 1"]["objective over LinearSVC's, less 1"]) < 1e-6
    True
    """
    lines: Numbers = {}
    with one_thread():
        attsvm.multiclass_svm(np.eye(3), [0, 1, 2], C=1.0)  # loads what it needs
        for name in data:
            samples, labels = standardized(name)
            for C in penalties:
                lines[f"{name}, C = {C:g}"] = _compared(samples, labels, C, seed, repeats)
    lines["all"] = {
        "largest excess": max(line["objective over LinearSVC's, less 1"] for line in lines.values()),
        "gap": max(line["gap"] for line in lines.values()),
    }
    return lines


def _compared(samples: FloatArray, labels: IntArray, C: float, seed: int, repeats: int) -> dict[str, float]:
    """Both on one data set at one C."""
    from sklearn.svm import LinearSVC

    model = LinearSVC(
        C=C, multi_class="crammer_singer", fit_intercept=False, tol=1e-8, max_iter=10**7, random_state=seed
    )
    theirs = measure(lambda given: model.fit(*given), lambda: (samples, labels), repeats, budget=20.0)
    ours = measure(lambda given: attsvm.multiclass_svm(*given, C=C), lambda: (samples, labels), repeats, budget=20.0)
    W, V = ours.answer.W, theirs.answer.coef_
    mine, known = crammer_singer(W, samples, labels, C), crammer_singer(V, samples, labels, C)
    return {
        "seconds": ours.seconds,
        "ratio": theirs.seconds / ours.seconds,
        "seconds of LinearSVC": theirs.seconds,
        "objective": mine,
        "objective over LinearSVC's, less 1": mine / known - 1.0,
        "gap": float(ours.answer.certificate.proved),
        "share of equal predictions": float(((samples @ W.T).argmax(axis=1) == (samples @ V.T).argmax(axis=1)).mean()),
    }


def soft_size(seed: int, size: tuple[int, int, int] = (5000, 20, 128), C: float = 1.0, wrong: float = 0.1) -> Numbers:
    """Time and peak memory of the default soft margin: unit vectors, labels of a hidden W, some of them wrong.

    Examples
    --------
    >>> soft_size(0, (20, 4, 6))["attsvm"]["gap"] <= 1e-6
    True
    """
    n, T, d = size
    rng = np.random.default_rng(seed)
    X, Z = random_points(rng, (n, T, d)), random_points(rng, (n, d))
    labels = np.einsum("ntd,nd->nt", X, Z @ rng.standard_normal((d, d)).T).argmax(axis=1)
    moved = rng.random(n) < wrong
    labels[moved] = (labels[moved] + rng.integers(1, T, int(moved.sum()))) % T
    problem = attsvm.AttentionProblem(X, Z=Z)
    timed = measure(lambda _: attsvm.att_svm(problem, labels, C=C), lambda: None)
    solved = timed.answer
    numbers = {
        "rows": float(n * (T - 1)),
        "seconds": timed.seconds,
        "memory": timed.memory,
        "memory, in sizes of the tokens": timed.memory / X.nbytes,
        "gap": float(solved.certificate.proved),
        "unproved": float(solved.status != "optimal"),
    }
    return {"attsvm": numbers}


# Paths over penalties: (n, T, d), the norm, and whether sequences are ragged; one label in ten is wrong.
PATHS: dict[str, tuple[tuple[int, int, int], str, bool]] = {
    "n=6, T=8, d=10": ((6, 8, 10), "frobenius", False),
    "n=200, T=10, d=16": ((200, 10, 16), "frobenius", False),
    "300 ragged tasks, d=64": ((300, 20, 64), "frobenius", True),
    "nuclear, n=6, T=8, d=10": ((6, 8, 10), "nuclear", False),
    "nuclear, n=20, T=6, d=12": ((20, 6, 12), "nuclear", False),
}


def soft_path_cost(seed: int, penalties: int = 20, paths: tuple[str, ...] = tuple(PATHS)) -> Numbers:
    """`soft_path` in units of one solve: the median over the same C of one `att_svm` call each.

    Examples
    --------
    >>> found = soft_path_cost(0, 3, ("n=6, T=8, d=10",))
    >>> found["n=6, T=8, d=10"]["unproved"]
    0.0
    """
    return {name: _path_cost(*PATHS[name], seed, np.geomspace(1e-2, 1e2, penalties)) for name in paths}


def _path_cost(size: tuple[int, int, int], norm: str, ragged: bool, seed: int, Cs: FloatArray) -> dict[str, float]:
    problem, selection = _noisy_tasks(size, ragged, seed)
    attsvm.att_svm(problem, selection, norm=norm, C=1.0)  # what is imported at the first call

    def solve_one(C: float) -> attsvm.Solution:
        return attsvm.att_svm(problem, selection, norm=norm, C=C)

    singles = [measure(solve_one, partial(float, C), 3, 0.1).seconds for C in Cs.tolist()]
    path = measure(lambda _: attsvm.soft_path(problem, Cs, selection, norm=norm), lambda: None, 5, 0.5)
    one = float(np.median(singles))
    return {
        "path over one solve": path.seconds / one,
        "all single solves over one": sum(singles) / one,
        "ms": 1e3 * path.seconds,
        "ms of one solve": 1e3 * one,
        "unproved": float(sum(part.status != "optimal" for part in path.answer)),
    }


def _noisy_tasks(
    size: tuple[int, int, int], ragged: bool, seed: int
) -> tuple[attsvm.AttentionProblem, npt.NDArray[np.int64]]:
    """Unit tokens and queries, the selection of a random W, one label in ten wrong; 4 to T tokens where ragged."""
    (n, T, d), rng = size, np.random.default_rng(seed)
    X, Z, W = random_points(rng, (n, T, d)), random_points(rng, (n, d)), rng.standard_normal((d, d))
    lengths = rng.integers(4, T + 1, n) if ragged else np.full(n, T)
    mask = np.arange(T) < lengths[:, None]
    right = np.where(mask, np.einsum("ntd,de,ne->nt", X, W, Z), -np.inf).argmax(axis=1)
    wrong = rng.random(n) < 0.1
    return attsvm.AttentionProblem(X, Z=Z, mask=mask), np.where(wrong, rng.integers(0, lengths), right)
