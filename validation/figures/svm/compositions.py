"""Trials shared by the figures on compositions of several tokens: draw, train, filter, decompose.

The concave head v . x - lam |x|^2 is tried on orthonormal tokens, whose optimal attention is known (Lemma 6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm import AttentionProblem, ConcaveHead, ReluHead
from attsvm.attention import probabilities
from attsvm.comparison import misalignment
from attsvm.paths.weight_decomposition import Decomposition, DecompositionStatus, decompose
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.figures.figure import Context

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic

NAMES = {"svmeq": r"$W_{\mathrm{SVMeq}}$", "mm": r"$W_{\mathrm{mm}}$", "single": r"$W_{\mathrm{1token}}$"}


def unit(points: FloatArray) -> FloatArray:
    """Vectors divided by their lengths, shape (..., d).

    Examples
    --------
    >>> unit(np.array([3.0, 4.0]))
    array([0.6, 0.8])
    """
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True))


def numbers(values: Any) -> FloatArray:
    """Numbers of a column in which runs that were not kept have None.

    Examples
    --------
    >>> numbers([1.0, None, 3.0])
    array([1., 3.])
    """
    return np.array([v for v in values if v is not None], dtype=np.float64)


def mean(values: Any) -> float:
    """Mean of these numbers; NaN without any.

    Examples
    --------
    >>> mean([1.0, None, 3.0]), mean([])
    (2.0, nan)
    """
    found = numbers(values)
    return float(found.mean()) if len(found) else float("nan")


def relu_problems(
    trials: int, rng: np.random.Generator, *, d: int, n: int = 3, T: int = 4, head: str = "code"
) -> AttentionProblem:
    """Problems with the head 1 . relu(V^T x) and at least one label -1 each.

    Parameters
    ----------
    trials, rng
    d, n, T : int
    head : {"code", "text"}
        V Gaussian with Frobenius norm 1, one per problem, as published code has it; or V = I, as the text says.

    Examples
    --------
    >>> problems = relu_problems(50, np.random.default_rng(0), d=4)
    >>> problems.X.shape, bool((problems.Y == -1).any(axis=1).all())
    ((50, 3, 4, 4), True)
    """
    if head not in ("code", "text"):
        raise ValueError(f"head must be 'code' or 'text', got {head!r}")
    X, Z = unit(rng.standard_normal((trials, n, T, d))), unit(rng.standard_normal((trials, n, d)))
    Y = rng.choice([-1.0, 1.0], size=(trials, n))
    while (convex := (Y == 1).all(axis=1)).any():  # without a label -1 every Y h is convex and one token wins
        Y[convex] = rng.choice([-1.0, 1.0], size=(int(convex.sum()), n))
    V = np.eye(d)
    if head == "code":
        V = rng.standard_normal((trials, d, d))
        V /= np.linalg.norm(V, axis=(1, 2), keepdims=True)
    return AttentionProblem(X, Y, Z, ReluHead(V))


def attention(problems: AttentionProblem, W: FloatArray) -> FloatArray:
    """Softmax probabilities of a batch, shape (batch, n, T).

    Examples
    --------
    >>> problems = relu_problems(2, np.random.default_rng(0), d=4)
    >>> attention(problems, np.zeros((2, 4, 4)))[0, 0]
    array([0.25, 0.25, 0.25, 0.25])
    """
    return probabilities(problems, W)


def filter_reason(s: FloatArray, selected: float, masked: float) -> npt.NDArray[np.str_]:
    """Why a run is dropped, by its attention: "between" the thresholds, "all selected", or "clean".

    Parameters
    ----------
    s : ndarray, shape (batch, n, T)
    selected, masked : float
        Tokens above ``selected`` are selected, those at or below ``masked`` masked.

    Examples
    --------
    >>> filter_reason(np.array([[[0.5, 0.5]], [[0.9999, 1e-4]], [[1.0, 1e-9]]]), 1e-3, 1e-6).tolist()
    ['all selected', 'between', 'clean']
    """
    flat = s.reshape(len(s), -1)
    between = ((flat > masked) & (flat <= selected)).any(axis=1)
    return np.where(between, "between", np.where((flat > selected).all(axis=1), "all selected", "clean"))


def relu_compositions(
    trials: int,
    seed: int,
    *,
    d: int,
    head: str = "code",
    arithmetic: Arithmetic = "naive",
    steps: int = 2001,
    every: int = 100,
    device: str | None = None,
) -> dict[str, Any]:
    """Train on W, keep the runs that the published filter keeps, and decompose those.

    A run is kept if every probability is above 1e-3 or at most 1e-6, some are masked, and all SVMs are feasible.
    Columns of runs that are not kept are None. ``svmeq``, ``mm`` and ``single`` are 1 - correlation of the final W with
    W_fin + gamma W_mm, W_mm and the solution for the likeliest tokens, ``*_curve`` the same along training with the
    final predictions, and ``*_alive`` the same with the rows of dead queries left out.

    Examples
    --------
    >>> found = relu_compositions(4, 0, d=4, steps=201)
    >>> len(found["reason"]), set(found["reason"]) <= {"kept", "between", "all selected", "infeasible"}
    (4, True)
    """
    rng = np.random.default_rng(seed)
    problems = relu_problems(trials, rng, d=d, head=head)
    run = attsvm.train(
        problems, steps=steps, lr=0.1, seed=rng, arithmetic=arithmetic, device=device,
        snapshots=list(range(1, steps + 1, every)),
    )  # fmt: skip
    reasons = filter_reason(attention(problems, run.W), 1e-3, 1e-6)
    rows: list[dict[str, Any]] = [{}] * trials
    reason = [str(r) for r in reasons]
    for b in np.flatnonzero(reasons == "clean"):
        parts = decompose(problems[int(b)], run.W[b])
        reason[b] = "infeasible"
        if parts.status is DecompositionStatus.COMPLETE and parts.single.status.has_solution:
            reason[b] = "kept"
            rows[b] = _row(parts, run.history.W[:, b])
    names = [f"{name}{kind}" for name in NAMES for kind in ("", "_curve", "_alive")]
    columns = {name: [row.get(name) for row in rows] for name in (*names, "log10_masked", "dead", "composed")}
    return {"reason": reason, "kept": [r == "kept" for r in reason], **columns}


def _row(parts: Decomposition, path: FloatArray) -> dict[str, Any]:
    """Numbers of one kept run; ``path`` holds its snapshots (S, d, d)."""
    dead = dead_queries(parts)
    row: dict[str, Any] = {
        "log10_masked": parts.max_masked / np.log(10),
        "dead": int(dead.sum()),
        "composed": int((parts.sizes > 1).sum()),
    }
    alive = _without(parts, dead)
    for name in NAMES:
        predicted = _prediction(parts, name)
        row[name] = float(misalignment(parts.W, predicted))
        row[f"{name}_curve"] = misalignment(path, predicted).tolist()
        # Nothing may be left to predict: dead queries only, or living ones that mask nothing.
        other = None if alive is None else _prediction(alive, name)
        row[f"{name}_alive"] = None if other is None else float(misalignment(parts.W, other))
    return row


def _prediction(parts: Decomposition, name: str) -> Any:
    if name == "single":
        return parts.single.W if parts.single.status.has_solution else None
    return parts.W_svmeq if name == "svmeq" else parts.W_mm


def dead_queries(parts: Decomposition) -> npt.NDArray[np.bool_]:
    """Queries whose composed token switches every hidden unit off: no gradient reaches them, shape (n,).

    Examples
    --------
    >>> X = np.array([[[1.0], [2.0]], [[-1.0], [-2.0]]])
    >>> problem = attsvm.AttentionProblem(X, np.ones(2), np.ones((2, 1)), attsvm.ReluHead(np.eye(1)))
    >>> dead_queries(decompose(problem, np.eye(1)))
    array([False,  True])
    """
    problem = parts.problem
    assert isinstance(problem.head, ReluHead)
    composed = np.einsum("it,itd->id", np.exp(parts.log_probabilities), problem.X)
    return np.asarray(~(composed @ problem.head.V > 0).any(axis=-1))


def _without(parts: Decomposition, dead: npt.NDArray[np.bool_]) -> Decomposition | None:
    """The decomposition by the rows of living queries; None when there is nothing left to mask."""
    if not dead.any():
        return parts
    live = ~dead
    if not live.any() or parts.selected_sets.members[live].all():
        return None
    problem = parts.problem
    return decompose(AttentionProblem(problem.X[live], problem.Y[live], problem.Z[live], problem.head), parts.W)


def draw_until_kept(
    context: Context,
    fn: Callable[..., Mapping[str, Any]],
    cell: Mapping[str, Any],
    wanted: int,
    *,
    share: float,
    chunk: int,
    name: str,
    limit: int,
) -> dict[str, np.ndarray]:
    """Columns of the trials drawn until ``wanted`` of them are kept (column "kept"), by chunks that survive a kill.

    Parameters
    ----------
    context : Context
    fn, cell
        As for ``context.sweep``; one cell.
    wanted : int
    share : float
        Expected share of kept trials; sets the size of the first round only.
    chunk : int
    name : str
        Of the sweep in the store.
    limit : int
        Trials after which to give up; fewer may then be kept.

    Examples
    --------
    >>> def third(trials, seed, d):
    ...     return {"kept": [k % 3 == 2 for k in range(trials)]}
    >>> context = Context({"trials": 4})
    >>> len(draw_until_kept(context, third, {"d": 1}, 4, share=0.5, chunk=6, name="third", limit=60)["kept"])
    12
    """
    rounds = replace(context, seconds=[], resumed=[])  # a round's store holds the rounds before: count them once
    most = max(1, limit // chunk)
    chunks = computed = 0
    missing, expected = wanted, share
    while True:
        chunks = min(most, chunks + max(1, int(np.ceil(missing / expected / chunk))))
        trials = chunks * chunk
        found = rounds.sweep(fn, [cell], trials, chunk=chunk, name=name, extend=True)
        computed += found.computed
        kept = found.columns[0]["kept"].astype(bool)
        missing = wanted - int(kept.sum())
        if missing <= 0 or chunks == most:
            break
        expected = max(float(kept.mean()), 1.0 / trials)
        rounds = replace(rounds, options=replace(rounds.options, fresh=False))
    context.seconds.append(rounds.seconds[-1])
    context.resumed.append(chunks - computed)
    needed = trials if missing > 0 else int(np.flatnonzero(kept)[wanted - 1]) + 1
    return {key: values[:needed] for key, values in found.columns[0].items()}


_SELECTED, _MASKED = 1e-3, 1e-8  # the thresholds of Figure 10


def simplex_projection(y: FloatArray) -> FloatArray:
    """Nearest probability vectors, shape (..., T).

    With orthonormal tokens ``lam |X^T s|^2 - g . s`` is ``lam |s - g / (2 lam)|^2`` up to a constant, so that the
    optimum of (10) is the projection of ``g / (2 lam)``.

    Examples
    --------
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
