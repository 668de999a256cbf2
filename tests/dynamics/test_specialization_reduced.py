import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attsvm.dynamics.specialization as sp
from attsvm.dynamics.specialization.head_flow import quadrature_size
from attsvm.dynamics.specialization.reduced_loss import PlainPass, SharedPass, choose_pass, score_noise
from attsvm.dynamics.specialization.unspecialized import curvature_m

PRIORS = {
    "flip": sp.flipping_spike(2.0, 3.0),
    "one-hot": sp.one_hot_spikes(3, 4.0),
    "gaussian": sp.gaussian_spikes(2, 5.0, 1.0),
}


def points(H, F, runs, seed, columns=None):
    g = torch.Generator().manual_seed(seed)
    like = {"generator": g, "dtype": torch.float64}
    return sp.OrderParameters(
        torch.randn(runs, H, F, **like),
        None if columns == 0 else 0.7 * torch.randn(runs, H, columns or H, **like),
        torch.randn(runs, H, **like),
        1 + torch.rand(runs, **like),
    )


def autograd_head_by_head(point, samples, activation):
    """Equations (10) and (11) for one run, every sequence on its own, gradients by autograd."""
    plain = samples.relevant_first()
    z = torch.cat(plain.blocks, dim=-1)
    F, L = samples.features, samples.L
    each = torch.full((z.shape[-1],), 1 / z.shape[-1], dtype=z.dtype)
    if samples.weights is not None:
        each = torch.cat(samples.weights)
    m, b, v = (t.clone().requires_grad_() for t in (point.m, point.b, point.v))
    r = None if point.r is None else point.r.clone().requires_grad_()
    scores = []
    for h in range(point.heads):
        chi = sum(m[h, f] * z[1 + f] for f in range(F))
        if r is not None:
            chi = chi + sum(r[h, j] * z[1 + F + j] for j in range(r.shape[1]))
        scores.append(chi)
    chi = torch.stack(scores)  # (H, L, N)
    if activation == "softmax":
        sigma = chi.exp() / chi.exp().sum(1, keepdim=True)
    elif activation == "softmax1":
        sigma = v * chi.exp() / (b.exp()[:, None, None] + chi.exp().sum(1, keepdim=True))
    else:
        raised = (chi + b[:, None, None]).exp()
        sigma = point.heads * raised / raised.sum((0, 1))
    target = torch.zeros(L, 1, dtype=z.dtype)
    target[0] = 1
    loss = ((target - sigma.mean(0)).square().sum(0) * each).sum()
    leaves = {"m": m, "b": b, "v": v} | ({} if r is None else {"r": r})
    slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return loss.detach(), dict(zip(leaves, slopes, strict=True))


@pytest.mark.parametrize("columns", [None, 0, 2])
@pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_gradient_is_that_of_autograd(activation, prior, columns):
    batch = points(3, prior.features, 2, 0, columns)
    samples = sp.draw_samples(prior, 4, 3, 200, generator=torch.Generator().manual_seed(1))
    found = sp.reduced_gradient(batch, samples, activation)
    losses = sp.reduced_loss(batch, samples, activation)
    for run in range(2):
        loss, slopes = autograd_head_by_head(batch[run], samples, activation)
        # Sums of 200 terms in double precision.
        torch.testing.assert_close(found.loss[run], loss, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(losses.value[run], loss, rtol=1e-12, atol=1e-14)
        for name, slope in slopes.items():
            torch.testing.assert_close(getattr(found, name)[run], slope, rtol=1e-10, atol=1e-14)
        alone = sp.reduced_gradient(batch[run], samples, activation)
        torch.testing.assert_close(alone.m, found.m[run], rtol=1e-11, atol=1e-15)


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_both_passes_agree_and_the_robust_one_takes_any_scores(activation):
    samples = sp.draw_samples(PRIORS["flip"], 3, 2, 60, generator=torch.Generator().manual_seed(1))
    point = points(2, 2, 1, 3)[0]
    fast, slow = (
        choose_pass(point, samples, activation),
        PlainPass(point, samples.relevant_first(), activation),
    )
    assert isinstance(fast, SharedPass)
    product = sum(fast.run(i, True).product for i in range(len(samples.blocks)))
    torch.testing.assert_close(product, slow.run(0, True).product, rtol=1e-10, atol=1e-13)
    huge = sp.OrderParameters(1e5 * point.m, None, 1e3 * point.b, point.v)
    assert not isinstance(choose_pass(huge, samples, activation), SharedPass)
    loss = sp.reduced_loss(huge, samples, activation)
    assert 0 <= loss.value <= 4
    assert torch.isfinite(sp.reduced_gradient(huge, samples, activation).m).all()


def test_errors_of_both_passes_agree():
    samples = sp.draw_samples(PRIORS["gaussian"], 3, 0, 3000, generator=torch.Generator().manual_seed(1))
    point = points(2, 2, 1, 3, columns=0)[0]
    shared = sp.reduced_loss(point, samples, "softmax")
    scale = 0.2 * 600 / float(point.m.norm())  # some scores above the limit: the robust pass
    assert shared.error > 0
    barely = sp.OrderParameters(point.m * scale)
    assert not isinstance(choose_pass(barely, samples, "softmax"), SharedPass)
    means = []
    for seed in range(20):
        other = sp.draw_samples(PRIORS["gaussian"], 3, 0, 3000, generator=torch.Generator().manual_seed(100 + seed))
        means.append([float(sp.reduced_loss(p, other, "softmax").value) for p in (point, barely)])
    spread = np.std(means, axis=0, ddof=1)
    # A standard deviation from 20 draws is known to 16 %: three times that.
    errors = [float(shared.error), float(sp.reduced_loss(barely, samples, "softmax").error)]
    np.testing.assert_allclose(errors, spread, rtol=0.5)


def test_mirrored_samples_make_the_loss_exactly_even():
    samples = sp.draw_samples(PRIORS["gaussian"], 4, 2, 80, generator=torch.Generator().manual_seed(1))
    point = points(2, 2, 1, 5)[0]
    flipped = sp.OrderParameters(-point.m, point.r, point.b, point.v)
    for activation in sp.ACTIVATIONS:
        torch.testing.assert_close(
            sp.reduced_loss(point, samples, activation).value, sp.reduced_loss(flipped, samples, activation).value
        )


@given(st.permutations(range(4)), st.sampled_from(sp.ACTIVATIONS), st.integers(0, 5))
def test_permuting_heads_permutes_the_gradient(order, activation, seed):
    samples = sp.draw_samples(PRIORS["one-hot"], 3, 4, 30, generator=torch.Generator().manual_seed(1))
    point = points(4, 3, 1, seed)[0]
    moved = sp.OrderParameters(point.m[order], point.r[order], point.b[order], point.v)
    a, b = sp.reduced_gradient(point, samples, activation), sp.reduced_gradient(moved, samples, activation)
    torch.testing.assert_close(a.loss, b.loss)
    torch.testing.assert_close(a.m[order], b.m)
    torch.testing.assert_close(a.b[order], b.b)


@given(st.floats(-20, 20), st.integers(0, 5))
def test_bayes_softmax_ignores_a_common_bias_and_its_gradient_sums_to_zero(shift, seed):
    samples = sp.draw_samples(PRIORS["flip"], 3, 2, 30, generator=torch.Generator().manual_seed(1))
    point = points(2, 2, 1, seed)[0]
    moved = sp.OrderParameters(point.m, point.r, point.b + shift, point.v)
    a, b = sp.reduced_gradient(point, samples, "bayes"), sp.reduced_gradient(moved, samples, "bayes")
    torch.testing.assert_close(a.m, b.m)
    assert abs(float(a.b.sum())) < 1e-14


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
@pytest.mark.parametrize("prior", [PRIORS["flip"], PRIORS["gaussian"]], ids=["flip", "gaussian"])
def test_quadrature_and_monte_carlo_agree(prior, activation):
    point = sp.OrderParameters(
        torch.tensor([[0.8, 0.5]]).double(), torch.tensor([[0.6]]).double(), v=torch.tensor(1.2).double()
    )
    exact = sp.quadrature(prior, 3, point, nodes=24)
    torch.testing.assert_close(sum(w.sum() for w in exact.weights), torch.tensor(1.0).double())
    samples = sp.draw_samples(prior, 3, 1, 60_000, generator=torch.Generator().manual_seed(2))
    found, drawn = sp.reduced_gradient(point, exact, activation), sp.reduced_gradient(point, samples, activation)
    error = sp.reduced_loss(point, samples, activation).error
    assert abs(found.loss - drawn.loss) < 4 * error
    # Gradients of order 0.1 from 6e4 samples: errors of about 2e-3.
    for name in ("m", "r", "b", "v"):
        torch.testing.assert_close(getattr(found, name), getattr(drawn, name), rtol=0, atol=8e-3)
    coarser = sp.reduced_loss(point, sp.quadrature(prior, 3, point, nodes=20), activation).value
    assert abs(coarser - found.loss) < 1e-5  # Gauss-Hermite has converged to this at 20 nodes


def test_quadrature_gradient_is_the_slope_of_quadrature_losses():
    prior, g = PRIORS["gaussian"], torch.Generator().manual_seed(0)
    point = sp.OrderParameters(0.4 * torch.randn(2, 2, generator=g).double(), None)
    slope = sp.reduced_gradient(point, sp.quadrature(prior, 2, point, nodes=14), "softmax").m
    for h, f in ((0, 0), (1, 1)):
        values = []
        for sign in (1, -1):
            moved = point.m.clone()
            moved[h, f] += sign * 1e-4
            shifted = sp.OrderParameters(moved)
            values.append(sp.reduced_loss(shifted, sp.quadrature(prior, 2, shifted, nodes=14), "softmax").value)
        # Central differences with step 1e-4, and the quadrature error of 14 nodes (about 1e-6).
        assert abs((values[0] - values[1]) / 2e-4 - slope[h, f]) < 1e-4


def test_quadrature_size_is_right():
    for prior in (PRIORS["flip"], PRIORS["gaussian"]):
        point = sp.OrderParameters(torch.tensor([[1.0, 0.5]]).double(), torch.tensor([[0.3]]).double())
        assert sp.quadrature(prior, 4, point, nodes=5).size == quadrature_size(prior, 4, point, 5)
    nothing = sp.OrderParameters(torch.zeros(2, 2).double())
    assert sp.quadrature(PRIORS["gaussian"], 4, nothing).size == 1


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_score_noise_is_the_second_moment_of_autograd_slopes(activation):
    samples = sp.draw_samples(PRIORS["flip"], 3, 2, 12, generator=torch.Generator().manual_seed(1))
    point = points(2, 2, 1, 3)[0]
    total = torch.zeros(2, 2, dtype=torch.float64)
    z = torch.cat(samples.relevant_first().blocks, dim=-1)
    for n in range(z.shape[-1]):
        scores = (point.m @ z[1:3, :, n] + point.r @ z[3:, :, n]).requires_grad_()
        A = sp.head_weights(scores, point.b, point.v, activation).mean(0)
        loss = (A - torch.eye(3, dtype=torch.float64)[0]).square().sum()
        (c,) = torch.autograd.grad(loss, scores)
        total += c @ c.T / z.shape[-1]
    torch.testing.assert_close(score_noise(point, samples, activation), total, rtol=1e-10, atol=1e-14)


def test_flow_methods_agree_and_descend():
    samples = sp.draw_samples(PRIORS["flip"], 3, 2, 600, generator=torch.Generator().manual_seed(1))
    start = sp.initial_order_parameters(2, 2, runs=2, noise=0.2, generator=torch.Generator().manual_seed(2))
    fine = sp.gradient_flow(start, samples, "softmax1", [0.0, 1.0, 3.0], step=0.05)
    coarse = sp.gradient_flow(start, samples, "softmax1", [0.0, 1.0, 3.0], step=0.5)
    euler = sp.gradient_flow(start, samples, "softmax1", [0.0, 1.0, 3.0], step=0.01, method="euler")
    torch.testing.assert_close(coarse.m, fine.m, rtol=0, atol=1e-4)  # fourth order: 0.5^4 times small derivatives
    torch.testing.assert_close(euler.m, fine.m, rtol=0, atol=2e-2)  # first order: about step times the speed
    assert (fine.loss[1:] < fine.loss[:-1]).all()
    torch.testing.assert_close(fine.G[-1], fine.end.r @ fine.end.r.transpose(-1, -2))
    # Descent with momentum goes to a point of smaller loss than the flow has reached.
    end = sp.descend(start, samples, "softmax1", steps=100, record=50)
    np.testing.assert_allclose(end.times, [0.0, 500.0, 1000.0])
    assert (end.loss[-1] < fine.loss[-1]).all()


def test_printed_flow_keeps_r_symmetric_and_differs():
    samples = sp.draw_samples(PRIORS["flip"], 4, 2, 4000, generator=torch.Generator().manual_seed(1))
    start = sp.OrderParameters(torch.zeros(2, 2).double(), torch.tensor([[1.2, 0.7], [0.7, 0.6]]).double())
    free = sp.gradient_flow(start, samples, "softmax", [0.0, 10.0], step=0.5)
    kept = sp.gradient_flow(start, samples, "softmax", [0.0, 10.0], step=0.5, form="printed")
    torch.testing.assert_close(kept.end.r, kept.end.r.T, rtol=0, atol=1e-12)
    assert (free.G[-1] - kept.G[-1]).abs().max() > 0.05


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s, p: sp.reduced_loss(p, s, "relu"), "activation must be 'softmax', 'softmax1' or 'bayes', got 'relu'"),
        (
            lambda s, p: sp.reduced_loss(sp.OrderParameters(torch.zeros(2, 3).double()), s, "softmax"),
            "the point has 3 features, the samples 2",
        ),
        (
            lambda s, p: sp.reduced_loss(sp.OrderParameters(torch.zeros(3, 2), torch.zeros(3, 3)), s, "softmax"),
            "r has 3 columns, the samples noise for 2 heads",
        ),
        (lambda s, p: sp.gradient_flow(p, s, "softmax", [1.0, 0.5]), "times must be increasing"),
        (
            lambda s, p: sp.gradient_flow(p, s, "softmax", [1.0], method="heun"),
            "method must be 'rk4' or 'euler', got 'heun'",
        ),
        (lambda s, p: sp.gradient_flow(p, s, "softmax", [1.0], step=0.0), "step must be positive"),
        (lambda s, p: sp.gradient_flow(p, s, "softmax", [1.0], form="other"), "form must be 'corrected' or 'printed'"),
        (lambda s, p: sp.descend(p, s, "softmax", momentum=1.0), "0 <= momentum < 1"),
        (lambda s, p: sp.draw_samples(PRIORS["flip"], 1, 2, 5, generator=torch.Generator()), "L >= 2"),
        (
            lambda s, p: sp.draw_samples(PRIORS["one-hot"], 3, 2, 5, generator=torch.Generator(), mirrored=True),
            "mirrored samples need a prior with a reflection",
        ),
        (
            lambda s, p: sp.quadrature(PRIORS["flip"], 6, p, nodes=12),
            "more than max_size=2000000; use draw_samples instead",
        ),
        (lambda s, p: sp.quadrature(PRIORS["one-hot"], 3, p), "the point has 2 features, the prior 3"),
        (lambda s, p: sp.quadrature(PRIORS["flip"], 3, points(2, 2, 2, 0)), "quadrature belongs to one point"),
        (
            lambda s, p: sp.quadrature(sp.SamplerPrior(None, [0.0, 0.0], np.eye(2)), 3, p),
            "quadrature needs a DiscretePrior or a GaussianPrior",
        ),
        (
            lambda s, p: score_noise(p, sp.quadrature(PRIORS["flip"], 2, p, nodes=2), "softmax"),
            "score_noise needs samples without weights",
        ),
        (lambda s, p: curvature_m(points(2, 2, 2, 0), s, "softmax"), "curvature_m belongs to one point"),
    ],
)
def test_bad_input_is_named(call, message):
    samples = sp.draw_samples(PRIORS["flip"], 3, 2, 12, generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=re.escape(message)):
        call(samples, points(2, 2, 1, 0)[0])
