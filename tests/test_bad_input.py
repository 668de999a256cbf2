"""What users give by mistake is refused by name, with the type of exception that says so."""

import itertools

import numpy as np
import pytest
import torch

import attsvm

NAN = float("nan")


@pytest.fixture(scope="module")
def problem():
    return attsvm.random_problem(n=3, T=4, d=5, seed=0)


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"decay_after": -1}, "decay_after must be None or an integer >= 1, got -1"),
        ({"decay_after": 1.5}, "decay_after must be None or an integer"),
        ({"stop_direction": 5}, "stop_direction must be None or a number between 0 and 1, got 5"),
        ({"stop_direction": NAN}, "stop_direction must be"),
        ({"lr": "fast"}, "lr must be None or a positive number, got 'fast'"),
        ({"lr": True}, "lr must be"),
        ({"seed": "zero"}, "seed must be an integer >= 0 or a numpy Generator, got 'zero'"),
        ({"seed": -1}, "seed must be"),
        ({"snapshots": "many"}, "snapshots must be an integer of at least 2 or a list of steps, got 'many'"),
        ({"snapshots": None}, "snapshots must be"),
        ({"snapshots": [0.5]}, "a step of snapshots must be an integer"),
        ({"steps": True}, "steps must be an integer >= 0, got True"),
        ({"log_ridge": NAN}, "log_ridge must be None or a finite number"),
        ({"radius": -1}, "radius must be a positive number"),
        ({"stop_norm": "large"}, "stop_norm must be None or a positive number"),
        (
            {"parameterization": "KQ", "m": 1.5},
            "m is the inner dimension of parameterization 'KQ' and must be an integer >= 1",
        ),
        ({"optimizer": 3}, "optimizer must be a name"),
        ({"dtype": "double"}, "dtype must be a floating torch dtype"),
        ({"dtype": torch.int64}, "dtype must be a floating torch dtype"),
        ({"checkpoint": 5}, "checkpoint must be a path"),
        ({"progress": "yes"}, "progress must be True or False"),
        ({"key_matrix": np.eye(5)}, "key_matrix is for parameterization 'prompt'"),
        ({"device": "nope"}, "device must name a torch device such as 'cpu' or 'cuda', got 'nope'"),
        ({"device": "meta"}, "device 'meta' cannot be used here: it holds no numbers"),
    ],
)
def test_training_settings_are_refused_by_name(problem, setting, wanted):
    with pytest.raises(ValueError, match="^" + wanted.replace("(", r"\(")):
        attsvm.train(problem, **({"steps": 3} | setting))


@pytest.mark.skipif(torch.cuda.is_available(), reason="has the device")
def test_a_device_that_is_not_there_is_refused_by_name(problem):
    with pytest.raises(ValueError, match=r"^device 'cuda' cannot be used here: "):
        attsvm.train(problem, steps=3, device="cuda")


@pytest.mark.parametrize("form", ["W", "KQ"])
def test_a_step_beyond_floating_point_ends_with_a_status_and_the_last_finite_W(problem, form):
    run = attsvm.train(problem, form, lr=1e300, steps=50)
    assert run.status == "not finite"
    assert np.isfinite(run.W).all() and np.isfinite(run.history.norm).all() and np.isfinite(run.history.W).all()


@pytest.mark.parametrize(
    ("setting", "wanted"),
    [
        ({"tolerance": "tight"}, "tolerance must be None or a positive number, got 'tight'"),
        ({"support_tolerance": NAN}, "support_tolerance must be a number >= 0, got nan"),
        ({"max_iterations": 1.5}, "max_iterations must be None or an integer >= 1, got 1.5"),
        ({"norm": "nuclear", "rank": True}, "rank must be None or an integer >= 1, got True"),
        ({"norm": ["frobenius"]}, "norm must be 'frobenius', 'nuclear'"),
        ({"solver": 3}, "solver must be a string"),
    ],
)
def test_settings_of_a_solve_are_refused_by_name(problem, setting, wanted):
    with pytest.raises(ValueError, match="^" + wanted):
        attsvm.att_svm(problem, **setting)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: attsvm.att_svm(x),
        lambda x: attsvm.satt_svm(x),
        lambda x: attsvm.gen_svm(x, []),
        lambda x: attsvm.verify(x, 1.0),
        lambda x: attsvm.train(x),
        lambda x: attsvm.compare(x),
        lambda x: attsvm.diagnose(x),
        lambda x: attsvm.locally_optimal_selections(x),
        lambda x: attsvm.selection_graph(x),
        lambda x: attsvm.regularization_path(x, [1.0]),
        lambda x: attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=3), warm_start=5),
    ],
)
def test_something_else_than_a_problem_is_a_type_error(call):
    with pytest.raises(TypeError, match=r"must be an? |takes a Run first"):
        call(None)


def test_seeds_are_refused_by_name(problem):
    calls = (
        lambda seed: attsvm.random_problem(n=2, T=3, d=3, seed=seed),
        lambda seed: attsvm.diagnose(problem, seed=seed),
        lambda seed: attsvm.locally_optimal_selections(problem, mode="heuristic", seed=seed),
        lambda seed: attsvm.regularization_path(problem, [1.0], seed=seed),
    )
    for call, seed in itertools.product(calls, ("zero", True)):
        with pytest.raises(ValueError, match="seed must be an integer >= 0"):
            call(seed)


def test_arrays_that_hide_what_they_hold_are_refused_by_name(problem):
    X, Y, Z = (np.array(a) for a in (problem.X, problem.Y, problem.Z))
    masked = np.ma.masked_array(X, mask=X > 0.5)
    with pytest.raises(ValueError, match="X is a masked array with masked entries"):
        attsvm.AttentionProblem(masked, Y, Z, problem.head)
    whole = attsvm.AttentionProblem(np.ma.masked_array(X), Y, Z, problem.head)  # nothing is masked: plain data
    np.testing.assert_array_equal(whole.X, X)
    with pytest.raises(ValueError, match="X must hold numbers, got a tensor on the device 'meta'"):
        attsvm.AttentionProblem(torch.zeros(3, 4, 5, device="meta"), Y, Z, problem.head)
    with pytest.raises(ValueError, match="v must hold real numbers, got dtype complex128"):
        attsvm.LinearHead(np.ones(5) * 1j)
    with pytest.raises(ValueError, match="must return real numbers, got dtype complex128"):
        attsvm.AttentionProblem(X, Y, Z, lambda x: x[..., 0] * 1j).scores()


def test_a_problem_keeps_its_own_numbers(problem):
    X, Y, Z, v = (np.array(a) for a in (problem.X, problem.Y, problem.Z, problem.head.v))
    mask = np.ones((3, 4), dtype=bool)
    made = attsvm.AttentionProblem(X, Y, Z, attsvm.LinearHead(v), mask)
    scores, solved = made.scores().copy(), attsvm.att_svm(made).W
    for array in (X, Y, Z, v):
        array[:] = -array
    mask[:, 0] = False
    np.testing.assert_array_equal(made.X, problem.X)
    np.testing.assert_array_equal(made.scores(), scores)
    np.testing.assert_array_equal(attsvm.att_svm(made).W, solved)
    shared = torch.tensor(np.array(problem.X))
    of_tensor = attsvm.AttentionProblem(shared, problem.Y, problem.Z, problem.head)
    shared.mul_(-1)
    np.testing.assert_array_equal(of_tensor.X, problem.X)
