"""Certificates of many small problems at once, with the definitions of `attsvm.solvers.certificate`.

Everything is recomputed in float64 from the rows, W and the multipliers, whatever precision found them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attsvm.solvers.certificate import FARKAS_TOLERANCE
from attsvm.solvers.norms import Norm

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["BatchCertificate", "BatchRows", "certify_rows", "double", "farkas_residual", "lengths", "row_sums"]


class BatchRows(NamedTuple):
    """Rows of B problems as tensors of one device; a row that does not exist is zero with rhs 0.

    Attributes
    ----------
    a : Tensor, shape (B, m, dx)
    b : Tensor, shape (B, m, dz)
        Right factor of every row (``queries[owner]``).
    rhs : Tensor, shape (B, m)
    equality : Tensor of bool, shape (B, m)
    """

    a: Tensor
    b: Tensor
    rhs: Tensor
    equality: Tensor

    def margins(self, W: Tensor) -> Tensor:
        """Values ``<a_k b_k^T, W>``, shape (B, m)."""
        return row_sums((self.a @ W) * self.b)

    def adjoint(self, multipliers: Tensor) -> Tensor:
        """Matrices ``sum_k lam_k a_k b_k^T``, shape (B, dx, dz)."""
        return (self.a * multipliers[..., None]).mT @ self.b

    def row_norms(self) -> Tensor:
        """Frobenius norms of the rows, shape (B, m)."""
        return lengths(self.a) * lengths(self.b)

    def take(self, index: Tensor) -> BatchRows:
        """The problems picked by an index."""
        return BatchRows(*(part.index_select(0, index) for part in self))

    def double(self) -> BatchRows:
        """The same rows in float64, see `double`."""
        a = double(self.a)
        return BatchRows(a, double(self.b), double(self.rhs), self.equality.to(a.device))


def row_sums(tensor: Tensor) -> Tensor:
    """Sums over a short last axis: one product with ones is faster than a reduction."""
    return tensor @ tensor.new_ones(tensor.shape[-1])


def lengths(tensor: Tensor) -> Tensor:
    """Euclidean norms over a short last axis."""
    return row_sums(tensor * tensor).sqrt_()


def double(tensor: Tensor) -> Tensor:
    """The tensor in float64: on its device, or on the CPU for the one kind of device without float64."""
    return tensor.cpu().double() if tensor.device.type == "mps" else tensor.double()


class BatchCertificate(NamedTuple):
    """Fields of `Certificate` (and, for the nuclear norm, of `RankCertificate`), each of shape (B,).

    The last six are None for other norms.
    """

    primal_violation: Tensor
    dual_violation: Tensor
    gap: Tensor
    complementarity: Tensor
    norm: Tensor
    lower_bound: Tensor
    rank: Tensor | None = None
    numerical_rank: Tensor | None = None
    rank_tolerance: Tensor | None = None
    dual_gap: Tensor | None = None
    singular_gap: Tensor | None = None
    outside_mass: Tensor | None = None

    @property
    def worst(self) -> Tensor:
        """Largest of gap, primal violation and dual violation, shape (B,)."""
        return self.gap.maximum(self.primal_violation).maximum(self.dual_violation)


def certify_rows(rows: BatchRows, W: Tensor, multipliers: Tensor, norm: Norm) -> BatchCertificate:
    """Batched `certify` for the Frobenius and the nuclear norm.

    Parameters
    ----------
    rows : BatchRows
        In float64.
    W : Tensor, shape (B, dx, dz)
    multipliers : Tensor, shape (B, m)
        In norm form.
    norm : Norm

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers import get_norm
    >>> from attsvm.solvers.batch_certificate import BatchRows, certify_rows
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> rows = BatchRows(2 * one[..., None], one[..., None], one, one < 0)
    >>> certify_rows(rows, one[..., None] / 2, one / 2, get_norm("frobenius")).gap.tolist()
    [0.0]
    """
    import torch
    from torch.linalg import svdvals

    slack = rows.margins(W) - rows.rhs
    missed = torch.where(rows.equality, slack.abs(), -slack).clamp(min=0)
    primal_violation = (missed / rows.rhs.abs().clamp(min=1.0)).amax(-1)

    negative = torch.where(rows.equality, 0.0, (-multipliers).clamp(min=0))
    lam = multipliers + negative
    dual = rows.adjoint(lam)
    if norm.name == "nuclear":
        singular, dual_singular = svdvals(W), svdvals(dual)
        value, dual_norm = singular.sum(-1), dual_singular[:, 0]
    else:
        value, dual_norm = lengths(W.flatten(1)), lengths(dual.flatten(1))
    dual_violation = (dual_norm - 1.0).clamp(min=0).maximum((negative * rows.row_norms()).amax(-1))

    objective = (rows.rhs * lam).sum(-1)
    proves = (objective > 0) & (dual_norm > 0)
    lower = torch.where(proves, objective / torch.where(proves, dual_norm, 1.0), 0.0)
    scale = torch.where(value > 0, value, 1.0)
    gap = (value - lower).abs() / scale
    complementarity = (lam.abs() * slack.abs()).amax(-1) / scale
    measures = (primal_violation, dual_violation, gap, complementarity, value, lower)
    if norm.name != "nuclear":
        return BatchCertificate(*measures)
    return BatchCertificate(*measures, *_ranks(singular, dual_singular, gap))


def _ranks(singular: Tensor, dual_singular: Tensor, gap: Tensor) -> tuple[Tensor, ...]:
    import torch
    from torch.nn.functional import pad

    tolerance = gap.sqrt().clamp(min=1e-8)  # the rule of certificate._rank_certificate, which gives the reason
    dual_singular = dual_singular / dual_singular[:, :1].clamp(min=1.0)
    rank = (dual_singular >= 1.0 - tolerance[:, None]).sum(-1)
    numerical = (singular > tolerance[:, None] * singular[:, :1]).sum(-1)
    # A zero after the last value stands for "nothing follows": dual gap 1, singular gap infinite.
    following = pad(singular, (0, 1)).gather(1, numerical[:, None])[:, 0]
    last = singular.gather(1, (numerical[:, None] - 1).clamp(min=0))[:, 0]
    dual_gap = 1.0 - pad(dual_singular, (0, 1)).gather(1, rank[:, None])[:, 0]
    separated = (numerical > 0) & (following > 0)
    singular_gap = torch.where(separated, last / torch.where(separated, following, 1.0), torch.inf)
    return rank, numerical, tolerance, dual_gap, singular_gap, gap / dual_gap


def farkas_residual(rows: BatchRows, multipliers: Tensor) -> tuple[Tensor, Tensor]:
    """Scale candidate proofs of infeasibility to ``rhs . y = 1`` and measure how well they cancel.

    Negative inequality multipliers are set to zero first, as in `certify_infeasible`.

    Parameters
    ----------
    rows : BatchRows
        In float64.
    multipliers : Tensor, shape (B, m)

    Returns
    -------
    multipliers : Tensor, shape (B, m)
    residual : Tensor, shape (B,)
        `FarkasCertificate.residual`; infinite where ``rhs . y <= 0``, or where it is only what rounding left.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.batch_certificate import BatchRows, farkas_residual
    >>> one = torch.ones(1, 2, dtype=torch.float64)
    >>> rows = BatchRows(torch.tensor([[[1.0], [-1.0]]]).double(), one[..., None], one, one < 0)
    >>> farkas_residual(rows, one)
    (tensor([[0.5000, 0.5000]], dtype=torch.float64), tensor([0.], dtype=torch.float64))
    """
    import torch
    from torch.linalg import vector_norm

    y = torch.where(rows.equality, multipliers, multipliers.clamp(min=0))
    value = (rows.rhs * y).sum(-1)
    proves = value.isfinite() & (value > 0)
    y = torch.where(proves[:, None], y, 0.0) / torch.where(proves, value, 1.0)[:, None]
    weight = (y.abs() * rows.row_norms()).sum(-1)
    left_over = vector_norm(rows.adjoint(y), dim=(-2, -1))
    # No weight with positive value: zero rows that ask for something positive, an exact proof.
    residual = torch.where(weight > 0, left_over / torch.where(weight > 0, weight, 1.0), 0.0)
    # As in `FarkasCertificate.verified`: a right-hand side that is itself what rounding left proves nothing.
    cancellation = (y.abs() * rows.rhs.abs()).sum(-1)
    hollow = residual.clamp(min=torch.finfo(y.dtype).eps) * cancellation > FARKAS_TOLERANCE
    proves = proves & ((residual > FARKAS_TOLERANCE) | hollow.logical_not())
    return y, torch.where(proves, residual, torch.inf)
