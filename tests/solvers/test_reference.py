import re

import numpy as np
import pytest

from attsvm.solvers import InfeasibleError, MarginProblem, Status, get_norm, reference, solve
from kkt import assert_optimal, dense_rows, random_rows

NORMS = ["frobenius", "nuclear", "spectral", "l1", "linf", "l3", "l1.5"]


@pytest.mark.parametrize("equalities", [0, 2])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("solver", ["cvxpy", "cvxpy:SCS"])
def test_every_norm_satisfies_the_optimality_conditions(rng, norm, solver, equalities):
    problem = random_rows(rng, 4, 4, 6, 5, equalities)
    result = solve(problem, norm, solver)
    assert result.status is Status.OPTIMAL
    # The achievable accuracies: 1e-7 for an interior point, 1e-4 for a first-order method.
    assert_optimal(problem, result.W, result.multipliers, norm, 1e-6 if solver == "cvxpy" else 1e-4)
    assert result.certificate.gap <= (1e-7 if solver == "cvxpy" else 1e-4)


def test_osqp_solves_the_quadratic_program(rng):
    problem = random_rows(rng, 4, 4, 6)
    result = solve(problem, "frobenius", "cvxpy:OSQP")
    assert result.status is Status.OPTIMAL
    assert_optimal(problem, result.W, result.multipliers, "frobenius", 1e-6)
    assert result.solver == "cvxpy:OSQP"


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral"])
def test_reduced_solution_equals_the_unreduced_program(rng, norm):
    import cvxpy as cp

    problem = random_rows(rng, 3, 3, 8)
    W = cp.Variable((8, 8))
    objective = {"frobenius": cp.norm(W, "fro"), "nuclear": cp.normNuc(W), "spectral": cp.sigma_max(W)}[norm]
    rows = [a @ W @ problem.rows.queries[o] >= 1 for a, o in zip(problem.rows.a, problem.owner, strict=True)]
    full = cp.Problem(cp.Minimize(objective), rows)
    full.solve(solver="CLARABEL")
    result = solve(problem, norm, "cvxpy")
    # The hand-written program runs at CLARABEL's default accuracy, 1e-8.
    assert result.norm == pytest.approx(full.value, rel=1e-6)
    if norm != "spectral":  # spectral-norm solutions need not lie in the spans
        R = np.linalg.qr(problem.rows.queries.T)[0]
        assert np.linalg.norm(W.value - W.value @ R @ R.T) <= 1e-4 * np.linalg.norm(W.value)


def test_default_accuracy_is_available_for_comparisons(rng):
    problem = random_rows(rng, 4, 4, 6)
    loose = solve(problem, "nuclear", "cvxpy:SCS", defaults=True, tolerance=1e-2)
    tight = solve(problem, "nuclear", "cvxpy:SCS")
    assert loose.iterations < tight.iterations
    assert loose.certificate.worst > tight.certificate.worst


def test_stopping_early_is_inaccurate_with_an_honest_gap(rng):
    problem = random_rows(rng, 4, 4, 6)
    result = solve(problem, "frobenius", "cvxpy:SCS", max_iterations=5)
    assert result.status in (Status.INACCURATE, Status.FAILED)
    assert result.certificate.worst > 1e-4


def test_squares_that_clarabel_fails_on_next_to_cones_are_stated_as_cones(rng, monkeypatch):
    real, squares = reference._run, []

    def fails_on_squares(program, name, norm, settings):
        squares.append(settings.get("use_quad_obj", True))
        return "solver_error" if squares[-1] else real(program, name, norm, settings)

    monkeypatch.setattr(reference, "_run", fails_on_squares)
    problem = random_rows(rng, 4, 4, 6).soft(1.0, "row", "squared_hinge")
    found, own = solve(problem, "spectral", "cvxpy"), solve(problem, "spectral")
    assert (found.status, squares) == (Status.OPTIMAL, [True, False])
    assert found.certificate.primal_value == pytest.approx(own.certificate.primal_value, rel=1e-6)


def test_a_panic_of_clarabel_is_a_solve_that_failed_and_an_interrupt_is_none(rng, monkeypatch):
    """Clarabel's panics are no `Exception`: they used to end the program of the caller."""
    panic = type("PanicException", (BaseException,), {})

    def panics(program, name, settings):
        raise panic("Eigval error: Eigen(1)")

    def interrupted(program, name, settings):
        raise KeyboardInterrupt

    for problem in (random_rows(rng, 3, 3, 4), random_rows(rng, 3, 3, 4).soft(1.0)):
        monkeypatch.setattr(reference, "_solve_program", panics)
        found = solve(problem, "nuclear", "cvxpy:CLARABEL")
        assert found.status == Status.FAILED
        monkeypatch.setattr(reference, "_solve_program", interrupted)
        with pytest.raises(KeyboardInterrupt):
            solve(problem, "nuclear", "cvxpy:CLARABEL")


def test_infeasible_rows_have_no_w(rng):
    x = rng.standard_normal(3)
    problem = MarginProblem([x, -x], rng.standard_normal((1, 3)), [0, 0])
    for norm in NORMS:
        result = solve(problem, norm, "cvxpy")
        assert result.status is Status.INFEASIBLE
        assert result.norm == float("inf")
        with pytest.raises(InfeasibleError, match=re.escape("no W satisfies all rows; queries [0] conflict")):
            _ = result.W
        # The proof, checked with dense rows: a nonnegative combination is zero, yet asks for a positive value.
        lam = result.certificate.farkas.multipliers
        assert lam.min() >= 0
        assert problem.rhs @ lam == pytest.approx(1.0)
        assert np.abs(dense_rows(problem).T @ lam).max() <= 1e-12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"solver": "cvxpy:OSQP", "norm": "nuclear"},
            "solver 'cvxpy:OSQP' does not support norm 'nuclear'; use 'cvxpy'",
        ),
        ({"solver": "cvxpy:GUROBY"}, "solver 'cvxpy:GUROBY' is not installed; found 'cvxpy:CLARABEL'"),
        ({"solver": "magic"}, "solver must be 'auto' or one of"),
        ({"solver": 3}, "solver must be a string such as 'auto' or 'cvxpy:SCS', got 3"),
        ({"tolerance": 0.0}, "tolerance must be None or a positive number, got 0.0"),
        ({"max_iterations": 0}, "max_iterations must be None or an integer >= 1, got 0"),
        ({"norm": "trace"}, "norm must be 'frobenius'"),
    ],
)
def test_bad_arguments_are_named(rng, arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        solve(random_rows(rng, 2, 3, 4), **arguments)


@pytest.mark.parametrize("scale", [1e-6, 1e6])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
def test_badly_scaled_rows_scale_the_solution(rng, norm, scale):
    problem = random_rows(rng, 3, 4, 5)
    scaled = MarginProblem(problem.rows.a * scale, problem.rows.queries, problem.owner)
    plain, result = solve(problem, norm, "cvxpy"), solve(scaled, norm, "cvxpy")
    assert result.status is Status.OPTIMAL
    assert result.norm * scale == pytest.approx(plain.norm, rel=1e-6)
    assert get_norm(norm).dual(scaled.adjoint(result.multipliers)) == pytest.approx(1.0, abs=1e-6)


def test_status_carries_advice():
    assert all(status.advice for status in Status)
    assert Status("optimal").is_certified
    assert Status.INFEASIBLE.is_certified
    assert not Status.FAILED.has_solution
