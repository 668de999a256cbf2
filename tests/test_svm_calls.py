"""How the SVM functions are called: bad arguments, warm starts, what one solution and a batch of them offer."""

import inspect
import re
import typing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm import margin_options
from attsvm.solvers import SOLVERS, NoSolutionError

NORMS = ["frobenius", "nuclear"]
# The batched nuclear method stops at a gap of 1e-9, one problem alone at rounding level.
SAME = {"frobenius": 1e-10, "nuclear": 1e-8, "l1": 1e-10}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: attsvm.att_svm(p, [0, 4, 0]), "selection[1] = 4 is out of range: tokens are 0..3"),
        (lambda p: attsvm.att_svm(p, [0, -1, 0]), "selection[1] = -1 is out of range: tokens are 0..3"),
        (lambda p: attsvm.att_svm(p, [0, 1]), "selection must have shape (3,), one token per query, got (2,)"),
        (lambda p: attsvm.att_svm(p, [0.0, 1.0, 2.0]), "selection must hold integers, got dtype float64"),
        (
            lambda p: attsvm.att_svm(replace(p, mask=np.arange(4) < [[4], [2], [4]]), [0, 3, 0]),
            "selection[1] = 3 is masked out for that query",
        ),
        (
            lambda p: attsvm.att_svm(replace(p, mask=np.arange(4) < [[1], [1], [1]])),
            "mask leaves no query with two tokens to choose from: there is nothing to separate",
        ),
        (lambda p: attsvm.att_svm(p, rank=0), "rank must be None or an integer >= 1, got 0"),
        (lambda p: attsvm.gen_svm(p, [[0], [], [1]]), "selected_sets[1] is empty: select at least one token per query"),
        (lambda p: attsvm.gen_svm(p, [[0], [7], [1]]), "selected_sets[1] holds 7, but tokens are 0..3"),
        (lambda p: attsvm.gen_svm(p, [[0], [1]]), "selected_sets must have shape (3, 4), got (2, 4)"),
        (lambda p: attsvm.gen_svm(p, [[True], [0], [1]]), "selected_sets[0] must hold token indices, got True"),
        (
            lambda p: attsvm.gen_svm(replace(p, mask=np.arange(4) < [[4], [2], [4]]), [[0], [3], [0]]),
            "selected_sets[1] holds token 3, which is masked out for that query",
        ),
        (
            lambda p: attsvm.finite_part(p, np.ones((3, 3)), [[0, 1]] * 3),
            "probabilities must have shape (3, 4), got (3, 3)",
        ),
        (
            lambda p: attsvm.finite_part(p, np.zeros((3, 4)), [[0, 1]] * 3),
            "probabilities must be positive on the selected sets, but query 0 gives token 0 0",
        ),
        (
            lambda p: attsvm.finite_part(p, np.ones((3, 4)), [[0], [1], [2]]),
            "selected_sets holds one token per query: there is no ratio of probabilities to match",
        ),
        (lambda p: attsvm.verify(p, np.eye(4)), "W must have shape (5, 5), got (4, 4)"),
        (lambda p: attsvm.verify(p, np.full((5, 5), np.nan)), "W must be finite"),
        (
            lambda p: attsvm.verify(p, np.eye(5), [0, 0, 0], selected_sets=[[0]] * 3),
            "give either selection or selected_sets, not both",
        ),
        (
            lambda p: attsvm.verify(p, np.eye(5), multipliers=np.ones(3)),
            "multipliers must have shape (3, 4), got (3,)",
        ),
        (lambda p: attsvm.satt_svm(p, causal=True), "a causal mask needs one query per token"),
        (
            lambda p: attsvm.verify(attsvm.random_problem(n=2, T=3, d=5, batch=2), np.eye(5)),
            "verify takes one problem at a time; index the batch first, e.g. problem[0]",
        ),
    ],
)
def test_bad_calls_are_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(attsvm.random_problem(n=3, T=4, d=5, seed=0))


@pytest.mark.parametrize("norm", NORMS)
def test_warm_start_from_another_selection(norm):
    problem = attsvm.random_problem(n=8, T=12, d=20, seed=0)
    first = attsvm.att_svm(problem, norm=norm)
    swapped = first.selection.indices.copy()
    swapped[0] = (swapped[0] + 1) % 12
    cold = attsvm.att_svm(problem, swapped, norm=norm)
    warm = attsvm.att_svm(problem, swapped, norm=norm, warm_start=first)
    assert warm.norm == pytest.approx(cold.norm, rel=1e-9)
    assert warm.iterations <= cold.iterations
    again = attsvm.att_svm(problem, norm=norm, warm_start=first)
    assert again.iterations <= first.iterations
    with pytest.raises(ValueError, match="warm_start must solve a problem with queries"):
        attsvm.att_svm(attsvm.random_problem(n=3, T=12, d=20), norm=norm, warm_start=first)
    with pytest.raises(ValueError, match=re.escape("warm_start must solve a problem with queries (2, 8) and T = 12")):
        attsvm.att_svm(attsvm.random_problem(n=8, T=12, d=20, batch=2), norm=norm, warm_start=first)


# -- the traps of the calls --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda p: attsvm.att_svm(p, None, "nuclear"),
        lambda p: attsvm.satt_svm(p, None, "nuclear", 2),  # once a causal mask, silently
        lambda p: attsvm.gen_svm(p, [[0], [1], [2]], "nuclear"),
        lambda p: attsvm.finite_part(p, np.ones((3, 4)), [[0, 1]] * 3, "nuclear"),
        lambda p: attsvm.verify(p, np.eye(5), None, "nuclear"),
    ],
)
def test_everything_after_the_selection_is_named(call):
    with pytest.raises(TypeError, match=r"positional arguments? but"):
        call(attsvm.random_problem(n=3, T=4, d=5, seed=0))


def test_only_the_selection_may_go_without_a_name():
    for function, first in (
        (attsvm.att_svm, ["problem", "selection"]),
        (attsvm.satt_svm, ["problem", "selection"]),
        (attsvm.gen_svm, ["problem", "selected_sets"]),
        (attsvm.finite_part, ["problem", "probabilities", "selected_sets"]),
    ):
        parameters = inspect.signature(function).parameters.values()
        assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == first
        assert all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY, p.VAR_KEYWORD) for p in parameters)


@pytest.mark.parametrize(
    "function",
    [
        attsvm.att_svm, attsvm.satt_svm, attsvm.gen_svm, attsvm.finite_part, attsvm.compare,
        attsvm.is_locally_optimal, attsvm.selection_graph,
    ],
    ids=lambda function: function.__name__,
)  # fmt: skip
def test_signatures_say_what_comes_back(function):
    """What they say of one problem and of a batch is checked by mypy on `typed_use.py`."""
    for face in (function, *typing.get_overloads(function)):
        told = {name: str(kind) for name, kind in face.__annotations__.items()}
        assert "return" in told
        assert not [name for name, kind in told.items() if re.search(r"\bAny\b", kind)]


def test_shared_keywords_are_in_every_signature_and_docstring():
    """One home (`attsvm.margin_options`) for types, defaults and descriptions; shells and `help` see them all."""
    everywhere = {"norm", "solver"}
    soft = everywhere | {"C", "slack", "loss"}
    svm = soft | {"prior", "offset", "support_tolerance"}
    wanted = {
        attsvm.att_svm: svm | {"rank", "warm_start"}, attsvm.satt_svm: svm | {"rank", "warm_start"},
        attsvm.gen_svm: svm, attsvm.finite_part: svm, attsvm.verify: soft, attsvm.edit: soft,
        attsvm.soft_path: svm - {"C"}, attsvm.is_locally_optimal: everywhere,
    }  # fmt: skip
    for function, names in wanted.items():
        parameters = inspect.signature(function).parameters
        for name in names:
            assert parameters[name].default == margin_options.DEFAULTS[name]
            assert function.__doc__.count(f"\n    {name} : ") == 1, (function.__name__, name)
        assert names >= set(parameters) & set(margin_options.AttSvmOptions.__annotations__) - {"rank", "offset"}


def test_options_for_solvers_are_those_that_solvers_take():
    taken = set().union(*(spec.options or () for spec in SOLVERS.values()))
    assert set(margin_options.MethodOptions.__annotations__) == taken | {"tolerance", "max_iterations"}
    assert set(margin_options.DEFAULTS) == set(margin_options.AttSvmOptions.__annotations__) - set(
        margin_options.MethodOptions.__annotations__
    )


def test_a_warning_names_the_line_of_the_call():
    problem = attsvm.random_problem(n=3, T=4, d=5, kind="sequence", seed=0)
    for call in (attsvm.att_svm, attsvm.satt_svm):
        with pytest.warns(attsvm.ConvergenceWarning) as caught:
            call(problem, norm="nuclear", solver="interior", max_iterations=1)
        assert {Path(warning.filename).name for warning in caught} == {Path(__file__).name}


def test_correlation_means_one_thing():
    assert not hasattr(attsvm, "correlation")
    assert isinstance(attsvm.correlation_loss, attsvm.Loss)
    assert attsvm.get_loss("correlation") is attsvm.correlation_loss


@pytest.mark.parametrize("kind", [np.ones(3), "first", 3, [1.0, 2.0]])
def test_a_warm_start_of_the_wrong_type_is_named(kind):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=0)
    for norm in ("frobenius", "nuclear", "l1"):
        for given in (problem, batch):
            message = f"warm_start must be a Solution or a SolutionBatch, got {type(kind).__name__}"
            with pytest.raises(TypeError, match=message):
                attsvm.att_svm(given, norm=norm, warm_start=kind)


def test_mistyped_options_are_named():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    W0, sets = np.eye(5), [[0], [1], [2]]
    for name, call in {
        "att_svm": lambda: attsvm.att_svm(problem, nomr="nuclear"),
        "satt_svm": lambda: attsvm.satt_svm(problem, nomr="nuclear"),
        "gen_svm": lambda: attsvm.gen_svm(problem, sets, nomr="nuclear"),
        "finite_part": lambda: attsvm.finite_part(problem, np.ones((3, 4)), [[0, 1]] * 3, nomr="nuclear"),
        "verify": lambda: attsvm.verify(problem, W0, nomr="nuclear"),
        "soft_path": lambda: attsvm.soft_path(problem, [1.0], nomr="nuclear"),
        "edit": lambda: attsvm.edit(W0, problem, [0, 1, 2], nomr="nuclear"),
        "is_locally_optimal": lambda: attsvm.is_locally_optimal(problem, nomr="nuclear"),
        "decompose": lambda: attsvm.decompose(problem, W0, nomr="nuclear"),
        "joint_svm": lambda: attsvm.joint.joint_svm(problem, nomr="nuclear"),
        "graph_svm": lambda: attsvm.next_token.graph_svm([[0, 1, 2, 0]], np.eye(3), nomr="nuclear"),
        "graph_svms": lambda: attsvm.next_token.graph_svms([[[0, 1, 2, 0]]], [np.eye(3)], nomr="nuclear"),
    }.items():
        message = f"{name} takes no option 'nomr'; did you mean 'norm'? It takes norm, "
        with pytest.raises(TypeError, match=re.escape(message) + ".* and, for the solver, columns, max_iterations"):
            call()
    with pytest.raises(TypeError, match="did you mean 'max_iterations'"):
        attsvm.att_svm(problem, max_iteration=3)
    with pytest.raises(TypeError, match="solver 'active_set' takes no option 'columns'; it takes tolerance"):
        attsvm.att_svm(problem, columns=3)
    for bad in (-1.0, True, "1e-5", None):
        with pytest.raises(ValueError, match="support_tolerance must be a number >= 0"):
            attsvm.att_svm(problem, support_tolerance=bad)
    with pytest.raises(ValueError, match="causal must be True or False, got 'nuclear'"):
        attsvm.satt_svm(problem, causal="nuclear")
    with pytest.raises(TypeError, match="problem must be an AttentionProblem, got ndarray"):
        attsvm.att_svm(problem.X)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "linf"])
def test_solvers_take_no_device(batch, norm):
    """Training does, so it is a likely guess."""
    problem = attsvm.random_problem(n=4, T=3, d=6, batch=batch, seed=0)
    with pytest.raises(TypeError, match="takes no option 'device'"):
        attsvm.att_svm(problem, norm=norm, device="cpu")


# -- what a batch offers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
def test_a_batch_offers_what_one_solution_does_with_array_semantics(norm):
    problem = attsvm.random_problem(n=5, T=5, d=2, batch=6, seed=0)
    solutions, alone = attsvm.att_svm(problem, norm=norm), [attsvm.att_svm(problem[b], norm=norm) for b in range(6)]
    optimal = solutions.status == "optimal"
    assert optimal.dtype == bool and optimal.shape == (6,)
    assert (solutions.status == "infeasible").tolist() == (~optimal).tolist()
    assert 0 < optimal.sum() < 6
    assert isinstance(solutions.solver, str)
    for name, shape in (
        ("norm", (6,)), ("margin", (6,)), ("rank", (6,)), ("iterations", (6,)), ("has_solution", (6,)), ("gap", (6,)),
        ("W", (6, 2, 2)), ("direction", (6, 2, 2)), ("multipliers", (6, 5, 5)), ("support", (6, 5, 5)),
    ):  # fmt: skip
        assert getattr(solutions, name).shape == shape, name
    assert solutions.token_margins().shape == (6, 5, 5)
    for name in ("gap", "primal_violation", "dual_violation", "norm", "lower_bound", "worst", "proved"):
        assert getattr(solutions.certificate, name).shape == (6,), name
    for b, single in enumerate(alone):
        one = solutions[b]
        assert one.status is single.status
        assert type(one) is type(single) and type(one.certificate) is type(single.certificate)
        extras = one.result.extras
        assert one.solver == (extras.answered_by if extras.rescued else solutions.solver)
        assert attsvm.att_svm(problem[b], norm=norm, solver=one.solver).status is one.status
        if not optimal[b]:
            for empty in (solutions.W[b], solutions.direction[b]):
                assert np.isnan(empty).all()
            assert not solutions.support[b].any()
            assert (solutions.norm[b], solutions.margin[b], solutions.rank[b]) == (np.inf, 0.0, -1)
            with pytest.raises(attsvm.InfeasibleError):
                _ = one.W
            continue
        for name in ("W", "support", "direction", "multipliers"):
            np.testing.assert_array_equal(getattr(one, name), getattr(solutions, name)[b])
        # Margins of one problem are summed in another order than those of a batch.
        np.testing.assert_allclose(one.token_margins(), solutions.token_margins()[b], rtol=1e-12)
        np.testing.assert_array_equal(one.support, single.support)
        assert one.margin == solutions.margin[b]
        assert one.norm == solutions.norm[b] == pytest.approx(single.norm, rel=SAME[norm])
        assert one.rank == solutions.rank[b] == single.rank


def test_a_failed_solve_is_not_called_infeasible():
    # det W >= 2 over these rows: no W of rank 1, but the convex problem is feasible.
    X = np.array([[[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [[0.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]])
    problem = attsvm.AttentionProblem(X, [1, 1], np.eye(2), attsvm.LinearHead([1.0, 0.0]))
    assert attsvm.att_svm(problem, [0, 0], norm="nuclear").status is attsvm.Status.OPTIMAL
    solution = attsvm.att_svm(problem, [0, 0], norm="nuclear", rank=1, starts=1)
    assert solution.status is attsvm.Status.FAILED
    with pytest.raises(NoSolutionError, match="status is failed") as caught:
        _ = solution.W
    assert not isinstance(caught.value, attsvm.InfeasibleError)
    assert solution.conflicting_queries.size == 0
    assert solution.certificate.lower_bound == 0.0


def test_a_local_optimum_has_advice_of_its_own():
    problem = attsvm.random_problem(n=5, T=4, d=6, seed=0)
    solution = attsvm.att_svm(problem, norm="nuclear", rank=1, starts=2)
    assert solution.status is attsvm.Status.LOCAL
    assert solution.status.has_solution and not solution.status.is_certified
    assert "not proved global" in solution.status.advice
    limit = solution.result.extras.rank_limit
    assert limit.convex_bound <= attsvm.att_svm(problem, norm="nuclear").norm <= solution.norm


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "l1"])
def test_the_solver_in_a_result_can_be_asked_for(norm):
    for batch in (None, 2):
        problem = attsvm.random_problem(n=3, T=4, d=5, batch=batch, seed=0)
        first = attsvm.att_svm(problem, norm=norm)
        again = attsvm.att_svm(problem, norm=norm, solver=first.solver)
        assert again.solver == first.solver
        np.testing.assert_array_equal(again.W, first.W)


def test_a_batch_starts_from_a_batch():
    problem = attsvm.random_problem(n=4, T=5, d=6, batch=3, seed=0)
    for norm in NORMS:
        first = attsvm.att_svm(problem, norm=norm)
        again = attsvm.att_svm(problem, norm=norm, warm_start=first)
        np.testing.assert_allclose(again.norm, first.norm, rtol=1e-8)
        moved = (first.selection.indices + 1) % 5
        warm = attsvm.att_svm(problem, moved, norm=norm, warm_start=first)
        np.testing.assert_allclose(warm.norm, attsvm.att_svm(problem, moved, norm=norm).norm, rtol=1e-8)
