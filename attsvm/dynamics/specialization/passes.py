"""Passes over the samples: scores, attention, errors and their derivatives in the scores, block by block.

With ``A = mean_h sigma(h)`` and ``e_l = A_l - delta_{l,eps}`` the loss of a sequence is ``sum_l e_l^2``, and
``c_hl = d loss / d chi_hl`` is

    softmax    c_hl = (2/H) sigma_hl (e_l - sum_l' sigma_hl' e_l')
    softmax-1  c_hl = (2v/H) s_hl (e_l - sum_l' s_hl' e_l'),   s = sigma / v
    bayes      c_hl = 2 p_hl (e_l - sum_l' A_l' e_l'),         p = sigma / H.

`SharedPass` is the fast one; it needs scores whose exponential is finite. `PlainPass` takes any scores and weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.dynamics.specialization.attention import check_activation
from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.samples import Samples

__all__ = ["PlainPass", "SharedPass", "Totals", "choose_pass"]

# exp of a score of this size, summed over tokens, stays finite.
_SAFE_SCORE = {torch.float64: 600.0, torch.float32: 60.0}


@dataclass(frozen=True, eq=False)
class Totals:
    """What a block adds: derivatives ``sum c z^T / factor`` and in v, before the division by the number of samples.

    Attributes
    ----------
    losses : Tensor, shape (B, n)
        Per sample (mean over positions for shared samples).
    product : Tensor, shape (B H, columns) or None
    slope_v : Tensor, shape (B,) or None
    """

    losses: Tensor
    product: Tensor | None = None
    slope_v: Tensor | None = None


class PlainPass:
    """Every sequence on its own, relevant token first, at any size of the scores."""

    def __init__(self, point: OrderParameters, samples: Samples, activation: str):
        check_activation(activation)
        if point.features != samples.features:
            raise ValueError(f"the point has {point.features} features, the samples {samples.features}")
        if point.r is not None and point.r.shape[-1] > samples.heads:
            raise ValueError(f"r has {point.r.shape[-1]} columns, the samples noise for {samples.heads} heads")
        self.samples, self.activation, self.softmax = samples, activation, activation == "softmax"
        m = point.m if point.m.ndim == 3 else point.m[None]
        self.B, self.H, self.F = m.shape
        b = point.b.reshape(self.B, self.H, 1)
        self.v = (point.v if activation == "softmax1" else torch.ones_like(point.v)).reshape(self.B, 1, 1)
        columns = [m] if self.softmax else [-b if activation == "softmax1" else b, m]
        if point.r is not None:
            columns.append(point.r.reshape(self.B, self.H, -1))
        self.m = m.reshape(self.B * self.H, self.F)
        self.P = torch.cat(columns, dim=-1).reshape(self.B * self.H, -1)
        self.factor = 2.0 if activation == "bayes" else 2.0 / self.H

    @property
    def safe(self) -> bool:
        """Whether no exponential of a score can overflow (by Cauchy and Schwarz)."""
        largest = float(self.P.square().sum(1).max().sqrt()) * self.samples.reach
        return largest < _SAFE_SCORE.get(self.P.dtype, 0.0)

    def columns(self, block: Tensor) -> Tensor:
        """Rows of a block that the point uses, shape (columns, tokens n)."""
        first = 1 if self.softmax else 0
        return block[first : first + self.P.shape[1]].flatten(1)

    def attend(self, z: Tensor, tokens: int) -> tuple[Tensor, Tensor]:
        """Weights (B, H, L, n) of the heads (sigma, s or p) and the error e (B, L, n)."""
        scores = (self.P @ z).view(self.B, self.H, tokens, -1)
        if self.activation == "bayes":
            weights = torch.softmax(scores.flatten(1, 2), dim=1).view(scores.shape)
            e = weights.sum(1)
        else:
            if self.softmax:
                weights = torch.softmax(scores, dim=2)
            else:  # the threshold is in the scores: a sink of score 0
                weights = torch.softmax(torch.nn.functional.pad(scores, (0, 0, 0, 1)), dim=2)[:, :, :-1]
            e = weights.mean(1) * self.v
        e[:, 0] -= 1.0
        return weights, e

    def sensitivity(self, weights: Tensor, e: Tensor) -> Tensor:
        """``c / factor``, shape (B, H, L, n)."""
        if self.activation == "bayes":
            share = e.square().sum(1, keepdim=True).add_(e[:, :1])  # sum_l A_l e_l, as A = e + delta
            return weights * (e - share).unsqueeze(1)
        pulled = weights * e.unsqueeze(1)
        return (pulled - weights * pulled.sum(2, keepdim=True)) * self.v.unsqueeze(-1)

    def run(self, i: int, gradient: bool) -> Totals:
        """Losses of block i and, if asked for, its derivatives."""
        block = self.samples.blocks[i]
        z = self.columns(block)
        weights, e = self.attend(z, block.shape[1])
        losses = e.square().sum(1)
        if not gradient:
            return Totals(losses)
        each = self.samples.weights[i] if self.samples.weights is not None else torch.ones_like(losses[0])
        product = (self.sensitivity(weights, e) * each).view(len(self.P), -1) @ z.T
        slope_v = (weights.mean(1) * e).sum(1) @ each if self.activation == "softmax1" else None
        return Totals(losses, product, slope_v)


class SharedPass(PlainPass):
    """All L positions of the relevant token at once, from exponentials that they share.

    Below, j is the position and l any token: ``E_hl = exp(chi_hl)`` without theta, ``u_h = exp(m_h . theta) - 1``,
    so that the sequence with position j has the exponentials ``E_hl + delta_lj (E u)_hl`` and the normalizer
    ``S_h + (E u)_hj``. Arrays have shapes (B, H, L, n) and (B, L, L, n); every loop adds a product in place.
    """

    def __init__(self, point: OrderParameters, samples: Samples, activation: str):
        super().__init__(point, samples, activation)
        n = max(block.shape[-1] for block in samples.blocks)
        size = self.B * self.H * samples.L * n
        self.scratch = self.P.new_empty(3, size)  # fresh pages would cost as much as the arithmetic
        self.pairs = self.P.new_empty(self.B * samples.L**2 * n)

    def _take(self, which: int, n: int) -> Tensor:
        L = self.samples.L
        return self.scratch[which, : self.B * self.H * L * n].view(self.B, self.H, L, n)

    def run(self, i: int, gradient: bool) -> Totals:
        """Losses of block i, averaged over positions, and its derivatives summed over positions."""
        assert self.samples.thetas is not None
        z, theta = self.columns(self.samples.blocks[i]), self.samples.thetas[i]
        n = theta.shape[-1]
        E = self._take(0, n)
        torch.mm(self.P, z, out=E.view(len(self.P), -1))
        u = torch.mm(self.m, theta).expm1_().view(self.B, self.H, 1, n)
        raised = torch.mul(E.exp_(), u, out=self._take(1, n))  # E u
        if self.activation == "bayes":
            losses, C, at_theta, slope_v = self._bayes(E, raised, gradient)
        else:
            losses, C, at_theta, slope_v = self._headwise(E, raised, gradient)
        if C is None or at_theta is None:
            return Totals(losses)
        product = torch.mm(C.view(len(self.P), -1), z.T)
        first = 0 if self.softmax else 1
        product[:, first : first + self.F] += torch.mm(at_theta.view(len(self.P), -1), theta.T)
        return Totals(losses, product, slope_v)

    def _errors(self, e: Tensor, onto_diagonal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Turn ``e = A`` without the raised terms into the error; its diagonal (B, L, n) and the losses (B, n)."""
        diagonal = e.diagonal(dim1=1, dim2=2).transpose(1, 2)
        diagonal += onto_diagonal.sub_(1.0)
        return e, diagonal, e.square().sum((1, 2)).div_(self.samples.L)

    def _bayes(self, E: Tensor, raised: Tensor, gradient: bool) -> tuple[Tensor, Tensor | None, Tensor | None, None]:
        total, lift = E.sum(1), raised.sum(1)  # (B, L, n): by token, by position
        inverse = (total.sum(1, keepdim=True) + lift).reciprocal_()
        e, diagonal, losses = self._errors(inverse.unsqueeze(2) * total.unsqueeze(1), lift.mul_(inverse))
        if not gradient:
            return losses, None, None, None
        share = e.square().sum(2).add_(diagonal)  # sum_l A_jl e_jl
        coefficient = e.sub_(share.unsqueeze(2)).mul_(inverse.unsqueeze(2))
        own = diagonal.unsqueeze(1)  # a view: the diagonal of the coefficients by now
        at_theta = ((E + raised) * own).sum(2)
        C = E.mul_(coefficient.sum(1).unsqueeze(1)).addcmul_(raised, own)
        return losses, C, at_theta, None

    def _headwise(
        self, E: Tensor, raised: Tensor, gradient: bool
    ) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
        L, n = E.shape[2:]
        normalizer = E.sum(2, keepdim=True)
        if not self.softmax:
            normalizer += 1.0
        w = torch.add(raised, normalizer, out=self._take(2, n)).reciprocal_()  # by position
        A = self.pairs[: self.B * L * L * n].view(self.B, L, L, n).zero_()  # (position, token)
        for h in range(self.H):
            A.addcmul_(w[:, h].unsqueeze(2), E[:, h].unsqueeze(1))
        amplitude = self.v / self.H
        raised *= w  # from here: E u w
        e, diagonal, losses = self._errors(A.mul_(amplitude.unsqueeze(-1)), raised.sum(1).mul_(amplitude))
        if not gradient:
            return losses, None, None, None
        slope_v = None
        if not self.softmax:  # sum e A / v with A = e + delta
            slope_v = (losses.sum(1) * L + diagonal.sum((1, 2))) / self.v.view(-1)
        pull = torch.zeros_like(E)  # sum_l E_hl e_jl
        for token in range(L):
            pull.addcmul_(E[:, :, token : token + 1], e[:, None, :, token])
        own = diagonal.unsqueeze(1)
        pull.mul_(w).addcmul_(raised, own)  # s_hj
        spread = (w * pull).sum(2, keepdim=True)
        C = torch.zeros_like(E)  # sum_j w_hj e_jl
        for position in range(L):
            C.addcmul_(w[:, :, position : position + 1], e[:, None, position])
        C.sub_(spread).mul_(E)
        outer = own - pull
        raised_part = raised.mul_(outer)
        C += raised_part
        at_theta = E.mul_(w).mul_(outer).add_(raised_part).sum(2)
        if not self.softmax:
            C *= self.v.unsqueeze(-1)
            at_theta *= self.v
        return losses, C, at_theta, slope_v


def choose_pass(point: OrderParameters, samples: Samples, activation: str) -> PlainPass:
    """The fast pass where it is safe.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, flipping_spike
    >>> from attsvm.dynamics.specialization.passes import choose_pass
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=2, H=0, n=8, generator=torch.Generator().manual_seed(0))
    >>> type(choose_pass(OrderParameters(torch.ones(1, 2).double()), samples, "softmax")).__name__
    'SharedPass'
    >>> type(choose_pass(OrderParameters(1e4 * torch.ones(1, 2).double()), samples, "softmax")).__name__
    'PlainPass'
    """
    plain = PlainPass(point, samples, activation)
    if samples.thetas is None:
        return plain
    if plain.safe:
        return SharedPass(point, samples, activation)
    return PlainPass(point, samples.relevant_first(), activation)
