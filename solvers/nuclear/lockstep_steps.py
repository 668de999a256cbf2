"""Least nuclear norm for many small problems in lockstep: a primal-dual interior-point method.

With unit rows ``u_k v_k^T`` and right-hand sides c the pair of semidefinite programs is

    minimize   trace X              subject to  2 u_k' X_12 v_k - s_k = c_k,  X = [[X_11, X_12], [., X_22]] >= 0, s >= 0
    maximize   c . lam              subject to  Z = [[I, -D], [-D', I]] >= 0,  D = sum_k lam_k u_k v_k^T,  lam >= 0,

with W = 2 X_12 and ``||D||_op <= 1``; equality rows have no s_k and a free lam_k. The search direction is that of
Helmberg, Kojima and Monteiro (``X Z = mu I`` linearized at X), with Mehrotra's second-order correction. Its Newton
matrix over the multipliers is a sum of elementwise products of m x m matrices, because rows have rank one. Z
is inverted, and the dual step measured, through the Schur complement ``I - D'D``, of the order of the queries. Spans
are reduced first; the Frobenius solution scales the problem and starts the iteration strictly inside both cones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from attsvm.solvers.nuclear.interior_point import START_MU, START_MULTIPLE, START_SHARE, START_SLACK

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["NuclearState", "row_sums", "start", "step"]

_BACK_OFF = 0.98  # fraction of the way to the boundary
_LONG, _EAGER, _CAREFUL = 0.97, 0.03, 0.1  # reduction of mu to aim at after a long step, and after any other
_FRACTIONS = (1.0, 0.97, 0.93, 0.88, 0.8, 0.7, 0.55, 0.4, 0.2, 0.1, 0.03, 0.005)  # trials of the dual step


class NuclearState(NamedTuple):
    """Everything the iteration needs about B running problems, in reduced coordinates and unit rows.

    Attributes
    ----------
    u : Tensor, shape (B, m, rx)
    v : Tensor, shape (B, m, rz)
    target : Tensor, shape (B, m)
    equality : Tensor of bool, shape (B, m)
    allowance : Tensor, shape (B, m)
        What a violation of 1 in the certificate's sense amounts to in these rows.
    X : Tensor, shape (B, rx + rz, rx + rz)
        Primal matrix, positive definite.
    slack, lam : Tensor, shape (B, m)
        Positive on inequality rows; slack is 0 on equality rows.
    gap, violation : Tensor, shape (B,)
        Relative duality gap and largest row residual over allowance at this point.
    length : Tensor, shape (B,)
        The shorter of the last primal and dual step lengths.
    broken : Tensor of bool, shape (B,)
        The last step found no finite direction; the point is the one before.
    """

    u: Tensor
    v: Tensor
    target: Tensor
    equality: Tensor
    allowance: Tensor
    X: Tensor
    slack: Tensor
    lam: Tensor
    gap: Tensor
    violation: Tensor
    length: Tensor
    broken: Tensor

    def take(self, index: Tensor) -> NuclearState:
        """The problems picked by an index."""
        return NuclearState(*(part.index_select(0, index) for part in self))


def row_sums(tensor: Tensor) -> Tensor:
    """Sums over a short last axis: one product with ones is faster than a reduction."""
    return tensor @ tensor.new_ones(tensor.shape[-1])


def _values(u: Tensor, v: Tensor, matrix: Tensor) -> Tensor:
    """``u_k' K_12 v_k + v_k' K_21 u_k`` for a (not necessarily symmetric) matrix K."""
    rx = u.shape[-1]
    return row_sums((u @ (matrix[:, :rx, rx:] + matrix[:, rx:, :rx].mT)) * v)


def _schur(state: NuclearState, inverse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``M_jk = <A_j, X A_k Z^-1>`` for ``A_k = [[0, u_k v_k'], [v_k u_k', 0]]``, and ``<A_k, X>``, ``<A_k, Z^-1>``."""
    import torch

    u, v, X = state.u, state.v, state.X
    rx, rz = u.shape[-1], v.shape[-1]
    n = rx + rz
    # One product per side: X and Z^-1 side by side, so that fewer and larger matrices are multiplied.
    by_u = u @ torch.cat([X[:, :rx], inverse[:, :rx]], dim=-1)  # (B, m, 2n): u'X_11, u'X_12, u'Z_11, u'Z_12
    by_v = v @ torch.cat([X[:, rx:, rx:], inverse[:, rx:, rx:]], dim=-1)  # (B, m, 2rz): v'X_22, v'Z_22
    by_x, by_inverse = by_u[..., rx:n] @ v.mT, by_u[..., n + rx :] @ v.mT
    values_x, values_inverse = (2.0 * part.diagonal(dim1=-2, dim2=-1) for part in (by_x, by_inverse))
    cross = by_x * by_inverse.mT
    total: Tensor = cross + cross.mT
    total.addcmul_(by_u[..., :rx] @ u.mT, by_v[..., rz:] @ v.mT)
    total.addcmul_(by_v[..., :rz] @ v.mT, by_u[..., n : n + rx] @ u.mT)
    return total, values_x, values_inverse


def _inverse(D: Tensor) -> tuple[Tensor, Tensor]:
    """Inverse of ``Z = [[I, -D], [-D', I]]`` by its Schur complement ``I - D'D``; where that fails, info is not 0."""
    import torch

    eye = torch.eye(D.shape[-1], dtype=D.dtype, device=D.device)
    factor, info = torch.linalg.cholesky_ex(eye - D.mT @ D)
    corner = torch.cholesky_inverse(torch.where((info == 0)[:, None, None], factor, eye))  # it raises on singular ones
    side = D @ corner
    block = side @ D.mT
    block.diagonal(dim1=-2, dim2=-1).add_(1.0)
    return torch.cat([torch.cat([block, side], dim=-1), torch.cat([side.mT, corner], dim=-1)], dim=-2), info


def _times_off_diagonal(K: Tensor, D: Tensor) -> Tensor:
    """``K [[0, D], [D', 0]]``."""
    import torch

    rx = D.shape[-2]
    return torch.cat([K[..., rx:] @ D.mT, K[..., :rx] @ D], dim=-1)


def _solve(factor: Tensor, right: Tensor) -> Tensor:
    """``(L L')^-1 right``; unlike cholesky_solve this does not copy the factor."""
    from torch.linalg import solve_triangular

    solution: Tensor = solve_triangular(factor.mT, solve_triangular(factor, right, upper=False), upper=True)
    return solution


def _longest(factor: Tensor, change: Tensor) -> Tensor:
    """Largest t with ``L L' + t dK >= 0``, shape (B,); at most 1e6."""
    from torch.linalg import eigvalsh, solve_triangular

    half = solve_triangular(factor, change, upper=False)
    scaled = solve_triangular(factor, half.mT, upper=False)
    # A direction that is not finite is refused later; eigvalsh would raise on it.
    lowest: Tensor = eigvalsh(scaled.nan_to_num_(posinf=0.0, neginf=0.0))[:, 0]
    return 1.0 / (-lowest).clamp(min=1e-6)


def _longest_dual(D: Tensor, change: Tensor, limit: Tensor) -> Tensor:
    """About the largest t <= limit with ``||D + t dD||_op < 1``, shape (B,): the best of a fixed set of fractions.

    Each trial factors a small matrix, which together cost less than the eigenvalues of Z.
    """
    import torch

    size, rz = len(D), D.shape[-1]
    fractions = torch.tensor(_FRACTIONS, dtype=D.dtype, device=D.device)
    t = (limit[:, None] * fractions)[..., None, None]
    mixed = D.mT @ change
    mixed = mixed + mixed.mT
    trials = (torch.eye(rz, dtype=D.dtype, device=D.device) - D.mT @ D)[:, None] - t * mixed[:, None]
    trials.addcmul_(t * t, (change.mT @ change)[:, None], value=-1.0)
    info = torch.linalg.cholesky_ex(trials.reshape(-1, rz, rz))[1].reshape(size, -1)
    return limit * torch.where(info == 0, fractions, 0.0).amax(-1)


def _longest_positive(point: Tensor, change: Tensor, equality: Tensor) -> Tensor:
    """Largest t with ``point + t change >= 0`` on inequality rows, shape (B,); at most 1e6."""
    import torch

    ratio = torch.where(equality, 0.0, -change / torch.where(equality, 1.0, point))
    return 1.0 / ratio.amax(-1).clamp(min=1e-6)


def _measure(state: NuclearState) -> NuclearState:
    import torch

    primal = state.X.diagonal(dim1=-2, dim2=-1).sum(-1)
    dual = (state.target * state.lam).sum(-1)
    residual = state.target + state.slack - _values(state.u, state.v, state.X)
    gap = (primal - dual).abs() / primal
    return state._replace(
        gap=gap, violation=torch.where(gap.isfinite(), (residual.abs() / state.allowance).amax(-1), torch.inf)
    )


def start(
    u: Tensor, v: Tensor, target: Tensor, equality: Tensor, W: Tensor, lam: Tensor, allowance: Tensor | None = None
) -> NuclearState:
    """A point strictly inside both cones, and centred: a multiple of W with what makes ``mu X^-1`` resemble Z.

    Parameters
    ----------
    u, v, target, equality
        As in `NuclearState`; zero rows with a negative right-hand side are allowed.
    W : Tensor, shape (B, rx, rz)
        Feasible, of Frobenius norm 1.
    lam : Tensor, shape (B, m)
        Its multipliers: ``sum_k lam_k u_k v_k^T = W``.
    allowance : Tensor, shape (B, m), optional
        See `NuclearState`; 1 by default.
    """
    import torch

    U, sigma, Vt = torch.linalg.svd(START_MULTIPLE * W, full_matrices=False)
    # With diagonal blocks U h U' + 2 mu (I - U U') and alike, mu X^-1 has the diagonal blocks of Z.
    mu = START_MU * sigma[:, :1]
    h = (0.5 * ((mu * mu + sigma * sigma).sqrt() - mu))[:, None, :]
    half = (0.5 * START_MULTIPLE) * W
    top, bottom = torch.cat([(U * h) @ U.mT, half], dim=-1), torch.cat([half.mT, (Vt.mT * h) @ Vt], dim=-1)
    X = torch.cat([top, bottom], dim=-2)
    X.diagonal(dim1=-2, dim2=-1).add_(mu)
    slack = (_values(u, v, X) - target).clamp(min=START_SLACK)
    # Every inequality row takes part, within most of what is left of the dual ball.
    extra = torch.where(equality, 0.0, mu / slack)
    left = (0.95 - START_SHARE) / torch.linalg.matrix_norm((u * extra[..., None]).mT @ v).clamp(min=1e-300)
    lam = torch.where(equality, lam, lam.clamp(min=0)) * (START_SHARE * START_MULTIPLE / sigma[:, :1])
    lam = lam + extra * left.clamp(max=1.0)[:, None]
    zero = torch.zeros((len(u),), dtype=W.dtype, device=W.device)
    room = torch.ones_like(lam) if allowance is None else allowance
    slack = torch.where(equality, 0.0, slack)
    state = NuclearState(
        u, v, target, equality, room, X, slack, lam, gap=zero, violation=zero, length=zero, broken=zero > 1
    )
    return _measure(state)


def step(state: NuclearState) -> NuclearState:
    """One corrected Newton step for every problem; free of data-dependent control flow.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.nuclear.lockstep_steps import start, step
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> state = start(one[..., None], one[..., None], one, one < 0, one[..., None], one)
    >>> for _ in range(12):
    ...     state = step(state)
    >>> bool(state.gap < 1e-9)
    True
    """
    import torch

    u, v, target, equality, _, X, slack, lam = state[:8]
    n = X.shape[-1]
    rounding = torch.finfo(X.dtype).eps
    factor_x, info_x = torch.linalg.cholesky_ex(X)  # where a factor fails the problem stays where it is, see below
    D = (u * lam[..., None]).mT @ v
    inverse, info_z = _inverse(D)
    positive = torch.where(equality, 1.0, lam)
    ratio = slack / positive
    schur, values_x, values_inverse = _schur(state, inverse)
    diagonal = schur.diagonal(dim1=-2, dim2=-1)
    # The added ridge only matters for dependent equality rows; refinement against `schur` undoes it elsewhere.
    diagonal.add_(ratio)
    ridged = schur.clone()
    ridged.diagonal(dim1=-2, dim2=-1).mul_(1.0 + 16 * rounding).add_(torch.finfo(X.dtype).tiny)
    factor_m, info_m = torch.linalg.cholesky_ex(ridged)

    # <X, Z> + slack . lam; slack is zero on equality rows, so only pairs of inequality rows count.
    trace = X.diagonal(dim1=-2, dim2=-1).sum(-1)
    mu = (trace + (lam * (slack - values_x)).sum(-1)) / (n + equality.logical_not().sum(-1))

    # Mehrotra's second-order term, but with a reduction chosen from the last step: generous centring keeps X and Z
    # close to commuting, without which this direction takes short steps, and saves the predictor's step lengths.
    # In the predictor's right-hand side everything cancels but the target.
    first_lam = _solve(factor_m, target[..., None])[..., 0]
    first_D = (u * first_lam[..., None]).mT @ v
    first_x = _times_off_diagonal(X, first_D) @ inverse
    first_x = (first_x + first_x.mT).mul_(0.5).sub_(X)
    second = _times_off_diagonal(first_x, first_D) @ inverse
    sigma = torch.where(state.length > _LONG, _EAGER, _CAREFUL).to(X.dtype)
    center = (sigma * mu)[:, None]
    # On equality rows the pull is 0, as slack is.
    pull = torch.where(equality, 0.0, (center + first_lam * (slack + ratio * first_lam)) / positive)
    right = (target - center * values_inverse - _values(u, v, second) + pull)[..., None]
    d_lam = _solve(factor_m, right)
    d_lam = (d_lam + _solve(factor_m, torch.baddbmm(right, schur, d_lam, alpha=-1)))[..., 0]
    d_D = (u * d_lam[..., None]).mT @ v
    d_x = second.add_(_times_off_diagonal(X, d_D) @ inverse)
    d_x = (d_x + d_x.mT).mul_(0.5).addcmul_(center[..., None], inverse).sub_(X)
    d_slack = pull - slack - ratio * d_lam  # 0 on equality rows

    primal = _longest(factor_x, d_x).minimum(_longest_positive(slack, d_slack, equality))
    dual = _longest_dual(D, d_D, _longest_positive(lam, d_lam, equality).clamp(max=1.0 / _BACK_OFF))
    primal, dual = ((_BACK_OFF * t).clamp(max=1.0)[:, None] for t in (primal, dual))

    new_X, new_slack, new_lam = X + primal[..., None] * d_x, slack + primal * d_slack, lam + dual * d_lam
    finite = (new_X.sum((-2, -1)) + new_lam.sum(-1) + new_slack.sum(-1)).isfinite()
    broken = finite.logical_not() | (info_x > 0) | (info_z > 0) | (info_m > 0)
    stay = broken[:, None]
    moved = state._replace(
        X=torch.where(stay[..., None], X, new_X),
        slack=torch.where(stay, slack, new_slack),
        lam=torch.where(stay, lam, new_lam),
        length=primal.minimum(dual)[:, 0],
        broken=broken,
    )
    return _measure(moved)
