"""Independent optimality checks used against every solver: written with dense matrices on purpose."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from attsvm.solvers import MarginProblem
from solver_api import rows_of

# Relative size of what rounding leaves of a sum that cancels, and of what a proof of infeasibility may leave.
ROUNDING = 1e-13
PROOF = 1e-9


def dense_rows(problem: MarginProblem) -> np.ndarray:
    a, queries, owner, _, _ = rows_of(problem)
    return np.stack([np.outer(a[k], queries[owner[k]]).ravel() for k in range(len(a))])


def random_rows(rng, n, T, d, dz=None, equalities=0):
    """Rows as an attention selection makes them: n blocks of T - 1 differences of unit vectors."""
    X = rng.standard_normal((n, T, d))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    Z = rng.standard_normal((n, dz or d))
    Z /= np.linalg.norm(Z, axis=-1, keepdims=True)
    a = (X[:, :1] - X[:, 1:]).reshape(n * (T - 1), d)
    equality = np.zeros(n * (T - 1), dtype=bool)
    equality[:equalities] = True
    return MarginProblem(a, Z, np.repeat(np.arange(n), T - 1), np.where(equality, 0.0, 1.0), equality)


def seeded_rows(n: int, per: int, d: int, seed: int = 0) -> MarginProblem:
    """n queries with ``per`` rows each, from a seed."""
    return random_rows(np.random.default_rng(seed), n, per + 1, d)


def sphere_rows(size: int, n: int, T: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A batch of differences of unit vectors, n queries with T - 1 rows each: always feasible for n <= d."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, n, T, d))
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    z = rng.standard_normal((size, n, d))
    z /= np.linalg.norm(z, axis=-1, keepdims=True)
    return (x[:, :, :1] - x[:, :, 1:]).reshape(size, n * (T - 1), d), z, np.repeat(np.arange(n), T - 1)


def _singular(matrix: np.ndarray) -> np.ndarray:
    return np.linalg.svd(matrix, compute_uv=False)


def norm_and_dual(name: str):
    """The norm of that name and its dual, by their definitions."""
    if name == "frobenius":
        return np.linalg.norm, np.linalg.norm
    if name in ("nuclear", "spectral"):
        pair = (lambda M: _singular(M).sum(), lambda M: _singular(M).max())
        return pair if name == "nuclear" else pair[::-1]
    p = float(name.removeprefix("l"))  # entrywise; 1/p + 1/q = 1
    q = {1.0: np.inf, np.inf: 1.0}.get(p) or p / (p - 1.0)
    return (lambda M: np.linalg.norm(M.ravel(), p)), (lambda M: np.linalg.norm(M.ravel(), q))


class Residuals(NamedTuple):
    """By how much each optimality condition is missed; all relative, so that one tolerance judges them."""

    primal: float
    dual_domain: float
    dual_norm: float
    complementarity: float
    alignment: float
    stationarity: float


def residuals(problem: MarginProblem, W: np.ndarray, multipliers: np.ndarray, norm: str) -> Residuals:
    """Residuals of the optimality conditions from dense rows F and the dual matrix ``D = sum_k lam_k a_k b_k^T``.

    Stationarity is ``D in the subdifferential of N at W``: ``N*(D) <= 1`` and ``<D, W> = N(W)`` (alignment), for the
    nuclear norm the same as common singular vectors with ``u_j^T D v_j = 1``, and for the Frobenius norm the same as
    ``W = |W| D``, whose distance is judged by its square because alignment alone allows the root of its own error.
    """
    _, _, _, rhs, equality = rows_of(problem)
    primal_norm, dual_norm = norm_and_dual(norm)
    F, lam = dense_rows(problem), np.asarray(multipliers, dtype=np.float64)
    W = np.asarray(W, dtype=np.float64)
    value, size = float(primal_norm(W)), np.linalg.norm(F, axis=1)
    scale = value if value > 0 else 1.0
    slack = F @ W.ravel() - rhs
    missed = np.where(equality, np.abs(slack), np.maximum(-slack, 0.0))
    rounding = ROUNDING * size * np.linalg.norm(W)  # what evaluating the row itself cannot tell from 0
    D = (F.T @ lam).reshape(W.shape)
    return Residuals(
        primal=float((np.maximum(missed - rounding, 0.0) / np.maximum(1.0, np.abs(rhs))).max()),
        dual_domain=float((np.where(equality, 0.0, np.maximum(-lam, 0.0)) * size).max()),
        dual_norm=max(0.0, float(dual_norm(D)) - 1.0),
        complementarity=float(np.abs(lam * slack).sum()) / scale,
        alignment=abs(float((D * W).sum()) - value) / scale,
        stationarity=_stationarity(W, D, norm),
    )


def _stationarity(W: np.ndarray, D: np.ndarray, norm: str) -> float:
    size = float(np.linalg.norm(W))
    if size == 0.0:
        return 0.0  # every D of dual norm at most 1 will do
    if norm == "frobenius":
        return float(np.linalg.norm(W / size - D)) ** 2
    if norm == "nuclear":  # each pair of singular vectors, weighted by how much of W it carries
        U, singular, Vt = np.linalg.svd(W, full_matrices=False)
        return float((singular * np.abs(1.0 - np.einsum("dj,de,je->j", U, D, Vt))).sum() / singular.sum())
    return 0.0


def assert_optimal(problem, W, multipliers, norm, tolerance):
    """Primal feasibility, dual domain, dual norm, complementarity and stationarity, from dense rows."""
    found = residuals(problem, W, multipliers, norm)
    assert max(found) <= tolerance, f"{found} exceeds {tolerance:g}"


def assert_infeasible(problem, multipliers):
    """A proof that no W exists: nonnegative on inequalities, cancelling, with a positive right-hand side."""
    _, _, _, rhs, equality = rows_of(problem)
    F, y = dense_rows(problem), np.asarray(multipliers, dtype=np.float64)
    assert np.isfinite(y).all()
    assert (y[~equality] >= 0).all()
    gained, terms = float(rhs @ y), float(np.abs(rhs) @ np.abs(y))
    assert gained > 0
    assert gained > ROUNDING * terms  # the positive number is not itself what rounding left
    left, weight = float(np.linalg.norm(F.T @ y)), float(np.abs(y) @ np.linalg.norm(F, axis=1))
    assert left * terms <= PROOF * weight * gained
