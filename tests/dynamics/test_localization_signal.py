"""Spectrum, signal moments, piecewise softmax: against definitions, Monte Carlo and the papers' printed forms."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm.dynamics.localization as loc
from attsvm.dynamics.localization.eigenspectrum import read_covariance
from attsvm.softmax import softmax


def symmetric(rng, d):
    A = rng.standard_normal((d, d))
    return (A + A.T) / 2


def covariance(rng, d):
    R = rng.standard_normal((d, d))
    return R.T @ R / d


def variance_error(samples):
    """Standard error of the sample variance, from the fourth moment."""
    centered = samples - samples.mean(axis=0)
    second, fourth = (centered**2).mean(axis=0), (centered**4).mean(axis=0)
    return np.sqrt((fourth - second**2) / len(samples))


def test_piecewise_softmax_is_the_clipped_first_order_expansion(rng):
    gamma, gamma_0 = loc.softmax_expansion(5)
    omega = rng.standard_normal((7, 5))
    np.testing.assert_allclose(loc.linear_softmax(omega), omega @ gamma.T + gamma_0, atol=1e-15)
    np.testing.assert_array_equal(loc.piecewise_softmax(30 * omega), np.clip(loc.linear_softmax(30 * omega), 0, 1))
    step = 1e-5
    # Error of a central difference: step^2 times third derivatives of at most 1.
    differences = np.stack([(softmax(step * e) - softmax(-step * e)) / (2 * step) for e in np.eye(5)], axis=1)
    np.testing.assert_allclose(differences, gamma, atol=1e-9)


def test_the_linear_part_sums_to_one_and_the_clipped_one_does_not(rng):
    omega = 50 * rng.standard_normal((20, 6))
    np.testing.assert_allclose(loc.linear_softmax(omega).sum(axis=1), 1.0, atol=1e-12)
    assert (loc.piecewise_softmax(omega).sum(axis=1) > 1.2).any()


def test_spectrum_of_a_matrix_is_that_of_the_product(rng):
    A, S = rng.standard_normal((5, 5)), covariance(rng, 5)
    spectrum = loc.qk_spectrum(A, S)
    assert spectrum.trace == pytest.approx(np.trace(A @ S))
    assert spectrum.trace_squared == pytest.approx(np.trace(A @ S @ A @ S))
    assert spectrum.gram == pytest.approx(np.trace(A @ S @ A.T @ S))
    expected = np.linalg.eigvals(A @ S)
    np.testing.assert_allclose(np.sort_complex(spectrum.eigenvalues), np.sort_complex(expected), atol=1e-10)
    assert not spectrum.symmetric
    W = symmetric(rng, 5)
    found = loc.qk_spectrum(W, S)
    w = np.sort(np.linalg.eigvals(W @ S).real)
    np.testing.assert_allclose(np.sort(found.eigenvalues), w, atol=1e-12)
    assert found.variance == pytest.approx(w.var())
    assert found.xi == pytest.approx(w.sum() / np.linalg.norm(w))
    assert found.eta(2.0) == pytest.approx(np.linalg.norm(w) / 2)
    assert found.strength() == pytest.approx(found.xi * found.eta())
    assert found.effective_rank == pytest.approx((w**2).sum() ** 2 / (w**4).sum())


@pytest.mark.parametrize("kind", ["identity", "diagonal", "matrix"])
def test_a_pair_has_the_spectrum_of_its_product(rng, kind):
    d, r = 12, 3
    W_q, W_k = rng.standard_normal((2, r, d))
    S = {"identity": None, "diagonal": rng.uniform(0.5, 2, d), "matrix": covariance(rng, d)}[kind]
    pair, dense = loc.qk_spectrum((W_q, W_k), S), loc.qk_spectrum(W_k.T @ W_q, S)
    assert pair.core.shape == (2 * r, 2 * r)
    for name in ("trace", "trace_squared", "gram", "variance", "effective_rank"):
        assert getattr(pair, name) == pytest.approx(getattr(dense, name), rel=1e-10), name
    nonzero = np.sort_complex(dense.eigenvalues[np.abs(dense.eigenvalues) > 1e-9])
    small = pair.eigenvalues[np.abs(pair.eigenvalues) > 1e-9]
    np.testing.assert_allclose(np.sort_complex(small), nonzero, atol=1e-9)
    # A symmetric head is recognised, and the weights of the law agree with those of the dense matrix.
    same = loc.qk_spectrum((W_q, W_q), S)
    assert same.symmetric
    assert same.xi > 0
    weights = [np.sort(loc.signal_weights(s, 6, 1.0)) for s in (pair, dense)]
    for few, many in zip(*weights, strict=True):
        np.testing.assert_allclose(few[np.abs(few) > 1e-9], many[np.abs(many) > 1e-9], atol=1e-9)


def test_a_pair_is_not_multiplied_out():
    # 100,000 x 100,000 doubles would be 80 GB.
    W_q, W_k = np.random.default_rng(0).standard_normal((2, 2, 100_000))
    spectrum = loc.qk_spectrum((W_q, W_k), np.linspace(0.5, 1.5, 100_000))
    assert spectrum.trace == pytest.approx(float((W_q * W_k * np.linspace(0.5, 1.5, 100_000)).sum()))


@given(st.integers(0, 10**6), st.floats(0.1, 10))
def test_moments_scale_with_w_temperature_and_covariance(seed, factor):
    rng = np.random.default_rng(seed)
    A, S = rng.standard_normal((4, 4)), covariance(rng, 4)
    base = loc.signal_moments(A, 7, S, temperature=2.0)
    for other in (
        loc.signal_moments(factor * A, 7, S, temperature=2.0),
        loc.signal_moments(A, 7, factor * S, temperature=2.0),
        loc.signal_moments(A, 7, S, temperature=2.0 / factor),
    ):
        np.testing.assert_allclose(other.mean - 1 / 7, factor * (base.mean - 1 / 7), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(other.variance, factor**2 * base.variance, rtol=1e-9)
    rotation = np.linalg.qr(rng.standard_normal((4, 4)))[0]
    turned = loc.signal_moments(rotation @ A @ rotation.T, 7, rotation @ S @ rotation.T, temperature=2.0)
    np.testing.assert_allclose(turned.variance, base.variance, rtol=1e-9)
    np.testing.assert_allclose(loc.signal_moments(A.T, 7, S, temperature=2.0).variance, base.variance, rtol=1e-9)


@pytest.fixture(scope="module")
def simulated():
    generator = np.random.default_rng(5)
    W = symmetric(generator, 12)
    return W, loc.simulate_signals(W, 40, 25_000, seed=generator)


@pytest.mark.parametrize("theta", [0.05, 0.25, 0.5, 0.75, 1.0])
def test_the_variance_matches_monte_carlo_where_the_printed_one_is_off(theta, simulated):
    W, signals = simulated
    T, walks = 40, len(signals)
    signal = signals[:, round(theta * T) - 1]
    exact, limit, printed = (loc.signal_moments(W, T, form=form) for form in ("exact", "asymptotic", "printed"))
    at = round(theta * T) - 1
    # 4 standard errors: one in 16,000 by chance, and the seed is fixed.
    assert abs(signal.mean() - exact.mean[at]) < 4 * signal.std() / np.sqrt(walks)
    assert abs(signal.var() - exact.variance[at]) < 4 * variance_error(signal)
    assert abs(signal.var() - printed.variance[at]) > 8 * variance_error(signal)
    # Ratio of the printed variance to the corrected one: (2 theta^2 + 7/12) / (2 u^2 + 1/12), 13 at the middle. At
    # theta = 0 both are 7/12, which is why nobody looking at early tokens would notice.
    u = theta - 0.5
    ratio = printed.variance[at] / limit.variance[at]
    assert ratio == pytest.approx((2 * theta**2 + 7 / 12) / (2 * u**2 + 1 / 12))
    assert exact.variance[at] == pytest.approx(limit.variance[at], rel=0.11)  # finite T: 1/T corrections


def test_the_variance_of_an_asymmetric_matrix_is_not_that_of_its_symmetric_part(rng):
    T, d, walks = 20, 6, 30_000
    A, S = rng.standard_normal((d, d)), covariance(rng, d)
    signal = loc.simulate_signals(A, T, walks, S, seed=rng)
    exact = loc.signal_moments(A, T, S)
    error = variance_error(signal)
    assert (np.abs(signal.var(axis=0) - exact.variance) < 4.5 * error).all()
    symmetrized = loc.signal_moments(loc.qk_spectrum(A, S).symmetrized(), T)
    assert (np.abs(signal.var(axis=0) - symmetrized.variance) / error).max() > 15
    with pytest.raises(ValueError, match="form='printed' assumes a symmetric W_QK"):
        loc.signal_moments(A, T, S, form="printed")


@pytest.mark.parametrize("equation", [15, 16, 17, 18, 22])
def test_moments_of_the_walk(equation, rng):
    i, j, T, d = 3, 5, 8, 3
    W, S = symmetric(rng, d), covariance(rng, d)
    X = loc.random_walks(80_000, T, d, S, seed=rng)
    x_i, x_j, x_T = X[:, i - 1], X[:, j - 1], X[:, -1]

    def form(a, b):
        return np.einsum("nd,de,ne->n", a, W, b)

    sample = {
        15: lambda: form(x_i, x_i),
        16: lambda: form(x_i, x_i) ** 2,
        17: lambda: form(x_i, x_j) ** 2,
        18: lambda: form(x_i, x_j) * form(x_j, x_j),
        22: lambda: form(x_i, x_T) * form(x_j, x_T),
    }[equation]()
    trace, square = np.trace(W @ S), np.trace(W @ S @ W @ S)
    error = sample.std() / np.sqrt(len(sample))
    assert abs(sample.mean() - loc.walk_moment(equation, i, j, T, trace, square)) < 4 * error
    assert abs(sample.mean() - loc.walk_moment(equation, i, j, T, trace, square, form="printed")) > 6 * error


def test_exact_moments_tend_to_the_asymptotic_ones(rng):
    W = symmetric(rng, 5)
    gaps = []
    for T in (20, 200, 2000):
        exact, limit = loc.signal_moments(W, T), loc.signal_moments(W, T, form="asymptotic")
        gaps.append(np.abs(exact.variance - limit.variance).max())
    assert gaps[0] > 9 * gaps[1] > 81 * gaps[2] > 0  # first order in 1/T


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: loc.signal_moments(np.eye(2), 1), "T must be an integer >= 2, got 1"),
        (lambda: loc.signal_moments(np.eye(2), 2.5), "T must be an integer >= 2, got 2.5"),
        (lambda: loc.signal_moments(np.eye(2), 4, temperature=0.0), "temperature must be positive and finite, got 0.0"),
        (
            lambda: loc.signal_moments(np.eye(2), 4, form="exakt"),
            "form must be one of ('exact', 'asymptotic', 'printed')",
        ),
        (lambda: loc.qk_spectrum([[1.0, np.nan], [0.0, 1.0]]), "W must be finite, but W[0, 1] is nan"),
        (lambda: loc.qk_spectrum(np.ones((2, 3))), "W must be a square matrix or a pair (W_q, W_k), got shape (2, 3)"),
        (
            lambda: loc.qk_spectrum((np.eye(2), np.eye(3))),
            "W_q and W_k must both have shape (r, d), got (2, 2) and (3, 3)",
        ),
        (lambda: loc.qk_spectrum((np.eye(2),)), "W must be a matrix or a pair (W_q, W_k), got a tuple of 1"),
        (lambda: loc.qk_spectrum(np.eye(2), [[1.0, 0.5], [0.0, 1.0]]), "covariance must be symmetric"),
        (lambda: loc.qk_spectrum(np.eye(2), [1.0, -1.0]), "its smallest eigenvalue is -1"),
        (
            lambda: loc.qk_spectrum(np.eye(2), np.ones(3)),
            "covariance must be a number or have shape (2,) or (2, 2), got (3,)",
        ),
        (lambda: loc.qk_spectrum(np.eye(2), np.nan), "covariance must be finite"),
        (lambda: loc.qk_spectrum(np.eye(2), read_covariance(None, 3)), "covariance must be of dimension 2, got 3"),
        (lambda: loc.signal_moments(loc.qk_spectrum(np.eye(2)), 4, 1.0), "covariance goes with a matrix or a pair"),
        (lambda: loc.qk_spectrum([[1.0, 1.0], [0.0, 1.0]]).xi, "xi is defined for a symmetric W_QK"),
        (lambda: loc.qk_spectrum([[1.0, 1.0], [0.0, 1.0]]).eta(), "eta is defined for a symmetric W_QK"),
        (lambda: loc.qk_spectrum(np.zeros((2, 2))).xi, "xi is undefined: W is zero"),
        (lambda: loc.walk_moment(15, 3, 2, 4, 1.0, 1.0), "1 <= i <= j <= T, got i = 3, j = 2, T = 4"),
        (lambda: loc.walk_moment(14, 1, 2, 4, 1.0, 1.0), "equation must be one of (15, 16, 17, 18, 22), got 14"),
        (lambda: loc.walk_moment(15, 1, 2, 4, 1.0, 1.0, form="x"), "form must be 'corrected' or 'printed', got 'x'"),
        (lambda: loc.random_walks(0, 2, 2), "count must be an integer >= 1, got 0"),
        (lambda: loc.linear_softmax([1.0]), "logits must hold T >= 2 tokens, got T = 1"),
        (lambda: loc.linear_softmax(1.0), "logits must have at least one axis"),
        (lambda: loc.piecewise_softmax([1.0, np.inf]), "logits must be finite, but logits[1] is inf"),
        (lambda: loc.softmax_expansion(1), "T must be an integer >= 2, got 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
