"""Figures on head and attention together, steps, geometries and variants; the models of the variants."""

import numpy as np
import pytest
import torch
from figure_outcomes import outcome_of

import attsvm
from attsvm.records import median_of
from attsvm.validation.figures.own import joint, steps, variants
from attsvm.validation.models.attention_variants import FINITE_MAPS, SUMMED, descend_finite, summed_gradient
from attsvm.validation.pictures import picture_faults


@pytest.fixture(autouse=True)
def closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_joint_has_a_row_per_model_and_prints_its_exceptions(monkeypatch):
    monkeypatch.setattr(joint, "MODELS", {"(v, p), equal steps": joint.MODELS["(v, p), equal steps"]})
    monkeypatch.setattr(joint, "_AWAY", 0.0)
    outcome = outcome_of(joint.FIGURE, trials=2, steps=200, radii=(80.0,))
    assert [row[0] for row in outcome.tables[0].rows] == ["(v, p), equal steps"]
    assert sum("exception" in note for note in outcome.notes) == 2
    assert not picture_faults(joint.draw(_two(outcome)))


def _two(outcome):
    """The picture wants at least two panels."""
    curves = dict(outcome.curves)
    curves["models"] = curves["models"] * 2
    curves |= {name: list(curves[name]) * 2 for name in ("head", "attention", "plain", "relaxed")}
    return type(outcome)(outcome.tables, curves)


def test_steps_measure_normalized_faster_than_constant():
    outcome = outcome_of(steps.FIGURE, trials=3, steps=300)
    ends = {rule: np.nanmedian(outcome.curves["distance"][k][:, -1]) for k, rule in enumerate(steps.STEPS)}
    assert ends["normalized, 1"] < ends["normalized, 0.1"] < ends["constant, 1 / L_W"]
    assert len(outcome.tables[0].rows) == len(steps.STEPS)
    assert not picture_faults(steps.draw(outcome))


def test_variants_have_rows_of_their_own():
    outcome = outcome_of(variants.FIGURE, trials=2, steps=200, finite_steps=300)
    assert [row[0] for row in outcome.tables[0].rows] == list(SUMMED)
    own = np.asarray(outcome.curves["own"]["sigmoid"])
    assert (own[:, -1] < own[:, 0]).all()
    assert not picture_faults(variants.draw(outcome))


def plain_prediction(name, batch, W, v):
    """Variants written from their definitions, by one-line formulas."""
    h = torch.einsum("bntd,bde,bne->bnt", X := torch.tensor(batch.X), W, torch.tensor(batch.Z))
    if name == "softmax-1":
        s = h.exp() / (1 + h.exp().sum(-1, keepdim=True))
    else:
        s = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid}[name](h)
    return torch.einsum("bnt,bntd,bd->bn", s, X, torch.tensor(v))


@pytest.mark.parametrize("name", ["softmax", "softmax-1", "sigmoid"])
def test_gradients_of_the_sums_equal_autograd(name):
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    W = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = torch.tensor(batch.Y) * plain_prediction(name, batch, W, batch.head.v.copy())
    (reference,) = torch.autograd.grad(torch.nn.functional.softplus(-value).sum() / 3, W)
    found = summed_gradient(SUMMED[name](batch, np.random.default_rng(0)).data, W.detach())
    torch.testing.assert_close(
        found.direction * found.log_scale.exp()[:, None, None], reference, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("own_weights", [True, False])
def test_two_heads_are_the_sum_of_two_layers(own_weights):
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    layer = SUMMED["2 heads, own W" if own_weights else "2 heads, one W"](batch, np.random.default_rng(3))
    rng = np.random.default_rng(3)  # what the layer drew
    v = rng.standard_normal((2, 2, 5))
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    turns = np.linalg.qr(rng.standard_normal((2, 2, 5, 5)))[0]
    W = torch.randn(2, 5, 10 if own_weights else 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W.requires_grad_()
    total = 0
    for h in range(2):
        part = W[..., 5 * h : 5 * h + 5] if own_weights else W @ torch.tensor(turns[:, h])
        total = total + plain_prediction("softmax", batch, part, v[:, h])
    (reference,) = torch.autograd.grad(torch.nn.functional.softplus(-torch.tensor(batch.Y) * total).sum() / 3, W)
    found = summed_gradient(layer.data, W.detach())
    torch.testing.assert_close(
        found.direction * found.log_scale.exp()[:, None, None], reference, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", FINITE_MAPS)
def test_finite_maps_are_projections_and_their_derivatives_are_right(name):
    mapped, lead = FINITE_MAPS[name]
    h = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, weights = mapped(h)
    torch.testing.assert_close(p.sum(-1), torch.ones(50, dtype=torch.float64))
    direction = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = weights * (direction - (weights * direction).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True))
    step = 1e-6
    differences = (mapped(h + step * direction)[0] - mapped(h - step * direction)[0]) / (2 * step)
    same = ((mapped(h + step * direction)[0] > 0) == (mapped(h - step * direction)[0] > 0)).all(-1)  # no kink between
    torch.testing.assert_close(slope[same], differences[same], rtol=1e-4, atol=1e-5)
    assert (
        mapped(torch.tensor([lead, 0.0]))[0].tolist()
        == [1.0, 0.0]
        != mapped(torch.tensor([0.99 * lead, 0.0]))[0].tolist()
    )


def test_finite_maps_stop_where_every_token_leads():
    batch = attsvm.random_problem(n=3, T=4, d=8, batch=5, seed=0)
    W, last, stopped = descend_finite(batch, "sparsemax", 2000, 0.02, seed=0)
    ranked = np.sort(attsvm.attention.logits(batch, W), axis=-1)
    assert stopped.all() and (last < 2000).all()
    assert (ranked[..., -1] - ranked[..., -2]).min() >= 1.0


def test_the_interval_of_a_median_covers_it():
    rng = np.random.default_rng(0)
    covered = [(i := median_of(rng.exponential(size=25))).low <= np.log(2) <= i.high for _ in range(400)]
    assert 0.95 <= np.mean(covered) <= 0.995  # order statistics 8 and 18 of 25: 95.7 % by the binomial law
    assert str(median_of([])) == "-"
