"""How W answers to a change of the dual matrix in the spectral norm (see `attsvm.solvers.other_norms.steps`).

``||W||_2 <= t`` iff ``S = t I - [[0, W], [W', 0]]`` is positive semidefinite. With the multiplier ``Y = [[P, D/2],
[D'/2, Q]]`` of S, ``trace Y = 1`` says that the nuclear norm of D is at most 1. The direction is that of Nesterov and
Todd: a matrix R with ``R^{-1} S R^{-T} = R' Y R = diag(l)`` scales both alike, and ``N = R^{-T} R^{-1}`` gives

    dY = G - N dS N,      G = R^{-T} E R^{-1},      E_ij = 2 (mu I - diag(l)^2 - second order)_ij / (l_i + l_j).

Written ``dt = t r``, ``dW = r W + V``, so that ``dS = r S - [[0, V], [V', 0]]`` and ``N S N = Y``, the upper right
block of dY, and its product with S, which takes the place of the trace, say

    H V = dD - 2 G_12 + r D,      H V = 2 (N_11 V N_22 + N_12 V' N_12),
    r <S, Y> = <S, G> + <S, Y> - t + <W, D> + <W, dD> + <D, V>.

With ``f = H^{-1} D`` and ``kappa = <S, Y> - <D, f>``, which near the central path is at least half of ``<S, Y>``, the
matrix of the answer is ``K = H^{-1} + (W + f)(W + f)' / kappa``. (In dt itself the same number would cancel.) S and Y
are carried by factors, updated in the scaled coordinates: neither is ever factored when it is nearly singular.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.other_norms.steps import PrimalDual, nothing, shifted_factor

__all__ = ["SpectralCone"]

# Lengths of steps that are tried.
_LENGTHS = (1.03, 0.99, 0.95, 0.9, 0.84, 0.77, 0.69, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.04, 0.01)


def _corners(block: FloatArray, diagonal: FloatArray) -> FloatArray:
    """``[[diagonal I, block], [block', diagonal I]]`` for ``diagonal`` of shape (B,)."""
    p, q = block.shape[-2:]
    out = np.zeros((*block.shape[:-2], p + q, p + q))
    out[..., :p, p:], out[..., p:, :p] = block, block.mT
    out.reshape(*block.shape[:-2], -1)[..., :: p + q + 1] = np.asarray(diagonal)[..., None]
    return out


def _inner(left: FloatArray, right: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("...ij,...ij->...", left, right))


def _plus_diagonal(matrix: FloatArray, diagonal: FloatArray) -> FloatArray:
    """``matrix + diag(diagonal)``, in place."""
    matrix.reshape(*matrix.shape[:-2], -1)[..., :: matrix.shape[-1] + 1] += diagonal
    return matrix


def _steepest(values: FloatArray, change: FloatArray) -> FloatArray:
    """Inverse of about the longest step from ``diag(values)`` that stays positive definite, shape (B,).

    The best of a fixed set of lengths: each costs a Cholesky factorization, all of them less than the eigenvalues.
    """
    from scipy.linalg import lapack

    out = np.full(values.shape[:-1], np.inf)
    flat, n = out.reshape(-1), values.shape[-1]
    for i, (point, way) in enumerate(zip(values.reshape(-1, n), change.reshape(-1, n, n), strict=True)):
        for length in _LENGTHS:
            trial = length * way
            trial.ravel()[:: n + 1] += point
            if not lapack.dpotrf(trial.T, lower=1, clean=0, overwrite_a=1)[1]:
                flat[i] = 1.0 / length
                break
    return out


def _factor(matrix: FloatArray, inverse: bool) -> FloatArray:
    """Cholesky factor, or its inverse; NaN where a matrix has none, which the steps refuse."""
    from scipy.linalg import lapack

    parts = matrix.reshape(-1, *matrix.shape[-2:])
    out = np.empty_like(parts)
    for i, part in enumerate(parts):
        # The transpose is the same matrix in the order that LAPACK wants.
        factor, failed = lapack.dpotrf(part.T, lower=1, clean=1)
        if failed:
            factor, failed = shifted_factor(part)
        if failed:
            out[i] = np.nan
        else:
            out[i] = lapack.dtrtri(factor, lower=1)[0] if inverse else factor
    return out.reshape(matrix.shape)


class SpectralCone:
    """The largest singular value of matrices of shape (p, q).

    Parameters
    ----------
    W, D : ndarray, shape (B, p q)
        Where to start; the nuclear norm of D is below 1.
    shape : (int, int)
    """

    together, cautious = False, True

    def __init__(self, W: FloatArray, D: FloatArray, shape: tuple[int, int]) -> None:
        self.W, self._shape, self.degree = W, shape, sum(shape)
        U, singular, Vt = np.linalg.svd(self._square(D), full_matrices=False)
        both = np.concatenate([U, Vt.mT], axis=-2)
        rest = (1.0 - np.add.reduce(singular, axis=-1)) / self.degree
        Y = _plus_diagonal((both * (0.5 * singular[..., None, :])) @ both.mT, rest[..., None])
        self._t: FloatArray = np.asarray(
            1.05 * np.linalg.svd(self._square(W), compute_uv=False)[..., 0], dtype=np.float64
        )
        self._dS: FloatArray = np.zeros(0)
        self._dY: FloatArray = np.zeros(0)
        self._S_factor, self._Y_factor = (_factor(x, False) for x in (_corners(-self._square(W), self._t), Y))

    def _square(self, flat: FloatArray) -> FloatArray:
        return flat.reshape(*flat.shape[:-1], *self._shape)

    def value(self, D: FloatArray) -> FloatArray:
        """The bound t."""
        return self._t

    def prepare(self, D: FloatArray) -> None:
        """The scaling, H with its Cholesky factor, and what ties dt to dW."""
        p, n = self._shape[0], self._shape[0] * self._shape[1]
        self._D = D
        product = self._Y_factor.mT @ self._S_factor
        U, self._l, Vt = np.linalg.svd(product)
        root = 1.0 / np.sqrt(self._l)
        self._R = (self._S_factor @ Vt.mT) * root[..., None, :]
        self._R_inverse = (root[..., :, None] * U.mT) @ self._Y_factor.mT
        N = self._R_inverse.mT @ self._R_inverse
        first, cross, last = N[..., :p, :p], N[..., :p, p:], N[..., p:, p:]
        H = first[..., :, None, :, None] * last[..., None, :, None, :]
        # Entry (i j, k l) of the other term: N_12[i, l] N_12[k, j].
        H += cross[..., :, None, None, :] * cross.mT[..., None, :, :, None]
        H *= 2.0
        self._H_root = _factor(H.reshape(*H.shape[:-4], n, n), True)
        self._f = self._inverse(D)
        self._side = self.W + self._f
        self._products = np.vecdot(self._l, self._l)
        self._kappa = (self._products - np.vecdot(D, self._f))[..., None]

    def _inverse(self, flat: FloatArray) -> FloatArray:
        """``H^{-1}`` times a flat matrix."""
        half = self._H_root @ flat[..., None]
        return np.asarray((self._H_root.mT @ half)[..., 0])

    def matrix(self, F: FloatArray) -> FloatArray:
        """``F K F'``."""
        half = F @ self._H_root.mT
        side = F @ (self._side / np.sqrt(self._kappa))[..., None]
        return np.asarray(half @ half.mT + side @ side.mT)

    def constant(self, target: Any, second: bool) -> FloatArray:
        """See `Cone`. Without a target E is ``-diag(l)`` and G is -Y: what H answers to it is known."""
        p, D, values = self._shape[0], self._D, self._l
        gained = np.vecdot(self.W, D) - self._t
        if not second:
            self._E = _plus_diagonal(np.zeros_like(self._R), -values)
            self._e = (gained + np.vecdot(self._f, D))[..., None] / self._kappa
            return np.asarray(self._f + self._side * self._e)
        both = self._dS @ self._dY
        E = _plus_diagonal(-0.5 * (both + both.mT), np.asarray(target) - values * values)
        E *= 2.0 / (values[..., :, None] + values[..., None, :])
        self._E = E
        G = self._R_inverse.mT @ E @ self._R_inverse
        right = -2.0 * G[..., :p, p:].reshape(D.shape)
        gained += np.vecdot(values, np.einsum("...ii->...i", E)) + self._products  # <S, G + Y>
        self._e = (gained + np.vecdot(self._f, right))[..., None] / self._kappa
        return np.asarray(self._inverse(right) + self._side * self._e)

    def answer(self, k: FloatArray, dD: FloatArray) -> FloatArray:
        """See `Cone`."""
        share = np.vecdot(self._side, dD)[..., None] / self._kappa
        dW = k + self._inverse(dD) + self._side * share
        self._dt = self._t * (self._e + share)[..., 0]
        self._dW = dW
        # In scaled coordinates.
        self._dS = self._R_inverse @ _corners(-self._square(dW), self._dt) @ self._R_inverse.mT
        self._dY = self._E - self._dS
        return np.asarray(dW)

    def lengths(self) -> tuple[FloatArray, FloatArray]:
        """See `Cone`."""
        return _steepest(self._l, self._dS), _steepest(self._l, self._dY)

    def products(self, primal: FloatArray | float, dual: FloatArray | float) -> FloatArray:
        """See `Cone`."""
        if isinstance(primal, float):
            return np.asarray(self._products)
        S, Y = primal[..., None] * self._dS, np.asarray(dual)[..., None] * self._dY
        return _inner(_plus_diagonal(S, self._l), _plus_diagonal(Y, self._l))

    def move(self, primal: FloatArray, dual: FloatArray) -> None:
        """See `Cone`; a step of length 0 stays although its direction may not be finite."""
        if primal.size > 1:
            stay = primal == 0.0
            self._dW, self._dt = np.where(stay, 0.0, self._dW), np.where(stay[..., 0], 0.0, self._dt)
            self._dS, self._dY = (np.where(stay[..., None], 0.0, x) for x in (self._dS, self._dY))
        self.W, self._t = self.W + primal * self._dW, self._t + primal[..., 0] * self._dt
        S, Y = primal[..., None] * self._dS, dual[..., None] * self._dY
        self._S_factor = self._R @ _factor(_plus_diagonal(S, self._l), False)
        self._Y_factor = self._R_inverse.mT @ _factor(_plus_diagonal(Y, self._l), False)

    def keep(self, index: Any) -> None:
        """See `Cone`."""
        self.W, self._t = self.W[index], self._t[index]
        self._S_factor, self._Y_factor = self._S_factor[index], self._Y_factor[index]

    def finish(self, state: PrimalDual) -> tuple[IntArray, FloatArray, FloatArray]:
        """None."""
        return nothing(state)
