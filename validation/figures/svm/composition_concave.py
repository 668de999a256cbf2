"""Trials of the concave head v . x - lam |x|^2 on orthonormal tokens, whose optimal attention is known (Lemma 6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm import AttentionProblem, ConcaveHead
from attsvm.comparison.metrics import misalignment
from attsvm.paths.decomposition import DecompositionStatus, decompose
from attsvm.validation.figures.svm.composition import attention, filter_reason, unit

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic

__all__ = ["concave_runs", "lemma_instances", "lemma_runs", "orthonormal_sequences", "simplex_projection"]

FloatArray = npt.NDArray[np.float64]
_SELECTED, _MASKED = 1e-3, 1e-8  # the thresholds of Figure 10


def simplex_projection(y: FloatArray) -> FloatArray:
    """Nearest probability vectors, shape (..., T).

    With orthonormal tokens ``lam |X^T s|^2 - g . s`` is ``lam |s - g / (2 lam)|^2`` up to a constant, so that the
    optimum of (10) is the projection of ``g / (2 lam)``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.svm.composition_concave import simplex_projection
    >>> simplex_projection(np.array([1.0, 0.5, -1.0]))
    array([0.75, 0.25, 0.  ])
    """
    ordered = -np.sort(-y, axis=-1)
    shifts = (np.cumsum(ordered, axis=-1) - 1) / np.arange(1, y.shape[-1] + 1)
    last = (ordered > shifts).sum(axis=-1, keepdims=True) - 1
    return np.asarray(np.maximum(y - np.take_along_axis(shifts, last, axis=-1), 0.0))


def orthonormal_sequences(trials: int, rng: np.random.Generator, T: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Tokens (trials, 1, T, T) with orthonormal rows, v (trials, T) and queries (trials, 1, T) on the sphere.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.svm.composition_concave import orthonormal_sequences
    >>> X, v, Z = orthonormal_sequences(2, np.random.default_rng(0), 5)
    >>> bool(np.allclose(X[1, 0] @ X[1, 0].T, np.eye(5)))
    True
    """
    gaussian = rng.standard_normal((trials, 1, T, T))
    q, r = np.linalg.qr(gaussian)
    X = q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[..., None, :]  # uniform over the orthogonal group
    return X, unit(rng.standard_normal((trials, T))), unit(rng.standard_normal((trials, 1, T)))


def concave_runs(
    trials: int,
    seed: int,
    *,
    lam: float,
    T: int = 10,
    steps: int = 2000,
    lr: float = 0.1,
    optimizer: str = "normalized_gd",
    arithmetic: Arithmetic = "log",
    init: str = "uniform",
    device: str | None = None,
) -> dict[str, Any]:
    """Train with one lam, count selected tokens, and compare with the exact optimum and with Gen-SVM.

    ``svmeq`` and ``mm`` (1 - corr, every unselected token taken as masked) are None when all tokens are selected;
    ``log10_rest`` and ``log10_rest_before`` tell of the likeliest unselected token at the end and after a quarter of
    the steps.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.composition_concave import concave_runs
    >>> found = concave_runs(3, 0, lam=0.2, T=4, steps=500)
    >>> found["selected"].tolist() == found["optimal"].tolist()
    True
    """
    rng = np.random.default_rng(seed)
    X, v, Z = orthonormal_sequences(trials, rng, T)
    problems = AttentionProblem(X, np.ones((trials, 1)), Z, ConcaveHead(v, lam))
    run = attsvm.train(
        problems, steps=steps, lr=lr, seed=rng, optimizer=optimizer, arithmetic=arithmetic, init=init,
        snapshots=[steps // 4, steps], device=device,
    )  # fmt: skip
    scores = np.einsum("bitd,bd->bt", X, v)
    # Without concavity the best token alone is optimal.
    best = scores == scores.max(axis=-1, keepdims=True) if lam == 0 else simplex_projection(scores / (2 * lam)) > 0
    columns = _counts(attention(problems, run.W)[:, 0], best)
    chosen = attention(problems, run.W)[:, 0] > _SELECTED
    columns["log10_rest_before"] = _likeliest_rest(attention(problems, run.history.W[-2])[:, 0], chosen)
    fits = [_fit(problems[b], run.W[b]) for b in range(trials)]
    return columns | {name: [fit[name] for fit in fits] for name in ("svmeq", "mm")}


def _counts(s: FloatArray, best: npt.NDArray[np.bool_]) -> dict[str, Any]:
    chosen = s > _SELECTED
    return {
        "selected": chosen.sum(axis=-1),
        "optimal": best.sum(axis=-1),
        "same": (chosen == best).all(axis=-1),
        "reason": filter_reason(s[:, None], _SELECTED, _MASKED),
        "log10_rest": _likeliest_rest(s, chosen),
    }


def _likeliest_rest(s: FloatArray, chosen: npt.NDArray[np.bool_]) -> list[float | None]:
    """log10 of the largest probability outside the selected sets; None where everything is selected or it is 0."""
    rest = np.where(chosen, 0.0, s).max(axis=-1)
    return [float(np.log10(r)) if r > 0 else None for r in rest]


def _fit(problem: AttentionProblem, W: FloatArray) -> dict[str, float | None]:
    parts = decompose(problem, W, selected=_SELECTED, masked=_MASKED)
    if parts.status is not DecompositionStatus.COMPLETE:
        return {"svmeq": None, "mm": None}
    return {"svmeq": float(misalignment(W, parts.W_svmeq)), "mm": float(misalignment(W, parts.W_mm))}  # type: ignore[arg-type]


def lemma_instances(
    trials: int, rng: np.random.Generator, *, tau: int, T: int = 10, largest_lam: float = 2.0
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, int]:
    """Draw sequences, and lam uniform in (0, largest_lam), until ``trials`` satisfy ``tau g_tau / 2 > lam > g_1``.

    This is the hypothesis of Lemma 6, with (9), for the gaps g of the ordered scores.

    Returns
    -------
    X, v, Z : ndarray
        As `orthonormal_sequences`.
    lam : ndarray, shape (trials,)
    drawn : int

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.figures.svm.composition_concave import lemma_instances
    >>> *_, lam, drawn = lemma_instances(5, np.random.default_rng(0), tau=3)
    >>> len(lam), drawn > 5
    (5, True)
    """
    if not 2 <= tau < T:
        raise ValueError(f"tau must be in [2, T - 1] = [2, {T - 1}], got {tau}")
    kept: list[tuple[FloatArray, ...]] = []
    drawn = have = 0
    while have < trials:
        X, v, Z = orthonormal_sequences(2000, rng, T)
        lam = rng.uniform(0.0, largest_lam, size=len(X))
        gaps = -np.diff(-np.sort(-np.einsum("bitd,bd->bt", X, v), axis=-1), axis=-1)
        good = np.flatnonzero((tau * gaps[:, tau - 1] / 2 > lam) & (lam > gaps[:, 0]))[: trials - have]
        kept.append(tuple(a[good] for a in (X, v, Z, lam)))
        have += len(good)
        drawn += len(X) if have < trials else int(good[-1]) + 1
    X, v, Z, lam = (np.concatenate(parts) for parts in zip(*kept, strict=True))
    return X, v, Z, lam, drawn


def lemma_runs(
    trials: int, seed: int, *, tau: int, T: int = 10, steps: int = 2000, device: str | None = None
) -> dict[str, Any]:
    """Train on instances of Lemma 6, each with its own lam, and count selected tokens.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.composition_concave import lemma_runs
    >>> found = lemma_runs(3, 0, tau=3, steps=300)
    >>> bool((found["optimal"] <= 3).all())
    True
    """
    rng = np.random.default_rng(seed)
    X, v, Z, lam, drawn = lemma_instances(trials, rng, tau=tau, T=T)
    # Normalized steps on one sequence do not see the scale of the loss: h / lam has the same path as h.
    problems = AttentionProblem(X, np.ones((trials, 1)), Z, ConcaveHead(v / lam[:, None], 1.0))
    run = attsvm.train(problems, steps=steps, lr=0.1, seed=rng, loss="correlation", snapshots=[steps], device=device)
    best = simplex_projection(np.einsum("bitd,bd->bt", X, v) / (2 * lam[:, None])) > 0
    counts = _counts(attention(problems, run.W)[:, 0], best)
    return counts | {"lam": lam, "draws_per_kept": np.full(trials, drawn / trials)}
