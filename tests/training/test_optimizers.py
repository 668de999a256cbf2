"""Polyak's step and Muon, against plain arithmetic where it suffices, and past underflow."""

import numpy as np
import pytest
import torch

import attsvm
from attsvm.comparison import misalignment
from attsvm.paths.ball_search import LogExcess
from attsvm.training.log_gradient import log_excess, naive_gradient
from attsvm.training.optimizers import get_optimizer
from attsvm.training.tensors import tensor_problem


@pytest.fixture
def problem():
    return attsvm.random_problem(n=4, T=5, d=8, seed=0)


@pytest.mark.parametrize("loss", ["logistic", "exponential", "correlation"])
@pytest.mark.parametrize("size", [0.1, 1000.0])
def test_the_excess_equals_that_of_the_paths(problem, loss, size):
    W = size * attsvm.att_svm(problem).W
    expected, _ = LogExcess(problem, problem.optimal_tokens(), attsvm.get_loss(loss))(W)
    assert log_excess(tensor_problem(problem), torch.tensor(W)[None], loss).item() == pytest.approx(expected, rel=1e-12)


def test_the_excess_of_masked_and_several_queries_equals_the_difference_of_losses():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0, kind="sequence", causal=True)
    W = np.random.default_rng(0).standard_normal((5, 5))
    best = np.where(problem.allowed, problem.scores(), -np.inf).max(axis=-1)
    floor = float(attsvm.logistic(best).sum() / 3)
    expected = np.log(attsvm.attention.risk(problem, W) - floor)
    assert log_excess(tensor_problem(problem), torch.tensor(W)[None], "logistic").item() == pytest.approx(
        expected, rel=1e-9
    )


def test_a_polyak_step_is_the_formula(problem):
    start = np.random.default_rng(0).standard_normal((8, 8))
    moved = attsvm.train(problem, steps=1, optimizer="polyak", init=start, lr=0.7).W
    gradient = naive_gradient(tensor_problem(problem), torch.tensor(start)[None], "logistic").direction[0].numpy()
    above = attsvm.attention.risk(problem, start) - float(attsvm.logistic(problem.scores().max(axis=-1)).mean())
    np.testing.assert_allclose(moved, start - 0.7 * above / (gradient**2).sum() * gradient, rtol=1e-9)


def test_polyak_goes_to_the_svm_past_underflow(problem):
    run = attsvm.train(problem, steps=300, optimizer="polyak", init="zero")
    assert run.selection == problem.optimal_tokens() and run.history.log_rest[-1] < -100
    assert misalignment(run.W, attsvm.att_svm(problem).W) < 1e-3


def test_muon_is_the_polar_factor_of_a_running_mean(problem):
    data, W = tensor_problem(problem), np.random.default_rng(0).standard_normal((8, 8))
    run = attsvm.train(problem, steps=3, optimizer="muon", init=W, lr=0.05)
    mean = 0.0
    for _ in range(3):
        mean = 0.95 * mean + naive_gradient(data, torch.tensor(W)[None], "logistic").direction[0].numpy()
        U, S, Vt = np.linalg.svd(mean)
        kept = S > 1e-12 * S[0]  # gradients have the rank of the queries
        W = W - 0.05 * U[:, kept] @ Vt[kept]
    np.testing.assert_allclose(run.W, W, rtol=1e-9)
    assert run.norm == "spectral"


def test_signum_is_the_sign_of_a_running_mean(problem):
    data, W = tensor_problem(problem), np.random.default_rng(0).standard_normal((8, 8))
    run = attsvm.train(problem, steps=3, optimizer="signum:0.7", init=W, lr=0.05)
    mean = 0.0
    for _ in range(3):
        mean = 0.7 * mean + naive_gradient(data, torch.tensor(W)[None], "logistic").direction[0].numpy()
        W = W - 0.05 * np.sign(mean)
    np.testing.assert_allclose(run.W, W, rtol=1e-12)


def test_adam_takes_what_its_moments_keep(problem):
    data, W = tensor_problem(problem), np.random.default_rng(0).standard_normal((8, 8))
    run = attsvm.train(problem, steps=4, optimizer="adam:0.6,0.8", init=W, lr=0.05)
    m = v = 0.0
    for k in range(1, 5):
        g = naive_gradient(data, torch.tensor(W)[None], "logistic").direction[0].numpy()
        m, v = 0.6 * m + 0.4 * g, 0.8 * v + 0.2 * g**2
        W = W - 0.05 * (m / (1 - 0.6**k)) / np.sqrt(v / (1 - 0.8**k))
    np.testing.assert_allclose(run.W, W, rtol=1e-10)


@pytest.mark.parametrize("name", ["adam:0.9,0.99", "muon:0.9", "signum:0.9"])
def test_moments_are_right_for_gradients_that_differ_by_any_factor(name):
    """Scales as those of mini-batches: gradients e^-2000 and e^0 in turn, against moments in logarithms."""
    step = get_optimizer(name)
    rng = np.random.default_rng(0)
    signs, scales = rng.standard_normal((12, 2, 2)), np.array([0.0, -2000.0, -400.0, -4000.0] * 3)
    W = {"W": torch.zeros(1, 2, 2, dtype=torch.float64)}
    state = step.init(W)
    for k in range(12):
        g = {"W": torch.tensor(signs[k])[None]}
        before = W["W"].clone()
        W, state = step.step(W, g, torch.tensor([scales[k]]).double(), state, torch.ones(1).double(), k + 1)
        moved = (before - W["W"])[0].numpy()
        if name.startswith("adam"):
            expected = moment(signs[: k + 1], scales[: k + 1], 0.9, 1) / np.sqrt(
                moment(signs[: k + 1], scales[: k + 1], 0.99, 2)
            )
        else:
            expected = moment(signs[: k + 1], scales[: k + 1], 0.9, 1)
            U, _, Vt = np.linalg.svd(expected)
            expected = U @ Vt if name.startswith("muon") else np.sign(expected)
        np.testing.assert_allclose(moved, expected, rtol=1e-9)


def moment(gradients, scales, beta, power):
    """The mean of a power of the gradients without bias, relative to e^(power * largest scale): others round to 0."""
    k = len(gradients)
    weights = beta ** np.arange(k)[::-1] * (1 - beta) / (1 - beta**k) * np.exp(power * (scales - scales.max()))
    return np.einsum("k,kij->ij", weights, gradients**power)


@pytest.mark.parametrize("name", ["adam:0.9", "adam:0.9,1.0", "signum:x", "muon:", "sign:0.9", "gd:0.5"])
def test_moments_that_keep_no_share_are_refused(name):
    with pytest.raises(ValueError, match=r"optimizer (must be 'normalized_gd'|'.*': what a moment keeps must be)"):
        get_optimizer(name)
