import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import get_norm

NAMES = ["frobenius", "nuclear", "spectral", "l1", "linf", "l3", "l1.5"]


@given(seed=st.integers(0, 10_000), name=st.sampled_from(NAMES))
def test_dual_norm_bounds_the_inner_product_and_is_an_involution(seed, name):
    rng = np.random.default_rng(seed)
    norm = get_norm(name)
    W, D = rng.standard_normal((2, 3, 4))
    assert np.sum(W * D) <= norm(W) * norm.dual(D) * (1 + 1e-12)
    assert norm.dual.dual(W) == pytest.approx(norm(W), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "attaining"),
    [
        ("frobenius", lambda W: W / np.linalg.norm(W)),
        ("nuclear", lambda W: (lambda u, s, v: np.outer(u[:, 0], v[0]))(*np.linalg.svd(W, full_matrices=False))),
        ("spectral", lambda W: (lambda u, s, v: u @ v)(*np.linalg.svd(W, full_matrices=False))),
        ("l1", lambda W: np.sign(W) * (np.abs(W) == np.abs(W).max())),
        ("linf", np.sign),
    ],
)
def test_dual_norm_is_attained(rng, name, attaining):
    W = rng.standard_normal((3, 4))
    norm, best = get_norm(name), attaining(W)
    assert np.sum(W * best) / norm(best) == pytest.approx(norm.dual(W), rel=1e-12)


def test_l2_is_frobenius():
    assert get_norm("l2") == get_norm("frobenius")


@pytest.mark.parametrize("name", ["fro", "l0.5", "l", "L1", "", 2])
def test_unknown_norm_lists_the_known_ones(name):
    message = "norm must be 'frobenius', 'nuclear', 'spectral', 'l1', 'linf' or 'l<p>' with a number p >= 1, got "
    with pytest.raises(ValueError, match=re.escape(message + repr(name))):
        get_norm(name)
