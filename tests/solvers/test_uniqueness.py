"""The uniqueness certificate: every field by its definition, and faces whose ends are known."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from attsvm.solvers import MarginProblem
from attsvm.solvers.library import conflict, diagonal, zero_solution
from attsvm.solvers.planted import planted_nuclear, rescaled, with_dependent_rows, with_zero_rows
from attsvm.solvers.uniqueness import certify_uniqueness
from kkt import assert_optimal, dense_rows
from solver_api import rows_of


def by_definition(problem, W, lam, tol):
    """What `UniquenessCertificate` documents, in rows of norm 1 with ``max |rhs| = 1``."""
    _, _, _, rhs, equality = rows_of(problem)
    F = dense_rows(problem)
    size = np.linalg.norm(F, axis=1)
    F, rhs, equality, lam = (F / size[:, None].clip(1e-300))[size > 0], rhs[size > 0], equality[size > 0], lam[size > 0]
    rhs, lam = rhs / size[size > 0], lam * size[size > 0]
    top = np.abs(rhs).max()
    slack = (F @ W.ravel() - rhs) / top
    U, sigma, Vt = np.linalg.svd((F.T @ lam).reshape(W.shape))
    r = int((sigma >= 1 - tol).sum())
    own = np.linalg.svd(W, compute_uv=False)
    tight = [x for x, s, e in zip(lam, slack, equality, strict=True) if not e and s <= tol]
    loose = [s for x, s, e in zip(lam, slack, equality, strict=True) if not e and x <= tol]
    columns = []  # the values of the supporting rows along an orthonormal basis of symmetric matrices
    for i, j in itertools.combinations_with_replacement(range(r), 2):
        E = np.zeros((r, r))
        E[i, j] = E[j, i] = 1.0 if i == j else 0.5**0.5
        columns.append(F[equality | (lam > tol)] @ (U[:, :r] @ E @ Vt[:r]).ravel())
    singular = np.linalg.svd(np.array(columns).T, compute_uv=False)
    margins = {
        "primal_margin": own[r - 1] / own[0],
        "dual_margin": 1 - sigma[r] if r < len(sigma) else 1.0,
        "multiplier_margin": min(tight, default=np.inf),
        "slack_margin": min(loose, default=np.inf),
    }
    return margins | {
        "strictly_complementary": min(margins.values()) > tol,
        "rank": r,
        "smallest_singular_value": singular[-1] if len(singular) == len(columns) else 0.0,
        "face_dimension": len(columns) - int((singular > 1e-7).sum()),
        "tolerance": tol,
    }


PLANTED = [
    planted_nuclear(rank=2, equalities=3, seed=1),
    planted_nuclear(rank=3, unit_rhs=True, seed=2),
    planted_nuclear(4, 4, queries=4, active=2, inactive=0, rank=4, value=50.0, seed=3),
    rescaled(planted_nuclear(rank=2, seed=4), decades=2),
    with_zero_rows(planted_nuclear(rank=1, seed=5)),
    with_dependent_rows(planted_nuclear(rank=2, seed=6)),
    planted_nuclear(active=1, inactive=0, queries=3, rank=3, seed=7),
    planted_nuclear(active=1, inactive=3, queries=3, rank=3, seed=8),
    planted_nuclear(active=1, inactive=1, queries=5, rank=3, equalities=4, seed=9),
]


@pytest.mark.parametrize("entry", PLANTED, ids=lambda entry: entry.name)
def test_every_field_is_what_its_definition_says(entry):
    expected = by_definition(entry.problem, entry.W, entry.multipliers, 1e-6)
    found = certify_uniqueness(entry.problem, entry.W, entry.multipliers, tolerance=1e-6)
    for name, value in expected.items():  # rounding of quantities of ordinary size
        assert getattr(found, name) == pytest.approx(value, rel=1e-6, abs=1e-11), name
    assert (found.witness is not None) == (found.verdict == "not unique") == (expected["face_dimension"] > 0)
    if found.witness is not None:
        assert_optimal(entry.problem, found.witness, entry.multipliers, "nuclear", 1e-8)
        assert np.linalg.norm(found.witness - entry.W) > 1e-4 * np.linalg.norm(entry.W)


def test_the_planted_problems_are_of_both_kinds():
    found = [certify_uniqueness(e.problem, e.W, e.multipliers) for e in PLANTED]
    assert [f.verdict for f in found] == ["unique"] * 2 + ["not unique"] + ["unique"] * 3 + ["not unique"] * 2 + [
        "unique"
    ]
    assert [f.strictly_complementary for f in found] == [True] * 5 + [False] + [True] * 3
    assert all(1e-8 <= f.tolerance <= 1e-7 for f in found)  # the root of rounding


# (e_1 + e_2)^T W (e_1 + e_2) = W_11 + W_22 + W_12 + W_21 and its negative: bounds on what W_11, W_22 >= 1 leave free.
def bounded(low: float | None = None, high: float | None = None) -> MarginProblem:
    """W_11 >= 1, W_22 >= 1 (optimal: ``[[1, t], [t, 1]]`` with |t| <= 1) and ``low <= t <= high``."""
    a, b, rhs = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [1.0, 1.0]
    for sign, bound in ((1.0, low), (-1.0, high)):
        if bound is not None:
            a.append([sign, sign])
            b.append([1.0, 1.0])
            rhs.append(sign * (2.0 + 2.0 * bound))
    return MarginProblem(a, b, np.arange(len(a)), rhs)


def on_the_face(problem: MarginProblem, t: float):
    lam = np.zeros(problem.m)
    lam[:2] = 1.0
    return certify_uniqueness(problem, [[1.0, t], [t, 1.0]], lam)


@pytest.mark.parametrize(
    ("low", "high", "t", "ends"),
    [
        (None, None, 0.0, (-1.0, 1.0)),
        (None, None, 0.5, (-1.0, 1.0)),
        (None, None, -1.0, (1.0,)),
        (0.2, 0.8, 0.5, (0.2, 0.8)),
        (0.2, 0.8, 0.2, (0.8,)),
        (0.2, 0.8, 0.8, (0.2,)),
        (-0.7, None, 0.9, (-0.7, 1.0)),
        (None, 0.3, -0.9, (0.3, -1.0)),
    ],
)
def test_a_second_solution_lies_at_an_end_of_the_face(low, high, t, ends):
    found = on_the_face(bounded(low, high), t)
    assert (found.verdict, found.face_dimension, found.rank) == ("not unique", 1, 2)
    other = found.witness
    np.testing.assert_allclose(np.diag(other), [1.0, 1.0], atol=1e-9)
    assert other[0, 1] == pytest.approx(other[1, 0], abs=1e-9)
    # Bisection of the smallest eigenvalue, or a bound that is met exactly.
    assert min(abs(other[0, 1] - end) for end in ends) <= 1e-6


@pytest.mark.parametrize(("width", "verdict"), [(1e-2, "not unique"), (1e-3, "not unique"), (1e-5, "undecided")])
def test_a_second_solution_must_be_visibly_different(width, verdict):
    found = on_the_face(bounded(0.5 - width, 0.5), 0.5)
    assert (found.verdict, found.witness is None) == (verdict, verdict == "undecided")


def test_a_face_cut_to_a_point_by_rows_without_multiplier_stays_undecided():
    # t >= 1 by a row without multiplier, t <= 1 by semidefiniteness: one solution, but the multipliers do not say so.
    found = on_the_face(bounded(low=1.0), 1.0)
    assert (found.verdict, found.face_dimension, found.witness) == ("undecided", 1, None)
    assert not found.strictly_complementary
    assert found.multiplier_margin == found.slack_margin == found.primal_margin == pytest.approx(0.0, abs=1e-12)


def test_what_is_no_solution_decides_nothing():
    entry = planted_nuclear(rank=2, seed=1)
    for factor, verdict in ((1 + 1e-5, "unique"), (1 + 1e-3, "undecided"), (1 - 1e-3, "undecided")):
        found = certify_uniqueness(entry.problem, factor * entry.W, entry.multipliers, tolerance=1e-6)
        assert found.verdict == verdict
    # What counts as 0 is by default the root of the gap, here 1e-6, and at least 1e-8.
    assert certify_uniqueness(entry.problem, (1 + 1e-6) * entry.W, entry.multipliers).tolerance == pytest.approx(1e-3)
    exact = diagonal("nuclear", (4.0, 1.0, 2.0))  # exact in binary
    assert certify_uniqueness(exact.problem, exact.W, exact.multipliers).tolerance == 1e-8
    nothing = certify_uniqueness(entry.problem, entry.W, 0 * entry.multipliers, tolerance=1e-6)
    assert (nothing.verdict, nothing.rank, nothing.primal_margin) == ("undecided", 0, 0.0)


def test_zero_is_the_only_matrix_of_norm_zero():
    entry = zero_solution()
    found = certify_uniqueness(entry.problem, entry.W, entry.multipliers)
    assert (found.verdict, found.rank, found.face_dimension) == ("unique", 0, 0)
    assert found.strictly_complementary


def test_a_problem_without_solution_is_refused():
    entry = conflict("zero row")
    with pytest.raises(ValueError, match="the problem has no solution: a zero row has a positive right-hand side"):
        certify_uniqueness(entry.problem, np.zeros(entry.problem.shape), entry.multipliers)


def test_as_many_rows_as_entries_may_still_leave_a_face():
    # Three singular values 1 need six entries of S; the three rows of the diagonal see three of them.
    entry = diagonal("nuclear")
    found = certify_uniqueness(entry.problem, entry.W, entry.multipliers)
    assert (found.verdict, found.face_dimension, found.smallest_singular_value) == ("not unique", 3, 0.0)
