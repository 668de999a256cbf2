"""Margin problems with a rank limit: ``W = K Q^T`` with a fixed number of columns, from many starts.

Below the rank of the convex solution the problem is not convex: what is returned is the best KKT point found, and its
distance to the convex optimum, which bounds the norm of every feasible W from below whatever its rank. Where the
convex solution has no more than the allowed rank it solves the limited problem too, and the answer is global.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.deadline import read_time_limit
from attsvm.solvers.frobenius.working_set import raised
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MethodResult, RankLimit, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.nuclear.factored import Factors, augmented_lagrangian, solve_factored
from attsvm.solvers.nuclear.interior import solve_interior
from attsvm.solvers.nuclear.reweighted import solve_reweighted
from attsvm.solvers.nuclear.spectra import active_map, symmetric
from attsvm.solvers.status import Status
from attsvm.solvers.unit import UnitProblem, UnitRows

__all__ = ["solve_rank_limited"]

# Rows up to which the convex problem is left to the interior point method, as "auto" does.
_INTERIOR_ROWS = 700
# A start counts as feasible when its rows hold to this accuracy, as certificates measure it.
_FEASIBLE = 1e-7
# Residual of the conditions of a local optimum up to which a point is called one.
_LOCAL = 1e-5
# Largest dense system of the Newton steps; beyond it the point keeps the accuracy of the first-order method.
_DENSE_LIMIT = 1500
# Seconds of one of them, over the third power of its size.
_SECONDS = 1e-9


def _kkt_residual(rows: UnitRows, K: FloatArray, Q: FloatArray, lam: FloatArray) -> float:
    """Largest violation of stationarity, feasibility, sign and complementarity of the factored problem."""
    D = rows.adjoint(lam)
    slack = rows.values(K @ Q.T) - rows.rhs
    condition = np.where(rows.equality, np.abs(slack), np.abs(np.minimum(slack, lam)))
    return float(max(np.abs(K - D @ Q).max(), np.abs(Q - D.T @ K).max(), condition.max()))


def _refine(rows: UnitRows, point: Factors, deadline: float, steps: int = 8) -> Factors:
    """Newton on ``K = D Q``, ``Q = D^T K`` and the active rows; the rotation of K and Q is left where it is.

    A step is taken if it can be expected to end before the deadline.
    """
    (p, q), r = rows.shape, point.K.shape[1]
    K, Q, lam = point.K, point.Q, point.lam
    residual = _kkt_residual(rows, K, Q, lam)
    active = np.flatnonzero(rows.equality | (lam > np.maximum(rows.values(K @ Q.T) - rows.rhs, 0.0)))
    size = (p + q) * r
    if size + len(active) > _DENSE_LIMIT:
        return point
    a, b = rows.a[active], rows.b[active]
    step = _SECONDS * (size + len(active)) ** 3
    for _ in range(steps):
        begin = time.perf_counter()
        if begin + step > deadline:
            break
        trial = np.zeros(rows.m)
        trial[active] = lam[active]
        D = rows.adjoint(trial)
        left, right = a @ K, b @ Q
        gradients = np.concatenate(
            [np.einsum("kd,kr->kdr", a, right).reshape(-1, p * r), np.einsum("kd,kr->kdr", b, left).reshape(-1, q * r)],
            axis=1,
        )
        system = np.zeros((size + len(active), size + len(active)))
        system[:size, :size] = np.eye(size)
        system[: p * r, p * r : size] = -np.kron(D, np.eye(r))
        system[p * r : size, : p * r] = system[: p * r, p * r : size].T
        system[:size, size:] = -gradients.T
        system[size:, :size] = -gradients
        target = np.concatenate(
            [(D @ Q - K).ravel(), (D.T @ K - Q).ravel(), np.einsum("kr,kr->k", left, right) - rows.rhs[active]]
        )
        # Least squares of smallest norm: the rotations of (K, Q) are null directions.
        change = np.linalg.lstsq(system, target, rcond=1e-12)[0]
        K_new = K + change[: p * r].reshape(p, r)
        Q_new = Q + change[p * r : size].reshape(q, r)
        trial[active] += change[size:]
        reached = _kkt_residual(rows, K_new, Q_new, trial)
        if not reached < residual:
            break
        K, Q, lam, residual = K_new, Q_new, trial, reached
        step = time.perf_counter() - begin
    return Factors(K, Q, lam, point.penalty, point.missed, point.evaluations)


def _starts(rows: UnitRows, W: FloatArray, rank: int, count: int, seed: int) -> list[Factors]:
    """The truncated convex solution first, then random factors of a similar size."""
    random = np.random.default_rng(seed)
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    root = np.sqrt(sigma[:rank])
    size = float(np.sqrt(sigma.sum() / rank))
    (p, q), zero = rows.shape, np.zeros(rows.m)
    starts = [Factors(U[:, :rank] * root, Vt[:rank].T * root, zero, 5.0, np.inf, 0)]
    for _ in range(count - 1):
        K = random.standard_normal((p, rank)) * size / np.sqrt(p)
        Q = random.standard_normal((q, rank)) * size / np.sqrt(q)
        starts.append(Factors(K, Q, zero, 5.0, np.inf, 0))
    return starts


def _improved(rows: UnitRows, point: Factors, rounds: int, deadline: float) -> Factors:
    """The method of multipliers from a start, while there is time."""
    return augmented_lagrangian(
        rows, point, tolerance=1e-8, rounds=rounds, inner=100, late=lambda: time.perf_counter() > deadline
    )


def _truncated(W: FloatArray, rank: int) -> FloatArray:
    U, sigma, Vt = np.linalg.svd(W, full_matrices=False)
    return np.asarray((U[:, :rank] * sigma[:rank]) @ Vt[:rank])


def _reduced_rank(rows: UnitRows, W: FloatArray, lam: FloatArray) -> FloatArray:
    """A solution of smaller rank on the face of all solutions (Barvinok, Pataki), or W.

    On the singular vectors of D that belong to 1 solutions are ``U S V^T`` with S positive semidefinite and linear
    conditions. A direction that changes no row leads to the boundary of the cone, where the rank drops by one.
    """
    U, sigma, Vt = np.linalg.svd(rows.adjoint(rows.clipped(lam)), full_matrices=False)
    r = int(np.count_nonzero(sigma >= (1.0 - 1e-4) * sigma[0]))
    left, right = U[:, :r], Vt[:r].T
    S = left.T @ W @ right
    S = 0.5 * (S + S.T)
    near = rows.equality | (lam > 1e-6) | (rows.values(W) - rows.rhs <= 1e-3 * np.abs(rows.rhs))
    for _ in range(r - 1):
        mapped = active_map(rows.a[near], rows.b[near], left, right)
        _, singular, basis = np.linalg.svd(mapped, full_matrices=True)
        if int(np.count_nonzero(singular > 1e-10)) == basis.shape[0]:
            break
        N = symmetric(basis[-1], left.shape[1])
        values, vectors = np.linalg.eigh(S)
        if values[0] <= 0:
            break
        root = vectors / np.sqrt(values)
        change = np.linalg.eigvalsh(root.T @ N @ root)
        step = -1.0 / change[0] if -change[0] >= change[-1] else -1.0 / change[-1]
        S = S + step * N
        values, vectors = np.linalg.eigh(S)
        left, right, S = left @ vectors[:, 1:], right @ vectors[:, 1:], np.diag(values[1:])
    return np.asarray(left @ S @ right.T)


def _meets_small_sides(problem: MarginProblem, W: FloatArray) -> bool:
    """Whether rows that ask for less than 1 are met relative to what they ask for, not only absolutely."""
    slack = problem.margins(W) - problem.rhs
    small = (problem.rhs != 0) & (np.abs(problem.rhs) < 1)
    return bool((problem.missed(slack)[small] <= 1e-3 * np.abs(problem.rhs[small])).all())


def _convex(unit: UnitProblem, norm: Norm, request: Request, allowed: float) -> MethodResult:
    """The problem without its limit; within limited time a bound of any quality, which leaves the rest for W."""
    inner = replace(request, max_iterations=None, options={})
    if allowed < np.inf:
        inner = replace(inner, tolerance=max(inner.tolerance, 1e-5), options={"time_limit": 0.4 * allowed})
        return solve_reweighted(unit, norm, replace(inner, warm_start=None))
    return (solve_interior if unit.m <= _INTERIOR_ROWS else solve_factored)(unit, norm, inner)


def _cut(unit: UnitProblem, norm: Norm, request: Request, convex: MethodResult, rank: int) -> MethodResult | None:
    """A solution of the convex problem that has the rank, if one is found: it is global."""
    assert convex.W is not None and convex.multipliers is not None
    problem, rows = unit.problem, unit.rows
    lam = convex.multipliers[rows.index] / unit.inverse[rows.index]
    lower = rows.lift(_reduced_rank(rows, rows.reduce(convex.W), lam))
    for cut in (_truncated(convex.W, rank), _truncated(lower, rank)):
        certificate = certify(problem, cut, convex.multipliers, norm)
        if certificate.proved > request.tolerance or not _meets_small_sides(problem, cut):
            continue
        message = f"a solution of the convex problem has rank at most {rank}: the answer is global"
        limit = RankLimit(True, certificate.lower_bound, float("nan"), 0, 0, (), message)
        extras = Extras(rank_limit=limit)
        return MethodResult(cut, convex.multipliers, convex.iterations, certificate=certificate, extras=extras)
    return None


def _kind(residual: float) -> str:
    """What a feasible W is, by how far it is from the conditions of a local optimum."""
    if residual <= _LOCAL:
        return "a KKT point of the nonconvex problem"
    return f"the best feasible W so far (a KKT point to {residual:.0e}; more time improves it)"


def _none_found(rank: int, tried: int, starts: int) -> str:
    """What is said where no start became feasible."""
    if tried < starts:
        return f"no start reached a feasible W of rank {rank} within the time limit; {tried} of {starts} were tried"
    return f"no start reached a feasible W of rank {rank}; one of higher rank exists"


def _is_feasible(problem: MarginProblem, W: FloatArray) -> bool:
    """Whether W misses no row by more than what is allowed, rows of small right-hand sides included."""
    missed = problem.missed(problem.margins(W) - problem.rhs) / problem.allowance
    return float(missed.max()) <= _FEASIBLE and _meets_small_sides(problem, W)


def solve_rank_limited(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least nuclear norm over matrices of limited rank.

    The convex problem is solved first. Where its solution, cut to the allowed rank, still satisfies every row, it
    solves the limited problem too and the answer is global; otherwise `starts` factorizations are improved, the first
    from the cut solution, the others random (``seed``), each by at most ``max_iterations`` rounds (60 by default). With
    ``time_limit`` in seconds the convex bound gets less than half of it and may be loose, and starts are improved while
    time is left: the best feasible W so far is returned with its bound.

    The certificate belongs to W and the multipliers of the convex problem: its gap is the distance to the convex
    bound. Status "optimal" means global; "local" a KKT point of the nonconvex problem; "failed" that no start
    became feasible although the convex problem is. `RankLimit` in the extras tells the rest.

    Examples
    --------
    Two rows that one column can serve, and the four of a matrix with ``det W >= 2``, which it cannot:

    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem(np.eye(2), [[1.0, 0.0]], [0, 0]), "nuclear", rank=1)
    >>> print(result.status, round(result.norm, 6))
    optimal 1.414214
    >>> signs = MarginProblem([[1.0, 0], [0, -1.0], [1.0, 0], [0, 1.0]], np.eye(2), [0, 0, 1, 1])
    >>> print(solve(signs, "nuclear", rank=1).status)
    failed
    """
    rank, starts = request.rank or 1, request.whole("starts", 8, least=1)
    begin, allowed = time.perf_counter(), read_time_limit(request.options.get("time_limit"))
    convex = _convex(unit, norm, request, allowed)
    if convex.farkas is not None or convex.W is None or convex.multipliers is None:
        return convex
    if (cut := _cut(unit, norm, request, convex, rank)) is not None:
        return cut
    problem, rows = unit.problem, unit.rows
    bound = certify(problem, convex.W, convex.multipliers, norm).lower_bound
    found: list[tuple[float, FloatArray, float]] = []
    evaluations = tried = 0
    for initial in _starts(rows, rows.reduce(convex.W), min(rank, *rows.shape), starts, request.whole("seed", 0)):
        if tried and time.perf_counter() - begin > allowed:
            break
        point = _improved(rows, initial, request.max_iterations or 60, begin + allowed)
        tried += 1
        evaluations += point.evaluations
        point = _refine(rows, point, begin + allowed)
        W = rows.lift(point.W)
        W = W if allowed == np.inf else raised(problem, W)
        if _is_feasible(problem, W):
            size = float(np.linalg.svd(W, compute_uv=False).sum())
            found.append((size, W, _kkt_residual(rows, point.K, point.Q, point.lam)))
    norms = tuple(sorted(item[0] for item in found))
    if not found:
        message = _none_found(rank, tried, starts)
        limit = RankLimit(False, bound, float("inf"), tried, 0, norms, message)
        return MethodResult(iterations=evaluations, extras=Extras(rank_limit=limit))
    _, W, residual = min(found, key=lambda item: item[0])
    certificate = certify(problem, W, convex.multipliers, norm)
    is_global = certificate.proved <= request.tolerance
    message = f"the norm of a feasible W of rank {rank} meets the convex bound: the answer is global"
    if not is_global:
        message = (
            f"{_kind(residual)} with rank limit {rank}, within {certificate.gap:.2e} (relative) of "
            "the convex bound; other starts may give a smaller norm"
        )
    limit = RankLimit(is_global, bound, residual, tried, len(found), norms, message)
    status = Status.LOCAL
    return MethodResult(
        W, convex.multipliers, evaluations, certificate=certificate, status=status, extras=Extras(rank_limit=limit)
    )
