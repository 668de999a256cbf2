"""Lemmas A.2 to A.5: gradient and Hessian where the heads are alike."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm._lazy import lazy_module
from attsvm.validation.ledger.record import Check, each
from attsvm.validation.ledger.specialization._common import Array, Rng, exact_gradient, exact_loss, point_of

if TYPE_CHECKING:
    import torch

    import attsvm.dynamics.specialization as sp
else:  # claims are listed without torch
    torch, sp = lazy_module("torch"), lazy_module("attsvm.dynamics.specialization")

__all__ = ["CHECKS"]


@cache
def _priors() -> tuple[sp.DiscretePrior, ...]:
    return (
        sp.DiscretePrior([[2.0, 1.0], [0.0, -1.0]], [0.5, 0.5]),  # dependent features, mean (1, 0)
        sp.flipping_spike(1.0, 2.0),
        sp.one_hot_spikes(2, 2.0),
        sp.DiscretePrior([[1.5, 0.0], [0.0, 1.5]], [0.8, 0.2]),
    )


def conditionally_centred(prior: sp.DiscretePrior) -> bool:
    """Whether ``E[w . theta | mean . theta] = 0`` for all w orthogonal to the mean."""
    mean = prior.mean
    along = prior.atoms @ mean
    across = prior.atoms - np.outer(along, mean) / (mean @ mean)
    return all(
        np.abs(prior.weights[same] @ across[same]).max() < 1e-9
        for same in (np.abs(along - value) < 1e-9 for value in along)
    )


@each(1e-8, "share of the gradient orthogonal to the mean")
def _stays_on_mean(formula: Any, rng: Rng, trial: int) -> Any:
    """A condition on the prior under which the gradient at m_h = x E theta is parallel to E theta."""
    prior = _priors()[trial % len(_priors())]
    if not formula(prior):
        return None
    point = point_of(np.tile(rng.uniform(0.4, 0.9) * prior.mean, (2, 1)))
    slope = exact_gradient(prior, 3, point, sp.ACTIVATIONS[trial % 3], nodes=20).m.numpy()
    mean = prior.mean / np.linalg.norm(prior.mean)
    return float(np.abs(slope - np.outer(slope @ mean, mean)).max() / np.abs(slope).max())


@each(1e-6, "share of m orthogonal to the mean at tau = 6")
def _reaches_mean(formula: Any, rng: Rng, trial: int) -> Any:
    """The same of the point that the heads reach from m = 0."""
    prior = _priors()[trial % len(_priors())]
    if not formula(prior):
        return None
    m = np.zeros((1, 2))
    for _ in range(20):  # equal heads of a softmax move like one head
        m = m - 0.3 * exact_gradient(prior, 3, point_of(m), "softmax", nodes=20).m.numpy()
    mean = prior.mean / np.linalg.norm(prior.mean)
    return float(np.abs(m - np.outer(m @ mean, mean)).max() / np.abs(m).max())


def _size(trial: int, rng: Rng) -> tuple[str, int, int]:
    return sp.ACTIVATIONS[trial % 3], int(rng.integers(3, 6)), int(rng.integers(1, 4))


@each(1e-10, "difference to the gradient at m = r = 0")
def _first_gradient(formula: Any, rng: Rng, trial: int) -> Any:
    activation, L, H = _size(trial, rng)
    H += 1
    prior = sp.DiscretePrior([[1.3]], [1.0])
    slope = exact_gradient(prior, L, point_of(np.zeros((H, 1))), activation).m.numpy() / 1.3
    return float(np.abs(slope - formula(activation, L, H)).max())


@each(0.5, "sign patterns that differ")
def _signs(formula: Any, rng: Rng, trial: int) -> Any:
    """Signs of A_eps - 1, sum_h' d sigma(h')_eps, A_l, sum_h' d sigma(h')_l in the score of the relevant token."""
    activation, L, H = _size(trial, rng)
    scores = torch.tensor(rng.standard_normal((H, L)), requires_grad=True)
    zero, one = torch.zeros(H).double(), torch.tensor(1.0).double()
    total = sp.head_weights(scores, zero, one, activation).sum(0)
    own = torch.autograd.grad(total[0], scores, retain_graph=True)[0][:, 0]
    other = torch.autograd.grad(total[1], scores, retain_graph=True)[0][:, 0]
    A = (total / H).detach()
    for h in range(H):
        values = (float(A[0]) - 1, float(own[h]), float(A[1]), float(other[h]))
        yield float(any(np.sign(x) != s for x, s in zip(values, formula, strict=True)))


@each(1e-9, "change of the loss")
def _even_in_r(formula: Any, rng: Rng, trial: int) -> Any:
    """A map of r that leaves the loss unchanged, so that its gradient vanishes at r = 0."""
    prior = sp.flipping_spike(1.0, 1.0)
    activation = sp.ACTIVATIONS[trial % 3]
    m, r = rng.standard_normal((2, 2)) * 0.5, rng.standard_normal((2, 2)) * 0.5
    losses = [exact_loss(prior, 2, point_of(m, x), activation, nodes=10) for x in (r, formula(r))]
    return abs(losses[0] - losses[1])


@each(0.05, "error relative to c1")
def _second_order_in_r(formula: Any, rng: Rng, trial: int) -> Any:
    """A formula for the second-order term, (c1, r) -> c, in ``loss - loss_0 = c + O(r^4)``."""
    prior, step = sp.GaussianPrior([1.0]), 0.02
    activation, L, H = sp.ACTIVATIONS[trial % 3], 3, 2
    v = sp.balanced_amplitude(L) if activation == "softmax1" else 1.0
    # One in two draws has heads whose orthogonal parts cancel.
    row = rng.standard_normal((1, 2))
    r = np.concatenate([row, -row]) if trial % 2 else rng.standard_normal((2, 2))
    r /= np.linalg.norm(r)
    zero = exact_loss(prior, L, point_of(np.zeros((H, 1)), v=v), activation)
    loss = exact_loss(prior, L, point_of(np.zeros((H, 1)), step * r, v=v), activation, nodes=8)
    c1 = sp.quadratic_constants(activation, L, H).c1
    return abs((loss - zero) / step**2 - formula(c1, r)) / c1


@each(0.5, "directions of r without curvature beside the stated number, m = 0, H = 2")
def _flat_directions(formula: Any, rng: Rng, trial: int) -> Any:
    """Eigenvalues of the Hessian in r (H x H entries) below a thousandth of the largest, by exact quadrature."""
    activation, L, H, step = sp.ACTIVATIONS[trial % 3], 3, 2, 1e-2
    v = sp.balanced_amplitude(L) if activation == "softmax1" else 1.0
    prior, m = sp.GaussianPrior([1.0]), np.zeros((H, 1))
    samples = sp.quadrature(prior, L, point_of(m, rng.standard_normal((H, H)), v=v), nodes=6)
    basis = np.eye(H * H).reshape(-1, H, H)
    zero = float(sp.reduced_loss(point_of(m, np.zeros((H, H)), v=v), samples, activation).value)

    def rise(r: Array) -> float:
        return float(sp.reduced_loss(point_of(m, step * r, v=v), samples, activation).value) - zero

    single = np.array([rise(e) for e in basis])
    hessian = np.array(
        [[rise(e + f) - single[i] - single[j] for j, f in enumerate(basis)] for i, e in enumerate(basis)]
    )
    values = np.linalg.eigvalsh(hessian / step**2)
    return abs(int((values < 1e-2 * values[-1]).sum()) - formula(H))


@each(1e-12, "difference to the derivatives in the common threshold and in v")
def _thresholds(formula: Any, rng: Rng, k: int) -> Any:
    prior = sp.DiscretePrior([[1.0]], [1.0])
    L, H, b, v = int(rng.integers(3, 6)), int(rng.integers(2, 5)), float(rng.normal()), float(rng.uniform(0.5, 2))
    slope = exact_gradient(prior, L, point_of(np.zeros((H, 1)), b=b, v=v), "softmax1")
    in_b, in_v = formula(L, H, b, v)
    return max(abs(float(slope.b.sum()) - in_b), abs(float(slope.v) - in_v))


@each(1e-6, "distance of v from the fixed line after a flow of (b, v) at m = r = 0")
def _attracted(formula: Any, rng: Rng, k: int) -> Any:
    """A line (L, b) -> v to which the thresholds and the amplitude of softmax-1 are said to be attracted."""
    L, H = int(rng.integers(3, 6)), int(rng.integers(1, 4))
    b, v = float(rng.normal()), float(rng.uniform(0.3, 3))
    for _ in range(4000):  # the gradients are exact; a heads-sized step keeps the flow stable
        in_b, in_v = sp.threshold_gradient(L, H, b, v)
        b, v = b - 0.2 * in_b / H, v - 0.2 * in_v
    return abs(v - formula(L, b))


@each(2e-3, "difference to the curvature of the exact loss")
def _hessian(formula: Any, rng: Rng, trial: int) -> Any:
    """A formula (activation, L, H, variance, b) -> (H, H) for the Hessian in m, F = 1."""
    step = 0.01
    activation, L, H = _size(trial, rng)
    H, variance, b = H + 1, float(rng.uniform(0.5, 3)), float(rng.normal(scale=0.3))
    v = sp.balanced_amplitude(L, b) if activation == "softmax1" else 1.0
    prior = sp.GaussianPrior([variance])
    direction = np.ones(H) if trial % 2 else rng.standard_normal(H)
    direction /= np.linalg.norm(direction)
    zero = exact_loss(prior, L, point_of(np.zeros((H, 1)), b=b, v=v), activation)
    moved = exact_loss(prior, L, point_of(step * direction[:, None], b=b, v=v), activation, nodes=8)
    found = 2 * (moved - zero) / step**2
    return abs(found - direction @ formula(activation, L, H, variance, b) @ direction)


def _hessian_formula(form: str) -> Any:
    def formula(activation: str, L: int, H: int, variance: float, b: float) -> Array:
        return sp.unspecialized_hessian(activation, L, H, [[variance]], b=b, form=form)

    return formula


@each(1e-12, "difference to the definitions by automatic differentiation")
def _table(formula: Any, rng: Rng, trial: int) -> Any:
    """A formula (activation, L, H, b) -> (c3, c4) against the definitions (53) and (54)."""
    activation, L, H = _size(trial, rng)
    H, b = H + 1, float(rng.normal(scale=0.5))
    v = torch.tensor(sp.balanced_amplitude(L, b) if activation == "softmax1" else 1.0, dtype=torch.float64)
    scores = torch.zeros(H, L, dtype=torch.float64, requires_grad=True)
    total = sp.head_weights(scores, torch.full((H,), b, dtype=torch.float64), v, activation).sum(0)
    c3 = c4 = 0.0
    for token in range(L):
        (first,) = torch.autograd.grad(total[token], scores, create_graph=True)
        (second,) = torch.autograd.grad(first[0, 0], scores, retain_graph=True)
        weight = float(total[token].detach()) / H - (token == 0)
        c3 -= weight * float(second[0, 0]) / H
        c4 += weight * float(second[1, 0]) / H
    return float(np.abs(np.array(formula(activation, L, H, b)) - (c3, c4)).max())


def _constants(activation: str, L: int, H: int, b: float) -> tuple[float, float]:
    c = sp.quadratic_constants(activation, L, H, b=b)
    return c.c3, c.c4


@each(0.35, "difference of exponents")
def _remainder(formula: Any, rng: Rng, trial: int) -> Any:
    """A formula prior -> exponent of the remainder of the quadratic expansion, m orthogonal to the mean."""
    skewed = sp.one_hot_spikes(3, 3.0)
    centred = skewed.atoms - skewed.mean
    even = sp.DiscretePrior(np.concatenate([centred, -centred]), np.full(6, 1 / 6))
    prior = (skewed, even)[trial % 2]
    w, heads = np.array([2.0, -1.0, -1.0]) / 6**0.5, np.array([1.0, 0.4])
    sizes, rest = (0.05, 0.025), []
    for s in sizes:
        m = s * np.outer(heads, w)
        zero = exact_loss(prior, 3, point_of(np.zeros((2, 3))), "softmax")
        quadratic = 0.5 * m.ravel() @ sp.unspecialized_hessian("softmax", 3, 2, prior.covariance) @ m.ravel()
        rest.append(abs(exact_loss(prior, 3, point_of(m), "softmax", nodes=20) - zero - quadratic))
    return abs(np.log(rest[0] / rest[1]) / np.log(2) - formula(prior))


def _skew_aware(prior: sp.DiscretePrior) -> float:
    centred = prior.atoms - prior.mean
    third = np.einsum("k,ka,kb,kc->abc", prior.weights, centred, centred, centred)
    return 3.0 if np.abs(third).max() > 1e-9 else 4.0


@each(1e-5, "difference to the mixed second derivative in b_1, b_2")
def _hessian_b(formula: Any, rng: Rng, trial: int) -> Any:
    prior, step = sp.DiscretePrior([[1.0]], [1.0]), 1e-3
    activation, L, H, b = ("softmax1", "bayes")[trial % 2], int(rng.integers(3, 6)), 2, float(rng.normal(scale=0.5))
    v = sp.balanced_amplitude(L, b)
    losses = [
        exact_loss(prior, L, point_of(np.zeros((H, 1)), b=np.array([b + i * step, b + j * step]), v=v), activation)
        for i, j in ((1, 1), (1, -1), (-1, 1), (-1, -1))
    ]
    mixed = (losses[0] - losses[1] - losses[2] + losses[3]) / (4 * step**2)
    return abs(mixed - formula(activation, L, H, b, v))


def _printed_hessian_b(activation: str, L: int, H: int, b: float, v: float) -> float:
    if activation == "bayes":
        return 0.0
    return float(2 * v**2 * L / H**2 * np.exp(2 * b) / (L + np.exp(b)) ** 4)


CHECKS = {
    "9": Check(_stays_on_mean, lambda prior: True, conditionally_centred, trials=8),
    "10": Check(
        _first_gradient,
        lambda activation, L, H: sp.initial_gradient(activation, L, H, form="printed"),
        sp.initial_gradient,
        trials=9,
    ),
    "11": Check(_signs, (-1.0, 1.0, 1.0, -1.0), trials=30),
    "12": Check(_reaches_mean, lambda prior: True, conditionally_centred, trials=4),
    "13": Check(_even_in_r, lambda r: -r, trials=4),
    "14": Check(_flat_directions, lambda H: 0, lambda H: H * (H - 1), trials=3),
    "15": Check(
        _thresholds,
        lambda L, H, b, v: sp.threshold_gradient(L, H, b, v, form="printed"),
        sp.threshold_gradient,
        trials=10,
    ),
    "16": Check(_hessian, _hessian_formula("corrected"), trials=6),
    "17": Check(_hessian, _hessian_formula("printed"), _hessian_formula("corrected"), trials=6),
    "18": Check(_table, _constants, trials=9),
    "19": Check(_remainder, lambda prior: 4.0, _skew_aware, trials=2),
    "20": Check(_hessian_b, _printed_hessian_b, trials=6),
    "21": Check(
        _second_order_in_r,
        lambda c1, r: c1 * len(r) * float((r**2).sum()),
        lambda c1, r: c1 * float((r.sum(axis=0) ** 2).sum()),
        trials=6,
    ),
    "47": Check(_attracted, sp.balanced_amplitude, trials=12),
}
