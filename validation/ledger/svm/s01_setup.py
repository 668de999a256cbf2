"""Section 2: the model, optimal tokens, feasibility and the rank of solutions."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead, attention
from attsvm.solvers import Status
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case
from attsvm.validation.ledger.svm._common import LOSS_NAMES, Array, Rng, make, risk, rotation, seed_of

__all__ = ["CHECKS"]


@each(1e-12, "relative error of the risk")
def _erm(formula: Any, rng: Rng, k: int) -> Any:
    """A formula for the risk of (K, Q) against the library's forward pass on the product."""
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(3, 4, 5, seed=rng, kind="self" if k % 2 else "cross")
    K, Q = rng.normal(size=(2, 5, 3))
    own = formula(p.X, p.Y, p.Z, p.head.v, K, Q, attsvm.get_loss(loss))  # type: ignore[union-attr]
    exact = float(attention.risk(p, K @ Q.T, loss))
    return abs(own - exact) / abs(exact)


def _erm_printed(X: Array, Y: Array, Z: Array, v: Array, K: Array, Q: Array, loss: Any) -> float:
    total = 0.0
    for x, y, z in zip(X, Y, Z, strict=True):
        e = np.exp(x @ K @ Q.T @ z)
        total += float(loss(y * (v @ (x.T @ (e / e.sum())))))
    return total / len(X)


@each(1e-12, "loss of an attention map below that of the tokens, 60 maps")
def _optimal(formula: Any, rng: Rng, k: int) -> Any:
    """Tokens by a formula: no attention map (one-hot ones among them) may have less loss than theirs."""
    p = attsvm.random_problem(3, 5, 4, seed=rng)
    assert isinstance(p.head, LinearHead)
    loss, chosen = attsvm.get_loss(LOSS_NAMES[k % 3]), np.asarray(formula(p.X, p.Y, p.head.v))
    maps = np.concatenate([np.eye(5), rng.dirichlet(np.full(5, 0.3), size=55)])
    worst = []
    for x, y, t in zip(p.X, p.Y, chosen, strict=True):
        worst.append(loss(y * x[t] @ p.head.v) - loss(y * (maps @ x @ p.head.v)).min())
    return float(max(worst))


def _size(rng: Rng) -> tuple[int, int, int]:
    n, T = int(rng.integers(1, 7)), int(rng.integers(2, 8))
    return n, T, max(1, max(T - 1, n) + int(rng.integers(-3, 2)))


def _feasibility(any_selection: bool) -> Any:
    @each_case("Gaussian data, cross- and self-attention, d around max(T-1, n)")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        n, T, d = _size(rng)
        p = attsvm.random_problem(n, T, d, seed=rng, kind="self" if k % 2 else "cross", distribution="gaussian")
        choices = rng.integers(T, size=(3, n)) if any_selection else [p.optimal_tokens().indices]
        feasible = formula(n, T, d) and all(attsvm.att_svm(p, c).status is Status.OPTIMAL for c in choices)
        return (formula(n, T, d), feasible)

    return measure


@each_case("random A, B and P")
def _lemma7(formula: Any, rng: Rng, k: int) -> Any:
    """Row rank of [A; B]; every other B hides in the row space of A."""
    n, m = (int(i) for i in rng.integers(1, 5, size=2))
    p = n + m + int(rng.integers(0, 3))
    A = rng.normal(size=(n, p))
    null = np.linalg.svd(A)[2][n:]
    P = null[: int(rng.integers(1, len(null) + 1))]  # orthonormal rows of a subspace of the null space
    inside = rng.normal(size=(m, n)) @ A
    B = inside if k % 3 == 0 else inside + rng.normal(size=(m, len(P))) @ P
    rank = np.linalg.matrix_rank(np.vstack([A, B]), tol=1e-8)
    return (formula(A, B, P), rank == n + m)


def _full_rows(M: Array) -> bool:
    return bool(np.linalg.matrix_rank(M, tol=1e-8) == len(M))


def _solved(rng: Rng, trials: int) -> list[Any]:
    out = []
    for k in range(trials):
        n, T, d = int(rng.integers(1, 7)), int(rng.integers(2, 6)), int(rng.integers(2, 8))
        p = attsvm.random_problem(n, T, d, seed=seed_of(rng))
        s = attsvm.att_svm(p, norm=("frobenius", "nuclear")[k % 2])
        if s.status is Status.OPTIMAL:
            out.append(s)
    return out


def _rank_bound(formula: Any, rng: Rng, trials: int) -> Measurement:
    excess = [s.rank - formula(s.problem.n, s.problem.dx) for s in _solved(rng, trials)]
    return count(excess, 0.0, "rank above the bound; 0 where it is attained")


def _row_space(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors = []
    for s in _solved(rng, trials):
        basis = np.linalg.qr(formula(s.problem).T)[0]
        errors.append(np.linalg.norm(s.W - s.W @ basis @ basis.T) / np.linalg.norm(s.W))
    return count(errors, 1e-6, "part of the solution off the subspace, relative")


def _rank_reached(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Per cell (n, d): the bound must hold and be attained, else it confirms nothing."""
    errors = []
    for n, d in ((2, 4), (3, 6), (4, 4), (5, 3), (5, 8), (6, 5)):
        p = attsvm.random_problem(n, 4, d, batch=max(trials // 2, 10), seed=seed_of(rng))
        largest = max(int(attsvm.att_svm(p).rank.max()), int(attsvm.att_svm(p, norm="nuclear").rank.max()))
        errors.append(abs(largest - formula(n, d)))
    return count(errors, 0.0, "largest rank seen in a cell (n, d) against the bound")


@each(1e-7, "excess over the certified optimum, or missing margin")
def _star_set(formula: Any, rng: Rng, k: int) -> Any:
    """Members of a family must all attain the certified optimum of a rotated and scaled 2 x 2 problem."""
    U, V, (a, b) = rotation(rng, 2), rotation(rng, 2), rng.uniform(-1, 1, size=2)
    size = rng.uniform(0.3, 3)
    X = np.stack([[size * U[:, i], 0 * U[:, i]] for i in range(2)])
    p = make(X, [1, 1], V.T, U.sum(axis=1))
    best = attsvm.att_svm(p, [0, 0], norm="nuclear").norm
    for c in (a, b):
        W = U @ formula(c) @ V.T / size
        margins = [X[i, 0] @ W @ V[:, i] for i in range(2)]
        yield max(np.linalg.norm(W, "nuc") / best - 1, 1 - min(margins))


def _risk_at_one_hot(p: AttentionProblem, W: Array, loss: str) -> float:
    return float(risk(p, W, loss))


@each(1e-12, "1 where L(W) <= L*, else |L(200 W_mm) - L*|")
def _lemma2(formula: Any, rng: Rng, k: int) -> Any:
    """L(W) must exceed the value and L(R W_mm) must tend to it."""
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
    limit = formula(p.scores(), attsvm.get_loss(loss))
    W = rng.normal(size=(4, 4)) * rng.uniform(0.1, 5)
    yield float(not _risk_at_one_hot(p, W, loss) > limit)
    s = attsvm.att_svm(p)
    if s.status is Status.OPTIMAL:
        yield abs(_risk_at_one_hot(p, 200 * s.W, loss) - limit)


CHECKS = {
    "erm": Check(_erm, _erm_printed, trials=60),
    "def1": Check(_optimal, lambda X, Y, v: (Y[:, None] * (X @ v)).argmax(axis=1), trials=100),
    "thm1": Check(_feasibility(False), lambda n, T, d: d >= max(T - 1, n), trials=400),
    "thm6": Check(_feasibility(True), lambda n, T, d: d >= max(T - 1, n), trials=200),
    "lemma7": Check(_lemma7, lambda A, B, P: _full_rows(A) and _full_rows(B @ P.T), trials=500),
    "lemma1-rank": Check(_rank_bound, lambda n, d: n, trials=200),
    "lemma1-span": Check(_row_space, lambda problem: problem.Z, trials=200),
    "fig4-bound": Check(_rank_reached, max, min, trials=60),
    "star-set": Check(_star_set, lambda b: np.array([[1.0, b], [b, 1.0]]), trials=50),
    "lemma2": Check(_lemma2, lambda scores, loss: float(loss(scores.max(axis=1)).mean()), trials=200),
}
