"""Propagation probabilities: the exact law against independent integrals, the curve rho and its limits."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, special, stats

import attsvm.dynamics.localization as loc
from attsvm.dynamics.localization.propagation import upper_tail
from attsvm.dynamics.localization.propagation_profile import position_coefficients


def imhof(weights, x):
    """P(Q > x) on the straight contour, by general-purpose quadrature."""
    w = np.asarray(weights)

    def integrand(u):
        angle = 0.5 * np.arctan(w * u).sum() - 0.5 * x * u
        return np.sin(angle) / (u * np.prod((1 + (w * u) ** 2) ** 0.25))

    return 0.5 + integrate.quad(integrand, 0, np.inf, limit=2000, epsabs=1e-10)[0] / np.pi


@pytest.mark.parametrize("n", [1, 2, 7, 200])
@pytest.mark.parametrize("factor", [1e-4, 0.3, 1.0, 2.0, 8.0])
def test_upper_tail_of_chi_square(n, factor):
    found, error = upper_tail(np.full((1, n), 0.7), [0.7 * factor * n])
    expected = stats.chi2.sf(factor * n, n)
    assert abs(found[0] - expected) <= error[0]
    assert error[0] < 1e-10
    if factor > 1:  # a saddle point keeps the relative accuracy of small tails too
        assert found[0] == pytest.approx(expected, rel=1e-9)


def test_upper_tail_of_a_difference_of_two():
    # chi^2_1 - chi^2_1 has the density K_0(|x|/2) / (2 pi): a logarithmic pole, the hardest case of a straight contour.
    for x in (1e-6, 0.01, 1.0, 30.0):
        below = integrate.quad(lambda t: special.k0(t / 2) / (2 * np.pi), 0, x, epsabs=1e-13, limit=200)[0]
        found, error = upper_tail([[1.0, -1.0]], [x])
        assert abs(found[0] - (0.5 - below)) < error[0] + 1e-11  # the reference's own accuracy


def test_upper_tail_agrees_with_imhof(rng):
    for _ in range(10):
        weights = rng.standard_normal(8)
        for x in (0.05, 1.0, 4.0):
            found, error = upper_tail([weights], [x])
            assert abs(found[0] - imhof(weights, x)) < error[0] + 1e-8  # the reference's own accuracy


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3))
def test_tails_scale_and_complement(seed, factor):
    w = np.random.default_rng(seed).standard_normal((1, 6))
    base = loc.interval_probability(w, [-0.4], [1.3])[0]
    scaled = loc.interval_probability(factor * w, [-0.4 * factor], [1.3 * factor])[0]
    mirrored = loc.interval_probability(-w, [-1.3], [0.4])[0]
    shuffled = loc.interval_probability(w[:, ::-1], [-0.4], [1.3])[0]
    np.testing.assert_allclose(np.concatenate([scaled, mirrored, shuffled]), base[0], atol=1e-10)


def test_tails_at_extreme_scales():
    assert upper_tail([[1e-200], [1e-9]], [1.0, 1.0])[0].tolist() == [0.0, 0.0]
    assert upper_tail([[1e200]], [1.0])[0] == pytest.approx(1.0)
    assert upper_tail([[1.0] * 3], [1200.0])[0] == pytest.approx(stats.chi2.sf(1200, 3), rel=1e-9)  # 1e-259
    assert loc.signal_propagation(np.eye(1) * 1e-200, 10).rho.tolist() == [1.0] * 10
    assert loc.signal_propagation(np.eye(2) * 1e8, 10).rho.max() < 1e-6


def test_tail_without_positive_weights_is_zero():
    found, error = upper_tail([[-1.0, 0.0], [0.0, 0.0]], [0.5, 0.5])
    assert found.tolist() == [0.0, 0.0]
    assert error.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", [0.01, 0.5, 3.0, 200.0])
def test_exact_probability_in_one_dimension(scale):
    # Given z, the signal is normal: integrate its interval probability over z.
    T = 9
    exact = loc.signal_propagation([[scale]], T, temperature=1.0)
    spread, drift = position_coefficients(T)
    for i in range(T):
        sd = np.sqrt(spread[i] - drift[i] ** 2)

        def given_z(z, i=i, sd=sd):
            mean, width = scale * drift[i] * z * z + 1 / T, scale * sd * abs(z)
            return float(loc.normal_interval(mean, width**2)) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi)

        corners = [0.01 / np.sqrt(scale), 0.1 / np.sqrt(scale), 1 / np.sqrt(scale)]
        expected = 2 * integrate.quad(given_z, 0, 12, limit=500, epsabs=1e-11, points=[c for c in corners if c < 12])[0]
        assert exact.rho[i] == pytest.approx(expected, abs=1e-8)
    assert exact.error.max() < 1e-10


def test_exact_probability_matches_monte_carlo_for_any_matrix_and_covariance(rng):
    d, T = 5, 12
    A = rng.standard_normal((d, d))
    R = rng.standard_normal((d, d))
    for W, S in ((A, R.T @ R / d), (A + A.T, rng.uniform(0.2, 2, d)), ((A[:2], R[:2]), None)):
        exact = loc.signal_propagation(W, T, S)
        sampled = loc.signal_propagation(W, T, S, method="monte_carlo", walks=20_000, seed=rng)
        assert (np.abs(exact.rho - sampled.rho) < 4.5 * sampled.error).all()


def test_the_gaussian_approximation_improves_with_the_effective_rank():
    gaps = {}
    for d in (1, 8, 32, 96):
        W = np.eye(d) / np.sqrt(d)  # eta = 1 at temperature 1, xi = sqrt(d)
        spectrum = loc.qk_spectrum(W)
        assert spectrum.effective_rank == pytest.approx(d)
        exact = loc.signal_propagation(spectrum, 30, temperature=1.0)
        gauss = loc.signal_propagation(spectrum, 30, temperature=1.0, method="gaussian")
        printed = loc.signal_propagation(spectrum, 30, temperature=1.0, method="printed")
        gaps[d] = np.abs(exact.rho - gauss.rho).max()
        assert np.abs(exact.rho - printed.rho).max() > 3 * gaps[d] or d == 1
    assert gaps[1] > gaps[8] > gaps[32] > gaps[96]
    assert gaps[96] < 0.015


def test_w_to_zero_at_fixed_length_propagates_everything():
    # The offset 1/T is inside [0, 1]: dropping it, as the asymptotic form does, says one half.
    W = np.diag([1.0, -1.0]) * 1e-4
    assert loc.signal_propagation(W, 40).rho.min() > 1 - 1e-9
    assert loc.signal_propagation(W, 40, method="gaussian").rho.min() > 1 - 1e-9
    assert loc.signal_propagation(W, 40, method="asymptotic").rho.max() < 0.501
    assert loc.signal_propagation(np.zeros((2, 2)), 40).rho.tolist() == [1.0] * 40
    # r = 5: the mean signal ((i - 20.5) 5 + 1) / 40 lies in [0, 1] from 20.3 to 28.3.
    tight = loc.signal_propagation(np.eye(400) * 5 / 400, 40, temperature=1.0, method="gaussian").rho  # eta = 1/4
    i = np.arange(1, 41)
    assert tight[(i > 21) & (i < 28)].min() > 0.6
    assert tight[(i < 18) | (i > 31)].max() < 0.05


def test_rho_is_the_difference_of_two_error_functions():
    theta = np.linspace(0, 1, 41)
    for xi, eta in ((0.0, 1.0), (3.0, 0.5), (-20.0, 0.1), (5.0, 30.0)):
        for form, doubled in (("corrected", 4 * (theta - 0.5) ** 2 + 1 / 6), ("printed", 4 * theta**2 + 7 / 6)):
            u = theta - 0.5
            root = np.sqrt(doubled)
            expected = special.erf(u * xi / root) / 2 - special.erf((u * xi - 1 / eta) / root) / 2
            np.testing.assert_allclose(loc.rho(theta, xi, eta, form), expected, atol=1e-14)


def test_rho_agrees_with_the_asymptotic_propagation(rng):
    A = rng.standard_normal((6, 6))
    spectrum = loc.qk_spectrum(A + A.T)
    found = loc.signal_propagation(spectrum, 50, method="asymptotic")
    np.testing.assert_allclose(found.rho, loc.rho(found.theta, spectrum.xi, spectrum.eta()), atol=1e-13)
    printed = loc.signal_propagation(spectrum, 50, method="printed")
    np.testing.assert_allclose(printed.rho, loc.rho(found.theta, spectrum.xi, spectrum.eta(), "printed"), atol=1e-13)


@given(st.floats(-30, 30), st.floats(0.05, 20), st.floats(0, 1))
def test_mirror_symmetry_and_middle(xi, eta, theta):
    # theta and 1 - theta do not mirror exactly in floating point, hence atol.
    assert float(loc.rho(theta, xi, eta)) == pytest.approx(float(loc.rho(1 - theta, -xi, eta)), abs=1e-12)
    assert float(loc.rho(0.5, xi, eta)) == pytest.approx(special.erf(np.sqrt(6) / eta) / 2, abs=1e-14)


@given(st.floats(-30, 30), st.floats(0.05, 20), st.floats(0.01, 0.99))
def test_slope_is_the_derivative(xi, eta, theta):
    step = 1e-5
    numeric = (loc.rho(theta + step, xi, eta) - loc.rho(theta - step, xi, eta)) / (2 * step)
    # step^2 times the third derivative, at most about (|xi| + 1/eta)^3 times 10
    tolerance = 1e-9 + step**2 * 10 * (abs(xi) + 4 + 1 / eta) ** 3
    assert float(loc.rho_slope(theta, xi, eta)) == pytest.approx(float(numeric), abs=tolerance)


def test_the_printed_slope_is_not_the_derivative_of_the_printed_curve():
    step = 1e-5
    numeric = (loc.rho(0.8 + step, 5, 0.5, "printed") - loc.rho(0.8 - step, 5, 0.5, "printed")) / (2 * step)
    printed = loc.rho_slope(0.8, 5.0, 0.5, "printed")
    assert numeric == pytest.approx(-0.891, abs=1e-3)
    assert printed == pytest.approx(0.212, abs=1e-3)


@pytest.mark.parametrize("r", [0.5, 1.9, 5.0, -1.0, -4.0])
def test_limits_of_a_concentrated_spectrum(r):
    xi = np.sign(r) * 1e7
    theta = np.array([0.0, 0.2, 0.4, 0.5, 0.55, 0.7, 0.9, 1.0])
    np.testing.assert_allclose(loc.rho(theta, xi, abs(r) / 1e7), loc.rho_limit(theta, r), atol=1e-6)
    low, high = loc.limit_window(r)
    assert float(loc.rho((low + high) / 2, xi, abs(r) / 1e7)) == pytest.approx(1.0)
    assert float(loc.rho_limit(0.5, r)) == 0.5
    assert float(loc.rho_limit(0.5, r, "printed")) == 1.0


def test_zero_trace_is_not_uniform_unless_eta_is_small():
    theta = np.linspace(0, 1, 101)
    assert loc.rho([0.0], 0.0, 1.0)[0] == pytest.approx(0.405, abs=1e-3)
    assert np.ptp(loc.rho(theta, 0.0, 0.2)) < 1e-3
    wide = loc.rho(theta, 0.0, 1e4)
    assert wide[50] / wide[0] == pytest.approx(np.sqrt(7), rel=1e-4)
    np.testing.assert_allclose(loc.rho(theta, 1e-9, 1.0), loc.rho(theta, 0.0, 1.0), atol=1e-8)


def test_summaries():
    theta = np.linspace(0, 1, 101)
    sites = {
        (100.0, 0.01): "late",
        (-100.0, 0.01): "early",
        (512.0, 0.01): "middle",
        (0.0, 0.1): "uniform",
        (0.0, 1.0): "middle",
        (5.0, 100.0): "vanishing",
    }
    for (xi, eta), site in sites.items():
        assert loc.summarize(loc.rho(theta, xi, eta), theta).site == site, (xi, eta)
    peaked = loc.summarize(np.eye(10)[3])
    assert peaked.participation == pytest.approx(0.1)
    assert peaked.center == peaked.peak_theta == 0.4
    assert peaked.window == (0.4, 0.4)
    assert loc.summarize([1.0, 0.0, 1.0]).site == "split"
    zero = loc.summarize(np.zeros(4))
    assert zero.site == "vanishing"
    assert np.isnan(zero.center)
    assert loc.summarize([0.3, 0.5], vanishing_below=0.6).site == "vanishing"
    assert loc.summarize([0.3, 0.5], uniform_within=0.5).site == "uniform"


def test_errors_of_the_methods(rng):
    W = np.eye(3)
    assert np.isnan(loc.signal_propagation(W, 5, method="gaussian").error).all()
    sampled = loc.signal_propagation(W, 5, method="monte_carlo", walks=100, seed=3)
    again = loc.signal_propagation(W, 5, method="monte_carlo", walks=100, seed=3)
    np.testing.assert_array_equal(sampled.rho, again.rho)
    assert (sampled.error > 0).all()
    assert sampled.summary(vanishing_below=1.1).site == "vanishing"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loc.signal_propagation(np.eye(2), 1), "T must be an integer >= 2, got 1"),
        (lambda: loc.signal_propagation(np.eye(2), 4, method="best"), "method must be 'exact', 'gaussian', "),
        (
            lambda: loc.signal_propagation(loc.qk_spectrum(np.eye(2)), 4, method="monte_carlo"),
            "method='monte_carlo' simulates tokens",
        ),
        (
            lambda: loc.signal_propagation(np.eye(2), 4, method="monte_carlo", walks=0),
            "walks must be an integer >= 1, got 0",
        ),
        (lambda: loc.signal_propagation([[1.0, 2.0], [0.0, 1.0]], 4, method="printed"), "assumes a symmetric W_QK"),
        (lambda: loc.signal_propagation(np.eye(2), 4, [[1, 2], [2, 1]]), "covariance must be positive semidefinite"),
        (lambda: loc.token_logits(np.ones((3, 4)), np.eye(2)), "X must have shape (..., T, 2), got (3, 4)"),
        (lambda: loc.rho([1.5], 1.0, 1.0), "theta must lie in [0, 1]"),
        (lambda: loc.rho([0.5], 1.0, 0.0), "eta must be positive and finite, got 0.0"),
        (lambda: loc.rho([0.5], 1.0, 1.0, "exact"), "form must be 'corrected' or 'printed', got 'exact'"),
        (lambda: loc.rho_limit([0.5], 1.0, "exact"), "form must be 'corrected' or 'printed', got 'exact'"),
        (lambda: loc.limit_window(0.0), "r must be finite and not zero, got 0.0"),
        (lambda: loc.normal_interval(0.0, -1.0), "variance must be >= 0"),
        (lambda: upper_tail([[1.0]], [0.0]), "x must be positive"),
        (lambda: upper_tail([[1.0]], [1.0, 2.0]), "shapes (B, n) and (B,), got (1, 1) and (2,)"),
        (lambda: loc.summarize([0.5]), "rho must have shape (T,) with T >= 2, got (1,)"),
        (lambda: loc.summarize([0.5, 1.5]), "rho must hold probabilities, got values in [0.5, 1.5]"),
        (lambda: loc.summarize([0.5, 0.5], [1.0, 0.0]), "theta must increase"),
        (lambda: loc.summarize([0.5, 0.5], [1.0]), "theta must have the shape (2,) of rho, got (1,)"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
