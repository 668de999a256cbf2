"""Bounds on a face hold for whatever vectors a routine returns; judged in extended precision."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, certify, solve
from attsvm.solvers.nuclear.face import face_of, row_map
from attsvm.solvers.nuclear.spectra import symmetric
from attsvm.solvers.nuclear.uniqueness import certify_uniqueness
from kkt import random_rows, seeded_rows

pytestmark = pytest.mark.skipif(
    np.finfo(np.longdouble).eps > 2.0**-60,
    reason="the judge needs more digits than float64: no extended precision here",
)


def polar(frame):
    """The orthonormal frame nearest to one that is nearly so, by Newton's iteration."""
    Q = frame.astype(np.longdouble)
    for _ in range(8):
        Q = Q @ (3 * np.eye(Q.shape[1], dtype=np.longdouble) - Q.T @ Q) / 2
    assert abs(Q.T @ Q - np.eye(Q.shape[1])).max() < 1e-18
    return Q


def largest(E, rng):
    """The spectral norm from below, by the power method."""
    x = rng.standard_normal(E.shape[1]).astype(np.longdouble)
    for _ in range(400):
        x = E.T @ (E @ x)
        x /= max(np.sqrt(x @ x), np.longdouble(1e-4000))
    return float(np.sqrt((E @ x) @ (E @ x)))


def dual_of(problem, lam):
    """The dual matrix in extended precision."""
    rows = problem.pairs()
    a, b = rows.a.astype(np.longdouble), rows.queries[rows.owner].astype(np.longdouble)
    return (a * lam.astype(np.longdouble)[:, None]).T @ b


def spoiled(kind, tilt, U, s, Vt, rng):
    """A decomposition as a poor routine might return it."""
    if kind == "noisy":
        return U + tilt * rng.standard_normal(U.shape), s, Vt + tilt * rng.standard_normal(Vt.shape)
    if kind == "turned":  # orthonormal vectors of another matrix
        return np.linalg.qr(U + tilt * rng.standard_normal(U.shape))[0], s, Vt
    return ((1 + tilt) * U, s, (1 + tilt) * Vt) if kind == "swollen" else (U, (1 - tilt) * s, Vt)


@pytest.mark.parametrize("tilt", [0.0, 1e-10, 1e-5])
@pytest.mark.parametrize("kind", ["noisy", "turned", "swollen", "short"])
@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_for_vectors_of_any_routine(seed, kind, tilt, monkeypatch):
    rng = np.random.default_rng(seed)
    problem = seeded_rows(4, 4, 6, seed)
    solution = solve(problem, "nuclear")
    r, lam = solution.certificate.rank, solution.multipliers
    plain, values = np.linalg.svd, []

    def careless(matrix, full_matrices=True, compute_uv=True):
        found = plain(matrix, full_matrices=full_matrices, compute_uv=compute_uv)
        if not compute_uv or matrix.shape != problem.shape:
            return found
        U, s, Vt = spoiled(kind, tilt, *found, rng)
        if kind == "turned":  # a factorization returns columns of any sign
            U = U * np.sign(np.einsum("ij,ij->j", U, found[0]))
        values.append(s)
        return U, s, Vt

    monkeypatch.setattr(np.linalg, "svd", careless)
    face = face_of(problem, lam, r)
    index = np.flatnonzero(lam > 1e-8)
    inverse = 1.0 / problem.row_norms[index]
    found = row_map(problem, index, inverse, face)
    monkeypatch.undo()
    D, U, V = dual_of(problem, lam), polar(face.left), polar(face.right)
    rest = (np.eye(len(U)) - U @ U.T) @ D @ (np.eye(len(V)) - V @ V.T)
    C = np.minimum(values[0][:r], face.size)
    assert face.size >= largest(D, rng) * (1 - 1e-18)
    assert largest(D - U @ np.diag(C).astype(np.longdouble) @ V.T - rest, rng) <= face.blur * face.size
    assert face.room <= 1 - largest(rest, rng) / face.size + 1e-18
    assert face.lower_bound <= solution.norm
    rows = problem.rows.gather(index)
    a = (rows.a * inverse[:, None]) @ U.astype(float)
    entries = r * (r + 1) // 2
    basis = [symmetric(row, r) for row in np.eye(entries)]
    mapped = np.array([np.einsum("ki,ij,kj->k", a, S, rows.queries[rows.owner] @ V.astype(float)) for S in basis]).T
    assert found.smallest <= np.linalg.svd(mapped, compute_uv=False)[-1] + 1e-14  # what this judge rounds
    # And they say something.
    assert face.blur <= 1e-12 + 50 * tilt and found.smallest >= 0.9 * found.singular[-1] > 1e-3


@pytest.mark.parametrize("seed", range(3))
def test_a_careless_routine_makes_the_radius_larger_not_wrong(seed, monkeypatch):
    problem = random_rows(np.random.default_rng(seed), 2, 3, 3, 4)
    solution = solve(problem, "nuclear")
    sharp = certify_uniqueness(problem, solution.W, solution.multipliers)
    plain, rng = np.linalg.svd, np.random.default_rng(seed)

    def careless(matrix, full_matrices=True, compute_uv=True):
        found = plain(matrix, full_matrices=full_matrices, compute_uv=compute_uv)
        return (found[0] + 1e-8 * rng.standard_normal(found[0].shape), *found[1:]) if compute_uv else found

    monkeypatch.setattr("attsvm.solvers.nuclear.face.np.linalg.svd", careless)
    blurred = certify_uniqueness(problem, solution.W, solution.multipliers)
    assert np.isfinite(sharp.radius)
    assert blurred.radius > 10 * sharp.radius


def test_nothing_is_said_of_soft_margins():
    """``|W| + max(0, 1 - W)``: every W in [0, 1] is a solution, which need not satisfy the row."""
    problem = MarginProblem([[1.0]], [[1.0]], [0]).soft(C=1.0)
    for W in ([[0.0]], [[0.5]], [[1.0]]):
        assert certify(problem, W, [1.0], "nuclear").proved < 1e-12
        assert certify_uniqueness(problem, W, [1.0]).verdict == "undecided"
    assert solve(problem, "nuclear").uniqueness.verdict == "undecided"


def test_an_equality_row_needs_no_multiplier():
    """Every solution meets it exactly, however far W is from one."""
    problem = MarginProblem(np.eye(2), [[1.0]], [0, 0], rhs=[1.0, 0.0], equality=[False, True])
    for size in (1.0, 1e12):
        found = certify_uniqueness(problem, [[size], [0.0]], [1.0, 0.0])
        assert found.verdict == ("unique" if size == 1.0 else "undecided")


def test_rows_that_depend_on_each_other_prove_no_radius():
    """What makes W feasible has no known cost where equality rows are dependent."""
    problem = MarginProblem(
        [[1.0], [1.0], [1.0]], [[1.0]], [0, 0, 0], rhs=[1.0, 1.0, 1.0], equality=[False, True, True]
    )
    found = certify_uniqueness(problem, [[1.0 + 1e-12]], [0.0, 1.0, 0.0])
    assert found.radius == np.inf and found.verdict == "undecided"
