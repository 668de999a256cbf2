"""Optimizers of K and Q together, weight decay and decaying steps, against plain arithmetic."""

import numpy as np
import pytest
import torch

import attsvm
from attsvm.training.log_gradient import naive_gradient
from attsvm.training.optimizers import get_optimizer
from attsvm.training.tensors import tensor_problem


@pytest.fixture
def problem():
    return attsvm.random_problem(n=3, T=4, d=5, seed=0)


def start(m=5, scale=1.0):
    return tuple(scale * np.random.default_rng(1).standard_normal((2, 5, m)))


def gradient(problem, W):
    return naive_gradient(tensor_problem(problem), torch.tensor(W)[None], "logistic").direction[0].numpy()


@pytest.mark.parametrize(
    ("optimizer", "norm"),
    [
        ("ridge_decay", "nuclear"), ("flow", "nuclear"), ("gd", "nuclear"), ("steepest:l2", "nuclear"),
        ("spectral", "spectral"), ("muon", "spectral"), ("compositional_muon", "spectral"),
        ("sign", None), ("adam", None), ("steepest:l3", None), ("mirror:l3", None),
    ],
)  # fmt: skip
def test_the_norm_that_each_optimizer_follows_on_factors(problem, optimizer, norm):
    run = attsvm.train(problem, "KQ", 2, optimizer=optimizer, lr=0.1, init=start())
    assert run.norm == run.options.norm == norm


def test_compare_takes_the_spectral_norm_for_muon_on_factors(problem):
    run = attsvm.train(problem, "KQ", 20, optimizer="spectral")
    assert attsvm.compare(run).comparisons[0].solution.norm_name == "spectral"


def test_flow_moves_by_a_share_of_the_length(problem):
    K, Q = start()
    G = gradient(problem, K @ Q.T)
    size = np.sqrt(((G @ Q) ** 2).sum() + ((G.T @ K) ** 2).sum())
    length = np.sqrt((K**2).sum() + (Q**2).sum())
    run = attsvm.train(problem, "KQ", 1, optimizer="flow", lr=0.02, init=(K, Q))
    np.testing.assert_allclose(run.parameters["K"], K - 0.02 * length / size * G @ Q, rtol=1e-9)


@pytest.mark.parametrize("m", [5, 7])
def test_compositional_muon_moves_the_product_along_the_polar_factor(problem, m):
    K, Q = start(m)
    U, S, Vt = np.linalg.svd(gradient(problem, K @ Q.T))
    kept = S > 1e-12 * S[0]
    lr = 1e-6  # the product of both changes, and the term lr I, are of this relative size
    moved = attsvm.train(problem, "KQ", 1, optimizer="compositional_muon", lr=lr, init=(K, Q), m=m).W
    np.testing.assert_allclose((K @ Q.T - moved) / lr, U[:, kept] @ Vt[kept], atol=1e-3)


def test_compositional_muon_with_few_columns_moves_the_product_by_at_most_lr(problem):
    K, Q = start(2)
    moved = attsvm.train(problem, "KQ", 1, optimizer="compositional_muon", lr=1e-6, init=(K, Q), m=2).W
    assert np.linalg.norm(K @ Q.T - moved, 2) <= 1e-6 * (1 + 1e-5)


def test_compositional_muon_leaves_small_starts(problem):
    run = attsvm.train(problem, "KQ", 200, optimizer="compositional_muon", lr=0.1, init=start(scale=1e-8))
    assert np.isfinite(run.W).all() and 5 < np.linalg.norm(run.W, 2) < 21


def test_adam_with_weight_decay_is_adamw(problem):
    run = attsvm.train(problem, "KQ", 5, optimizer="adam", lr=0.03, weight_decay=0.4, init=start())
    factors, means, squares = np.array(start()), 0.0, 0.0
    for k in range(1, 6):
        G = gradient(problem, factors[0] @ factors[1].T)
        g = np.array([G @ factors[1], G.T @ factors[0]])
        means, squares = 0.9 * means + 0.1 * g, 0.999 * squares + 0.001 * g**2
        factors = (1 - 0.03 * 0.4) * factors
        factors -= 0.03 * means / (1 - 0.9**k) / np.sqrt(squares / (1 - 0.999**k))
    np.testing.assert_allclose(run.parameters["K"], factors[0], rtol=1e-9, atol=1e-12)


def test_steps_decay_with_the_given_power(problem):
    run = attsvm.train(
        problem, steps=9, optimizer="normalized_gd", decay_after=1, decay_power=0.5, init="zero", snapshots=[4, 9]
    )
    longest = 0.1 * sum(k**-0.5 for k in range(1, 10))
    assert 0.9 * longest < np.linalg.norm(run.W) <= longest * (1 + 1e-12)


@pytest.mark.parametrize("name", ["muon", "adam"])
def test_moments_survive_gradients_that_fall_by_hundreds_of_powers_of_e(name):
    """Relative to the latest gradient, the first would overflow; it still decides the direction."""
    rng, rule = np.random.default_rng(0), get_optimizer(name)
    W = {"W": torch.zeros(1, 3, 3, dtype=torch.float64)}
    gradients = [torch.tensor(rng.standard_normal((1, 3, 3))) for _ in range(5)]
    state, one = rule.init(W), torch.ones(1, dtype=torch.float64)
    for k, g in enumerate(gradients, start=1):
        before = W
        W, state = rule.step(W, {"W": g}, -400.0 * k * one, state, one, k)
    moved = (before["W"] - W["W"])[0].numpy()
    first = gradients[0][0].numpy()
    U, _, Vt = np.linalg.svd(first)
    shrunk = 0.1 * 0.9**4 / (1 - 0.9**5) / np.sqrt(0.001 * 0.999**4 / (1 - 0.999**5))
    np.testing.assert_allclose(moved, U @ Vt if name == "muon" else shrunk * np.sign(first), rtol=1e-9)


def test_weight_decay_stops_normalized_descent_at_the_ball(problem):
    run = attsvm.train(problem, "KQ", 400, optimizer="normalized_gd", weight_decay=0.5)
    K, Q = run.parameters["K"], run.parameters["Q"]
    assert np.sqrt((K**2).sum() + (Q**2).sum()) == pytest.approx(2.0, rel=1e-2)  # 1 / decay, up to lr


def test_muon_on_factors_reaches_the_spectral_margin_and_not_the_nuclear_one():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=3)
    run = attsvm.train(
        problem, "KQ", 1500, optimizer="spectral", lr=0.05, weight_decay=0.05, decay_after=400, snapshots=2
    )
    K, Q = run.parameters["K"], run.parameters["Q"]
    size = max(np.linalg.norm(K, 2), np.linalg.norm(Q, 2)) ** 2
    sol = {norm: attsvm.att_svm(problem, run.selection, norm=norm) for norm in ("spectral", "nuclear")}
    margins = sol["spectral"].rows.margin_problem.margins(run.W).min()
    assert 0.97 < margins / size * sol["spectral"].norm <= 1 + 1e-9
    assert margins / np.linalg.norm(run.W, "nuc") * sol["nuclear"].norm < 0.9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": "compositional_muon"}, "needs parameterization 'KQ'"),
        ({"parameterization": "KQ", "optimizer": "compositional_muon", "train_head": True}, "without train_head"),
        ({"optimizer": "mirror:l3", "weight_decay": 0.1}, "weight_decay must be 0 for optimizer 'mirror:l3'"),
        ({"weight_decay": -0.1}, "weight_decay must be a number >= 0, got -0.1"),
        ({"decay_power": 0.0}, "decay_power must be a positive number, got 0.0"),
    ],
)
def test_bad_options_are_named(settings, message):
    with pytest.raises(ValueError, match=message):
        attsvm.TrainOptions(**settings)
