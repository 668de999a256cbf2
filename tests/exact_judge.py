"""Definition 2 by fractions alone: every answer of the exact solver is checked against the data, without floats."""

import itertools
from fractions import Fraction

import numpy as np

from attsvm import AttentionProblem, LinearHead
from attsvm.solvers.exact import ExactFarkas, exact_least_norm, exact_rows


def fractions(array):
    flat = [Fraction(float(x)) for x in np.asarray(array, dtype=np.float64).ravel()]
    return np.array(flat, dtype=object).reshape(np.shape(array))


def exact_selections(problem):
    """All selections of a linear problem as {tokens: (feasible, locally optimal, |W|^2, all tokens support)}."""
    X, Z = fractions(problem.X), fractions(problem.Z).reshape(-1, problem.dz)
    v, Y = fractions(problem.head.v), np.asarray(problem.Y).reshape(-1)
    allowed = problem.allowed.reshape(-1, problem.T)
    q = len(Z)
    scores = [[int(Y[j]) * sum(X[j // problem.K, t] * v) for t in range(problem.T)] for j in range(q)]
    out = {}
    for tokens in itertools.product(*(np.flatnonzero(row).tolist() for row in allowed)):
        owner = [j for j in range(q) for t in np.flatnonzero(allowed[j]) if t != tokens[j]]
        other = [int(t) for j in range(q) for t in np.flatnonzero(allowed[j]) if t != tokens[j]]
        a = np.array([X[j // problem.K, tokens[j]] - X[j // problem.K, t] for j, t in zip(owner, other, strict=True)])
        answer = exact_least_norm(exact_rows(a, Z, owner))
        rows = [np.outer(a[k], Z[j]) for k, j in enumerate(owner)]
        if isinstance(answer, ExactFarkas):
            y = answer.multipliers
            assert (y >= 0).all()
            assert sum(y) > 0
            assert not np.any(sum(y[k] * rows[k] for k in range(len(rows))) != 0)
            out[tokens] = (False, False, None, False)
            continue
        W, lam = answer.W, answer.multipliers
        margins = [(W * row).sum() for row in rows]
        # The optimality conditions of a convex problem: sufficient, and the solution is unique.
        assert not np.any(W != sum(lam[k] * rows[k] for k in range(len(rows))))
        assert min(margins) >= 1
        assert all(weight >= 0 and (weight == 0 or m == 1) for weight, m in zip(lam, margins, strict=True))
        on = [m == 1 for m in margins]
        local = all(scores[j][t] < scores[j][tokens[j]] for j, t, tight in zip(owner, other, on, strict=True) if tight)
        out[tokens] = (True, local, sum(x * x for x in W.ravel()), all(on))
    return out


def _sizes(rng):
    return int(rng.integers(1, 4)), int(rng.integers(2, 4)), int(rng.integers(1, 4))


def _linear(rng, X, Z, mask=None):
    X = np.asarray(X)
    v = rng.standard_normal(X.shape[-1]) if rng.random() < 0.5 else rng.integers(-2, 3, X.shape[-1]).astype(float)
    return AttentionProblem(X, rng.choice([-1.0, 1.0], size=len(X)), Z, LinearHead(v), mask)


def gaussian(rng):
    n, T, d = _sizes(rng)
    return _linear(rng, rng.standard_normal((n, T, d)), rng.standard_normal((n, d)))


def integer(rng):
    n, T, d = _sizes(rng)
    return _linear(rng, rng.integers(-2, 3, (n, T, d)).astype(float), rng.integers(-1, 3, (n, d)).astype(float))


def duplicates(rng):
    n, T, d = _sizes(rng)
    X = rng.standard_normal((n, T, d))
    X[:, -1] = X[:, 0]
    return _linear(rng, X, rng.standard_normal((n, d)))


def near_duplicates(rng):
    """Tokens at distance 1e-3 to 1e-12 of one another, and margins that differ from 1 by as little."""
    n, T, d = _sizes(rng)
    X = rng.integers(-2, 3, (n, T, d)).astype(float)
    X += 10.0 ** rng.uniform(-12, -3) * rng.integers(-2, 3, X.shape)
    return _linear(rng, X, rng.integers(1, 3, (n, d)).astype(float))


def ties(rng):
    """Scores that tie, exactly or up to a rounding."""
    n, T, d = _sizes(rng)
    X = rng.integers(-3, 4, (n, T, d)) / 10.0
    problem = _linear(rng, X, rng.standard_normal((n, d)))
    return AttentionProblem(X, problem.Y, problem.Z, LinearHead(rng.integers(-1, 2, d) * 0.1 + 0.3))


def zero_queries(rng):
    n, T, d = _sizes(rng)
    Z = rng.standard_normal((n, d))
    Z[rng.integers(n)] = 0.0
    mask = None
    if rng.random() < 0.5:  # a zero query that sees one token has no row
        mask = np.ones((n, T), dtype=bool)
        mask[(Z == 0).all(axis=1), 1:] = False
        if n == 1:
            mask = None
    return _linear(rng, rng.standard_normal((n, T, d)), Z, mask)


def masks(rng):
    n, T, d = int(rng.integers(2, 4)), 3, int(rng.integers(1, 4))
    mask = rng.random((n, T)) < 0.7
    mask[:, 0] = True
    mask[0] = True
    return _linear(rng, rng.integers(-2, 3, (n, T, d)).astype(float), rng.standard_normal((n, d)), mask)


def queries(rng):
    X, Z = rng.integers(-2, 3, (1, 3, 2)).astype(float), rng.integers(-2, 3, (1, 3, 2)).astype(float)
    return _linear(rng, X, Z)


def mixed_scales(rng):
    n, T, d = _sizes(rng)
    X = rng.standard_normal((n, T, d)) * 10.0 ** rng.uniform(-5, 5, (n, T, 1))
    return _linear(rng, X, rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-3, 3, (n, 1)))


def float32(rng):
    n, T, d = _sizes(rng)
    X = (1.0 + 1e-3 * rng.standard_normal((n, T, d))).astype(np.float32)
    return _linear(rng, X, rng.standard_normal((n, d)).astype(np.float32))


FAMILIES = (gaussian, integer, duplicates, near_duplicates, ties, zero_queries, masks, queries, mixed_scales, float32)
