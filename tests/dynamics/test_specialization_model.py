import re

import numpy as np
import pytest
import torch

import attsvm.dynamics.specialization as sp
from attsvm.dynamics.specialization.head_sgd import wishart


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(7)


def written_out(scores, b, v, activation, h):
    """sigma(chi, b, v; h) as the paper defines it, one head of one sequence."""
    if activation == "softmax":
        return torch.exp(scores[h]) / torch.exp(scores[h]).sum()
    if activation == "softmax1":
        return v * torch.exp(scores[h]) / (torch.exp(b[h]) + torch.exp(scores[h]).sum())
    return torch.exp(scores[h] + b[h]) / (torch.exp(scores + b[:, None]).sum() / len(scores))


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_head_weights_are_the_definitions(activation, generator):
    scores = torch.randn(5, 3, 4, generator=generator, dtype=torch.float64)
    b = torch.randn(3, generator=generator, dtype=torch.float64)
    v = torch.tensor(1.7, dtype=torch.float64)
    found = sp.head_weights(scores, b, v, activation)
    for n in range(5):
        for h in range(3):
            torch.testing.assert_close(found[n, h], written_out(scores[n], b, v, activation, h), rtol=1e-13, atol=0)


def test_normalizations():
    scores = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    b = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    v = torch.tensor(1.5, dtype=torch.float64)
    ones = torch.ones(6, dtype=torch.float64)
    torch.testing.assert_close(sp.head_weights(scores, b, v, "bayes").mean(1).sum(-1), ones)
    # One head of Bayes-softmax does not sum to one, and a common bias changes nothing.
    assert (sp.head_weights(scores, b, v, "bayes").sum(-1) - 1).abs().max() > 0.1
    torch.testing.assert_close(sp.head_weights(scores, b + 3, v, "bayes"), sp.head_weights(scores, b, v, "bayes"))
    assert (sp.head_weights(scores, b, v, "softmax1").sum(-1) < v).all()
    # A threshold is a bias of the scores with threshold 0.
    torch.testing.assert_close(
        sp.head_weights(scores - b[:, None], 0 * b, v, "softmax1"), sp.head_weights(scores, b, v, "softmax1")
    )


def test_layer_of_several_models_is_each_of_them(generator):
    k = torch.randn(4, 2, 6, generator=generator, dtype=torch.float64)
    b = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    X = torch.randn(4, 5, 3, 6, generator=generator, dtype=torch.float64)
    together = sp.MultiHeadAttention(k, "softmax1", b)(X)
    for i in range(4):
        torch.testing.assert_close(together[i], sp.MultiHeadAttention(k[i], "softmax1", b[i])(X[i]))


def test_layer_trains_in_float32():
    layer = sp.MultiHeadAttention(torch.zeros(2, 5), "bayes")
    loss = layer(torch.ones(3, 4, 5)).square().sum()
    torch.autograd.backward(loss)
    assert loss.dtype == torch.float32
    assert layer.k.grad is not None


def test_sequences_have_the_stated_moments(generator):
    prior = sp.DiscretePrior([[2.0, 0.0], [0.0, -1.0]], [0.25, 0.75])
    model = sp.SingleLocation(prior, 3 * torch.eye(2, 4, dtype=torch.float64), L=3)
    batch = model.sample(40_000, generator)
    rows = torch.arange(len(batch.X))
    # Means over 40,000 draws of unit variance (plus the spread of theta): five standard errors are 0.1.
    np.testing.assert_allclose(batch.y.mean(0), [1.5, -2.25, 0, 0], atol=0.1)
    others = batch.X[rows, (batch.index + 1) % 3]
    np.testing.assert_allclose(others.mean(0), 0, atol=0.03)
    np.testing.assert_allclose(torch.cov(others.T), np.eye(4), atol=0.05)
    np.testing.assert_allclose(np.bincount(batch.index.numpy()) / 40_000, 1 / 3, atol=0.012)
    torch.testing.assert_close(batch.y, batch.X[rows, batch.index])


@pytest.mark.parametrize(
    "prior",
    [
        sp.flipping_spike(2.0, 3.0),
        sp.one_hot_spikes(3, 4.0),
        sp.gaussian_spikes(3, 5.0, 1.0),
        sp.GaussianPrior([[2.0, 0.5], [0.5, 1.0]], [1.0, -1.0]),
        sp.SamplerPrior(lambda n, rng: rng.laplace(size=(n, 2)), [0.0, 0.0], [[2.0, 0.0], [0.0, 2.0]], [-1.0, -1.0]),
    ],
    ids=["flip", "one-hot", "gaussian", "shifted", "laplace"],
)
def test_priors_know_their_moments_and_reflections(prior, rng):
    draws = prior.sample(200_000, rng)
    np.testing.assert_allclose(draws.mean(0), prior.mean, atol=0.03)  # five standard errors of the widest
    np.testing.assert_allclose(np.cov(draws.T), prior.covariance, atol=0.12)
    if prior.reflection is not None:
        # Third moments of a reflected law change sign where an odd number of reflected factors enter.
        mirrored = draws * prior.reflection
        cubes = np.einsum("na,nb,nc->abc", draws, draws, draws) / len(draws)
        twins = np.einsum("na,nb,nc->abc", mirrored, mirrored, mirrored) / len(draws)
        np.testing.assert_allclose(cubes, twins, atol=0.5)


def test_reflections_found():
    np.testing.assert_array_equal(sp.flipping_spike(2.0, 2.0).reflection, [1, -1])
    np.testing.assert_array_equal(sp.gaussian_spikes(2, 1.0).reflection, [-1, -1])
    assert sp.one_hot_spikes(3, 1.0).reflection is None
    np.testing.assert_array_equal(
        sp.DiscretePrior([[1.0, 0], [-1.0, 0], [0, 2.0], [0, -2.0]], [0.25] * 4).reflection, [-1, -1]
    )
    assert sp.DiscretePrior([[1.0, 0], [-1.0, 0]], [0.4, 0.6]).reflection is not None  # the unused axis


def test_order_parameters_rebuild_the_overlaps(generator):
    k, spikes = sp.initial_heads(3, 20, 2.0, generator=generator), sp.draw_spikes(2, 20, generator=generator)
    overlaps = sp.Overlaps.of(k, spikes)
    whitened, root = overlaps.whitened()
    torch.testing.assert_close(root @ root, overlaps.p)
    torch.testing.assert_close(whitened @ root, overlaps.m)
    point = sp.order_parameters(overlaps)
    torch.testing.assert_close(point.m @ point.m.T + point.G, overlaps.q)
    torch.testing.assert_close(point.r, point.r.T)
    assert torch.linalg.eigvalsh(point.r)[0] > -1e-12


def test_keep_removes_heads(generator):
    point = sp.initial_order_parameters(4, 2, runs=3, noise=0.5, generator=generator)
    kept = point.keep([0, 3])
    torch.testing.assert_close(kept.G, point.G[:, [0, 3]][:, :, [0, 3]])
    torch.testing.assert_close(kept[1].m, point.m[1, [0, 3]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sp.DiscretePrior([[1.0], [2.0]], [0.5, 0.4]), "weights must sum to 1, got 0.9"),
        (lambda: sp.DiscretePrior([[1.0], [2.0]], [1.5, -0.5]), "weights must be positive, but weights[1] is -0.5"),
        (lambda: sp.DiscretePrior([[1.0]], [0.5, 0.5]), "weights must have shape (1,), got (2,)"),
        (lambda: sp.DiscretePrior([[np.nan]], [1.0]), "atoms must be finite, but atoms[0, 0] is nan"),
        (lambda: sp.DiscretePrior(np.zeros((0, 2)), []), "atoms must have shape (K, F)"),
        (lambda: sp.GaussianPrior([[1.0, 2.0], [0.0, 1.0]]), "covariance must be symmetric"),
        (lambda: sp.GaussianPrior([[1.0, 2.0], [2.0, 1.0]]), "covariance must be positive semidefinite"),
        (lambda: sp.GaussianPrior([1.0, 1.0], [0.0]), "mean must have shape (2,), got (1,)"),
        (
            lambda: sp.SamplerPrior(lambda n, rng: np.zeros((n, 3)), [0.0], [[1.0]]).sample(4, 0),
            "must return shape (4, 1), got (4, 3)",
        ),
        (lambda: sp.SamplerPrior(None, [0.0], [[1.0]], [0.5]), "reflection must hold 1 signs"),
        (lambda: sp.flipping_spike(-1.0, 2.0), "nu1 must be positive and finite, got -1.0"),
        (lambda: sp.one_hot_spikes(0, 2.0), "F must be an integer >= 1, got 0"),
        (lambda: sp.gaussian_spikes(2, float("nan")), "nu1 must be positive and finite, got nan"),
        (lambda: sp.transformed(sp.flipping_spike(1.0, 1.0), [[1.0]]), "mixing must have 2 columns"),
        (
            lambda: sp.OrderParameters(torch.zeros(0, 2)),
            "m must have shape (H, F) or (B, H, F) with H, F >= 1, got (0, 2)",
        ),
        (lambda: sp.OrderParameters(torch.full((1, 1), torch.nan)), "m must be finite"),
        (lambda: sp.OrderParameters(torch.zeros(2, 1), torch.zeros(3, 3)), "r must have shape (2, 3), got (3, 3)"),
        (lambda: sp.OrderParameters(torch.zeros(2, 1), b=torch.zeros(3)), "b must have shape (2,), got (3,)"),
        (lambda: sp.OrderParameters(torch.zeros(2, 1))[0], "only a batch of runs can be indexed"),
        (lambda: sp.MultiHeadAttention(torch.zeros(0, 4)), "k must have shape (..., H, D) with H, D >= 1, got (0, 4)"),
        (lambda: sp.MultiHeadAttention(torch.full((1, 4), torch.inf)), "k must be finite"),
        (
            lambda: sp.MultiHeadAttention(torch.zeros(1, 4), "relu"),
            "activation must be 'softmax', 'softmax1' or 'bayes', got 'relu'",
        ),
        (lambda: sp.MultiHeadAttention(torch.zeros(2, 4), b=torch.zeros(3)), "b must have shape (2,)"),
        (
            lambda: sp.MultiHeadAttention(torch.zeros(2, 4))(torch.zeros(1, 3, 5)),
            "tokens have dimension 5, the heads 4",
        ),
        (
            lambda: sp.SingleLocation(sp.flipping_spike(1.0, 1.0), torch.zeros(3, 5), 4),
            "spikes must have shape (F, D) with F = 2",
        ),
        (lambda: sp.SingleLocation(sp.flipping_spike(1.0, 1.0), torch.zeros(2, 5), 1), "L must be at least 2"),
        (lambda: sp.Overlaps.of(torch.zeros(1, 4), torch.ones(2, 4)).whitened(), "p must be positive definite"),
        (lambda: sp.Overlaps.of(torch.zeros(1, 4), torch.ones(2, 3)), "heads have dimension 4, spikes 3"),
        (lambda: sp.initial_heads(0, 4, generator=torch.Generator()), "H must be an integer >= 1, got 0"),
        (lambda: sp.initial_order_parameters(0, 4, generator=torch.Generator()), "H must be an integer >= 1, got 0"),
        (lambda: sp.draw_spikes(1, 0, generator=torch.Generator()), "D must be an integer >= 1"),
        (lambda: sp.random_overlaps(2, 2, 3, generator=torch.Generator()), "D >= H + F are needed"),
        (lambda: wishart(1, 2, 1, generator=torch.Generator()), "dof must be at least the size 2, got 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
