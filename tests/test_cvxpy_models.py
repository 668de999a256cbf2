"""The programs of cvxpy_model are our problems, and say when they no longer are."""

import warnings

import cvxpy as cp
import numpy as np
import pytest

import attsvm
from attsvm.solvers.reference import TIGHT

SETS = [[0, 2], [1], [3, 4, 1], [0]]


@pytest.fixture(scope="module")
def problem():
    return attsvm.random_problem(n=4, T=5, d=6, seed=1)


@pytest.fixture(scope="module")
def sequences():
    return attsvm.random_problem(n=2, T=3, d=8, kind="sequence", seed=0)


def solved(model):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": these settings are not always reached
        model.problem.solve(solver="CLARABEL", **TIGHT["CLARABEL"])
    return model.solution(tolerance=1e-6)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l3"])
@pytest.mark.parametrize("C", [None, 0.5])
def test_each_program_has_the_value_of_our_own_solve(problem, sequences, norm, C):
    shares = np.random.default_rng(0).dirichlet(np.ones(5), size=4)
    own = {
        "att": (attsvm.att_svm(problem, norm=norm, C=C), attsvm.cvxpy_model(problem, norm=norm, C=C)),
        "satt": (
            attsvm.satt_svm(sequences, norm=norm, C=C, causal=True),
            attsvm.cvxpy_model(sequences, norm=norm, C=C, causal=True),
        ),
        "gen": (
            attsvm.gen_svm(problem, SETS, norm=norm, C=C),
            attsvm.cvxpy_model(problem, SETS, formulation="gen", norm=norm, C=C),
        ),
        "finite": (
            attsvm.finite_part(problem, shares, SETS, norm=norm, C=C),
            attsvm.cvxpy_model(problem, SETS, formulation="finite", probabilities=shares, norm=norm, C=C),
        ),
    }
    for known, model in own.values():
        found = solved(model)
        assert (found.status, found.formulation) == ("optimal", known.formulation)
        assert found.objective == pytest.approx(known.objective, rel=1e-7, abs=1e-9)
        squared = norm == "frobenius" and C is None
        assert model.problem.value == pytest.approx(known.norm**2 / 2 if squared else known.objective, rel=1e-7)
        assert found.slacks == pytest.approx(known.slacks, abs=1e-4)


@pytest.mark.parametrize(("slack", "loss"), [("row", "hinge"), ("query", "squared_hinge"), ("row", "squared_hinge")])
def test_slacks_offset_and_prior_are_those_of_the_solvers(problem, slack, loss):
    rng = np.random.default_rng(3)
    frame = {
        "prior": rng.normal(size=(6, 6)),
        "offset": rng.normal(size=(4, 5)),
        "C": 0.3,
        "slack": slack,
        "loss": loss,
    }
    model = attsvm.cvxpy_model(problem, [0, 1, 2, 3], norm="nuclear", **frame)
    found, known = solved(model), attsvm.att_svm(problem, [0, 1, 2, 3], norm="nuclear", **frame)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(known.objective, rel=1e-7)
    assert model.slacks.shape == ((4,) if slack == "query" else (4, 5))
    anchors = np.arange(4)
    logits = np.einsum("ntd,de,ne->nt", problem.X, model.W.value, problem.Z) + frame["offset"]
    missed = np.maximum(1 - (logits[anchors, anchors][:, None] - logits), 0)
    missed[anchors, anchors] = 0
    expected = missed if slack == "row" else missed.max(axis=1)
    assert model.slacks.value == pytest.approx(expected, abs=1e-5)
    assert model.logits.value == pytest.approx(logits, abs=1e-9)


def test_constraints_are_named_by_query_and_masked_tokens_have_none(sequences):
    model = attsvm.cvxpy_model(sequences, causal=True)
    assert list(model.constraints) == [(i, k) for i in range(2) for k in range(3)]
    assert model.constraints[(1, 0)] == ()  # the first query sees one token
    (last,) = model.constraints[(1, 2)]
    assert last.label.startswith("query (1, 2), tokens [")
    assert last.shape == (2,)


def test_an_infeasible_program_ends_in_a_proof():
    model = attsvm.cvxpy_model(attsvm.random_problem(n=6, T=8, d=2, seed=0))
    assert model.problem.solve(solver="CLARABEL") == np.inf
    found = model.solution()
    assert found.status == "infeasible"
    assert found.certificate.exact().status == "infeasible"
    with pytest.raises(attsvm.InfeasibleError, match="sequences"):
        found.W.copy()


@pytest.mark.parametrize("change", ["constraint", "objective"])
def test_a_changed_program_certifies_nothing(problem, change):
    model = attsvm.cvxpy_model(problem, norm="nuclear")
    least = model.problem.solve(solver="CLARABEL")
    assert model.solution().status == "optimal"
    goal, rows = model.problem.objective, model.problem.constraints
    if change == "constraint":
        other = cp.Problem(goal, [*rows, cp.diag(model.W) == 0])
    else:
        other = cp.Problem(cp.Minimize(goal.expr + cp.sum_squares(model.W)), rows)
    other.solve(solver="CLARABEL")
    with pytest.warns(attsvm.ConvergenceWarning, match="nothing is certified"):
        found = model.solution()
    assert found.status == "inaccurate"
    assert "another program" in found.reason
    assert found.certificate.lower_bound == 0
    assert found.norm > least * (1 + 1e-4)
    assert found.certificate.primal_violation < 1e-6
    assert found.rank == np.linalg.matrix_rank(model.W.value, tol=1e-8 * found.norm)
    model.problem.solve(solver="CLARABEL")  # and again our own
    assert model.solution().status == "optimal"


def test_two_problems_share_one_variable():
    one, two = (attsvm.random_problem(n=2, T=3, d=5, seed=seed) for seed in (0, 1))
    first = attsvm.cvxpy_model(one)
    second = attsvm.cvxpy_model(two, W=first.W)
    shared = cp.Problem(first.problem.objective, first.problem.constraints + second.problem.constraints)
    shared.solve(solver="CLARABEL")
    both = attsvm.AttentionProblem(np.concatenate([one.X, two.X]), Z=np.concatenate([one.Z, two.Z]))
    chosen = np.concatenate([one.optimal_tokens().indices, two.optimal_tokens().indices])
    assert first.W.value == pytest.approx(attsvm.att_svm(both, chosen).W, abs=1e-6)


def test_solvers_of_low_accuracy_are_not_called_optimal(problem):
    model = attsvm.cvxpy_model(problem, norm="nuclear")
    model.problem.solve(solver="SCS", eps_abs=1e-2, eps_rel=1e-2)
    with pytest.warns(attsvm.ConvergenceWarning, match="inaccurate"):
        assert model.solution().status == "inaccurate"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: attsvm.cvxpy_model(p, formulation="hard"), "formulation must be 'att', 'gen' or 'finite'"),
        (lambda p: attsvm.cvxpy_model(p, formulation="gen"), "selection must hold the selected sets"),
        (lambda p: attsvm.cvxpy_model(p, attsvm.SelectedSets.from_indices(SETS, 5)), "one token per query"),
        (lambda p: attsvm.cvxpy_model(p, SETS, formulation="finite"), "probabilities go with formulation='finite'"),
        (lambda p: attsvm.cvxpy_model(p, probabilities=np.ones((4, 5))), "probabilities go with"),
        (lambda p: attsvm.cvxpy_model(p, W=cp.Variable((6, 5))), r"W must be a cvxpy.Variable of shape \(6, 6\)"),
        (lambda p: attsvm.cvxpy_model(p, W=np.eye(6)), "W must be a cvxpy.Variable"),
        (lambda p: attsvm.cvxpy_model(p, C=-1.0), "C must be None"),
        (lambda p: attsvm.cvxpy_model(p, slack="row"), "they need a positive C"),
        (lambda p: attsvm.cvxpy_model(p, causal=1), "causal must be True or False"),
        (lambda p: attsvm.cvxpy_model(p, prior=np.eye(5)), "must have shape"),
        (lambda p: attsvm.cvxpy_model(attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)), "one problem at a time"),
        (lambda p: attsvm.cvxpy_model(p).solution(), "call model.problem.solve"),
    ],
)
def test_bad_input_is_named(problem, call, message):
    with pytest.raises(ValueError, match=message):
        call(problem)
