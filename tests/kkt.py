"""Independent optimality checks used against every solver: written with dense matrices on purpose."""

import numpy as np

from attsvm.solvers import MarginProblem, get_norm


def dense_rows(problem: MarginProblem) -> np.ndarray:
    return np.stack(
        [
            np.outer(problem.a[k].astype(float), problem.queries[problem.owner[k]].astype(float)).ravel()
            for k in range(problem.m)
        ]
    )


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


def assert_optimal(problem, W, multipliers, norm, tolerance):
    """Primal feasibility, dual domain, dual norm and complementarity, from dense rows."""
    norm = get_norm(norm)
    F = dense_rows(problem)
    slack = F @ np.asarray(W).ravel() - problem.rhs
    inequality = ~problem.equality
    assert slack[inequality].min(initial=0.0) >= -tolerance
    assert np.abs(slack[problem.equality]).max(initial=0.0) <= tolerance
    assert multipliers[inequality].min(initial=0.0) >= -tolerance
    dual = (F.T @ multipliers).reshape(problem.shape)
    assert norm.dual(dual) <= 1 + tolerance
    value = norm(W)
    assert abs(problem.rhs @ multipliers - value) <= tolerance * max(1.0, value)
    assert np.abs(multipliers * slack).max() <= tolerance * max(1.0, value)
