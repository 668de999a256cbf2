import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp

from attsvm.dynamics import polarization as pol
from attsvm.dynamics.polarization.flow_margins import local_exponents
from attsvm.dynamics.polarization.full_flow import tied_rates

# The protocol of Figure 2: legacy generator, seed 123, W = 0.1 randn, one draw for a that is then set to zero, beta.
_draw = np.random.RandomState(123)
_W = 0.1 * _draw.randn(8, 8)
_draw.randn(8)
_beta = _draw.randn(8)
FIGURE_2 = np.sort(_W.T @ (_beta / np.linalg.norm(_beta)))[::-1]
# Reference of an independent integration with rtol 2e-14.
REFERENCE = [
    0.997098258,
    6.70815846e-4,
    5.47913938e-4,
    3.87057764e-4,
    3.83500422e-4,
    3.64965950e-4,
    2.94457753e-4,
    2.53030648e-4,
]
KINDS = ("softmax", "sum", "square", "sigmoid_norm", "elu_norm", "relu_norm", "l1", "sigmoid", "relu", "linear")


def softmax(a):
    e = np.exp(a - a.max())
    return e / e.sum()


@pytest.mark.parametrize("method", ["LSODA", "DOP853"])
def test_reference_numbers_at_t_1e12_to_nine_digits(method):
    flow = pol.aligned_flow(FIGURE_2, method=method, rtol=1e-12, atol=1e-14)
    # Nine printed digits: half a unit in the ninth, and as much for the integration.
    np.testing.assert_allclose(flow.scores[-1], REFERENCE, rtol=2e-9)
    assert flow.u[-1, 0] == pytest.approx(27.702418435, abs=2e-9)


def test_the_gap_form_gives_the_same_numbers():
    flow = pol.gap_flow(FIGURE_2)
    np.testing.assert_allclose(np.exp(flow.log_scores[-1]), REFERENCE, rtol=2e-9)
    assert flow.u_max[-1] == pytest.approx(27.702418435, abs=2e-9)


def test_p_64_to_1e12_is_cheap_conserves_and_keeps_order(rng):
    u0 = np.sort(0.1 * rng.standard_normal(64))[::-1]
    flow = pol.aligned_flow(u0)
    assert flow.times[-1] == pytest.approx(1e12)
    # Cost without a clock: under 2,000 right-hand sides of O(p) work (about 0.06 s); gradient descent at lr 1 needs
    # 1e12.
    assert flow.evaluations < 2000
    assert pol.invariant_drift(flow) <= 1e-9
    assert pol.identity_drift(flow) <= 1e-9
    assert pol.order_margin(flow) > 0
    assert pol.order_margin(flow, of="scores") > 0


def test_flow_agrees_with_a_direct_integration_in_plain_time():
    # Equations 6-7 with + signs in raw t, by another solver.
    u0, a0, b = np.array([0.5, 0.2, -0.3]), np.array([0.1, 0.0, -0.2]), 2.0

    def rhs(t, y):
        u, a = y[:3], y[3:6]
        s = softmax(a)
        gamma = 1 / (1 + np.exp(u @ s))
        return np.concatenate([gamma * b * s, gamma * (np.diag(s) - np.outer(s, s)) @ u, [gamma]])

    end = solve_ivp(rhs, (0, 100.0), np.concatenate([u0, a0, [0.0]]), method="Radau", rtol=1e-9, atol=1e-12).y[:, -1]
    flow = pol.aligned_flow(u0, a0, b=b, times=[0.0, 1.0, 100.0])
    np.testing.assert_allclose(np.concatenate([flow.u[-1], flow.a[-1], flow.tau[-1:]]), end, rtol=1e-6)


def test_every_aligned_loss_follows_one_orbit(rng):
    u0, a0 = np.zeros(5), 0.3 * rng.standard_normal(5)
    square = pol.aligned_flow(u0, a0, b=4.0, loss="square", t_end=50.0)
    logistic = pol.aligned_flow(u0, a0, b=4.0, loss="logistic", t_end=1e4, points=1000)
    # Read the logistic orbit at the polarization of the square one: cubic interpolation over 1,000 points.
    from scipy.interpolate import CubicSpline

    orbit = CubicSpline(logistic.tau, logistic.scores)
    np.testing.assert_allclose(orbit(square.tau), square.scores, atol=1e-7)


@settings(max_examples=10)
@given(st.floats(0.1, 5.0), st.integers(0, 10_000))
def test_scaling_identity_of_the_orbit(c, seed):
    # a(tau; u0, b) = a(|beta*| tau; u0 / |beta*|, 1)
    u0 = np.random.default_rng(seed).standard_normal(4)
    first = pol.gap_flow(u0, b=c * c, clock="tau", times=[0.0, 1.0, 3.0])
    second = pol.gap_flow(u0 / c, b=1.0, clock="tau", times=[0.0, c, 3.0 * c])
    np.testing.assert_allclose(first.log_scores, second.log_scores, atol=1e-8)


@settings(max_examples=10)
@given(st.permutations(range(5)), st.integers(0, 10_000))
def test_permuting_tokens_permutes_the_flow(order, seed):
    u0 = np.random.default_rng(seed).standard_normal(5)
    first, second = pol.aligned_flow(u0, t_end=1e6, points=20), pol.aligned_flow(u0[list(order)], t_end=1e6, points=20)
    np.testing.assert_allclose(first.log_scores[:, list(order)], second.log_scores, atol=1e-7)


def test_a_batch_is_its_members(rng):
    u0, a0 = rng.standard_normal((6, 5)), 0.1 * rng.standard_normal((6, 5))
    batch = pol.aligned_flow(u0, a0, t_end=1e12)
    for i in range(6):
        alone = pol.aligned_flow(u0[i], a0[i], t_end=1e12, rtol=1e-12)
        np.testing.assert_allclose(batch[i].log_scores, alone.log_scores, atol=1e-7)
        np.testing.assert_allclose(batch.tau[i], alone.tau, atol=1e-7)
    assert pol.order_margin(pol.aligned_flow(u0, t_end=1e6)).shape == (6,)


def test_gap_form_beyond_what_u_and_a_can_hold():
    # s_j p b tau^2 / 2 -> 1: exact at tau = 1e15, where (u, a) lost every digit long ago.
    for p in (2, 3, 5):
        flow = pol.gap_flow(np.linspace(1.0, -1.0, p), clock="tau", end=1e15)
        np.testing.assert_allclose(pol.score_constants(flow)[-1, 1:], 1.0, atol=2e-3)
    assert flow.log_time[-1] == pytest.approx(1e15, rel=1e-9)


def test_gap_form_to_t_1e300_and_its_clock():
    by_time = pol.gap_flow(FIGURE_2, end=1e300)
    by_tau = pol.gap_flow(FIGURE_2, clock="tau", times=[0.0, *by_time.tau[-3:]])
    np.testing.assert_allclose(by_tau.log_scores[1:], by_time.log_scores[-3:], atol=1e-7)
    np.testing.assert_allclose(
        by_tau.log_time[1:], by_time.log_time[-3:], atol=1e-4
    )  # next term of the clock: m''/m'^2
    assert np.isnan(pol.gap_flow(FIGURE_2, clock="tau", times=[0.0, 1.0, 2.0]).log_time).all()


def test_asymptotics_of_figure_2():
    flow = pol.aligned_flow(FIGURE_2, times=[0.0, 1e3, 1e5, 1e12, 1e20, 1e30])
    found = pol.measure_asymptotics(flow)
    np.testing.assert_allclose(found.loss_constant[1:4], [1.327, 1.001, 0.9999], atol=6e-4)
    np.testing.assert_allclose(flow.tau[1:], [28.0, 32.9, 49.0, 67.5, 90.5], atol=0.06)
    np.testing.assert_allclose(flow.scores[1:, 0], [0.8752, 0.9749, 0.99710, 0.99906, 0.99960], atol=6e-5)
    assert np.isnan(found.exponents[1:, 0]).all()
    assert (found.exponents[5, 1:] < found.exponents[3, 1:]).all()
    assert (found.exponents[5, 1:] > 1.95).all()  # towards 2, slowly


def test_local_exponents_are_derivatives():
    near = pol.aligned_flow(FIGURE_2, times=[0.0, 0.99e12, 1e12, 1e12 / 0.99], rtol=1e-12, atol=1e-14)
    log_log = np.log(np.log(near.times[1:]))
    slope = -(near.log_scores[3] - near.log_scores[1]) / (log_log[2] - log_log[0])
    # Central difference over 2 % of t: its error is far below 1e-4.
    np.testing.assert_allclose(local_exponents(near)[2, 1:], slope[1:], atol=1e-4)
    np.testing.assert_allclose(slope[[1, 4, 7]], [2.395, 2.221, 2.138], atol=1e-3)


@pytest.mark.parametrize("b", [0.25, 1.0, 4.0])
def test_asymptotics_at_t_1e300(b):
    found = pol.measure_asymptotics(pol.aligned_flow([0.3, 0.1, -0.1, -0.2], b=b, t_end=1e300))
    assert found.loss_constant[-1] == pytest.approx(1.0, abs=1e-5)
    assert found.top_constant[-1] == pytest.approx(1.5, abs=0.06)  # 2 (p - 1) / p, corrections of order log / tau
    assert np.nanmean(found.score_constants[-1]) == pytest.approx(1.0, abs=0.1)  # O(tau^(-2/p))


@pytest.mark.parametrize("kind", KINDS)
def test_maps_agree_with_torch_and_conserve(kind, rng):
    a = 1.0 + 0.2 * rng.standard_normal(6)
    v = rng.standard_normal(6)
    normalization = pol.get_normalization(kind)
    from attsvm.dynamics.polarization.value_descent import torch_parts

    scores = torch_parts(kind)(torch.tensor(a))[0]
    np.testing.assert_allclose(normalization.scores(a), scores.numpy(), rtol=1e-14)
    flow = pol.aligned_flow(0.1 * v, a, normalization=kind, t_end=1e8)
    if normalization.normalized:
        assert pol.invariant_drift(flow) < 1e-7 * (
            1 + np.abs(flow.u).max() ** 2
        )  # rtol 1e-10 times the number of steps
    assert flow.loss[-1] < flow.loss[0]


def test_square_normalization_is_a_replicator_down_to_exp_of_minus_tau_squared():
    a0 = np.array([1.1, 1.0, 0.9, 1.0, 0.8, 1.2])
    flow = pol.aligned_flow([0.5, 0.3, 0.1, 0.0, -0.1, -0.2], a0, normalization="x^2", t_end=1e300)
    # log(s_j / s_0) / tau^2 -> -2 b / |a(0)|^2
    slope = (flow.log_scores[-1, 1:] - flow.log_scores[-1, 0]) / flow.tau[-1] ** 2
    np.testing.assert_allclose(slope, -2 / (a0 @ a0), rtol=0.02)
    assert flow.log_scores[-1].min() < -1e4  # far below what a score in floating point can hold
    assert np.isfinite(flow.log_scores).all()


@pytest.mark.parametrize("kind", ["relu_norm", "l1"])
def test_linear_maps_reach_one_hot_in_finite_time_and_match_gradient_descent(kind):
    u0, a0 = np.array([0.1, 0.05, -0.05]), np.array([1.0, 0.9, 1.05])
    flow = pol.aligned_flow(u0, a0, normalization=kind, times=[0.0, 5.0, 20.0, 1e3, 1e4])
    assert flow.scores[-1].tolist() == [1.0, 0.0, 0.0]
    assert flow.entropy[-1] == 0.0
    run = pol.descend(
        u0[None], a0, pol.LogisticLoss([1.0]), normalization=kind, lr=1e-3, steps=20_000, snapshots=[5000]
    )
    np.testing.assert_allclose(flow.scores[1], run.scores[1, 0], atol=2e-3)  # Euler's error at lr 1e-3


def test_a_negative_entry_of_relu_norm_is_dead_and_one_of_l1_counts():
    u0, a0 = np.array([0.1, 0.05, 0.3]), np.array([1.0, 0.9, -1.0])
    relu = pol.aligned_flow(u0, a0, normalization="relu_norm", t_end=10.0, points=4)
    assert (relu.scores[:, 2] == 0).all()
    assert (relu.a[:, 2] == -1.0).all()
    absolute = pol.aligned_flow(u0, a0, normalization="l1", t_end=10.0, points=4)
    mirrored = pol.aligned_flow(u0, np.abs(a0), normalization="l1", t_end=10.0, points=4)
    np.testing.assert_allclose(absolute.scores, mirrored.scores, atol=1e-9)
    assert (absolute.a[:, 2] < 0).all()


def test_full_flow_reduces_to_the_aligned_one(rng):
    V0, beta, a0 = 0.1 * rng.standard_normal((4, 6)), rng.standard_normal(4), 0.1 * rng.standard_normal(6)
    full = pol.full_flow(V0, a0, pol.LogisticLoss(beta), t_end=1e12, rtol=1e-11)
    reduced = pol.aligned_flow(V0.T @ beta, a0, b=beta @ beta, t_end=1e12)
    np.testing.assert_allclose(full.log_scores, reduced.log_scores, atol=1e-6)
    np.testing.assert_allclose(full.V[-1].T @ beta, reduced.u[-1], atol=1e-6)
    batch = pol.full_flow(np.stack([V0, V0]), np.stack([a0, a0]), pol.LogisticLoss(beta), t_end=10.0, points=5)
    assert batch.V.shape == (2, 5, 4, 6)
    assert batch.entropy.shape == (2, 5)


@pytest.mark.parametrize(
    "loss",
    [
        pol.LogisticLoss([1.0, -0.5, 0.3]),
        pol.SquareLoss([1.0, -0.5, 0.3]),
        pol.SquareLoss([1.0, -0.5, 0.3], X=[[1.0, 0.2, 0.0], [0.0, 0.5, 0.1], [0.0, 0.0, 0.3]], scale=2.0),
        pol.KLLoss([0.5, 0.3, 0.2]),
        pol.KLLoss([0.5, 0.3, 0.2], form="printed"),
    ],
    ids=["logistic", "square", "matrix", "kl", "kl_printed"],
)
def test_losses_agree_with_finite_differences_and_descent_agrees_with_the_flow(loss):
    beta = np.array([0.4, 0.7, 0.2])
    numeric = [
        -(loss.value(beta + h) - loss.value(beta - h)) / 2e-6 for h in 1e-6 * np.eye(3)
    ]  # central differences: error 1e-9 or so
    np.testing.assert_allclose(loss.descent(beta), numeric, atol=1e-8)
    V0, a0 = np.array([[0.4, 0.5, 0.6], [0.6, 0.8, 0.7], [0.3, 0.1, 0.2]]), np.array([0.1, 0.0, -0.1])
    flow = pol.full_flow(V0, a0, loss, times=[0.0, 1.0, 2.0])
    run = pol.descend(V0, a0, loss, lr=4e-3, steps=500, snapshots=[250])
    np.testing.assert_allclose(run.scores[1:, 0], flow.scores[1:], atol=2e-3)  # first-order error of lr 4e-3
    np.testing.assert_allclose(run.loss[:, 0], flow.loss, atol=5e-3)


def test_regression_limit_is_where_the_flow_ends(rng):
    a0 = rng.standard_normal(6)
    limit = pol.regression_limit(a0, b=9.0)
    flow = pol.aligned_flow(np.zeros(6), a0, b=9.0, loss="square", t_end=1e4)
    np.testing.assert_allclose(flow.scores[-1], limit.scores, atol=1e-8)
    assert flow.tau[-1] == pytest.approx(limit.tau, abs=1e-7)
    assert limit.u @ limit.scores == pytest.approx(9.0, abs=1e-9)
    assert 1 <= limit.tau <= 6
    assert 0 < limit.relative_entropy < 1


def test_rows_stay_equal_from_zero_and_sink_at_the_largest_projection():
    flow = pol.row_flow([0.1, 0.3, 0.2, -0.1, 0.0, 0.05])
    assert np.ptp(flow.log_scores, axis=1).max() < 1e-12
    assert flow.selected_tokens.tolist() == [1] * 6
    assert flow.loss[-1] < 1e-11
    causal = pol.row_flow([0.1, 0.3, 0.2], causal=True, t_end=1e6)
    assert np.isneginf(causal.log_scores[:, 0, 1:]).all()
    np.testing.assert_allclose(causal.scores.sum(-1), 1.0, atol=1e-12)


def test_row_flow_of_one_row_repeated_is_the_flow_with_a_slower_clock():
    # From A = 0 all rows agree: da = gamma J u / T while du = gamma b s, so with A' = sqrt(T) ... it is the (u, a)
    # flow of b T in time t / T: du/dt' = (b T) s, da/dt' = J u with t' = t / T.
    u0, T = np.array([0.4, 0.1, -0.2]), 3
    rows = pol.row_flow(u0, times=[0.0, 30.0, 3e4])
    single = pol.aligned_flow(u0, b=T * 1.0, times=[0.0, 30.0 / T, 3e4 / T])
    np.testing.assert_allclose(rows.log_scores[:, 0], single.log_scores, atol=1e-6)


@pytest.mark.parametrize("transposed", [False, True])
def test_tied_rates_agree_with_autograd_and_the_flow_with_descent(transposed, rng):
    R, a, beta = rng.standard_normal((4, 4)), rng.standard_normal(4), rng.standard_normal(4)
    Rt, at = torch.tensor(R, requires_grad=True), torch.tensor(a, requires_grad=True)
    s = torch.softmax(Rt @ at, 0)
    out = (Rt.T if transposed else Rt) @ s
    (-(torch.tensor(beta) @ out)).backward()  # r = beta
    dR, da = tied_rates(R, a, beta, transposed)
    np.testing.assert_allclose(dR, -Rt.grad.numpy(), atol=1e-13)
    np.testing.assert_allclose(da, -at.grad.numpy(), atol=1e-13)
    flow = pol.tied_flow(np.eye(4), [1.1, 1.0, 0.9, 1.05], beta, transposed=transposed, times=[0.0, 2.0, 4.0])
    run = pol.descend_tied(
        np.eye(4), [1.1, 1.0, 0.9, 1.05], beta, transposed=transposed, lr=5e-3, steps=800, snapshots=[400]
    )
    np.testing.assert_allclose(run.scores[:, 0], flow.scores, atol=5e-3)  # first-order error of lr 5e-3
    assert flow.norms.shape == (3, 4)


def test_descent_batches_and_keeps_the_device_and_dtype(rng):
    V0, a0 = 0.1 * rng.standard_normal((3, 5, 4)), np.zeros((3, 4))
    loss = pol.LogisticLoss(rng.standard_normal(5))
    run = pol.descend(V0, a0, loss, steps=50, snapshots=5, dtype=torch.float32)
    assert run.V.dtype == torch.float32
    alone = pol.descend(V0[1], a0[1], loss, steps=50, snapshots=5, dtype=torch.float32)
    np.testing.assert_allclose(run.scores[:, 1], alone.scores[:, 0], atol=1e-6)
    assert run.steps[0] == 0
    assert run.steps[-1] == 50
    assert torch.isfinite(run.entropy).all()


def test_one_token_is_the_trivial_limit():
    flow = pol.aligned_flow([0.3], t_end=1e6)
    assert (flow.scores == 1).all()
    assert (flow.entropy == 0).all()
    assert pol.order_margin(flow) == np.inf
    assert pol.ratio_margin(flow) == np.inf
    # m + e^m = m_0 + e^{m_0} + b t exactly.
    assert flow.m[-1] + np.exp(flow.m[-1]) == pytest.approx(0.3 + np.exp(0.3) + 1e6, rel=1e-8)
    assert pol.regression_limit([0.0], b=2.0).tau == pytest.approx(1.0)
    assert pol.gap_flow([0.3], end=1e6).m[-1] == pytest.approx(flow.m[-1], abs=1e-8)
    assert pol.row_flow([0.2]).selected_tokens.tolist() == [0]


BAD = [
    (lambda: pol.aligned_flow([0.1, np.nan]), "u0 must be finite, but u0[1] is nan"),
    (lambda: pol.aligned_flow([0.1, 0.2], [0.0]), "a0 must have shape (2,), got (1,)"),
    (lambda: pol.aligned_flow([]), "u0 must have shape (p,) or (B, p), got (0,)"),
    (lambda: pol.aligned_flow([0.1, 0.2], b=0.0), "b = |beta_*|^2 must be positive and finite, got 0.0"),
    (lambda: pol.aligned_flow([0.1, 0.2], loss="hinge"), "loss must be 'logistic' or 'square', got 'hinge'"),
    (lambda: pol.aligned_flow([0.1, 0.2], normalization="sum"), "normalization 'sum' needs sum_j f(a_j) > 0, got 0"),
    (lambda: pol.aligned_flow([0.1, 0.2], [-1.0, -1.0], normalization="sum"), "needs sum_j f(a_j) > 0, got -2"),
    (lambda: pol.aligned_flow([0.1, 0.2], [1.0, 0.0], normalization="square"), "a0 must have no zero entry"),
    (lambda: pol.aligned_flow([0.1, 0.2], normalization="max"), "normalization must be a Normalization or one of"),
    (lambda: pol.aligned_flow([0.1, 0.2], times=[0.0, 2.0, 1.0]), "times must start at 0 and increase strictly"),
    (lambda: pol.aligned_flow([0.1, 0.2], t_end=-1.0), "t_end must be positive and finite, got -1.0"),
    (lambda: pol.aligned_flow([0.1, 0.2], method="Euler"), "method must be 'LSODA', "),
    (lambda: pol.aligned_flow([0.1, 0.2], frozen="V"), "frozen must be None, 'u' or 'a', got 'V'"),
    (
        lambda: pol.aligned_flow([0.1, 0.2], [1.0, 1.0], normalization="sum", t_end=5.0).entropy,
        "are not a distribution",
    ),
    (lambda: pol.gap_flow([0.1, 0.2], reference=5), "reference must be in 0..1, got 5"),
    (lambda: pol.gap_flow([0.1, 0.2], clock="steps"), "clock must be 'time' or 'tau', got 'steps'"),
    (lambda: pol.regression_limit([0.0, 0.0], [3.0, 3.0]), "<u0, s(0)> must be below b = 1"),
    (lambda: pol.KLLoss([0.5, 0.6]), "target must be a distribution (entries >= 0 that sum to 1), got sum 1.1"),
    (lambda: pol.KLLoss([1.5, -0.5]), "smallest entry -0.5"),
    (lambda: pol.SquareLoss([1.0, 2.0], X=np.eye(3)), "X must have shape (2, d), got (3, 3)"),
    (lambda: pol.full_flow(np.eye(2), [0.0], pol.LogisticLoss([1.0, 0.0])), "a0 must have shape (2,), got (1,)"),
    (lambda: pol.row_flow([0.1, 0.2], mask=[[1, 0], [0, 0]]), "mask hides every token from row 1"),
    (lambda: pol.tied_flow(np.ones((2, 3)), [0.0] * 3, [1.0] * 3), "R0 must be a square matrix, got shape (2, 3)"),
    (lambda: pol.descend(np.eye(2), [0.0, np.nan], pol.LogisticLoss([1.0, 0.0])), "a0 must be finite"),
    (
        lambda: pol.descend(np.eye(2), [0.0, 0.0], pol.LogisticLoss([1.0, 0.0]), lr=0.0),
        "lr must be positive and finite, got 0.0",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
