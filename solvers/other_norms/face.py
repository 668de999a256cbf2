"""From an interior point of the spectral norm to the solution on its face, by Newton's method.

Let r singular values of W equal the norm t, with singular vectors ``U_1, V_1``, and let A be the rows with a multiplier.
Then ``D = sum_A lam_k F_k = U_1 S V_1'`` with S positive definite of trace 1, and the conditions are smooth equations. In
the coordinates of all singular vectors of W, with S diagonal, a change E of W turns ``U_1, V_1`` and so changes D by

    the skew part w of E_11:   (w_ij / 2t) (s_i + s_j),      E_21, E_12:  X S,  (Y S)',   t X - Sigma Y = E_21,
                                                                                    t Y - Sigma' X = E_12',

where Sigma are the other singular values. Solved for E this is linear in the multipliers, and a step is one system,

    [ M   N   v ] [ lam  ]   [ c ]
    [ N'  0   0 ] [ W_22 ] = [ 0 ],      M positive semidefinite,  N_k = F_k,22,  v_k = trace F_k,11.
    [ v'  0   0 ] [  t   ]   [ 1 ]

r and A are read off an interior point long before its gap is small. Convergence is quadratic if they are right and the
solution is the only one; what comes out is measured, and dropped where it is not optimal.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray

__all__ = ["spectral_face"]

# Steps, and by what factor each must come closer.
_MOST_STEPS, _CLOSER = 6, 0.3
# Least share of S, relative to its largest, that is told from 0.
_FLAT = 1e-9
# Weight of the change of W_22, relative to the gap: where the rows leave W_22 open it stays; where they do not, a weight
# that vanishes with the gap leaves the steps quadratic.
_HOLD, _LEAST_HOLD = 30.0, 1e-8
# Columns of workspace per column of a matrix: enough for blocked code.
_BLOCK = 64


def spectral_face(
    F: FloatArray, c: FloatArray, W: FloatArray, lam: FloatArray, active: BoolArray, equality: BoolArray | None, goal: float
) -> tuple[FloatArray, FloatArray] | None:
    """W and multipliers on the face that an interior point is next to; None where Newton's method finds none.

    Parameters
    ----------
    F : ndarray, shape (m, p, q)
    c : ndarray, shape (m,)
    W : ndarray, shape (p, q)
    lam : ndarray, shape (m,)
    active : ndarray of bool, shape (m,)
        Rows that hold with equality.
    equality : ndarray of bool, shape (m,), or None
        Rows that must, and whose multipliers have either sign.
    goal : float
        Relative gap, and violation of rows, at which the method ends.

    Examples
    --------
    ``3 W_11 + 4 W_22 >= 7``: the identity, and the multiplier 1/7.

    >>> import numpy as np
    >>> from attsvm.solvers.other_norms.face import spectral_face
    >>> F, active = np.diag([3.0, 4.0])[None], np.ones(1, dtype=bool)
    >>> W, lam = spectral_face(F, np.array([7.0]), np.diag([1.1, 1.05]), np.array([0.1]), active, None, 1e-12)
    >>> W.round(12) + 0.0, lam.round(12)
    (array([[1., 0.],
           [0., 1.]]), array([0.14285714]))
    """
    if F.shape[1] < F.shape[2]:
        turned = spectral_face(F.swapaxes(1, 2), c, W.T, lam, active, equality, goal)
        return None if turned is None else (turned[0].T, turned[1])
    shape, flat = F.shape[1:], F.reshape(len(F), -1)
    rows = active.nonzero()[0]
    part, own, sides = flat[rows], lam[rows], c[rows]
    D = (own @ part).reshape(shape)
    triples, least = _triples(W), np.inf
    r = _multiplicity(*triples, D)
    if not r:
        return None
    for _ in range(_MOST_STEPS):
        stepped = _step(part, sides, triples, D, r, max(_HOLD * min(least, 1.0 / _HOLD), _LEAST_HOLD))
        if stepped is None:
            return None
        W, own = stepped
        D = (own @ part).reshape(shape)
        triples = _triples(W)
        short = c - flat @ W.ravel()
        if equality is not None:
            short[equality] = np.abs(short[equality])
        size = float(_triples(D)[1].sum()) * float(triples[1][0])
        if not size > 0.0:
            return None
        worst = max(abs(1.0 - float(sides @ own) / size), float(short.max()))
        if worst <= goal:
            break
        if not worst < _CLOSER * least:
            return None
        least = worst
    multipliers = np.zeros(len(c))
    multipliers[rows] = own
    signed = multipliers if equality is None else multipliers[~equality]
    return (W, multipliers) if worst <= goal and signed.min(initial=0.0) >= -goal * own.max() else None


def _triples(matrix: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """All singular vectors and the singular values: ``matrix = U[:, :q] values Vt``."""
    from scipy.linalg import lapack

    U, values, Vt, failed = lapack.dgesdd(matrix, lwork=_BLOCK * len(matrix) + 4 * matrix.size)
    return (U, values, Vt) if not failed else (U, np.full_like(values, np.nan), Vt)


def _multiplicity(U: FloatArray, values: FloatArray, Vt: FloatArray, D: FloatArray) -> int:
    """Singular values of W that tend to the largest: those whose share of D is larger than what they miss."""
    share = np.abs(np.vecdot((U.T @ D)[: len(values)], Vt))
    return int(np.count_nonzero(share / share.max() > 1.0 - values / values[0]))


@lru_cache(maxsize=64)
def _above(r: int) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Places above the diagonal."""
    above, right = np.triu_indices(r, 1)
    return above, right


def _step(
    part: FloatArray, c: FloatArray, triples: tuple[FloatArray, FloatArray, FloatArray], D: FloatArray, r: int, hold: float
) -> tuple[FloatArray, FloatArray] | None:
    """W and multipliers after one step from W, given by its singular triples, and D; None without a step."""
    from scipy.linalg import lapack

    U, values, Vt = triples
    (p, q), k, V = D.shape, len(c), Vt.T
    top = U[:, :r].T @ D @ V[:, :r]
    s, Q, failed = lapack.dsyevd(0.5 * (top + top.T), lwork=2 * _BLOCK * r + 2 * r * r, liwork=5 * r + 3)
    if failed or not s[-1] > 0.0:
        return None
    s = np.maximum(s, _FLAT * s[-1])
    U, V = U.copy(), V.copy()
    U[:, :r], V[:, :r] = U[:, :r] @ Q, V[:, :r] @ Q
    t, others, rest = float(values[:r].mean()), values[r:], q - r
    turned = U.T @ (part.reshape(-1, q) @ V).reshape(k, p, q)
    first = turned[:, :r, :r]
    above, right = _above(r)
    skew = (first[:, above, right] - first[:, right, above]) * np.sqrt(t / (s[above] + s[right]))
    x, y = turned[:, r:, :r] / np.sqrt(s), turned[:, :r, r:].mT / np.sqrt(s)
    paired, alone = x[:, :rest], x[:, rest:] * np.sqrt(t)
    low, high = np.sqrt(0.5 * np.maximum(t - others, 0.0))[:, None], np.sqrt(0.5 * (t + others))[:, None]
    half = np.concatenate(
        [skew, *(z.reshape(k, -1) for z in ((paired + y) * low, (paired - y) * high, alone))], axis=1
    )
    free = (p - r) * rest
    size = k + free + 1
    matrix, side = np.zeros((size, size), order="F"), np.zeros(size)
    matrix[:k, :k] = half @ half.T
    matrix[:k, k:-1], matrix[:k, -1] = turned[:, r:, r:].reshape(k, -1), np.add.reduce(first.diagonal(axis1=1, axis2=2), axis=-1)
    matrix[k:, :k] = matrix[:k, k:].T
    side[:k], side[-1] = c, 1.0
    inside = np.zeros((p - r, rest))
    inside[np.arange(rest), np.arange(rest)] = others
    matrix.ravel(order="F")[k * (size + 1) : -1 : size + 1] = -hold
    side[k:-1] = -hold * inside.ravel()
    _, _, solved, failed = lapack.dgesv(matrix, side, overwrite_a=1, overwrite_b=1)
    if failed or not np.isfinite(solved).all():
        return None
    own, t_new = solved[:k], float(solved[-1])
    D = (own @ turned.reshape(k, -1)).reshape(p, q)
    change = np.zeros((p, q))
    X, Y = D[r:, :r] / s, D[:r, r:].T / s
    change[:r, :r] = (D[:r, :r] - D[:r, :r].T) * (t / (s[:, None] + s))
    change[:r, :r].flat[:: r + 1] = t_new
    change[r:, :r] = t * X
    change[r : r + rest, :r] -= others[:, None] * Y
    change[:r, r:] = (t * Y - others[:, None] * X[:rest]).T
    change[r:, r:] = solved[k:-1].reshape(p - r, rest)
    return U @ change @ V.T, own
