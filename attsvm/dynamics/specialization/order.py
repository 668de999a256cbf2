"""Order parameters of the heads: alignment m with the spikes, orthogonal part r, equations (8) and (9)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

__all__ = ["OrderParameters", "Overlaps", "initial_order_parameters", "order_parameters"]


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
    if H < 1 or F < 1:
        raise ValueError(f"H and F must be at least 1, got H={H}, F={F}")
    lead = () if runs is None else (runs,)
    like: dict[str, Any] = {"generator": generator, "dtype": torch.float64, "device": generator.device}
    m = noise * torch.randn(*lead, H, F, **like)
    r = noise * torch.randn(*lead, H, H, **like) + eta * torch.eye(H, dtype=m.dtype, device=m.device)
    return OrderParameters(m, r)


def _symmetric_root(G: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(G)
    root: Tensor = (vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)) @ vectors.transpose(-1, -2)
    return root
