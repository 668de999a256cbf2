"""Gauss-Hermite quadrature of the reduced loss, exact to rounding where the dimension allows.

The loss sees the columns z only through the scores ``P z`` with ``P = [m r]``, Gaussian of rank rho <= H. A node is
therefore the conditional mean of z given its scores: linear in rho independent normal variables, and exact for the
gradient too, which is linear in z once the scores are fixed. The L - 1 tokens without a spike are exchangeable, so
only multisets of nodes are kept.
"""

from __future__ import annotations

from itertools import combinations_with_replacement
from math import comb, factorial

import numpy as np
import numpy.typing as npt
import torch

from attsvm.dynamics.specialization.order import OrderParameters
from attsvm.dynamics.specialization.priors import DiscretePrior, GaussianPrior, Prior
from attsvm.dynamics.specialization.samples import Samples

__all__ = ["quadrature", "quadrature_size"]

Array = npt.NDArray[np.float64]
_BLOCK = 4000
# A direction whose share of the variance of the scores is below this is rounding, not a dimension.
_RANK_TOLERANCE = 1e-13


def _root(P: Array, covariance: Array) -> Array:
    """Columns ``Sigma P^T U lambda^-1/2``, shape (F + H, rho), with ``P Sigma P^T = U lambda U^T``."""
    values, vectors = np.linalg.eigh(P @ covariance @ P.T)
    kept = values > _RANK_TOLERANCE * max(float(values[-1]), np.finfo(float).tiny)
    return np.asarray(covariance @ P.T @ (vectors[:, kept] / np.sqrt(values[kept])))


def _grid(rank: int, nodes: int) -> tuple[Array, Array]:
    """Nodes (Q, rank) and weights (Q,) of a standard normal vector."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w = w / w.sum()
    index = np.indices((nodes,) * rank).reshape(rank, -1) if rank else np.zeros((0, 1), dtype=int)
    return x[index].T.reshape(index.shape[1], rank), np.asarray(w[index].prod(axis=0))


def _matrix(point: OrderParameters) -> Array:
    if point.m.ndim != 2:
        raise ValueError("quadrature belongs to one point; index the batch first, e.g. point[0]")
    m = point.m.detach().cpu().double().numpy()
    r = np.zeros((len(m), 0)) if point.r is None else point.r.detach().cpu().double().numpy()
    return np.hstack([m, r])


def _covariance(prior: Prior, noise: int) -> Array:
    if isinstance(prior, GaussianPrior):
        spread = np.eye(prior.features) + prior.covariance
    elif isinstance(prior, DiscretePrior):
        spread = np.eye(prior.features)
    else:
        raise ValueError(f"quadrature needs a DiscretePrior or a GaussianPrior, got {type(prior).__name__}")
    joint = np.eye(prior.features + noise)
    joint[: prior.features, : prior.features] = spread
    return joint


def quadrature_size(prior: Prior, L: int, point: OrderParameters, nodes: int) -> int:
    """Number of nodes that `quadrature` would produce.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import OrderParameters, flipping_spike
    >>> from attsvm.dynamics.specialization.quadrature import quadrature_size
    >>> quadrature_size(flipping_spike(2.0, 2.0), 4, OrderParameters(torch.ones(2, 2).double()), nodes=10)
    4400
    """
    P = _matrix(point)
    rank = _root(P, np.eye(P.shape[1])).shape[1]
    spiked = _root(P, _covariance(prior, P.shape[1] - prior.features)).shape[1]
    atoms = len(prior.weights) if isinstance(prior, DiscretePrior) else 1
    return atoms * int(nodes**spiked) * comb(nodes**rank + L - 2, L - 1)


def quadrature(prior: Prior, L: int, point: OrderParameters, *, nodes: int = 12, max_size: int = 2_000_000) -> Samples:
    """Weighted samples that integrate the reduced loss and its gradient at (and only at) this point.

    Parameters
    ----------
    prior : DiscretePrior or GaussianPrior
    L : int
    point : OrderParameters
        One run.
    nodes : int
        Per dimension; the error falls exponentially with it.
    max_size : int
        More nodes than this raise a ValueError: use `draw_samples` then.

    Examples
    --------
    One head on one spike of strength 4, three tokens:

    >>> import torch
    >>> from attsvm.dynamics.specialization import DiscretePrior, OrderParameters, quadrature, reduced_loss
    >>> prior, point = DiscretePrior([[2.0]], [1.0]), OrderParameters(torch.full((1, 1), 2.0).double())
    >>> [round(reduced_loss(point, quadrature(prior, 3, point, nodes=k), "softmax").value.item(), 6) for k in (20, 40)]
    [0.19413, 0.194124]
    """
    if L < 2 or nodes < 1:
        raise ValueError(f"L >= 2 and nodes >= 1 are needed, got L={L}, nodes={nodes}")
    if point.features != prior.features:
        raise ValueError(f"the point has {point.features} features, the prior {prior.features}")
    size = quadrature_size(prior, L, point, nodes)
    if size > max_size:
        raise ValueError(f"quadrature would need {size} nodes, more than max_size={max_size}; use draw_samples instead")
    P = _matrix(point)
    F, noise = prior.features, P.shape[1] - prior.features
    z_noise, w_noise = _columns(P, np.eye(P.shape[1]), nodes)
    z_spike, w_spike = _columns(P, _covariance(prior, noise), nodes)
    centres, masses = _centres(prior)
    z_spike = (z_spike[None] + np.pad(centres, ((0, 0), (0, noise)))[:, None]).reshape(-1, P.shape[1])
    w_spike = np.outer(masses, w_spike).ravel()

    multisets, multiplicity = _multisets(len(w_noise), L - 1)
    w_rest = multiplicity * w_noise[multisets].prod(axis=1)
    blocks, weights = [], []
    step = max(1, _BLOCK // len(w_spike))
    for start in range(0, len(multisets), step):
        rest = z_noise[multisets[start : start + step]]  # (c, L - 1, K)
        c = len(rest)
        tokens = np.empty((c, len(w_spike), L, 1 + P.shape[1]))
        tokens[..., 0] = 1.0
        tokens[:, :, 0, 1:] = z_spike
        tokens[:, :, 1:, 1:] = rest[:, None]
        block = tokens.reshape(c * len(w_spike), L, -1).transpose(2, 1, 0)
        blocks.append(torch.as_tensor(np.ascontiguousarray(block)).to(point.m))
        weights.append(torch.as_tensor(np.outer(w_rest[start : start + step], w_spike).ravel()).to(point.m))
    return Samples(F, noise, L, tuple(blocks), None, tuple(weights))


def _columns(P: Array, covariance: Array, nodes: int) -> tuple[Array, Array]:
    root = _root(P, covariance)
    grid, weights = _grid(root.shape[1], nodes)
    return grid @ root.T, weights


def _centres(prior: Prior) -> tuple[Array, Array]:
    if isinstance(prior, DiscretePrior):
        return prior.atoms, prior.weights
    return prior.mean[None], np.ones(1)


def _multisets(count: int, size: int) -> tuple[npt.NDArray[np.int64], Array]:
    """Multisets of the given size, shape (C, size), and in how many orders each occurs."""
    sets = np.array(list(combinations_with_replacement(range(count), size)), dtype=np.int64).reshape(-1, size)
    orders = np.full(len(sets), float(factorial(size)))
    run = np.ones(len(sets))
    for position in range(1, size):  # divide by the factorial of every run of equal entries
        run = np.where(sets[:, position] == sets[:, position - 1], run + 1, 1.0)
        orders /= run
    return sets, orders
