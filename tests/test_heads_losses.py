import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm import ConcaveHead, LinearHead, ReluHead, get_loss
from attsvm.heads import Head, stored_heads
from attsvm.losses import LOSSES

# A head of a vector v, or of one per problem; the same by NumPy.
HEADS = [
    (LinearHead, lambda x, v: x @ v),
    (lambda v: ReluHead(v[..., None] * np.eye(3)), lambda x, v: np.maximum(x * v, 0).sum(-1)),
    (lambda v: ConcaveHead(v, 0.3), lambda x, v: x @ v - 0.3 * (x**2).sum(-1)),
]
every_head = pytest.mark.parametrize(("make", "formula"), HEADS)


def test_every_head_of_the_library_is_here():
    own = {kind for kind, head in stored_heads().items() if head.__module__ == Head.__module__}
    assert {make(np.ones(3)).kind for make, _ in HEADS} == own


@every_head
def test_heads_are_vectorised_and_batched(rng, make, formula):
    x, v = rng.standard_normal((2, 5, 4, 3)), rng.standard_normal((2, 3))
    single = make(v[0])
    np.testing.assert_allclose(single(x), formula(x, v[0]), rtol=1e-12, atol=1e-12)
    assert single.dim == 3
    assert single.batch is None
    both = make(v)
    assert both.batch == 2
    assert both.dim == 3
    np.testing.assert_allclose(both(x), np.stack([formula(x[b], v[b]) for b in range(2)]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(both[1](x[1]), both(x)[1], rtol=1e-12, atol=1e-12)


@every_head
def test_tensors_gradients_bends_and_files_of_heads(rng, make, formula, tmp_path):
    torch = pytest.importorskip("torch")
    x, y, v = *rng.standard_normal((2, 50, 3)), rng.standard_normal(3)
    head = make(v)
    np.testing.assert_allclose(head(torch.tensor(x)).numpy(), formula(x, v), rtol=1e-12, atol=1e-12)
    if head.gradient(x) is not None:
        step, e = 1e-6, np.eye(3)  # central differences: error about 1e-12 + 1e-10 |h|
        slopes = (head(x[:, None] + step * e) - head(x[:, None] - step * e)) / (2 * step)
        np.testing.assert_allclose(head.gradient(x), slopes, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(head.gradient(torch.tensor(x)).numpy(), head.gradient(x), rtol=1e-12)
    excess = formula((x + y) / 2, v) - (formula(x, v) + formula(y, v)) / 2  # of the middle over the chord
    assert {"linear": np.abs(excess), "convex": excess, "concave": -excess, None: np.zeros(1)}[head.bend].max() < 1e-12
    plain = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    attsvm.save_problem(attsvm.AttentionProblem(plain.X, plain.Y, plain.Z, head), tmp_path / "head.npz")
    read = attsvm.load_problem(tmp_path / "head.npz").head
    assert type(read) is type(head)
    np.testing.assert_array_equal(read(x), head(x))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearHead([]), "v must have shape (d,), optionally with a leading batch axis, got (0,)"),
        (lambda: LinearHead([np.nan]), "v must be finite, but v[0] is nan"),
        (lambda: ReluHead([1.0]), "V must have shape (d, width), optionally with a leading batch axis, got (1,)"),
        (lambda: ConcaveHead([1.0], -1), "lam must be a finite number >= 0, got -1"),
    ],
)
def test_bad_heads_are_named(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


@pytest.mark.parametrize("name", LOSSES)
@given(u=st.floats(-30, 30))
def test_derivatives_match_finite_differences(name, u):
    loss = get_loss(name)
    h = 1e-5  # central differences: error about h^2 times the third derivative, 1e-10 relative to l
    scale = max(1.0, abs(float(loss(u))))
    assert (loss(u + h) - loss(u - h)) / (2 * h) == pytest.approx(loss.derivative(u), rel=1e-5, abs=1e-9 * scale)
    slope = (loss.derivative(u + h) - loss.derivative(u - h)) / (2 * h)
    assert slope == pytest.approx(loss.second(u), rel=1e-5, abs=1e-9 * scale)
    assert loss.derivative(u) < 0  # what the theory uses where Assumption A says strictly decreasing
    assert loss.second(u) >= 0  # convex: what `is_standard` claims of every entry


@pytest.mark.parametrize("name", LOSSES)
@given(low=st.floats(-6, 6), width=st.floats(0, 6))
def test_constants_are_the_largest_derivatives_on_the_interval(name, low, width):
    loss, u = get_loss(name), np.linspace(low, low + width, 2001)
    M0, M1 = loss.constants(low, low + width)
    # A grid of 2,001 points over at most 6 misses the peak by at most (0.003)^2 times the curvature.
    assert np.abs(loss.second(u)).max() == pytest.approx(M0, rel=1e-5)
    assert np.abs(loss.derivative(u)).max() == pytest.approx(M1, rel=1e-12)


def test_logistic_constants_of_the_papers():
    M0, M1 = get_loss("logistic").constants(-1.0, 1.0)
    assert M0 == pytest.approx(0.25)
    assert M1 == pytest.approx(1 / (1 + np.exp(-1.0)))


def test_losses_do_not_overflow():
    logistic = get_loss("logistic")
    assert logistic(-1e4) == 1e4
    assert logistic(1e4) == 0.0
    assert logistic.derivative(-1e4) == -1.0
    assert logistic.second(1e4) == 0.0


def test_bad_losses_are_named():
    with pytest.raises(ValueError, match=re.escape(f"loss must be one of {sorted(LOSSES)} or a Loss")):
        get_loss("hinge")
    with pytest.raises(ValueError, match=re.escape("low and high must be finite with low <= high, got 1.0 and 0.0")):
        get_loss("logistic").constants(1.0, 0.0)


@pytest.mark.parametrize("name", LOSSES)
def test_logarithms_of_losses_do_not_underflow_and_agree_with_tensors(name):
    torch = pytest.importorskip("torch")
    loss, u = get_loss(name), np.array([-600.0, -3.0, 0.0, 5.0, 36.5, 700.0])
    np.testing.assert_allclose(np.exp(loss.log_slope(u)), -loss.derivative(u), rtol=1e-12)
    far = np.array([-5000.0, 5000.0])
    for function in (loss.log_slope, *(() if name == "correlation" else (loss.log_value,))):
        assert np.isfinite(function(far)).all()
        np.testing.assert_allclose(function(torch.tensor(far)).numpy(), function(far), rtol=1e-15)
        if name in ("logistic", "exponential", "correlation"):  # what they are far from 0 is known
            assert function(far)[1] in (-5000.0, 0.0)
    for step in (-40.0, -0.5, 1e-9, 0.5, 40.0):  # against a difference where it does not cancel, else the slope
        chord = loss.log_chord(u, np.full(6, step))
        plain = (loss(u - step) - loss(u)) / step if abs(step) > 0.1 else -loss.derivative(u)
        np.testing.assert_allclose(np.exp(chord), plain, rtol=1e-8)
        np.testing.assert_allclose(
            loss.log_chord(torch.tensor(u), torch.full((6,), step).double()).numpy(), chord, rtol=1e-12, atol=1e-15
        )
