"""The loss in the order parameters of the heads, equation (10), and its gradient in closed form.

Order parameters are the alignment m with the spikes and the orthogonal part r, equations (8) and (9). With ``A =
mean_h sigma(h)`` and ``e_l = A_l - delta_{l,eps}`` the loss of a sequence is ``sum_l e_l^2``, and ``c_hl = d loss / d
chi_hl`` is

    softmax    c_hl = (2/H) sigma_hl (e_l - sum_l' sigma_hl' e_l')
    softmax-1  c_hl = (2v/H) s_hl (e_l - sum_l' s_hl' e_l'),   s = sigma / v
    bayes      c_hl = 2 p_hl (e_l - sum_l' A_l' e_l'),         p = sigma / H.

Then ``grad_m = E sum_l c_l chi*_l^T`` and ``grad_r = E sum_l c_l xi_l^T``; the printed (25) lacks a factor 1/H. All
heads, runs, tokens and positions of a block of samples share one matrix product forth and one back. `SharedPass` is
the fast way over the samples and needs scores whose exponential is finite; `PlainPass` takes any scores and weights.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attsvm.dynamics.specialization.activations import check_activation
from attsvm.dynamics.specialization.spiked_data import Samples
from attsvm.user_input import require_count


@dataclass(frozen=True, eq=False)
class OrderParameters:
    """A point of the reduced loss; every tensor may carry one leading axis of independent runs.

    Attributes
    ----------
    m : Tensor, shape (H, F) or (B, H, F)
        Alignment of head h with spike f.
    r : Tensor, shape (H, H) or (B, H, H), or None
        A square root of the overlaps of the orthogonal parts; a FREE matrix under the flow (only ``r r^T`` has a
        meaning; it may have any number of columns). None stands for zero and saves the work.
    b : Tensor, shape (H,) or (B, H), optional
    v : Tensor, shape () or (B,), optional

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters
    >>> OrderParameters(torch.zeros(4, 2)).b.shape
    torch.Size([4])
    """

    m: Tensor
    r: Tensor | None = None
    b: Tensor = None  # type: ignore[assignment]
    v: Tensor = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        m = self.m
        if m.ndim not in (2, 3) or 0 in m.shape:
            raise ValueError(f"m must have shape (H, F) or (B, H, F) with H, F >= 1, got {tuple(m.shape)}")
        if self.b is None:
            object.__setattr__(self, "b", m.new_zeros(m.shape[:-1]))
        if self.v is None:
            object.__setattr__(self, "v", m.new_ones(m.shape[:-2]))
        expected = {"m": tuple(m.shape), "b": tuple(m.shape[:-1]), "v": tuple(m.shape[:-2])}
        if self.r is not None:
            expected["r"] = (*m.shape[:-1], self.r.shape[-1] if self.r.ndim else 0)
        for name, tensor in self.tensors().items():
            if tuple(tensor.shape) != expected[name]:
                raise ValueError(f"{name} must have shape {expected[name]}, got {tuple(tensor.shape)}")
            if not torch.isfinite(tensor).all():
                raise ValueError(f"{name} must be finite")

    @property
    def heads(self) -> int:
        """Number of heads H."""
        return self.m.shape[-2]

    @property
    def features(self) -> int:
        """Number of features F."""
        return self.m.shape[-1]

    @property
    def G(self) -> Tensor:
        """Overlaps ``r r^T`` of the orthogonal parts, shape (..., H, H)."""
        if self.r is None:
            return self.m.new_zeros(*self.m.shape[:-1], self.heads)
        return self.r @ self.r.transpose(-1, -2)

    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, r left out when None."""
        named = {"m": self.m, "r": self.r, "b": self.b, "v": self.v}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def __getitem__(self, run: int) -> OrderParameters:
        """One run of a batch."""
        if self.m.ndim != 3:
            raise ValueError("only a batch of runs can be indexed")
        return OrderParameters(**{name: tensor[run] for name, tensor in self.tensors().items()})

    def keep(self, heads: Any) -> OrderParameters:
        """Only the heads of the given indices; the others are removed, not set to zero."""
        index = torch.as_tensor(heads, device=self.m.device)
        r = None if self.r is None else self.r[..., index, :]
        return replace(self, m=self.m[..., index, :], r=r, b=self.b[..., index])


@dataclass(frozen=True, eq=False)
class Overlaps:
    """Inner products of heads and spikes, equation (8).

    Attributes
    ----------
    m : Tensor, shape (H, F)
    q : Tensor, shape (H, H)
    p : Tensor, shape (F, F)
    """

    m: Tensor
    q: Tensor
    p: Tensor

    @classmethod
    def of(cls, k: Tensor, spikes: Tensor) -> Overlaps:
        """Overlaps of heads (H, D) and spikes (F, D)."""
        if k.shape[-1] != spikes.shape[-1]:
            raise ValueError(f"heads have dimension {k.shape[-1]}, spikes {spikes.shape[-1]}")
        return cls(k @ spikes.T, k @ k.T, spikes @ spikes.T)

    def whitened(self) -> tuple[Tensor, Tensor]:
        """``(m p^-1/2, p^1/2)``: the exact law at finite D is that of the model with theta replaced by p^1/2 theta."""
        values, vectors = torch.linalg.eigh(self.p)
        if values[0] <= 1e-12 * values[-1]:
            raise ValueError(
                f"p must be positive definite: its eigenvalues run from {float(values[0]):.1e} to "
                f"{float(values[-1]):.1e}; are two spikes parallel, or is D below F?"
            )
        return self.m @ ((vectors / values.sqrt()) @ vectors.T), (vectors * values.sqrt()) @ vectors.T


def order_parameters(overlaps: Overlaps, b: Tensor | None = None, v: Tensor | None = None) -> OrderParameters:
    """The point ``(m p^-1/2, (q - m p^-1 m^T)^1/2, b, v)``, equation (9).

    For ``p = I`` this is the printed (m, r); otherwise m is whitened, which is what makes the reduced loss exact at
    finite D together with ``theta -> p^1/2 theta`` (up to a bias of order 1/D from the norms of the tokens).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import Overlaps, order_parameters
    >>> k, spikes = torch.eye(3, dtype=torch.float64)[:2] * 2, torch.eye(3, dtype=torch.float64)[:1]
    >>> point = order_parameters(Overlaps.of(k, spikes))
    >>> point.m.flatten(), point.r
    (tensor([2., 0.], dtype=torch.float64), tensor([[0., 0.],
            [0., 2.]], dtype=torch.float64))
    """
    m, _ = overlaps.whitened()
    return OrderParameters(m, _symmetric_root(overlaps.q - m @ m.T), b, v)  # type: ignore[arg-type]


def initial_order_parameters(
    H: int, F: int, *, eta: float = 1.0, noise: float = 1e-2, runs: int | None = None, generator: torch.Generator
) -> OrderParameters:
    """Random start of the flow: ``m = noise``, ``r = eta I + noise``, b = 0, v = 1.

    Parameters
    ----------
    noise : float
        Standard deviation; heads in dimension D start with ``D^-1/2``, so 1e-2 stands for D = 10^4.
    runs : int, optional
        Leading axis of independent starts.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import initial_order_parameters
    >>> initial_order_parameters(2, 3, runs=5, generator=torch.Generator().manual_seed(0)).m.shape
    torch.Size([5, 2, 3])
    """
    require_count("H", H)
    require_count("F", F)
    lead = () if runs is None else (runs,)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    m = noise * torch.randn(*lead, H, F, **like)
    r = noise * torch.randn(*lead, H, H, **like) + eta * torch.eye(H, dtype=m.dtype, device=m.device)
    return OrderParameters(m, r)


def _symmetric_root(G: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(G)
    root: Tensor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.transpose(-1, -2)
    return root


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
            else:  # the threshold is in the scores: an extra token of score 0
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
    >>> from attsvm.dynamics.specialization.reduced_loss import choose_pass
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


@dataclass(frozen=True, eq=False)
class LossEstimate:
    """Loss and the standard error of its Monte-Carlo mean (NaN for quadrature), one per run.

    Attributes
    ----------
    value, error : Tensor, shape () or (B,)
    """

    value: Tensor
    error: Tensor


@dataclass(frozen=True, eq=False)
class ReducedGradient:
    """Loss and gradient at a point; shapes follow the point's.

    Attributes
    ----------
    loss : Tensor, shape () or (B,)
    m, b, v : Tensor
    r : Tensor or None
    """

    loss: Tensor
    m: Tensor
    r: Tensor | None
    b: Tensor
    v: Tensor


def _per_run(point: OrderParameters, tensor: Tensor) -> Tensor:
    return tensor if point.m.ndim == 3 else tensor[0]


def reduced_loss(point: OrderParameters, samples: Samples, activation: str) -> LossEstimate:
    """Reduced loss at a point, or at every point of a batch of runs.

    Parameters
    ----------
    point : OrderParameters
    samples : Samples
        From `draw_samples` or `quadrature`.
    activation : {"softmax", "softmax1", "bayes"}

    Examples
    --------
    Heads that know nothing give every token the same attention; the loss is ``1 - 1/L``:

    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, flipping_spike, reduced_loss
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=5, H=2, n=100, generator=torch.Generator().manual_seed(0))
    >>> round(reduced_loss(OrderParameters(torch.zeros(2, 2).double()), samples, "softmax").value.item(), 12)
    0.8
    """
    sweep = choose_pass(point, samples, activation)
    total, square, count = point.m.new_zeros(sweep.B), point.m.new_zeros(sweep.B), 0
    for i in range(len(sweep.samples.blocks)):
        losses = sweep.run(i, gradient=False).losses
        if samples.weights is not None:
            total += losses @ samples.weights[i]
            continue
        # The positions and the mirror image of one draw are not independent: the error is that of their means.
        if sweep.samples.paired:
            losses = losses.reshape(sweep.B, 2, -1).mean(1)
        if samples.thetas is not None and sweep.samples.thetas is None:
            losses = losses.reshape(sweep.B, samples.L, -1).mean(1)
        total += losses.sum(-1)
        square += losses.square().sum(-1)
        count += losses.shape[-1]
    if samples.weights is not None:
        return LossEstimate(_per_run(point, total), _per_run(point, torch.full_like(total, torch.nan)))
    mean = total / count
    error = ((square / count - mean.square()).clamp_min_(0.0) / count).sqrt()
    return LossEstimate(_per_run(point, mean), _per_run(point, error))


def reduced_gradient(point: OrderParameters, samples: Samples, activation: str) -> ReducedGradient:
    """Loss and its gradient in (m, r, b, v), the right-hand side of equation (12).

    Parameters
    ----------
    point : OrderParameters
    samples : Samples
    activation : {"softmax", "softmax1", "bayes"}

    Examples
    --------
    At zero the gradient in m is ``-(2/H)(L - 1)/L^2`` times the mean of theta, here -0.1875:

    >>> import torch
    >>> from attsvm.dynamics.specialization import DiscretePrior, OrderParameters, draw_samples, reduced_gradient
    >>> prior = DiscretePrior([[1.0]], [1.0])
    >>> samples = draw_samples(prior, L=4, H=0, n=100_000, generator=torch.Generator().manual_seed(0))
    >>> gradient = reduced_gradient(OrderParameters(torch.zeros(2, 1).double()), samples, "softmax").m
    >>> bool((gradient + 0.1875).abs().max() < 1e-12)  # the noise of the positions cancels here
    True
    """
    sweep = choose_pass(point, samples, activation)
    total, slope_v = point.m.new_zeros(sweep.B), point.m.new_zeros(sweep.B)
    product = torch.zeros_like(sweep.P)
    count = 0
    for i in range(len(sweep.samples.blocks)):
        added = sweep.run(i, gradient=True)
        assert added.product is not None
        product += added.product
        if added.slope_v is not None:
            slope_v += added.slope_v
        total += added.losses.sum(-1) if samples.weights is None else added.losses @ samples.weights[i]
        count += added.losses.shape[-1]
    scale = 1.0 if samples.weights is not None else 1.0 / samples.size
    mean = total if samples.weights is not None else total / count
    product = (product * (sweep.factor * scale)).view(sweep.B, sweep.H, -1)
    return _gradient(point, sweep, _per_run(point, mean), product, slope_v * (2.0 * scale))


def _gradient(
    point: OrderParameters, sweep: PlainPass, loss: Tensor, product: Tensor, slope_v: Tensor
) -> ReducedGradient:
    if sweep.softmax:
        slope_b = torch.zeros_like(point.b)
    else:
        sign = -1.0 if sweep.activation == "softmax1" else 1.0
        slope_b, product = (sign * product[..., 0]).reshape(point.b.shape), product[..., 1:]
    return ReducedGradient(
        loss,
        _per_run(point, product[..., : sweep.F]),
        None if point.r is None else product[..., sweep.F :].reshape(point.r.shape),
        slope_b,
        slope_v.reshape(point.v.shape),
    )


def score_noise(point: OrderParameters, samples: Samples, activation: str) -> Tensor:
    """``E sum_l c_l c_l^T``, shape (..., H, H): what a finite learning rate adds to the overlaps of the heads.

    SGD with learning rate gamma and batches of N_b adds ``gamma (D / N_b)`` times this to ``d(r r^T)/d tau``.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, draw_samples, flipping_spike
    >>> from attsvm.dynamics.specialization.reduced_loss import score_noise
    >>> samples = draw_samples(flipping_spike(2.0, 2.0), L=2, H=0, n=100, generator=torch.Generator().manual_seed(0))
    >>> score_noise(OrderParameters(torch.zeros(1, 2).double()), samples, "softmax").item()  # c = -+1/2
    0.5
    """
    if samples.weights is not None:
        raise ValueError("score_noise needs samples without weights")
    sweep = PlainPass(point, samples.relevant_first(), activation)
    total = point.m.new_zeros(sweep.B, sweep.H, sweep.H)
    for block in sweep.samples.blocks:
        flat = sweep.sensitivity(*sweep.attend(sweep.columns(block), block.shape[1])).flatten(2)
        total += flat @ flat.transpose(1, 2)
    return _per_run(point, total * (sweep.factor**2 / samples.size))
