"""Other maps from logits to scores: invariants, no-crossing, and which of them polarize."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.polarization._protocols import figure_13
from attsvm.validation.ledger.polarization._instances import Array, flows, ordered
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


def _invariance(formula: Callable[[Array], Array], rng: np.random.Generator, trials: int) -> Measurement:
    errors = []
    for flow in flows(rng, trials):
        value = formula(flow.a)
        errors.append(np.abs(value - value[:, :1]).max(axis=-1))
    return count(np.concatenate(errors), 1e-9, "largest drift")


@each(1e-12, "change of the loss, or sum of its gradient in a, by automatic differentiation")
def _shift(formula: Callable[[Array, float], Array], rng: np.random.Generator, k: int) -> Any:
    """A change of the logits (a, c) -> a' that must leave the loss as it is."""
    import torch

    V, a, beta = (
        torch.tensor(x) for x in (rng.standard_normal((3, 5)), rng.standard_normal(5), rng.standard_normal(3))
    )

    def loss(logits: Any) -> Any:
        return torch.nn.functional.softplus(-(beta @ (V @ torch.softmax(logits, 0))))

    a.requires_grad_()
    torch.autograd.backward(loss(a))
    assert a.grad is not None
    moved = torch.tensor(formula(a.detach().numpy(), float(rng.normal())))
    return max(abs(float((loss(moved) - loss(a)).detach())), abs(float(a.grad.sum())))


@each(1e-12, "largest error")
def _map_flow(formula: Callable[..., tuple[Array, Array]], rng: np.random.Generator, k: int) -> Any:
    """Equations 30-31 against autograd of the loss, for several f."""
    import torch

    from attsvm.dynamics.polarization.descent import torch_parts

    name = ("sum", "square", "sigmoid_norm", "elu_norm")[k % 4]
    u, a, b = rng.standard_normal(5), 1 + 0.3 * rng.standard_normal(5), float(rng.uniform(0.2, 3))
    at, ut = torch.tensor(a, requires_grad=True), torch.tensor(u)
    s = torch_parts(name)(at)[0]
    torch.autograd.backward(torch.nn.functional.softplus(-(ut @ s)))
    gamma = float(torch.sigmoid(-(ut @ s.detach())))
    du, da = formula(u, a, b, gamma, name)
    assert at.grad is not None
    return max(float(np.abs(da + at.grad.numpy()).max()), float(np.abs(du - gamma * b * s.detach().numpy()).max()))


def _map_rates(u: Array, a: Array, b: float, gamma: float, name: str) -> tuple[Array, Array]:
    du, da = pol.orbit_rates(u, a, b, name)
    return gamma * du, gamma * da


@each(0.0, "largest overtaking in a")
def _no_crossing(formula: Callable[[pol.Normalization, Array], bool], rng: np.random.Generator, k: int) -> Any:
    """Order of a after a short flow from equal logits, on the instances that the hypothesis admits."""
    kind = pol.get_normalization(("sum", "sigmoid_norm", "elu_norm")[k % 3])
    a, u = np.full(4, float(rng.choice([-1.0, 1.0])) * float(rng.uniform(0.5, 2))), ordered(rng, 4)
    if not formula(kind, a):
        return None
    for _ in range(20):  # tau = 0.02: the order shows at once or not at all
        du, da = pol.orbit_rates(u, a, 1.0, kind)
        u, a = u + 1e-3 * du, a + 1e-3 * da
    return float(np.diff(a).max())


def _final_share(name: str, rng: np.random.Generator, t_end: float, p: int = 6) -> float:
    """Largest share of |s| at the end of a logistic flow from a(0) = 1 + 0.1 noise."""
    flow = pol.aligned_flow(
        0.3 * rng.standard_normal(p), 1 + 0.1 * rng.standard_normal(p), normalization=name, t_end=t_end, points=3
    )
    s = np.abs(flow.scores[-1])
    return float(s.max() / s.sum())


def _share(t_end: float, one_hot: bool) -> Callable[[str, np.random.Generator, int], Measurement]:
    """Whether a map polarizes (a share above 0.9) or not (below 0.6)."""

    def measure(formula: str, rng: np.random.Generator, trials: int) -> Measurement:
        shares = np.array([_final_share(formula, rng, t_end) for _ in range(trials)])
        return count(
            0.9 - shares if one_hot else shares - 0.6, 0.0, f"largest share against 0.9 or 0.6 at t = {t_end:.0e}"
        )

    return measure


@each(0.05, "relative error of log(s_j / s_0) / tau^2 at t = 1e300")
def _square_rate(formula: Callable[[float, Array], float], rng: np.random.Generator, k: int) -> Any:
    b, a0 = float(rng.uniform(0.5, 2)), 1 + 0.1 * rng.standard_normal(5)
    flow = pol.aligned_flow(0.1 * ordered(rng, 5), a0, b=b, normalization="square", t_end=1e300, points=3)
    assert flow.log_scores is not None
    ratio = np.delete(flow.log_scores[-1] - flow.log_scores[-1].max(), flow.log_scores[-1].argmax())
    return float(np.abs(ratio / flow.tau[-1] ** 2 / formula(b, a0) - 1).max())


def _square_loss_shares(formula: float, rng: np.random.Generator, trials: int) -> Measurement:
    """Largest scores of the published protocol under the square loss (t = 500) against a bound."""
    V, a, beta = figure_13()
    errors = []
    for name in ("l1", "sum", "square", "softmax", "relu_norm"):
        flow = pol.full_flow(
            V, a, pol.SquareLoss(beta), normalization=name, times=[0.0, 1.0, 500.0], rtol=1e-7, atol=1e-10
        )
        errors.append(float(np.abs(flow.scores[-1]).max()) - formula)
    return count(errors, 0.0, "largest score over the bound, five normalizations")


def _is_sound(kind: pol.Normalization, a: Array) -> bool:
    return bool(kind.value(a).sum() > 0 and (kind.slope(a) > 0).all())


CHECKS = {
    "C35": Check(_invariance, lambda a: a.sum(axis=-1)),
    "C58": Check(_shift, lambda a, c: a + c, trials=40),
    "C38": Check(_map_flow, _map_rates, trials=40),
    "C39": Check(_no_crossing, lambda kind, a: True, _is_sound, trials=60),
    "C40": Check(_share(1e12, False), "sum", trials=10),
    "C41": Check(_square_rate, lambda b, a0: -2 * b / float(a0 @ a0), trials=10),
    "C42": Check(_share(1e80, False), "sigmoid", trials=10),
    "C43": Check(_share(1e12, False), "relu", trials=10),
    "C44": Check(_square_loss_shares, 0.5, trials=1),
    "C45": Check(_share(1e300, True), "elu_norm", trials=8),
}
