"""Newton's method on the face of the spectral norm: found from rough points, refused where sets are wrong."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.other_norms.face import spectral_face
from kkt import assert_optimal, random_rows


def solved(seed: int, dz: int = 6, equalities: int = 0) -> tuple[MarginProblem, np.ndarray, np.ndarray]:
    problem = random_rows(np.random.default_rng(seed), 5, 6, 6, dz=dz, equalities=equalities)
    known = solve(problem, "spectral")
    assert known.status == "optimal"
    return problem, known.W, known.multipliers


def in_norm_form(problem: MarginProblem, lam: np.ndarray) -> np.ndarray:
    return np.asarray(lam / np.linalg.norm(problem.adjoint(lam), "nuc"))


@pytest.mark.parametrize("dz", [4, 6, 9])
@pytest.mark.parametrize("seed", range(8))
def test_a_rough_point_with_the_right_rows_leads_to_the_solution(seed: int, dz: int) -> None:
    problem, W, lam = solved(seed, dz)
    F = problem.features().reshape(problem.m, *problem.shape)
    active = lam > 1e-7 * lam.max()
    rng = np.random.default_rng(seed)
    rough = W * (1.0 + 1e-4 * rng.normal(size=W.shape))
    found = spectral_face(F, problem.rhs, rough, np.where(active, lam, 0.0), active, None, 1e-11)
    assert found is not None
    assert_optimal(problem, found[0], in_norm_form(problem, found[1]), "spectral", 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_equality_rows_may_pull_either_way(seed: int) -> None:
    problem, W, lam = solved(seed, equalities=3)
    F = problem.features().reshape(problem.m, *problem.shape)
    active = problem.equality | (lam > 1e-7 * lam.max())
    found = spectral_face(F, problem.rhs, W, lam, active, problem.equality, 1e-11)
    assert found is not None
    assert_optimal(problem, found[0], in_norm_form(problem, found[1]), "spectral", 1e-9)


@pytest.mark.parametrize("seed", range(8))
def test_wrong_rows_give_nothing(seed: int) -> None:
    """Without one of its rows the problem has another solution, which misses that row; with one too many, none."""
    problem, W, lam = solved(seed)
    F = problem.features().reshape(problem.m, *problem.shape)
    active = lam > 1e-7 * lam.max()
    fewer, more = active.copy(), active.copy()
    fewer[np.argmax(lam)] = False
    more[np.argmax(problem.margins(W))] = True
    for wrong in (fewer, more, np.zeros_like(active)):
        with np.errstate(all="ignore"):
            assert (
                spectral_face(F, problem.rhs, W, np.where(wrong, np.maximum(lam, 1e-3), 0.0), wrong, None, 1e-11)
                is None
            )


def test_faces_end_the_steps_early_and_to_more_digits() -> None:
    rng = np.random.default_rng(0)
    found = [solve(random_rows(rng, 6, 8, 10), "spectral") for _ in range(20)]
    assert {one.solver for one in found} == {"primal_dual"}
    # Steps alone take 11 to 16.
    assert np.mean([one.iterations for one in found]) < 9
    assert max(one.certificate.proved for one in found) < 1e-8


@pytest.mark.parametrize("seed", range(24))
def test_small_shapes_with_right_hand_sides_of_either_sign_agree_with_the_reference(seed: int) -> None:
    """One row or column, dependent rows, W = 0 on a row: where faces are points or the equations singular."""
    rng = np.random.default_rng(seed)
    n, T, dx, dz = (int(rng.integers(low, high)) for low, high in ((1, 4), (2, 5), (1, 5), (1, 5)))
    m = n * (T - 1)
    a, queries, owner = rng.normal(size=(m, dx)), rng.normal(size=(n, dz)), np.repeat(np.arange(n), T - 1)
    problem = MarginProblem(a, queries, owner, rng.normal(size=m), rng.random(m) < 0.4)
    own, known = solve(problem, "spectral"), solve(problem, "spectral", "cvxpy")
    assert own.status in ("optimal", "infeasible")
    assert own.status == known.status
    if own.status == "optimal":
        assert own.norm == pytest.approx(known.norm, rel=4e-7, abs=1e-12)
