"""How learnt features change the curvature of the others, Lemmas III.2 and A.6 (softmax, independent centred theta).

The derivatives of softmax at zero are the joint cumulants of a uniform one-hot vector; all constants follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import factorial

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.specialization.constants import quadratic_constants

__all__ = ["HierarchyConstants", "hessian_near", "hierarchy_constants", "one_hot_cumulant"]

Array = npt.NDArray[np.float64]


def _partitions(items: tuple[int, ...]) -> Iterator[list[list[int]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for partition in _partitions(rest):
        yield [[first], *partition]
        for k, block in enumerate(partition):
            yield [*partition[:k], [first, *block], *partition[k + 1 :]]


@lru_cache(maxsize=4096)
def _cumulant(pattern: tuple[int, ...], L: int) -> float:
    total = 0.0
    for partition in _partitions(tuple(range(len(pattern)))):
        # The mean of a product of indicators is 1/L if all name the same entry, else 0.
        if all(len({pattern[i] for i in block}) == 1 for block in partition):
            k = len(partition)
            total += (-1.0) ** (k - 1) * factorial(k - 1) * (1.0 / L) ** k
    return total


def one_hot_cumulant(indices: Sequence[int], L: int) -> float:
    """Joint cumulant of the named entries of a uniform one-hot vector in R^L: a derivative of softmax at 0.

    Examples
    --------
    >>> from attsvm.dynamics.specialization.hierarchy import one_hot_cumulant
    >>> one_hot_cumulant([0, 0], L=4), one_hot_cumulant([0, 1], L=4)
    (0.1875, -0.0625)
    """
    if L < 1 or not all(0 <= i < L for i in indices):
        raise ValueError(f"indices must lie in [0, {L}), got {list(indices)}")
    names: dict[int, int] = {}
    pattern = tuple(names.setdefault(i, len(names)) for i in indices)  # only which are equal matters
    return _cumulant(pattern, L)


@dataclass(frozen=True)
class HierarchyConstants:
    """Constants of (58): learning ``mbar`` along one feature adds to the Hessian of another feature

    ``c1 |mbar|^2 I + c2 Diag(mbar^2) + c3 mbar mbar^T`` on vectors orthogonal to 1_H, for mbar orthogonal to 1_H.
    """  # noqa: D400  one sentence around a formula

    c1: float
    c2: float
    c3: float


def hierarchy_constants(L: int, H: int, variance: float, learnt_variance: float) -> HierarchyConstants:
    """Fourth-order constants for a feature of the given variance next to a learnt one.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import hierarchy_constants
    >>> constants = hierarchy_constants(L=3, H=4, variance=1.0, learnt_variance=1.0)
    >>> round(constants.c1, 4), round(constants.c2, 3), round(constants.c3, 3)
    (0.0005, 0.105, 0.016)
    """
    if L < 2 or H < 1 or variance < 0 or learnt_variance < 0:
        raise ValueError("L >= 2, H >= 1 and variances >= 0 are needed")
    spread = 1.0 + variance * (np.arange(L) == 0)
    learnt = 1.0 + learnt_variance * (np.arange(L) == 0)
    c2 = c3 = 0.0
    for token in range(L):
        for i in range(L):
            for j in range(L):
                weight = spread[i] * learnt[j]
                c3 += one_hot_cumulant([token, i, j], L) ** 2 * weight
                c2 += (1.0 / L - (token == 0)) * one_hot_cumulant([token, i, i, j, j], L) * weight
    c1 = (L - 1) * (L - 2) ** 2 * variance * learnt_variance / (H**2 * L**5)
    return HierarchyConstants(c1, float(c2) / H, 2.0 * float(c3) / H**2)


def hessian_near(
    L: int, H: int, variance: float, learnt: Sequence[tuple[float, npt.ArrayLike]], *, form: str = "corrected"
) -> Array:
    """Hessian in one unlearnt column of m, shape (H, H), restricted to vectors orthogonal to 1_H (Lemma A.6).

    Parameters
    ----------
    variance : float
        Of the unlearnt feature.
    learnt : sequence of (variance, mbar)
        The learnt features and their columns of m, each orthogonal to 1_H.
    form : {"corrected", "printed"}
        (63) and (67) print the second-order constants in exchanged roles and with one sign lost.

    Examples
    --------
    Two heads that have split along a strong feature bend less towards a second one:

    >>> import numpy as np
    >>> from attsvm.dynamics.specialization import hessian_near
    >>> [round(float(np.linalg.eigvalsh(hessian_near(5, 2, 2.0, [(8.0, [s, -s])]))[0]), 3) for s in (0.0, 0.1, 0.2)]
    [-0.192, -0.174, -0.118]
    """
    c = quadratic_constants("softmax", L, H)
    ones = np.ones((H, H))
    if form == "corrected":
        hessian = 2.0 * ((c.c1 + c.c2 * variance) * ones - c.c3 * variance * np.eye(H))
    elif form == "printed":
        hessian = 2.0 * ((c.c1 + c.c3 * variance) * ones + c.c2 * variance * np.eye(H))
    else:
        raise ValueError(f"form must be 'corrected' or 'printed', got {form!r}")
    for index, (other, column) in enumerate(learnt):
        mbar = np.asarray(column, dtype=np.float64)
        if mbar.shape != (H,) or abs(mbar.sum()) > 1e-9 * (1.0 + float(np.abs(mbar).sum())):
            raise ValueError(f"learnt[{index}] must hold a column of {H} entries with sum 0")
        k = hierarchy_constants(L, H, variance, other)
        hessian += k.c1 * (mbar @ mbar) * np.eye(H) + k.c2 * np.diag(mbar**2) + k.c3 * np.outer(mbar, mbar)
    projector = np.eye(H) - ones / H
    return np.asarray(projector @ hessian @ projector) if form == "corrected" else hessian
