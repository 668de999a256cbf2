"""The softmax module against autograd, mpmath and dense linear algebra."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm import softmax_spectrum
from attsvm.softmax import (
    condition_bounds,
    condition_number,
    entropy,
    jacobian_spectrum,
    log_softmax,
    peakedness,
    softmax,
)

SPECTRUM_ERROR = 1e-10  # what `jacobian_spectrum` promises, relative to each eigenvalue


def encloses(x, rank, log_root, error=SPECTRUM_ERROR):
    """Whether g changes its sign within ``error`` of the log-root between x[rank - 1] and x[rank], in 60 digits."""
    with mpmath.workdps(60):
        logs = [mpmath.mpf(float(value)) for value in x]
        poles = [mpmath.exp(value) for value in logs]

        def g(s):
            t = mpmath.exp(s)
            return mpmath.fsum(pole / (pole - t) for pole in poles)

        low, high = mpmath.mpf(float(log_root)) - error, mpmath.mpf(float(log_root)) + error
        above = low <= logs[rank - 1] or g(low) < 0  # g rises from -inf to inf between the two poles
        below = high >= logs[rank] or g(high) > 0
        return above and below and low <= logs[rank] and high >= logs[rank - 1]


def log_attention_of(logits):
    return np.sort(log_softmax(logits), axis=-1)


def dense(a):
    return np.diag(a) - np.outer(a, a)


class TestSoftmax:
    def test_agrees_with_torch(self):
        torch = pytest.importorskip("torch")
        logits = np.random.default_rng(0).normal(size=(3, 4, 7)) * 30
        reference = torch.log_softmax(torch.tensor(logits), dim=-1).numpy()
        np.testing.assert_allclose(log_softmax(logits), reference, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(softmax(logits), np.exp(reference), rtol=1e-12)  # |log| reaches 1e2

    def test_top_log_probability_keeps_its_digits(self):
        assert log_softmax([0.0, -50.0])[0] == pytest.approx(-np.exp(-50.0), rel=1e-15)

    def test_masked_tokens(self):
        np.testing.assert_array_equal(softmax([-np.inf, 3.0]), [0.0, 1.0])

    @pytest.mark.parametrize(
        ("logits", "message"),
        [
            ([0.0, np.nan], r"logits\[1\] is nan"),
            ([[0.0, 1.0], [np.inf, 0.0]], r"logits\[1, 0\] is inf"),
            ([[0.0], [-np.inf]], r"logits\[1, :\] masks every token"),
            ([], "at least one token"),
            ("text", "real numbers"),
        ],
    )
    def test_bad_logits(self, logits, message):
        with pytest.raises(ValueError, match=message):
            softmax(logits)


@pytest.mark.parametrize(
    ("attention", "message"),
    [
        ([0.5, 0.6], r"attention\[:\] must be a distribution, but sums to 1.1"),
        ([[0.5, 0.5], [1.5, -0.5]], r"attention\[1, 1\] is -0.5"),
        ([0.5, np.nan], r"attention\[1\] is nan"),
        ([0.0, 0.0], "sums to 0"),
        (1.0, "at least one token"),
    ],
)
@pytest.mark.parametrize("function", [entropy, peakedness, jacobian_spectrum, condition_number, condition_bounds])
def test_attention_must_be_a_distribution(function, attention, message):
    with pytest.raises(ValueError, match=message):
        function(attention)


def test_one_argument_is_needed():
    with pytest.raises(ValueError, match="exactly one of attention and log_attention"):
        entropy()
    with pytest.raises(ValueError, match=r"log_attention\[0\] is nan"):
        entropy(log_attention=[np.nan])


class TestSpectrum:
    @pytest.mark.parametrize("scale", [0.0, 1e-9, 0.1, 1.0, 8.0])
    @pytest.mark.parametrize("n", [2, 3, 17, 96, 130, 400])
    def test_agrees_with_dense_eigenvalues(self, n, scale):
        a = softmax(np.random.default_rng(n).normal(size=(3, n)) * scale)
        reference = np.linalg.eigvalsh(np.stack([dense(row) for row in a]))
        # eigvalsh is accurate to rounding relative to the largest eigenvalue, below one
        np.testing.assert_allclose(jacobian_spectrum(a), reference, atol=1e-14)

    @pytest.mark.parametrize("scale", [0.05, 1.0, 5.0, 690 / 6.3, 400.0])
    def test_long_vectors_against_sixty_digits(self, scale):
        x = log_attention_of(np.random.default_rng(3).normal(size=1024) * scale)
        roots = jacobian_spectrum(log_attention=x, log=True)[1:]
        for rank in (1, 2, 9, 30, 33, 200, 511, 800, 992, 1000, 1020, 1022, 1023):
            assert encloses(x, rank, roots[rank - 1])

    def test_minimum_attention_of_1e_300(self):
        rng = np.random.default_rng(4)
        x = np.sort(np.log(1e-300) * rng.random(200))
        x[0] = np.log(1e-300) + np.log(np.exp(x[1:]).sum())
        a = softmax(x)
        assert a.min() == pytest.approx(1e-300, rel=1e-12)
        values = jacobian_spectrum(a)
        for rank in (1, 2, 3, 50, 120, 198, 199):
            assert encloses(np.sort(np.log(a)), rank, np.log(values[rank]))
        assert 1e-300 < values[1] < 1.1e-300

    def test_blocked_and_direct_evaluation_agree_everywhere(self):
        rng = np.random.default_rng(5)
        x = np.sort(rng.normal(size=(6, 700)) * np.array([[0.01], [0.3], [1], [3], [20], [120]]), axis=1)
        blocked = softmax_spectrum.log_roots(x)
        for row, roots in zip(x, blocked, strict=True):
            every = np.repeat(row[None], 699, axis=0)
            direct = softmax_spectrum.log_roots_at(every, np.arange(1, 700))
            np.testing.assert_allclose(roots, direct, rtol=0, atol=SPECTRUM_ERROR)

    def test_most_roots_need_no_direct_evaluation(self):
        x = np.sort(np.random.default_rng(6).normal(size=(1024, 8)), axis=0)
        _, doubtful = softmax_spectrum._blocked(x)
        assert doubtful.mean() < 0.05

    @pytest.mark.parametrize("n", [100, 300])
    def test_ties_and_clusters(self, n):
        rng = np.random.default_rng(n)
        logits = rng.integers(0, 6, size=n) * 1.0  # every level many times
        logits[: n // 3] += 1e-7 * rng.normal(size=n // 3)  # a cluster around each level
        x = log_attention_of(logits)
        roots = jacobian_spectrum(log_attention=x, log=True)[1:]
        assert (roots >= x[:-1] - 1e-14).all() and (roots <= x[1:] + 1e-14).all()  # normalizing again rounds x
        jumps = np.flatnonzero(np.diff(x) > 1e-3) + 1
        for rank in jumps:
            assert encloses(x, int(rank), roots[rank - 1])

    @pytest.mark.parametrize("n", [97, 150, 400])
    @pytest.mark.parametrize("kind", ["steps", "repeated", "outliers", "narrow", "two clusters", "cauchy", "wide"])
    def test_unkind_spacings(self, kind, n):
        rng = np.random.default_rng(n)
        logits = {
            "steps": np.cumsum(10.0 ** rng.uniform(-12, 1, size=n)),
            "repeated": np.repeat(rng.normal(size=n) * 5, 10)[:n] + 1e-9 * rng.normal(size=n),
            "outliers": np.concatenate([np.zeros(n - 3), [50, 1e-8, -400]]),
            "narrow": np.linspace(0, 1e-7, n),
            "two clusters": 1e-6 * rng.normal(size=n) + 100 * (np.arange(n) < n // 2),
            "cauchy": rng.standard_cauchy(size=n) * 10,
            "wide": -8.0 * np.arange(n),
        }[kind]
        x = np.sort(logits - logits.max())
        roots = softmax_spectrum.log_roots(x[None])[0]
        for rank in rng.integers(1, n, size=4):
            assert encloses(x, int(rank), roots[rank - 1])

    def test_zero_entries_and_one_token(self):
        np.testing.assert_allclose(jacobian_spectrum([0.5, 0.0, 0.5, 0.0]), [0.0, 0.0, 0.0, 0.5])
        np.testing.assert_array_equal(jacobian_spectrum([[1.0]]), [[0.0]])
        np.testing.assert_array_equal(jacobian_spectrum([0.0, 1.0, 0.0]), np.zeros(3))

    def test_moments_of_the_spectrum(self):
        a = softmax(np.random.default_rng(7).normal(size=(5, 1024)) * 2)
        values = jacobian_spectrum(a)
        np.testing.assert_allclose(values.sum(-1), (a - a**2).sum(-1), rtol=1e-12)
        squares = (a**2 - 2 * a**3).sum(-1) + (a**2).sum(-1) ** 2
        np.testing.assert_allclose((values**2).sum(-1), squares, rtol=1e-12)

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.floats(-300, 300), min_size=2, max_size=40), st.integers(0, 10**6))
    def test_interlacing_permutation_and_bounds(self, logits, seed):
        a = log_softmax(logits)
        roots = jacobian_spectrum(log_attention=a, log=True)[1:]
        x = np.sort(a)
        assert (roots >= x[:-1] - 1e-12).all() and (roots <= x[1:] + 1e-12).all()  # sharper Lemma 1.3
        assert roots[-1] <= np.log(0.5) + 1e-12
        mixed = np.random.default_rng(seed).permutation(a)
        np.testing.assert_array_equal(jacobian_spectrum(log_attention=mixed, log=True)[1:], roots)
        log_kappa = condition_number(log_attention=a, log=True)
        lower, upper, proxy = condition_bounds(log_attention=a, log=True)
        assert lower - 1e-9 <= log_kappa <= min(upper, proxy) + 1e-9
        assert log_kappa == pytest.approx(roots[-1] - roots[0], abs=SPECTRUM_ERROR)


class TestConditionNumber:
    @pytest.mark.parametrize("scale", [0.0, 1.0, 25.0, 300.0])
    @pytest.mark.parametrize("n", [2, 3, 8, 60])
    def test_against_sixty_digits(self, n, scale):
        x = log_attention_of(np.random.default_rng(n).normal(size=n) * scale)
        ends = np.sort(jacobian_spectrum(log_attention=x, log=True))[[1, -1]]
        assert encloses(x, 1, ends[0], 1e-12) and encloses(x, n - 1, ends[1], 1e-12)
        assert condition_number(log_attention=x, log=True) == pytest.approx(ends[1] - ends[0], abs=1e-12)

    def test_family_where_the_proxy_is_wrong(self):
        n, eps = 8, 10.0 ** -np.arange(1, 13)
        a = np.column_stack([1 - eps] + (n - 1) * [eps / (n - 1)])
        np.testing.assert_allclose(condition_number(a), n * (1 - eps), rtol=1e-9)  # 1 - eps is rounded
        assert condition_bounds(a)[2][-1] ** 2 > 1e24

    def test_limits(self):
        assert condition_number([0.5, 0.5, 0.0]) == np.inf
        assert condition_number([1.0, 0.0]) == 1.0
        assert [float(bound) for bound in condition_bounds([1.0, 0.0])[:2]] == [1.0, 2.0]
        with pytest.raises(ValueError, match="at least 2 tokens"):
            condition_number([1.0])

    def test_bounds_where_everything_underflows(self):
        x = log_softmax([0.0, -3000.0, -5000.0])
        lower, upper, _ = condition_bounds(log_attention=x, log=True)
        assert lower == pytest.approx(2000.0) and upper == pytest.approx(2000.0 + np.log(2))
        assert lower <= condition_number(log_attention=x, log=True) <= upper


def test_entropy_and_peakedness():
    assert entropy([1.0, 0.0]) == 0.0
    np.testing.assert_allclose(entropy([[0.5, 0.5], [0.9, 0.1]]), [np.log(2), -0.9 * np.log(0.9) - 0.1 * np.log(0.1)])
    assert peakedness([0.0, 1.0]) == np.inf
    assert peakedness(log_attention=log_softmax([0.0, -1e6]), log=True) == 1e6
