import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers import NORMS, get_norm

NAMES = [*NORMS, "l1", "l3", "l1.5"]


@given(seed=st.integers(0, 10_000), name=st.sampled_from(NAMES))
def test_dual_norm_bounds_the_inner_product_and_is_an_involution(seed, name):
    rng = np.random.default_rng(seed)
    norm = get_norm(name)
    W, D = rng.standard_normal((2, 3, 4))
    assert np.sum(W * D) <= norm(W) * norm.dual(D) * (1 + 1e-12)
    assert norm.dual.dual(W) == pytest.approx(norm(W), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_has_the_norms_of_its_matrices_and_none_above_the_bound_on_the_frobenius_ball(rng, name):
    norm, W = get_norm(name), rng.standard_normal((20, 3, 4)) * (rng.random((20, 3, 4)) < 0.6)
    each = [norm(one) for one in W]
    np.testing.assert_allclose(norm.values(W), each, rtol=1e-14)
    most = norm.largest_on_ball((3, 4))
    assert (each <= most * np.linalg.norm(W, axis=(1, 2)) * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_expression_for_cvxpy_is_the_norm(rng, name):
    cp = pytest.importorskip("cvxpy")
    norm, W = get_norm(name), rng.standard_normal((3, 4))
    expected = norm(W) ** 2 / 2 if name == "frobenius" else norm(W)
    assert norm.expression(cp.Variable((3, 4), value=W)).value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_dual_norm_is_the_largest_product_on_the_ball(rng, name):
    """By cvxpy: with the values and the expression of a norm its dual is determined."""
    cp = pytest.importorskip("cvxpy")
    norm, D, W = get_norm(name), rng.standard_normal((3, 4)), cp.Variable((3, 4))
    ball = norm.expression(W) <= (0.5 if name == "frobenius" else 1.0)
    largest = cp.Problem(cp.Maximize(cp.sum(cp.multiply(D, W))), [ball]).solve(solver="CLARABEL")
    assert largest == pytest.approx(norm.dual(D), rel=1e-6)


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
    known = ", ".join(map(repr, dict.fromkeys(["frobenius", "nuclear", "spectral", "l1", "linf", *NORMS])))
    message = f"norm must be {known} or 'l<p>' with a number p >= 1, got "
    with pytest.raises(ValueError, match=re.escape(message + repr(name))):
        get_norm(name)
