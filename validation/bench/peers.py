"""Peers: what one would use without this library, each returning W."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.solvers import MarginProblem

__all__ = ["PEERS", "call_peer", "dense_qp_names", "feasible_gap"]

Solve = Callable[[MarginProblem], np.ndarray]


def feasible_gap(problem: MarginProblem, W: np.ndarray, lower_bound: float, norm: Callable[[Any], float]) -> float:
    """Relative excess of ``||W||`` over a certified bound after scaling W to satisfy every row; inf if it cannot."""
    smallest = float(problem.margins(np.asarray(W, dtype=np.float64)).min())
    return norm(W) / smallest / lower_bound - 1.0 if smallest > 0 else float("inf")


def _loop(problem: MarginProblem, nuclear: bool) -> np.ndarray:
    """One cvxpy constraint object per row and the default solver: the formulation of the literature's code."""
    import cvxpy as cp

    W = cp.Variable(problem.shape)
    constraints = [a @ W @ problem.queries[o] >= 1 for a, o in zip(problem.a, problem.owner, strict=True)]
    objective = cp.normNuc(W) if nuclear else cp.norm(W, "fro")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cp.Problem(cp.Minimize(objective), constraints).solve()
    return np.asarray(W.value)


def _vectorised(solver: str, nuclear: bool) -> Solve:
    def solve(problem: MarginProblem) -> np.ndarray:
        import cvxpy as cp

        W = cp.Variable(problem.shape)
        values = cp.sum(cp.multiply(problem.a @ W, problem.queries[problem.owner]), axis=1)
        objective = cp.normNuc(W) if nuclear else cp.sum_squares(W)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cp.Problem(cp.Minimize(objective), [values >= 1]).solve(solver=solver)
        return np.asarray(W.value)

    return solve


def _linear_svc(problem: MarginProblem) -> np.ndarray:
    """scikit-learn's LinearSVC on mirrored features, no intercept, a large C."""
    from sklearn.svm import LinearSVC

    F = problem.features()
    svc = LinearSVC(C=1e6, loss="hinge", fit_intercept=False, tol=1e-8, max_iter=200_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        svc.fit(np.vstack([F, -F]), np.repeat([1, -1], len(F)))
    return np.asarray(svc.coef_.reshape(problem.shape))


def _nnls(problem: MarginProblem) -> np.ndarray:
    """Lawson and Hanson's least-distance form with SciPy's NNLS."""
    from scipy.optimize import nnls

    F = problem.features()
    E = np.vstack([F.T, np.ones(len(F))])
    target = np.zeros(len(E))
    target[-1] = 1.0
    y, _ = nnls(E, target, maxiter=30 * len(F))
    residual = target - E @ y
    return np.asarray((-residual[:-1] / residual[-1]).reshape(problem.shape))


def dense_qp_names() -> list[str]:
    """Dense QP solvers that qpsolvers finds."""
    try:
        import qpsolvers
    except ModuleNotFoundError:
        return []
    return sorted(qpsolvers.dense_solvers)


def _dense_qp(name: str) -> Solve:
    """The dual, ``min lam G lam / 2 - 1 . lam`` over ``lam >= 0``, by a dense QP solver."""

    def solve(problem: MarginProblem) -> np.ndarray:
        import qpsolvers

        G = problem.gram()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            lam = qpsolvers.solve_qp(G, -np.ones(len(G)), lb=np.zeros(len(G)), solver=name)
        if lam is None:
            raise RuntimeError("no solution")
        return problem.adjoint(lam)

    return solve


PEERS: dict[str, Solve] = {
    "cvxpy per constraint": lambda p: _loop(p, nuclear=False),
    "cvxpy CLARABEL": _vectorised("CLARABEL", nuclear=False),
    "cvxpy SCS": _vectorised("SCS", nuclear=False),
    "cvxpy OSQP": _vectorised("OSQP", nuclear=False),
    "sklearn LinearSVC": _linear_svc,
    "scipy NNLS": _nnls,
    "nuclear: cvxpy per constraint": lambda p: _loop(p, nuclear=True),
    "nuclear: cvxpy CLARABEL": _vectorised("CLARABEL", nuclear=True),
    "nuclear: cvxpy SCS": _vectorised("SCS", nuclear=True),
}
PEERS |= {f"qpsolvers {name}": _dense_qp(name) for name in dense_qp_names()}


def call_peer(name: str, problem: MarginProblem) -> np.ndarray:
    """Solve with a peer by name.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.validation.bench.peers import call_peer
    >>> call_peer("scipy NNLS", MarginProblem([[2.0]], [[1.0]], [0])).round(6)
    array([[0.5]])
    """
    return PEERS[name](problem)
