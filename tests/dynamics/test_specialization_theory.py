import re

import numpy as np
import pytest
import torch

import attsvm
import attsvm.dynamics.specialization as sp
from attsvm.dynamics.specialization.unspecialized import one_hot_cumulant


def exact_loss(prior, L, point, activation, nodes=14):
    return float(sp.reduced_loss(point, sp.quadrature(prior, L, point, nodes=nodes), activation).value)


def point_of(m, r=None, b=0.0, v=1.0):
    m = torch.as_tensor(m, dtype=torch.float64)
    r = None if r is None else torch.as_tensor(r, dtype=torch.float64)
    return sp.OrderParameters(m, r, torch.full((len(m),), b, dtype=torch.float64), torch.tensor(v, dtype=torch.float64))


@pytest.mark.parametrize(("L", "H"), [(3, 2), (4, 3)])
@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_hessian_in_m_is_the_curvature_of_the_exact_loss(activation, L, H, rng):
    prior, b = sp.GaussianPrior([1.7]), 0.3
    v = sp.balanced_amplitude(L, b) if activation == "softmax1" else 1.0
    hessian = sp.unspecialized_hessian(activation, L, H, prior.covariance, b=b)
    zero = exact_loss(prior, L, point_of(np.zeros((H, 1)), b=b, v=v), activation)
    for _ in range(3):
        direction = rng.standard_normal((H, 1))
        direction /= np.linalg.norm(direction)
        predicted = direction.ravel() @ hessian @ direction.ravel()
        step = 0.03
        pair = [exact_loss(prior, L, point_of(s * step * direction, b=b, v=v), activation, nodes=8) for s in (1, -1)]
        # Second difference with step 0.03: the fourth-order term is of relative size 1e-2.
        assert (sum(pair) - 2 * zero) / step**2 == pytest.approx(predicted, rel=0.03, abs=2e-3)


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_hessian_in_r_sees_only_the_sum_of_the_heads(activation, rng):
    L, H = 3, 2
    prior = sp.GaussianPrior([1.0])
    v = sp.balanced_amplitude(L) if activation == "softmax1" else 1.0
    c1 = sp.quadratic_constants(activation, L, H).c1
    zero = exact_loss(prior, L, point_of(np.zeros((H, 1)), v=v), activation)
    for r in (np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [-1.0, 0.0]]), np.diag([1.0, 0.5])):
        step = 0.03
        loss = exact_loss(prior, L, point_of(np.zeros((H, 1)), step * r, v=v), activation, nodes=8)
        predicted = c1 * (r.sum(axis=0) ** 2).sum()  # |1^T r|^2
        assert (loss - zero) / step**2 == pytest.approx(predicted, rel=0.02, abs=5e-4)


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
@pytest.mark.parametrize(("L", "H"), [(3, 2), (5, 1)])
def test_initial_gradient(activation, L, H):
    prior = sp.DiscretePrior([[1.5]], [1.0])
    start = point_of(np.zeros((H, 1)))
    found = sp.reduced_gradient(start, sp.quadrature(prior, L, start), activation)
    expected = sp.initial_gradient(activation, L, H)
    np.testing.assert_allclose(found.m / 1.5, expected, rtol=1e-12)
    assert sp.initial_gradient(activation, L, H, form="printed") == pytest.approx(H * expected)


def test_threshold_gradient_and_hessian():
    L, H, b, v = 5, 3, 0.4, 1.3
    prior = sp.DiscretePrior([[1.0]], [1.0])
    here = point_of(np.zeros((H, 1)), b=b, v=v)
    found = sp.reduced_gradient(here, sp.quadrature(prior, L, here), "softmax1")
    in_b, in_v = sp.threshold_gradient(L, H, b, v)
    assert float(found.b.sum()) == pytest.approx(in_b, rel=1e-12)
    assert float(found.v) == pytest.approx(in_v, rel=1e-12)
    assert float(found.b[0]) == pytest.approx(sp.threshold_gradient(L, H, b, v, form="printed")[0], rel=1e-12)
    # c5: half the curvature along the sum of b at the balanced amplitude.
    v = sp.balanced_amplitude(L, b)
    losses = [exact_loss(prior, L, point_of(np.zeros((H, 1)), b=b + s, v=v), "softmax1") for s in (1e-3, 0.0, -1e-3)]
    curvature = (losses[0] - 2 * losses[1] + losses[2]) / 1e-6 / H**2
    assert curvature == pytest.approx(2 * sp.quadratic_constants("softmax1", L, H, b=b).c5, rel=1e-4)


def test_printed_c2_is_L_times_too_large():
    good, bad = (sp.quadratic_constants("softmax", 4, 2, form=form) for form in ("corrected", "printed"))
    assert bad.c2 == 4 * good.c2
    assert (bad.c1, bad.c3) == (good.c1, good.c3)


def test_cumulants_are_the_derivatives_of_softmax():
    L = 4
    zero = torch.zeros(L, dtype=torch.float64, requires_grad=True)
    value = torch.softmax(zero, dim=0)[0]
    (first,) = torch.autograd.grad(value, zero, create_graph=True)
    for i in range(L):
        (second,) = torch.autograd.grad(first[i], zero, create_graph=True)
        for j in range(L):
            assert one_hot_cumulant([0, i, j], L) == pytest.approx(float(second[j].detach()), abs=1e-15)
            (third,) = torch.autograd.grad(second[j], zero, retain_graph=True)
            assert one_hot_cumulant([0, i, j, j], L) == pytest.approx(float(third[j]), abs=1e-15)


def test_hessian_near_a_learnt_feature():
    L, H, variance, other = 3, 3, 1.5, 2.0
    prior = sp.GaussianPrior([other, variance])
    mbar = np.array([0.6, -0.1, -0.5])
    w = np.array([1.0, -2.0, 1.0]) / np.sqrt(6)
    errors = []
    for s in (0.5, 0.25):
        predicted = w @ sp.hessian_near(L, H, variance, [(other, s * mbar)]) @ w
        step = 0.005
        losses = []
        for k in (1, 0, -1):
            m = np.column_stack([s * mbar, k * step * w])
            losses.append(exact_loss(prior, L, point_of(m), "softmax", nodes=7))
        errors.append((losses[0] - 2 * losses[1] + losses[2]) / step**2 - predicted)
    # Lemma A.6 leaves an error of fourth order in mbar: 16 times smaller (the step adds a little).
    base = w @ (sp.hessian_near(L, H, variance, [(other, 0.5 * mbar)]) - sp.hessian_near(L, H, variance, [])) @ w
    assert abs(errors[0]) < 0.5 * abs(base)
    assert abs(errors[1]) < abs(errors[0]) / 8
    assert sp.hierarchy_constants(2, 2, 1.0, 1.0).c1 == 0


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_heads_escape_at_the_predicted_rates(activation):
    prior, L, H, size = sp.gaussian_spikes(2, 4.0, 1.0), 5, 2, 1e-3
    modes = sp.escape_modes(prior, activation, L, H)
    assert [mode.variance for mode in modes] == [4.0, 1.0]
    v = sp.balanced_amplitude(L) if activation == "softmax1" else 1.0
    for f, mode in enumerate(modes):
        for heads, rate in (([1.0, -1.0], mode.rate), ([1.0, 1.0], mode.rate_together)):
            m = np.zeros((H, 2))
            m[:, f] = size * np.array(heads)
            point = point_of(m, v=v)
            slope = sp.reduced_gradient(point, sp.quadrature(prior, L, point, nodes=8), activation).m.numpy()
            # The gradient at distance 1e-3 from the saddle: cubic terms are of relative size 1e-6 times variance^2.
            np.testing.assert_allclose(-slope[:, f] / m[:, f], rate, rtol=1e-4, atol=1e-6)


def test_escape_modes_leave_the_mean_out():
    modes = sp.escape_modes(sp.flipping_spike(2.0, 3.0), "softmax", 5, 2)
    assert len(modes) == 1
    assert modes[0].variance == pytest.approx(3.0)
    np.testing.assert_allclose(np.abs(modes[0].direction), [0, 1], atol=1e-12)
    rates = [mode.variance for mode in sp.escape_modes(sp.GaussianPrior([[3.0, 1.0], [1.0, 2.0]]), "bayes", 4, 2)]
    np.testing.assert_allclose(rates, np.linalg.eigvalsh([[3.0, 1.0], [1.0, 2.0]])[::-1])


def test_bayes_softmax_with_the_corrected_parameters_is_bayes():
    prior = sp.DiscretePrior([[1.0], [3.0]], [0.9, 0.1])
    g = torch.Generator().manual_seed(0)
    samples = sp.draw_samples(prior, 5, 0, 40_000, generator=g)
    risk = sp.bayes_risk(prior, 5, 40_000)
    good = sp.reduced_loss(sp.bayes_softmax_parameters(prior), samples, "bayes")
    bad = sp.reduced_loss(sp.bayes_softmax_parameters(prior, form="printed"), samples, "bayes")
    assert abs(float(good.value) - risk.value) < 4 * (float(good.error) + risk.error)
    assert float(bad.value) - risk.value > 0.08
    # It is the posterior, sequence by sequence.
    chi = torch.randn(50, 5, 1, generator=g, dtype=torch.float64)
    optimum = sp.bayes_softmax_parameters(prior)
    A = sp.head_weights((chi @ optimum.m.T).transpose(1, 2), optimum.b, optimum.v, "bayes").mean(1)
    np.testing.assert_allclose(A, sp.position_posterior(prior, chi), rtol=1e-12)


def test_gaussian_posterior_is_the_limit_of_discrete_ones(rng):
    prior = sp.GaussianPrior([[2.0, 0.5], [0.5, 1.0]], [0.5, -1.0])
    chi = rng.standard_normal((20, 4, 2))
    draws = sp.DiscretePrior(prior.sample(100_000, rng), np.full(100_000, 1e-5))
    many = sp.position_posterior(draws, chi)
    # Importance weights exp(theta . chi - theta^2/2) over 1e5 draws: about 1 %.
    np.testing.assert_allclose(sp.position_posterior(prior, chi), many, atol=0.02)


def test_bayes_estimate_has_the_bayes_risk_and_the_corrected_norm_is_better():
    g = torch.Generator().manual_seed(3)
    prior = sp.flipping_spike(2.0, 2.0)
    D = 40
    model = sp.SingleLocation(prior, sp.draw_spikes(2, D, generator=g), L=5)
    batch = model.sample(20_000, g)
    X, y, spikes = batch.X.numpy(), batch.y.numpy(), model.spikes.numpy()
    losses = {
        form: ((y - sp.bayes_estimate(prior, X, spikes, form=form)) ** 2).sum(1) / D
        for form in ("corrected", "printed")
    }
    gain = losses["printed"] - losses["corrected"]
    assert gain.mean() > 3 * gain.std() / np.sqrt(len(gain))
    transformed = sp.transformed(prior, sp.Overlaps.of(model.spikes, model.spikes).whitened()[1])
    risk = sp.bayes_risk(transformed, 5, 40_000)
    # |X_l|^2 / D fluctuates by (2/D)^1/2 and correlates with nothing: the mean is 1 up to the spike's 4/D.
    assert losses["corrected"].mean() == pytest.approx(risk.value, rel=0.1)


def test_softmax_floor_holds_for_random_heads(rng):
    prior = sp.DiscretePrior([[2.0, 1.0], [-2.0, -1.0], [0.0, 3.0]], [0.4, 0.3, 0.3])
    share = sp.antipodal_share(prior)
    assert share == pytest.approx(0.6)
    samples = sp.draw_samples(prior, 4, 0, 2000, generator=torch.Generator().manual_seed(0))
    losses = [
        float(
            sp.reduced_loss(point_of(10 ** rng.uniform(-1, 1) * rng.standard_normal((3, 2))), samples, "softmax").value
        )
        for _ in range(40)
    ]
    assert min(losses) > sp.softmax_floor(4, share)


def test_opposite_heads_of_softmax1_beat_the_floor():
    prior = sp.DiscretePrior([[60.0], [-60.0]], [0.5, 0.5])
    samples = sp.draw_samples(prior, 5, 0, 2000, generator=torch.Generator().manual_seed(0))
    assert float(sp.reduced_loss(sp.opposite_heads(30.0, 1), samples, "softmax1").value) < 1e-6
    assert sp.softmax_floor(5, sp.antipodal_share(prior)) == pytest.approx(0.2)


@pytest.mark.parametrize("activation", sp.ACTIVATIONS)
def test_pruning_is_greedy(activation):
    g = torch.Generator().manual_seed(2)
    samples = sp.draw_samples(sp.one_hot_spikes(3, 6.0), 4, 4, 600, generator=g)
    point = sp.initial_order_parameters(4, 3, eta=0.3, noise=1.0, generator=g)
    path = sp.greedy_pruning(point, samples, activation)
    single = [
        float(sp.reduced_loss(point.keep([h for h in range(4) if h != gone]), samples, activation).value)
        for gone in range(4)
    ]
    assert path.removed[0] == int(np.argmin(single))
    assert path.losses[1] == pytest.approx(min(single))
    assert len(path.losses) == 4
    last = ({0, 1, 2, 3} - set(path.removed)).pop()
    assert path.losses[-1] == pytest.approx(float(sp.reduced_loss(point.keep([last]), samples, activation).value))


def test_rescaled_pruning_finds_the_best_amplitude():
    g = torch.Generator().manual_seed(2)
    samples = sp.draw_samples(sp.one_hot_spikes(2, 6.0), 4, 0, 600, generator=g)
    point = sp.OrderParameters(torch.randn(3, 2, generator=g).double(), v=torch.tensor(2.5).double())
    best = sp.greedy_pruning(point, samples, "softmax1", rescale="mass").losses[0]
    for v in np.linspace(0.2, 4, 20):
        assert float(sp.reduced_loss(point_of(point.m, v=v), samples, "softmax1").value) >= best - 1e-12


def test_head_split_crossing_and_fit():
    with pytest.raises(ValueError, match="two values of D or more"):
        sp.log_fit([1e2, 1e3], [1.0, float("nan")])
    assert np.isnan(sp.crossing_time([0.0, 1.0], [0.0, 0.1], 0.5))
    assert sp.crossing_time([2.0, 3.0], [1.0, 1.0], 0.5) == 2.0
    fit = sp.log_fit([1e2, 1e3, 1e4, 1e5], 3 + 2 * np.log([1e2, 1e3, 1e4, 1e5]))
    assert (fit.slope, fit.intercept) == pytest.approx((2.0, 3.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: sp.quadratic_constants("relu", 4, 2),
            "activation must be 'softmax', 'softmax1' or 'bayes', got",
        ),
        (lambda: sp.quadratic_constants("softmax", 1, 2), "L >= 2 and H >= 1 are needed, got L=1, H=2"),
        (lambda: sp.quadratic_constants("softmax", 3, 0), "got L=3, H=0"),
        (lambda: sp.quadratic_constants("softmax", 3, 2, form="x"), "form must be 'corrected' or 'printed', got 'x'"),
        (lambda: sp.unspecialized_hessian("softmax", 3, 2, [1.0]), "covariance must be a square matrix"),
        (
            lambda: sp.hessian_near(3, 2, 1.0, [(1.0, [1.0, 1.0])]),
            "learnt[0] must hold a column of 2 entries with sum 0",
        ),
        (lambda: one_hot_cumulant([5], 3), "indices must lie in [0, 3), got [5]"),
        (lambda: sp.specialization_time(1e4, -1.0), "D > 1 and rate > 0 are needed"),
        (
            lambda: sp.position_posterior(sp.flipping_spike(1, 1), [1.0, 2.0]),
            "chi must have shape (..., L, 2), got (2,)",
        ),
        (
            lambda: sp.position_posterior(sp.SamplerPrior(None, [0.0], [[1.0]]), np.zeros((2, 1))),
            "Prior of draws",
        ),
        (
            lambda: sp.bayes_estimate(sp.flipping_spike(1, 1), np.zeros((1, 2, 3)), np.ones((2, 3))),
            "spikes must be linearly independent",
        ),
        (lambda: sp.bayes_risk(sp.flipping_spike(1, 1), 1), "L >= 2 and n >= 2 are needed"),
        (lambda: sp.bayes_softmax_parameters(sp.gaussian_spikes(1, 1.0)), "one head per atom needs a DiscretePrior"),
        (lambda: sp.softmax_floor(5, 1.5), "a share in [0, 1]"),
        (lambda: sp.opposite_heads(-1.0, 2), "scale > 0"),
        (
            lambda: sp.greedy_pruning(sp.OrderParameters(torch.zeros(1, 2, 2)), None, "softmax"),
            "pruning belongs to one point",
        ),
        (
            lambda: sp.greedy_pruning(sp.OrderParameters(torch.zeros(2, 2)), None, "softmax", rescale="x"),
            "rescale must be",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_point_that_still_moves_warns():
    prior = sp.flipping_spike(2.0, 2.0)
    samples = sp.draw_samples(prior, L=5, H=0, n=2000, generator=torch.Generator().manual_seed(0))
    with pytest.warns(attsvm.ConvergenceWarning, match=r"still moves after steps=20: .* above tolerance=1e-07"):
        sp.unspecialized_point(prior, samples, "softmax", 2, steps=20)
    point = sp.unspecialized_point(prior, samples, "softmax", 2)
    assert float(sp.reduced_gradient(point, samples, "softmax").m.abs().max()) < 1e-7
