import re

import numpy as np
import pytest
import torch

import attsvm.dynamics.specialization as sp
from attsvm.dynamics.specialization.head_sgd import wishart


def test_wishart_has_its_moments():
    drawn = wishart(7, 3, 40_000, generator=torch.Generator().manual_seed(0))
    np.testing.assert_allclose(drawn.mean(0), 7 * np.eye(3), atol=0.1)  # deviations sqrt(14), sqrt(7) over 200
    np.testing.assert_allclose(drawn.var(0), 7 * (np.eye(3) + 1), rtol=0.08)


def test_random_overlaps_have_the_law_of_overlaps():
    g = torch.Generator().manual_seed(1)
    drawn = [sp.random_overlaps(2, 1, 8, 1.5, generator=g) for _ in range(1000)]
    direct = [
        sp.Overlaps.of(sp.initial_heads(2, 8, 1.5, generator=g), sp.draw_spikes(1, 8, generator=g)) for _ in range(1000)
    ]
    for name in ("m", "q", "p"):
        a, b = (torch.stack([getattr(o, name) for o in side]) for side in (drawn, direct))
        np.testing.assert_allclose(a.mean(0), b.mean(0), atol=0.15)  # deviations of at most 1.2 over sqrt(1000), 4x
        np.testing.assert_allclose(a.std(0), b.std(0), rtol=0.2)


def final(path):
    return torch.cat([path.m[-1].flatten(), path.G[-1].flatten(), path.b[-1], path.v[-1:]])


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_projected_sgd_has_the_law_of_sgd(activation):
    """Same starts, independent batches: differences at the end have mean zero and equal spreads."""
    prior, L, D, runs = sp.flipping_spike(2.0, 2.0), 3, 24, 16
    options = {"steps": 25, "lr": 0.2, "batch": 40}
    ends = []
    for seed in range(runs):
        g = torch.Generator().manual_seed(seed)
        model = sp.SingleLocation(prior, sp.draw_spikes(2, D, generator=g), L)
        k = sp.initial_heads(2, D, generator=g)
        start = sp.Overlaps.of(k, model.spikes)
        direct = sp.train_sgd(sp.MultiHeadAttention(k, activation), model, generator=g, **options)
        short = sp.projected_sgd(start, prior, activation, L=L, D=D, generator=g, **options)
        torch.testing.assert_close(direct.m[0], short.m[0])
        ends.append((final(direct), final(short)))
    difference = torch.stack([a - b for a, b in ends])
    error = difference.std(0) / runs**0.5 + 1e-12
    assert ((difference.mean(0) / error).abs() < 4.5).all()  # thirteen Student variables with 15 degrees of freedom
    assert (difference.std(0) < 0.25).all()


def test_flow_follows_sgd():
    """Figure 1's protocol at D = 500: the whitened flow stays within the noise of SGD."""
    prior, D, L = sp.flipping_spike(2.0, 2.0), 500, 5
    g = torch.Generator().manual_seed(0)
    start = sp.random_overlaps(2, 2, D, generator=g)
    samples = sp.draw_samples(sp.transformed(prior, start.whitened()[1]), L, 2, 20_000, generator=g)
    flow = sp.gradient_flow(sp.order_parameters(start), samples, "softmax", [0.0, 6.0], step=0.5)
    ends = [
        sp.projected_sgd(start, prior, "softmax", L=L, D=D, steps=60, lr=0.1, batch=2 * D,
                         generator=torch.Generator().manual_seed(s))
        for s in range(6)
    ]  # fmt: skip
    m = torch.stack([path.m[-1] for path in ends])
    # Spread over runs / sqrt(6), the first-order bias of steps of 0.1 (about 0.01) and Monte Carlo of the flow.
    error = 4 * m.std(0) / 6**0.5 + 0.03
    assert ((m.mean(0) - flow.m[-1]).abs() < error).all()


def test_finite_learning_rate_adds_its_kick():
    prior, D, L, lr = sp.flipping_spike(2.0, 2.0), 1000, 4, 0.25
    g = torch.Generator().manual_seed(0)
    start = sp.random_overlaps(2, 2, D, generator=g)
    samples = sp.draw_samples(sp.transformed(prior, start.whitened()[1]), L, 2, 8000, generator=g)
    begin = sp.order_parameters(start)
    plain = sp.gradient_flow(begin, samples, "softmax", [0.0, 10.0], step=1.0)
    kicked = sp.gradient_flow(begin, samples, "softmax", [0.0, 10.0], step=1.0, noise=lr * D / 200)
    path = sp.projected_sgd(start, prior, "softmax", L=L, D=D, steps=40, lr=lr, batch=200, generator=g)
    size = [float(p.G[-1].trace()) for p in (plain, kicked, path)]
    assert abs(size[1] - size[2]) < 0.25 * (size[2] - size[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda model, g: sp.train_sgd(
                sp.MultiHeadAttention(torch.zeros(2, 1, 5).double()), model, steps=1, lr=1.0, batch=1, generator=g
            ),
            "train_sgd trains one model",
        ),
        (
            lambda model, g: sp.train_sgd(
                sp.MultiHeadAttention(torch.zeros(1, 5).double()), model, steps=0, lr=1.0, batch=1, generator=g
            ),
            "steps must be an integer >= 1",
        ),
        (
            lambda model, g: sp.projected_sgd(
                sp.random_overlaps(2, 2, 50, generator=g),
                model.prior,
                "softmax",
                L=4,
                D=6,
                steps=1,
                lr=1.0,
                batch=1,
                generator=g,
            ),
            "D >= F + H + max(L, H)",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    g = torch.Generator().manual_seed(0)
    model = sp.SingleLocation(sp.flipping_spike(1.0, 1.0), sp.draw_spikes(2, 5, generator=g), 4)
    with pytest.raises(ValueError, match=re.escape(message)):
        call(model, g)


def test_the_reduced_loss_of_sgd_leaves_out_the_norms_and_takes_the_same_steps():
    start = sp.random_overlaps(2, 2, 400, generator=torch.Generator().manual_seed(0))

    def run(reduced):
        return sp.projected_sgd(
            start, sp.flipping_spike(8.0, 8.0), "softmax", L=4, D=400, steps=3, lr=0.1, batch=4000,
            generator=torch.Generator().manual_seed(1), reduced=reduced,
        )  # fmt: skip

    whole, plain = run(False), run(True)
    assert torch.equal(whole.m, plain.m)
    # The relevant token has norm^2 / D = 1 + 16 / 400 and a weight of about (3/4)^2 at the start: 0.0225.
    assert 0.01 < float(whole.loss[0] - plain.loss[0]) < 0.04
