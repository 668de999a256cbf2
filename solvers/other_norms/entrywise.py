"""How W answers to a change of the dual matrix in norms of entries (see `attsvm.solvers.other_norms.steps`).

*l_1 and l_inf.* ``|W_j| <= r_j`` with slacks ``u = r - W``, ``v = r + W`` and multipliers ``alpha, beta >= 0``; the sum
of r is minimized (l_1), or one r for all entries (l_inf). Then ``D = alpha - beta``, and ``alpha + beta`` is 1 entry by
entry (l_1) or in sum (l_inf). With ``A = alpha / u``, ``B = beta / v`` the linearized conditions give, entry by entry,

    dD = (A + B) dW - (A - B) dr + const,      d(alpha + beta) = (A - B) dW - (A + B) dr + const,

from which dr is eliminated: ``K`` is diagonal, plus a matrix of rank one for l_inf.

*l_p, 1 < p < inf.* ``||W||_p^p / p`` is minimized instead, so that ``D_j = sign(W_j) |W_j|^(p-1)``. This curve is
linearized in W where p >= 2 and in D where p < 2: the side on which it is flat at 0, not steep.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.other_norms.crossover import InteriorPair, linf_vertices
from attsvm.solvers.other_norms.steps import PrimalDual, nothing

__all__ = ["PolyhedralCone", "PowerCone"]


def _sum(x: FloatArray) -> FloatArray:
    return np.add.reduce(x, axis=-1, keepdims=True)


def _steepest(change: FloatArray, point: FloatArray) -> FloatArray:
    """Inverse of the longest step that keeps all entries nonnegative, shape (B,)."""
    return np.asarray(np.maximum.reduce(-change / point, axis=-1))


def _weighted(F: FloatArray, K: FloatArray) -> FloatArray:
    """``F diag(K) F'``: a matrix times its own transpose takes half the time of a product of two."""
    half = F * np.sqrt(K)[..., None, :]
    return np.asarray(half @ half.mT)


class PolyhedralCone:
    """The l_1 norm, or with ``shared`` bounds the l_inf norm.

    Parameters
    ----------
    W, D : ndarray, shape (B, N)
        Where to start; ``N*(D) < 1``.
    shared : bool
        One bound for all entries.
    """

    together, cautious = False, False

    def __init__(self, W: FloatArray, D: FloatArray, shared: bool) -> None:
        self.W, self.shared, self._n = W, shared, W.shape[-1]
        self.degree = 2 * self._n
        most = np.maximum.reduce(np.abs(W), axis=-1, keepdims=True)
        if shared:
            self._r = 1.05 * most
            total = np.abs(D) + (1.0 - _sum(np.abs(D))) / self._n
        else:
            self._r = 1.2 * np.abs(W) + 0.1 * most
            total = np.ones_like(W)
        self._dx: FloatArray = np.zeros(0)
        self._dz: FloatArray = np.zeros(0)
        self._x = np.concatenate([self._r - W, self._r + W], axis=-1)  # u, v
        self._z = np.concatenate([total + D, total - D], axis=-1) / 2  # alpha, beta

    def value(self, D: FloatArray) -> FloatArray:
        """The sum of the bounds."""
        return np.asarray(np.add.reduce(self._r, axis=-1))

    def prepare(self, D: FloatArray) -> None:
        """The coefficients A + B and A - B, and K."""
        n = self._n
        self._ratio = self._z / self._x
        A, B = self._ratio[..., :n], self._ratio[..., n:]
        self._h, self._g = A + B, A - B
        rest = 4.0 * A * B / self._h  # h - g^2 / h, without cancellation
        above, below = self._z[..., :n], self._z[..., n:]
        self._off = D - above + below  # rounding only
        if self.shared:
            self._K, self._lost = 1.0 / self._h, 1.0 - _sum(self._z)
            self._k, self._kappa = self._g * self._K, _sum(rest)
        else:
            self._K, self._lost = 1.0 / rest, 1.0 - above - below

    def matrix(self, F: FloatArray) -> FloatArray:
        """Rows weighted by K, and the part of rank one."""
        if not self.shared:
            return _weighted(F, self._K)
        half = np.empty((*F.shape[:-1], self._n + 1))
        np.multiply(F, np.sqrt(self._K)[..., None, :], out=half[..., :-1])
        half[..., -1] = (F @ (self._k / np.sqrt(self._kappa))[..., None])[..., 0]
        return np.asarray(half @ half.mT)

    def constant(self, target: Any, second: bool) -> FloatArray:
        """See `Cone`."""
        n = self._n
        aimed = target - self._x * self._z
        if second:
            aimed = aimed - self._dx * self._dz
        self._aimed = aimed / self._x
        up, down = self._aimed[..., :n], self._aimed[..., n:]
        right = self._off - up + down
        if self.shared:
            self._e = (_sum(self._aimed) - self._lost + _sum(self._k * right)) / self._kappa
            return np.asarray(self._K * right + self._k * self._e)
        self._e = (up + down - self._lost) / self._h
        return np.asarray(self._K * (right + self._g * self._e))

    def answer(self, k: FloatArray, dD: FloatArray) -> FloatArray:
        """See `Cone`."""
        dW = k + self._K * dD
        if self.shared:
            share = _sum(self._k * dD) / self._kappa
            dW += self._k * share
            self._dr = self._e + share
        else:
            self._dr = self._e + self._g / self._h * dW
        self._dW = dW
        self._dx = np.concatenate([self._dr - dW, self._dr + dW], axis=-1)
        self._dz = self._aimed - self._ratio * self._dx
        return np.asarray(dW)

    def lengths(self) -> tuple[FloatArray, FloatArray]:
        """See `Cone`."""
        return _steepest(self._dx, self._x), _steepest(self._dz, self._z)

    def products(self, primal: FloatArray | float, dual: FloatArray | float) -> FloatArray:
        """See `Cone`."""
        if isinstance(primal, float):
            return np.asarray(np.vecdot(self._x, self._z))
        return np.asarray(np.vecdot(self._x + primal * self._dx, self._z + dual * self._dz))

    def move(self, primal: FloatArray, dual: FloatArray) -> None:
        """See `Cone`; a step of length 0 stays although its direction may not be finite."""
        if primal.size > 1:
            stay = primal == 0.0
            self._dW, self._dr, self._dx, self._dz = (
                np.where(stay, 0.0, x) for x in (self._dW, self._dr, self._dx, self._dz)
            )
        self.W, self._r = self.W + primal * self._dW, self._r + primal * self._dr
        self._x, self._z = self._x + primal * self._dx, self._z + dual * self._dz

    def keep(self, index: Any) -> None:
        """See `Cone`."""
        self.W, self._r, self._x, self._z = (part[index] for part in (self.W, self._r, self._x, self._z))

    def finish(self, state: PrimalDual) -> tuple[IntArray, FloatArray, FloatArray]:
        """The vertices of the l_inf norm that can be told."""
        if not self.shared or state.ordered is not None:
            return nothing(state)
        pair = InteriorPair(self.W, self._x, self._z)
        return linf_vertices(state.F, state.c, state.lam, state.slack, state.gap, pair)


class PowerCone:
    """``||W||_p^p / p`` for 1 < p < inf: no cone, but the curve that ties W to D.

    Parameters
    ----------
    W : ndarray, shape (B, N)
    p : float
    """

    together, cautious = True, False
    degree = 0

    def __init__(self, W: FloatArray, p: float) -> None:
        self.W, self.p = W, p

    def value(self, D: FloatArray) -> FloatArray:
        """``||W||_p ||D||_q``: not below ``<D, W>``, and equal to it on the curve only."""
        q = self.p / (self.p - 1.0)
        of_W, of_D = np.add.reduce(np.abs(self.W) ** self.p, axis=-1), np.add.reduce(np.abs(D) ** q, axis=-1)
        return np.asarray(of_W ** (1.0 / self.p) * of_D ** (1.0 / q))

    def prepare(self, D: FloatArray) -> None:
        """Slope of W as a function of D, and distance from the curve."""
        p, q = self.p, self.p / (self.p - 1.0)
        self._D = D
        if p >= 2.0:
            size = np.abs(self.W)
            # Next to 0 the curve is flat: there W moves as far as D makes it.
            floor = 1e-6 * np.maximum.reduce(size, axis=-1, keepdims=True)
            power = np.maximum(size, floor) ** (p - 2.0)
            self._K = 1.0 / ((p - 1.0) * power)
            self._k = self._K * (D - self.W * size ** (p - 2.0))
        else:
            power = np.abs(D) ** (q - 2.0)
            self._K = (q - 1.0) * power
            self._k = D * power - self.W

    def matrix(self, F: FloatArray) -> FloatArray:
        """Rows weighted by the slope."""
        return _weighted(F, self._K)

    def constant(self, target: Any, second: bool) -> FloatArray:
        """See `Cone`: nothing depends on the target."""
        return self._k

    def answer(self, k: FloatArray, dD: FloatArray) -> FloatArray:
        """See `Cone`."""
        self._dW = k + self._K * dD
        return np.asarray(self._dW)

    def lengths(self) -> tuple[FloatArray, FloatArray]:
        """No bounds."""
        none = np.zeros(self.W.shape[:-1])
        return none, none

    def products(self, primal: FloatArray | float, dual: FloatArray | float) -> FloatArray:
        """None."""
        return np.zeros(self.W.shape[:-1])

    def move(self, primal: FloatArray, dual: FloatArray) -> None:
        """See `Cone`."""
        if primal.size > 1:
            self._dW = np.where(primal == 0.0, 0.0, self._dW)
        self.W = self.W + primal * self._dW

    def keep(self, index: Any) -> None:
        """See `Cone`."""
        self.W = self.W[index]

    def finish(self, state: PrimalDual) -> tuple[IntArray, FloatArray, FloatArray]:
        """None."""
        return nothing(state)
