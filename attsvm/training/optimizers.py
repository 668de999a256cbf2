"""Optimizers on gradients of the form ``exp(log_scale) * direction``.

Each is a pure function of tensors: ``init(parameters)`` makes its state, ``step`` returns the new parameters and
state. Normalized methods never look at ``log_scale``; the others apply it where the number is still meaningful. Some
look at K and Q together; `docs/key_query.md` derives which norm of W each optimizer of (K, Q) is predicted to follow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.training.tensors import Parameters, like, polar, squared_norms
from attsvm.user_input import require_choice


def product_norm(norm: str | None) -> str | None:
    """The norm of W that ``max(||K||, ||Q||)`` puts on W = K Q^T, for factors with at least min(dx, dz) columns.

    ``|W|_* <= |K|_F |Q|_F`` and ``|W|_op <= |K|_op |Q|_op`` with equality at ``K = U S^1/2``, ``Q = V S^1/2``; other
    norms of the factors lead to none of the library's norms.

    Examples
    --------
    >>> product_norm("frobenius"), product_norm("spectral"), product_norm("linf")
    ('nuclear', 'spectral', None)
    """
    return {"frobenius": "nuclear", "l2": "nuclear", "spectral": "spectral"}.get(norm or "")


def flow_step(
    parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: Parameters, lr: Tensor, k: int
) -> tuple[Parameters, Parameters]:
    """Move all parameters together by lr times their length: gradient flow in the time ``log |parameters|``.

    Examples
    --------
    >>> import torch
    >>> W, gradient = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 7.0]]])
    >>> flow_step({"W": W}, {"W": gradient}, torch.zeros(1), {}, torch.tensor([0.1]), 1)[0]["W"]
    tensor([[[3.0000, 3.5000]]])
    """
    length = torch.stack(list(squared_norms(parameters).values())).sum(0).sqrt()
    size = torch.stack(list(squared_norms(gradient).values())).sum(0).sqrt()
    rate = lr * torch.where(size > 0, length / size, 0.0)
    return {n: torch.addcmul(t, like(rate, t), gradient[n], value=-1.0) for n, t in parameters.items()}, state


def compositional_step(
    parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: Parameters, lr: Tensor, k: int
) -> tuple[Parameters, Parameters]:
    """Steepest descent in the spectral norm of the change of ``K Q^T``, half of it from each factor.

    ``K <- K - lr/2 polar(G Q C^-1) C^-1`` with ``C = (Q^T Q + lr I)^1/2``, and likewise for Q. For factors of full row
    rank, far above ``lr^1/2``, K Q^T moves by ``lr polar(G)``; the term lr I keeps the product of both changes below
    ``lr / 4`` where they are small.

    Examples
    --------
    >>> import torch
    >>> K, Q, G = 30 * torch.eye(2)[None], torch.eye(2)[None], torch.tensor([[[5.0, 0.0], [0.0, -1.0]]])
    >>> gradient, lr = {"K": G @ Q, "Q": G.mT @ K}, torch.tensor([1e-3])
    >>> moved, _ = compositional_step({"K": K, "Q": Q}, gradient, torch.zeros(1), {}, lr, 1)
    >>> ((moved["K"] @ moved["Q"].mT - K @ Q.mT) * 1e3).round(decimals=2)
    tensor([[[-1.,  0.],
             [ 0.,  1.]]])
    """
    K, Q = parameters["K"], parameters["Q"]
    moved = {
        "K": _half_step(K, gradient["K"], Q, lr),
        "Q": _half_step(Q, gradient["Q"], K, lr),
    }
    return moved, state


def _half_step(factor: Tensor, gradient: Tensor, partner: Tensor, lr: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(partner.transpose(-1, -2) @ partner)
    largest, size = values[:, -1:], len(values[0])
    used = (values > largest * (size * torch.finfo(values.dtype).eps)) & (lr[:, None] > 0)  # lr is 0 after the end
    shrunk = torch.where(used, (values + lr[:, None]).rsqrt(), 0.0)
    whiten = (vectors * shrunk.unsqueeze(-2)) @ vectors.transpose(-1, -2)
    # Whitening raises rounding errors in the gradient as much as the directions in which the partner is smallest.
    growth = size * largest[:, 0].sqrt() * shrunk.amax(dim=1)
    return torch.addcmul(factor, like(lr, factor), polar(gradient @ whiten, growth) @ whiten, value=-0.5)


State = dict[str, Tensor]
# (parameters, gradient directions, log_scale (B,), state, lr (B,), step number from 1) -> (parameters, state)
# The step size is 0 for problems that have stopped: parameters and state must then stay as they are.
Step = Callable[[Parameters, Parameters, Tensor, State, Tensor, int], tuple[Parameters, State]]


@dataclass(frozen=True, eq=False)
class Optimizer:
    """An update rule.

    Attributes
    ----------
    name : str
    norm : str or None
        Norm whose SVM the method is expected to follow on W; None when no theory says.
    init : callable
    step : callable
    """

    name: str
    norm: str | None
    init: Callable[[Parameters], State]
    step: Step

    def norm_on(self, parameterization: str) -> str | None:
        """Norm of W whose SVM the method is expected to follow on "W", "KQ" or "prompt"."""
        return self.norm if parameterization != "KQ" or self.name == "compositional_muon" else product_norm(self.norm)


def _stateless(parameters: Parameters) -> State:
    return {}


def _unit(size: Tensor, floor: float) -> Tensor:
    """1 / (size + floor), and 0 for a zero gradient, which moves nothing."""
    inverse = (size + floor).reciprocal() if floor else size.reciprocal()
    return torch.where(size > 0, inverse, 0.0)


def _descend(t: Tensor, factor: Tensor, direction: Tensor) -> Tensor:
    return torch.addcmul(t, like(factor, t), direction, value=-1.0)


def _normalized_gd(normalization: str, floor: float) -> Step:
    def step(
        parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
    ) -> tuple[Parameters, State]:
        squares = squared_norms(gradient)
        if normalization == "joint":
            joint = lr * _unit(torch.stack(list(squares.values())).sum(0).sqrt_(), floor)
            factors = dict.fromkeys(squares, joint)
        else:
            factors = {name: lr * _unit(square.sqrt(), floor) for name, square in squares.items()}
        return {name: _descend(t, factors[name], gradient[name]) for name, t in parameters.items()}, state

    return step


def _plain_gd(
    parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
) -> tuple[Parameters, State]:
    factor = lr * log_scale.exp()
    return {name: _descend(t, factor, gradient[name]) for name, t in parameters.items()}, state


def _steepest_direction(g: Tensor, norm: str, p: float | None) -> Tensor:
    """The D of unit norm with the largest <g, D>; zero for a zero gradient."""
    if norm == "spectral":
        if g.ndim == 2:  # a vector parameter: the spectral norm of a column is its length
            return g * like(_unit(squared_norms({"g": g})["g"].sqrt(), 0.0), g)
        return polar(g)
    if p == 1.0:
        flat = g.flatten(1)
        top = flat.abs().argmax(dim=1, keepdim=True)
        return torch.zeros_like(flat).scatter(1, top, flat.gather(1, top).sign()).reshape(g.shape)
    if p == float("inf"):
        return g.sign()
    assert p is not None
    q = p / (p - 1.0)
    largest = g.flatten(1).abs().amax(dim=1)
    relative = g.abs() * like(_unit(largest, 0.0), g)
    size = relative.flatten(1).pow(q).sum(1).pow((q - 1.0) / q)
    return g.sign() * relative.pow(q - 1.0) * like(_unit(size, 0.0), g)


def _steepest(norm: str, p: float | None) -> Step:
    def step(
        parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
    ) -> tuple[Parameters, State]:
        return {n: _descend(t, lr, _steepest_direction(gradient[n], norm, p)) for n, t in parameters.items()}, state

    return step


def _mirror(p: float) -> tuple[Callable[[Parameters], State], Step]:
    """Mirror descent with potential ``|W|_p^p / p`` and gradients of unit dual norm."""
    q = p / (p - 1.0)

    def init(parameters: Parameters) -> State:
        return {name: t.sign() * t.abs().pow(p - 1.0) for name, t in parameters.items()}

    def step(
        parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
    ) -> tuple[Parameters, State]:
        duals = {}
        for name, g in gradient.items():
            size = g.flatten(1).abs().pow(q).sum(1).pow(1.0 / q)
            duals[name] = _descend(state[name], lr * _unit(size, 0.0), g)
        return {name: t.sign() * t.abs().pow(1.0 / (p - 1.0)) for name, t in duals.items()}, duals

    return init, step


def _adam(beta1: float, beta2: float) -> tuple[Callable[[Parameters], State], Step]:
    """Adam with epsilon 0, each moment kept relative to a scale of its own.

    A fixed epsilon would freeze it once gradients fall below; without one the update only sees ratios of
    gradients, which the log domain has exactly.
    """
    keep = {"m": math.log(beta1), "v": 0.5 * math.log(beta2)}

    def init(parameters: Parameters) -> State:
        state: State = {}
        for moment in keep:
            state |= _no_moment(parameters, moment)
        return state

    def step(
        parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
    ) -> tuple[Parameters, State]:
        scales = {moment: torch.maximum(state[moment] + kept, log_scale) for moment, kept in keep.items()}
        older = {moment: (state[moment] - scale).exp() for moment, scale in scales.items()}
        now = {moment: (log_scale - scale).exp() for moment, scale in scales.items()}
        new: State = dict(scales)
        # The first moment's scale is the smaller one: beta1 forgets faster than sqrt(beta2).
        between = (scales["m"] - scales["v"]).exp()
        moved = {}
        for name, t in parameters.items():
            m, v, g = state[f"m.{name}"], state[f"v.{name}"], gradient[name]
            m = beta1 * m * like(older["m"], t) + (1 - beta1) * g * like(now["m"], t)
            v = beta2 * v * like(older["v"], t).square() + (1 - beta2) * (g * like(now["v"], t)).square()
            new[f"m.{name}"], new[f"v.{name}"] = m, v
            ratio = (m / (1 - beta1**k)) / torch.where(v > 0, v / (1 - beta2**k), 1.0).sqrt()
            moved[name] = _descend(t, lr * between, ratio)
        return moved, new

    return init, step


def _momentum(norm: str, beta: float) -> tuple[Callable[[Parameters], State], Step]:
    """Steepest descent on a running mean of the gradients, kept relative to the scale of the largest in it.

    Muon as published replaces the polar factor by a few Newton-Schulz steps; here it is exact.
    """
    p = None if norm == "spectral" else float("inf")

    def init(parameters: Parameters) -> State:
        return _no_moment(parameters, "m")

    def step(
        parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: State, lr: Tensor, k: int
    ) -> tuple[Parameters, State]:
        scale = torch.maximum(state["m"] + math.log(beta), log_scale)
        older, now = (state["m"] - scale).exp(), (log_scale - scale).exp()
        means = {n: beta * state[f"m.{n}"] * like(older, t) + gradient[n] * like(now, t) for n, t in parameters.items()}
        moved = {n: _descend(t, lr, _steepest_direction(means[n], norm, p)) for n, t in parameters.items()}
        return moved, {"m": scale} | {f"m.{n}": mean for n, mean in means.items()}

    return init, step


def _no_moment(parameters: Parameters, moment: str) -> State:
    """A moment before the first step: zero, at the scale ``e^-inf``.

    A moment is ``exp(scale)`` times what is stored. Its scale is that of the latest gradient or of what is left of an
    older one, whichever is larger: gradients of mini-batches differ by any factor, and none may overflow.
    """
    first = next(iter(parameters.values()))
    scale = torch.full((first.shape[0],), -torch.inf, dtype=first.dtype, device=first.device)
    return {moment: scale} | {f"{moment}.{name}": torch.zeros_like(t) for name, t in parameters.items()}


# Methods with moments: the norm they follow, and what they keep of each moment in a step.
_MOMENTS: dict[str, tuple[str | None, tuple[float, ...]]] = {
    "adam": (None, (0.9, 0.999)), "muon": ("spectral", (0.95,)), "signum": ("linf", (0.95,)),
}  # fmt: skip


def _read_beta(name: str, text: str) -> float:
    try:
        beta = float(text)
    except ValueError:
        beta = float("nan")
    if not 0.0 < beta < 1.0:
        raise ValueError(f"optimizer {name!r}: what a moment keeps must be a number between 0 and 1, got {text!r}")
    return beta


def get_optimizer(name: str, normalization: str = "joint", floor: float = 0.0) -> Optimizer:
    """Look an optimizer up by name.

    Parameters
    ----------
    name : str
        "normalized_gd", "polyak", "gd", "flow", "adam", "muon", "signum", "compositional_muon", "steepest:<norm>" with
        a norm "frobenius", "spectral", "linf", "l1" or "l<p>" ("spectral" and "sign" for short), or "mirror:l<p>" with
        p > 1. What moments keep in a step may follow: "adam:0.9,0.999", "muon:0.95" and "signum:0.95" are the defaults.
    normalization : {"joint", "factor"}
        For "normalized_gd" on (K, Q): one norm for both factors, or one each.
    floor : float
        Added to the gradient's norm, as published code does; 0 by default.

    Examples
    --------
    >>> get_optimizer("sign").norm, get_optimizer("mirror:l3").norm
    ('linf', 'l3')
    """
    require_choice("normalization", normalization, "joint", "factor")
    name = {"spectral": "steepest:spectral", "sign": "steepest:linf"}.get(name, name)
    plain: dict[str, tuple[str, Step]] = {
        "normalized_gd": ("frobenius", _normalized_gd(normalization, floor)),
        "steepest:frobenius": ("frobenius", _normalized_gd(normalization, floor)),
        # normalized descent whose length is worked out from the loss (attsvm.training.loop)
        "polyak": ("frobenius", _normalized_gd("joint", floor)),
        "gd": ("frobenius", _plain_gd),
        "flow": ("frobenius", flow_step),
        "compositional_muon": ("spectral", compositional_step),
        "steepest:spectral": ("spectral", _steepest("spectral", None)),
    }
    if name in plain:
        return Optimizer(name, plain[name][0], _stateless, plain[name][1])
    kind, *betas = name.replace(":", ",").split(",")
    if kind in _MOMENTS and len(betas) in (0, len(_MOMENTS[kind][1])):
        norm, standard = _MOMENTS[kind]
        kept = [_read_beta(name, beta) for beta in betas] or list(standard)
        init, step = _adam(*kept) if norm is None else _momentum(norm, *kept)
        return Optimizer(name, norm, init, step)
    match = re.fullmatch(r"(steepest|mirror):l(inf|\d+(?:\.\d+)?)", name)
    p = float(match[2]) if match else 0.0
    if match and match[1] == "steepest" and p >= 1.0:
        return Optimizer(name, f"l{match[2]}", _stateless, _steepest("entrywise", p))
    if match and 1.0 < p < float("inf"):
        init, step = _mirror(p)
        return Optimizer(name, f"l{match[2]}", init, step)
    raise ValueError(
        "optimizer must be 'normalized_gd', 'gd', 'flow', 'adam', 'polyak', 'muon', 'signum', 'compositional_muon', "
        f"'spectral', 'sign', 'steepest:<norm>', 'mirror:l<p>' with p > 1 or 'ridge_decay', got {name!r}"
    )


def gradient_step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step of one of torch's optimizers on a loss that was just computed.

    Examples
    --------
    >>> import torch
    >>> w = torch.ones(2, requires_grad=True)
    >>> gradient_step(torch.optim.SGD([w], lr=0.1), w.square().sum())
    >>> w.detach()
    tensor([0.8000, 0.8000])
    """
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
