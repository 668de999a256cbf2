"""Checks on attention as an SVM: the model, feasibility and ranks of solutions, and regularization paths.

They are about Section 2, Assumption A on the losses, and Section 3 with the nuclear-norm problem.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead, Loss, attention
from attsvm.solvers import Status
from attsvm.theory.assumptions import check_loss, gradient_at_zero
from attsvm.validation.ledger.claim_record import Check, Measurement, count, each, each_case
from attsvm.validation.ledger.svm_instances import LOSS_NAMES, Array, Rng, make, risk, rotation, seed_of


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
    return max(
        float(loss(y * x[t] @ p.head.v) - loss(y * (maps @ x @ p.head.v)).min())
        for x, y, t in zip(p.X, p.Y, chosen, strict=True)
    )


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


def _many_solutions(rng: Rng) -> tuple[AttentionProblem, Array]:
    """A nuclear-norm problem in four dimensions with a segment of solutions, and one of them."""
    U, V, b = rotation(rng, 4), rotation(rng, 4), float(rng.uniform(-1, 1))
    p = make(np.stack([[U[:, i], 0 * U[:, i]] for i in range(2)]), [1, 1], V[:, :2].T, U[:, :2].sum(axis=1))
    return p, U[:, :2] @ np.array([[1.0, b], [b, 1.0]]) @ V[:, :2].T


def _row_space(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Solutions lie in the subspace; and any other matrix of these margins is longer, so that no solution leaves it.

    What is added vanishes on the subspace: it must keep every margin and raise both norms.
    """
    errors: list[Any] = []
    found = [(s.problem, s.W) for s in _solved(rng, trials)] + [_many_solutions(rng) for _ in range(trials // 4)]
    for p, W in found:
        basis = np.linalg.qr(formula(p).T)[0]
        errors.append(np.linalg.norm(W - W @ basis @ basis.T) / np.linalg.norm(W))
        off = rng.normal(size=W.shape)
        off -= off @ basis @ basis.T
        if np.linalg.norm(off) > 1e-9:
            added = W + rng.uniform(0.01, 2) * off
            moved = np.abs(attention.logits(p, added) - attention.logits(p, W)).max()
            longer = min(np.linalg.norm(added, norm) / np.linalg.norm(W, norm) for norm in ("fro", "nuc")) - 1
            errors += [moved / np.abs(attention.logits(p, W)).max(), float(longer <= 0)]
    return count(errors, 1e-6, "part off the subspace; margins moved by a part off it, or norms that it does not raise")


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


@each(1e-12, "1 where L(W) <= L*, else |L(200 W_mm) - L*|")
def _lemma2(formula: Any, rng: Rng, k: int) -> Any:
    """L(W) must exceed the value and L(R W_mm) must tend to it."""
    loss = LOSS_NAMES[k % 3]
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
    limit = formula(p.scores(), attsvm.get_loss(loss))
    W = rng.normal(size=(4, 4)) * rng.uniform(0.1, 5)
    yield float(not float(risk(p, W, loss)) > limit)
    s = attsvm.att_svm(p)
    if s.status is Status.OPTIMAL:
        yield abs(float(risk(p, 200 * s.W, loss)) - limit)


CHECKS_SETUP = {
    "erm": Check(_erm, _erm_printed, trials=30),
    "def1": Check(_optimal, lambda X, Y, v: (Y[:, None] * (X @ v)).argmax(axis=1), trials=40),
    "thm1": Check(_feasibility(False), lambda n, T, d: d >= max(T - 1, n), trials=400),
    "thm6": Check(_feasibility(True), lambda n, T, d: d >= max(T - 1, n), trials=200),
    "lemma7": Check(_lemma7, lambda A, B, P: _full_rows(A) and _full_rows(B @ P.T), trials=500),
    "lemma1-rank": Check(_rank_bound, lambda n, d: n, trials=60),
    "lemma1-span": Check(_row_space, lambda problem: problem.Z, trials=40),
    "fig4-bound": Check(_rank_reached, max, min, trials=60),
    "star-set": Check(_star_set, lambda b: np.array([[1.0, b], [b, 1.0]]), trials=15),
    "lemma2": Check(_lemma2, lambda scores, loss: float(loss(scores.max(axis=1)).mean()), trials=45),
}

RADII = (20.0, 320.0)


@each(1e-9, "excess of |l'| over M1 or of its Lipschitz constant over M0")
def _constants(formula: Any, rng: Rng, k: int) -> Any:
    """(M0, M1) of a formula against difference quotients of a loss on random intervals; the loss must decrease."""
    loss = attsvm.get_loss(LOSS_NAMES[k % 3])
    low = rng.uniform(-4, 3)
    u = np.linspace(low, low + rng.uniform(0.1, 4), 200)
    M0, M1 = formula(loss.name, float(u[0]), float(u[-1]))
    value, slope = loss(u), loss.derivative(u)
    quotient = np.abs(np.diff(value) / np.diff(u)).max()
    bend = np.abs(np.diff(slope) / np.diff(u)).max()
    return float(np.diff(value).max() >= 0), bend - M0, quotient - M1


def _known_constants(name: str, low: float, high: float) -> tuple[float, float]:
    if name == "logistic":
        return 0.25, 1 / (1 + np.exp(low))
    return (float(np.exp(-low)), float(np.exp(-low))) if name == "exponential" else (0.0, 1.0)


def _cubic(centre: float, scale: float) -> Loss:
    def value(u: Any) -> Array:
        return np.asarray(-scale * (np.asarray(u) - centre) ** 3)

    def slope(u: Any) -> Array:
        return np.asarray(-3 * scale * (np.asarray(u) - centre) ** 2)

    def second(u: Any) -> Array:
        return np.asarray(-6 * scale * (np.asarray(u) - centre))

    return Loss("cubic", value, slope, second)


@each_case("<grad L(0), W_mm> < 0 with two tokens; half of the losses are shifted -u^3")
def _slope_used(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on the loss; conclusion <grad L(0), W_mm> < 0 (Lemma 10) on two-token problems, for which B holds."""
    p = attsvm.random_problem(1, 2, int(rng.integers(2, 5)), seed=seed_of(rng))
    scores = p.scores()[0]
    flat = _cubic(float(scores.mean()), rng.uniform(0.2, 3))  # the slope is 0 where attention is uniform
    loss = flat if k % 2 else attsvm.get_loss(LOSS_NAMES[k // 2 % 3])
    inner = float((gradient_at_zero(p, loss) * attsvm.att_svm(p).W).sum())
    return (formula(loss, float(scores.min()), float(scores.max())), inner < -1e-12)


def _strictly_decreasing(loss: Loss, low: float, high: float) -> bool:
    return bool((np.diff(loss(np.linspace(low, high, 1001))) < 0).all())


def _path(queries: int | None) -> Any:
    @each(0.05, f"|W_R / R - limit| at R = {RADII[-1]:g}")
    def measure(formula: Any, rng: Rng, k: int) -> Any:
        """Distance of W_R / R from a predicted limit at the last radius."""
        size = (2, 3, 3) if queries is None else (1, 3, 3)
        p = attsvm.random_problem(*size, seed=seed_of(rng), queries=queries, min_score_gap=0.1)
        path = attsvm.regularization_path(p, RADII, loss=LOSS_NAMES[k % 3], starts=2, seed=seed_of(rng))
        return np.linalg.norm(path.W[-1] / RADII[-1] - formula(p))

    return measure


@each(0.05, f"distance from the limit at R = {RADII[-1]:g}")
def _kq_path(formula: Any, rng: Rng, k: int) -> Any:
    """Distance of a product of (K_R, Q_R), divided by R, from a predicted limit at the last radius."""
    product, limit = formula
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng), min_score_gap=0.1)
    path = attsvm.regularization_path(p, RADII, "KQ", loss=LOSS_NAMES[k % 3], starts=2, seed=seed_of(rng))
    assert path.K is not None and path.Q is not None
    return np.linalg.norm(product(path.K[-1], path.Q[-1]) / RADII[-1] - limit(p))


def _frobenius(p: AttentionProblem) -> Array:
    return np.asarray(attsvm.att_svm(p).direction)


def _nuclear(p: AttentionProblem) -> Array:
    return np.asarray(attsvm.att_svm(p, norm="nuclear").direction)


def _wedge(low: float, high: float) -> Array:
    """Two rows r (in degrees) such that {a : a . r > 0 for both} is the wedge between two angles."""
    angles = np.radians([low + 90, high - 90])
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def _no_rank_one(rng: Rng) -> AttentionProblem:
    """Feasible, but by no matrix of rank one; rotated and scaled.

    Queries e1, e2, e1 + e2 with labels +, +, - and v = e1. W z must lie in a wedge around +-v: the first two
    are wide, so that W e1 + W e2 can point along -v, but no line meets all three with matching signs.
    """
    U, V, eps = rotation(rng, 2), rotation(rng, 2), rng.uniform(2, 8)
    wedges = (
        _wedge(-eps, rng.uniform(115, 130)),
        _wedge(-rng.uniform(70, 80), eps),
        _wedge(180 - eps, 180 + eps),
    )
    tokens = [np.vstack([np.zeros(2), -rng.uniform(0.5, 2) * rows]) @ U.T for rows in wedges]
    queries = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]) @ V.T
    return make(np.stack(tokens), [1, 1, -1], queries, U[:, 0])


def _separable_by_rank_one(p: AttentionProblem) -> bool:
    """D = 2: some a b^T on a grid of directions separates the optimal tokens."""
    angles = np.arange(0, np.pi, np.pi / 360)
    a = np.stack([np.cos(angles), np.sin(angles)])
    b = np.hstack([a, -a])
    best = p.optimal_tokens().indices
    least = np.full((a.shape[1], b.shape[1]), np.inf)
    for x, z, t in zip(p.X, p.Z, best, strict=True):
        left, right = (x[t] - np.delete(x, t, axis=0)) @ a, z @ b
        least = np.minimum(least, np.where(right > 0, left.min(axis=0)[:, None], -left.max(axis=0)[:, None]))
    return bool((least > 0).any())


@each_case("d = 2, T = 3, n = 2 or 3, m = 1 or 2; half of the data have no separating matrix of rank 1")
def _rank_hypothesis(formula: Any, rng: Rng, k: int) -> Any:
    """Hypothesis on (problem, m); conclusion: some K Q^T with m columns separates the optimal tokens."""
    p = _no_rank_one(rng) if k % 2 else attsvm.random_problem(2 + k // 2 % 2, 3, 2, seed=seed_of(rng))
    m = 1 + int(k % 8 >= 4)
    separable = _separable_by_rank_one(p) if m == 1 else _is_feasible(p)
    return (formula(p, m), separable)


def _is_feasible(p: AttentionProblem) -> bool:
    return bool(attsvm.att_svm(p).status is Status.OPTIMAL)


@each(1e-6, "relative excess of C* over C_cvx")
def _lemma3(formula: Any, rng: Rng, k: int) -> Any:
    """Where a formula says that the limit m does not matter, the limited problem must have the convex value."""
    p = attsvm.random_problem(4, 4, 5, seed=seed_of(rng))
    convex = attsvm.att_svm(p, norm="nuclear")
    for m in range(1, 5):
        if formula(convex.rank, m):
            limited = attsvm.att_svm(p, norm="nuclear", rank=m)
            yield limited.norm / convex.norm - 1 if limited.status.has_solution else np.inf


@each(2e-6, "missing margin, or distance of |W|_* from the convex value, relative")
def _lemma3_set(formula: Any, rng: Rng, k: int) -> Any:
    """Rank-limited solutions whose value is the convex one: margins and nuclear norm, computed from W itself."""
    p = attsvm.random_problem(3, 4, 4, seed=seed_of(rng))
    convex = attsvm.att_svm(p, norm="nuclear")
    for m in (2, 3):
        limited = attsvm.att_svm(p, norm="nuclear", rank=m)
        if limited.status.has_solution and limited.norm <= convex.norm * (1 + 1e-6):
            best = p.optimal_tokens().indices
            margins = [(x[b] - np.delete(x, b, axis=0)) @ limited.W @ z for x, z, b in zip(p.X, p.Z, best, strict=True)]
            size = float(np.linalg.norm(limited.W, "nuc"))
            yield max(1 - float(np.min(margins)), abs(size / formula(convex.norm) - 1))


@each(1e-4, "relative difference from the least (|K|^2 + |Q|^2) / 2 found by SLSQP")
def _kq_svm(formula: Any, rng: Rng, k: int) -> Any:
    """Least (|K|^2 + |Q|^2) / 2 by a general solver from random starts against a formula in the problem."""
    from scipy.optimize import minimize

    n, d = 2, 3
    p = attsvm.random_problem(n, 3, d, seed=seed_of(rng))
    best = p.optimal_tokens().indices
    a = np.concatenate([x[b] - np.delete(x, b, axis=0) for x, b in zip(p.X, best, strict=True)])
    z = np.repeat(p.Z, 2, axis=0)

    def margins(theta: Array, a: Array = a, z: Array = z, d: int = d) -> Array:
        K, Q = theta.reshape(2, d, d)
        return np.asarray(((a @ K) * (z @ Q)).sum(axis=1) - 1)

    found = [
        minimize(
            lambda t: 0.5 * t @ t,
            rng.normal(size=2 * d * d),
            jac=lambda t: t,
            constraints={"type": "ineq", "fun": margins},
            options={"maxiter": 300},
        )
        for _ in range(3)
    ]
    least = min((f.fun for f in found if f.success), default=np.inf)
    return abs(least / formula(p) - 1)


CHECKS_PATHS = {
    "assA": Check(_constants, _known_constants, trials=90),
    "assA-slope": Check(
        _slope_used,
        _strictly_decreasing,
        lambda loss, low, high: check_loss(loss, low, high).verdict == "holds",
        trials=20,
    ),
    "thm2-W": Check(_path(None), _frobenius, trials=3),
    "cor1": Check(_path(2), _frobenius, trials=3),
    "thm2-KQ": Check(_kq_path, (lambda K, Q: K @ Q.T, _nuclear), trials=2),
    "cor2-order": Check(_kq_path, (lambda K, Q: Q @ K.T, _nuclear), (lambda K, Q: K @ Q.T, _nuclear), trials=1),
    "thm2-rank": Check(
        _rank_hypothesis,
        lambda p, m: _is_feasible(p),
        lambda p, m: _is_feasible(p) and (m >= min(p.n, p.dx) or np.linalg.matrix_rank(p.Z) == p.n),
        trials=16,
    ),
    "lemma3": Check(_lemma3, lambda rank, m: rank <= m, trials=4),
    "lemma3-set": Check(_lemma3_set, lambda value: value, trials=4),
    "kq-svm": Check(_kq_svm, lambda p: attsvm.att_svm(p, norm="nuclear").norm, trials=3),
}
