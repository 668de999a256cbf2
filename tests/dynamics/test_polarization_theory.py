import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import approx_fprime

from attsvm.dynamics import polarization as pol


def ordered(rng, p, scale=1.0):
    return np.sort(scale * rng.standard_normal(p))[::-1]


@settings(max_examples=15)
@given(st.integers(2, 12), st.sampled_from([0.04, 1.0, 9.0]), st.integers(0, 10_000))
def test_margins_are_positive_on_random_flows(p, b, seed):
    flow = pol.aligned_flow(ordered(np.random.default_rng(seed), p), b=b, t_end=1e8, points=40)
    for margin in (
        pol.order_margin(flow),
        pol.order_margin(flow, of="scores"),
        pol.repulsion_margin(flow),
        pol.logit_gap_margin(flow),
        pol.entropy_margin(flow),
        pol.ratio_margin(flow),
        pol.ratio_margin(flow, gap="top"),
        pol.explicit_ratio_margin(flow),
        pol.projection_margin(flow),
        pol.polarization_margin(flow),
        pol.mean_margin(flow),
        pol.loss_decay_margin(flow),
    ):
        assert margin > 0
    assert pol.invariant_drift(flow) < 1e-9
    assert pol.identity_drift(flow) < 1e-9 * (1 + b)


def test_margins_turn_negative_where_their_hypothesis_fails():
    crossing = pol.aligned_flow([0.2, 0.0], [-0.5, 0.5], t_end=1e12)  # a(0) against u(0): the other token wins
    assert pol.order_margin(crossing) < 0
    assert pol.order_margin(crossing, of="scores") < 0
    assert pol.ratio_margin(crossing) < 0
    assert crossing.scores[-1].argmax() == 1


def test_printed_forms_are_refuted():
    flow = pol.aligned_flow([1.0, 0.0, -1.0], b=4.0)
    assert pol.repulsion_margin(flow, form="printed") < 0
    assert pol.logit_gap_margin(flow, form="printed") < 0
    assert pol.polarization_margin(flow, form="printed") < 0
    assert pol.projection_margin(pol.aligned_flow([1.0, 0.0, -1.0]), form="printed") < 0
    assert pol.mean_margin(pol.aligned_flow([0.1, -10.0]), form="printed") < 0
    # What the two tokens of the claim do: their gap in a rises and falls again.
    gap = pol.gap_flow([1.0, 0.0, -1.0], clock="tau", times=[0.0, 4.0, 100.0, 1e4])
    np.testing.assert_allclose(gap.log_ratios[:, 1] - gap.log_ratios[:, 2], [0.0, 0.537, 0.113, 0.006], atol=6e-4)


def test_margins_of_a_batch_are_those_of_its_members(rng):
    batch = pol.aligned_flow(rng.standard_normal((4, 5)), t_end=1e6, points=30)
    for margin in (pol.order_margin, pol.ratio_margin, pol.entropy_margin, pol.mean_margin, pol.identity_drift):
        np.testing.assert_allclose(margin(batch), [margin(batch[i]) for i in range(4)])


@settings(max_examples=12)
@given(st.floats(-2, 2), st.floats(-2, 2), st.floats(0.1, 5.0))
def test_the_orbit_decides_which_of_two_tokens_wins(du, da, b):
    flow = pol.aligned_flow([du / 2, -du / 2], [da / 2, -da / 2], b=b, t_end=1e9, points=30)
    drive = du + 2 * np.sqrt(b) * np.sinh(da / 2)
    if abs(drive) > 1e-3:  # nearer to the boundary the flow needs longer than t = 1e9
        assert flow.scores[-1].argmax() == (drive < 0)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid_norm", "elu_norm", "square", "sum"])
@pytest.mark.parametrize("b", [1.0, 2.5])
def test_the_potential_grows_at_the_stated_rate(kind, b, rng):
    u, a = rng.standard_normal(4), 1.0 + 0.3 * rng.standard_normal(4)
    du, da = pol.orbit_rates(u, a, b, kind)
    numeric = approx_fprime(0.0, lambda h: pol.potential(u + h * du, a + h * da, kind).ravel(), 1e-7).reshape(4, 4)
    np.testing.assert_allclose(pol.potential_rate(u, a, b, kind), numeric, atol=1e-5)
    printed = pol.potential_rate(u, a, b, kind, form="printed")
    assert np.allclose(printed, numeric, atol=1e-5) == (b == 1.0)
    assert (pol.potential_rate(u, a, b, kind) >= 0).all()


def test_the_tangent_kernel_moves_the_output(rng):
    for _ in range(10):
        V, a, g = rng.standard_normal((3, 6)), rng.standard_normal(6), rng.standard_normal(3)
        dV, da = pol.full_rates(V, a, -g)
        s, h = pol.get_normalization("softmax").scores, 1e-6
        numeric = ((V + h * dV) @ s(a + h * da) - (V - h * dV) @ s(a - h * da)) / (2 * h)
        np.testing.assert_allclose(-pol.tangent_kernel(V, a) @ g, numeric, atol=1e-8)
        assert not np.allclose(-pol.tangent_kernel(V, a, form="printed") @ g, numeric, atol=1e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda f: pol.order_margin(f, of="a"), "of must be 'u' or 'scores', got 'a'"),
        (lambda f: pol.repulsion_margin(f, form="old"), "form must be 'corrected' or 'printed', got 'old'"),
        (lambda f: pol.ratio_margin(f, gap="max"), "gap must be 'min' or 'top', got 'max'"),
        (lambda f: pol.potential([1.0, 0.0], [1.0, -1.0], "square"), "the potential needs f' > 0 between the logits"),
    ],
    ids=["of", "form", "gap", "potential"],
)
def test_bad_questions_are_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call(pol.aligned_flow([0.2, 0.1, 0.0], t_end=5.0, points=3))


def test_statements_about_softmax_refuse_other_maps_and_losses():
    other = pol.aligned_flow([0.2, 0.1], [1.0, 1.0], normalization="sum", t_end=5.0)
    with pytest.raises(ValueError, match="this statement is about softmax, the flow has normalization 'sum'"):
        pol.order_margin(other)
    square = pol.aligned_flow([0.0, 0.0], [0.1, 0.0], loss="square", t_end=5.0)
    with pytest.raises(ValueError, match="this statement is about the logistic loss, the flow has 'square'"):
        pol.loss_decay_margin(square)
    with pytest.raises(ValueError, match="index the batch first"):
        pol.measure_asymptotics(pol.aligned_flow(np.zeros((2, 3)), t_end=5.0))
