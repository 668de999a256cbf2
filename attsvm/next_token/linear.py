"""Next-token prediction with a linear decoder: contexts h_j with empirical next-token distributions.

Training ``W (V x d)`` with the cross-entropy of ``softmax(W h_j)`` on distributions p_j whose supports S_j are not all
of the vocabulary (Thrampoulidis, *Implicit bias of next-token prediction*, arXiv 2402.18551; for the nuclear norm arXiv
2408.15417). The loss tends to its infimum, the conditional entropy, only if inside the supports

    (e_z - e_z')^T W h_j = log p_j(z) / p_j(z')         (finite part, when such a W exists),

while W grows along the solution of

    minimize ||W||  s.t.  (e_z - e_z')^T W h_j = 0  for z, z' in S_j,   >= 1  for z in S_j, z' outside.

These are Gen-SVM and its finite part with one-hot tokens: the same rows, so the same solvers and certificates. The
derivation is in ``docs/next_token.md``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._arrays import real_array, require_finite
from attsvm.problem import AttentionProblem
from attsvm.solution import Solution
from attsvm.svm import finite_part, gen_svm

__all__ = ["linear_finite_part", "linear_problem", "linear_svm"]

FloatArray = npt.NDArray[np.float64]


def linear_problem(contexts: npt.ArrayLike, distributions: npt.ArrayLike) -> tuple[AttentionProblem, FloatArray]:
    """Contexts as queries over one-hot tokens, and the checked distributions.

    Parameters
    ----------
    contexts : array_like, shape (m, d)
        Embeddings of the distinct contexts.
    distributions : array_like, shape (m, V)
        Counts or probabilities of the next token; 0 outside the support.

    Examples
    --------
    >>> from attsvm.next_token import linear_problem
    >>> problem, p = linear_problem([[1.0, 0.0], [0.0, 1.0]], [[3, 1, 0], [0, 0, 2]])
    >>> problem, p[0]
    (AttentionProblem(n=2, T=3, dx=3, dz=2, no head), array([0.75, 0.25, 0.  ]))
    """
    h, counts = real_array("contexts", contexts).astype(np.float64), real_array("distributions", distributions)
    if h.ndim != 2 or counts.ndim != 2 or len(h) != len(counts):
        raise ValueError(
            f"contexts must have shape (m, d) and distributions (m, V), got shapes {h.shape} and {counts.shape}"
        )
    require_finite("distributions", counts)
    total = counts.sum(axis=1, dtype=np.float64)
    bad = np.flatnonzero((counts < 0).any(axis=1) | ~(total > 0))
    if len(bad):
        raise ValueError(f"distributions[{bad[0]}] must hold numbers >= 0 that are not all 0")
    m, V = counts.shape
    tokens = np.broadcast_to(np.eye(V), (m, V, V))
    return AttentionProblem(tokens, Z=h), counts / total[:, None]


def linear_svm(
    contexts: npt.ArrayLike, distributions: npt.ArrayLike, *, norm: str = "frobenius", **options: Any
) -> Solution:
    """The direction in which training a linear decoder sends W, shape (V, d).

    Parameters
    ----------
    contexts : array_like, shape (m, d)
    distributions : array_like, shape (m, V)
        Counts or probabilities of the next token; only their supports matter here.
    norm, **options
        As for `attsvm.gen_svm`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import linear_svm
    >>> sol = linear_svm(np.eye(2), [[3, 1, 0], [0, 0, 2]])
    >>> print(sol.status, (sol.W @ np.eye(2)).T.round(3))
    optimal [[ 0.333  0.333 -0.667]
     [-0.333 -0.333  0.667]]
    """
    problem, p = linear_problem(contexts, distributions)
    if (p > 0).all():
        raise ValueError("distributions give every token a positive probability: nothing is left to separate")
    return gen_svm(problem, p > 0, norm=norm, **options)


def linear_finite_part(
    contexts: npt.ArrayLike, distributions: npt.ArrayLike, *, norm: str = "frobenius", **options: Any
) -> Solution:
    """Least W whose logits have the log odds of the distributions inside every support.

    Infeasible (with a proof) when the contexts do not allow them: training then ends at another finite part.

    Parameters
    ----------
    contexts : array_like, shape (m, d)
    distributions : array_like, shape (m, V)
    norm, **options
        As for `attsvm.finite_part`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.next_token import linear_finite_part
    >>> W = linear_finite_part(np.eye(2), [[3, 1, 0], [0, 0, 2]]).W
    >>> round(float(np.exp(W[0, 0] - W[1, 0])), 9)
    3.0
    """
    problem, p = linear_problem(contexts, distributions)
    if ((p > 0).sum(axis=1) < 2).all():
        raise ValueError("distributions give every context one token only: there are no log odds to match")
    return finite_part(problem, p, p > 0, norm=norm, **options)
