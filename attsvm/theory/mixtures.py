"""Assumption E: no mixture of lower-score tokens may score as much as the selected token.

For a concave ``g = Y h`` the ratio ``(g(x_alpha) - g(x_alpha + e (x - x_alpha))) / e`` does not decrease in e, so that
the largest constant c of Assumption E is its limit at e = 0, the directional derivative: linear in the mixture wherever
g is differentiable, and so decided by the single tokens. For a convex g the vertices decide, too. Heads that say how
they bend, those of the library among them, are therefore judged exactly; any other head is sampled.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray
from attsvm._checks import generator
from attsvm.optimality import low_score_tokens
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.theory.check import Check

__all__ = ["check_head", "head_slopes", "sampled_predictions"]

FloatArray = npt.NDArray[np.float64]

_SAMPLES = 200


def head_slopes(problem: AttentionProblem, points: FloatArray) -> FloatArray:
    """``grad h(point_q) . x_t`` per query q and token t of its sequence, shape (n*K, T).

    Parameters
    ----------
    problem : AttentionProblem
    points : ndarray, shape (n*K, dx)

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.theory.mixtures import head_slopes
    >>> problem = attsvm.AttentionProblem([[[1.0], [-1.0]]], [1], [[1.0]], attsvm.ConcaveHead([2.0], lam=0.5))
    >>> head_slopes(problem, np.array([[1.0]]))
    array([[ 1., -1.]])
    """
    assert problem.head is not None
    _, slopes = problem.head.along(query_tokens(problem))(points[:, None])
    return np.asarray(slopes[:, 0], dtype=np.float64)


def query_tokens(problem: AttentionProblem) -> FloatArray:
    """Tokens that each query sees, in C order of the queries, shape (n*K, T, dx)."""
    return np.repeat(problem.X.astype(np.float64), problem.K, axis=0)


def _mixtures(rng: np.random.Generator, count: int, samples: int) -> FloatArray:
    """Weights on ``count`` tokens: spread, sparse, and close to the first token; shape (S, count)."""
    spread, sparse = (rng.dirichlet(np.full(count, c), samples) for c in (1.0, 0.3))
    near = rng.dirichlet(np.ones(count), samples)
    near *= np.geomspace(1e-3, 0.5, samples)[:, None]
    near[:, 0] += 1.0 - near.sum(axis=1)
    return np.concatenate([spread, sparse, near])


def sampled_predictions(problem: AttentionProblem, seed: int = 0, samples: int = _SAMPLES) -> FloatArray:
    """``Y h`` of random mixtures of the allowed tokens of every query, shape (n*K, 3 samples).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.mixtures import sampled_predictions
    >>> sampled_predictions(attsvm.random_problem(n=2, T=3, d=4), samples=5).shape
    (2, 15)
    """
    assert problem.head is not None
    rng = generator(seed)
    X, labels = query_tokens(problem), problem.Y.reshape(-1)
    rows = []
    for q, allowed in enumerate(problem.allowed.reshape(-1, problem.T)):
        tokens = X[q, allowed]
        mixed = _mixtures(rng, len(tokens), samples) @ tokens
        rows.append(labels[q] * problem.head(mixed))
    return np.stack(rows)


def check_head(problem: AttentionProblem, selection: Selection, name: str = "E", seed: int = 0) -> Check:
    """Assumption E for a selection: ``Y h(x(s)) <= gamma_alpha - c (1 - s_alpha)`` over mixtures of low-score tokens.

    Exact for heads with a known ``bend``, as those of the library. For any other mixtures are sampled: a counterexample
    decides, none leaves the verdict "unknown".

    Examples
    --------
    A concave head may prefer a mixture; a linear one never does:

    >>> import attsvm
    >>> from attsvm.theory.mixtures import check_head
    >>> X = [[[1.0, 0.0], [0.0, 1.0]]]
    >>> for head in (attsvm.LinearHead([1.0, 0.9]), attsvm.ConcaveHead([1.0, 0.9], lam=1.0)):
    ...     problem = attsvm.AttentionProblem(X, [1], [[1.0, 0.0]], head)
    ...     print(check_head(problem, problem.optimal_tokens()).verdict)
    holds
    fails
    """
    low = low_score_tokens(problem, selection).reshape(-1, problem.T)
    if not low.any():
        return Check(name, "holds", {"c": np.inf}, "no token scores less than a selected one: nothing to mix")
    assert problem.head is not None
    if problem.head.is_linear:
        c, _, _ = _vertex_constant(problem, selection, low)
        return Check(name, "holds", {"c": c}, f"linear head; c = {c:.3g} is the smallest lead of a selected token (94)")
    if problem.head.bend is not None:
        return _exact(problem, selection, low, name, seed)
    return _sampled(problem, selection, low, name, seed)


def _vertex_constant(problem: AttentionProblem, selection: Selection, low: BoolArray) -> tuple[float, int, int]:
    """Smallest lead in score of a selected token over a lower one, and where."""
    scores = problem.scores().reshape(-1, problem.T)
    lead = np.take_along_axis(scores, selection.indices.reshape(-1, 1), axis=1) - np.where(low, scores, -np.inf)
    return _smallest(lead, low)


def _smallest(values: FloatArray, where: BoolArray) -> tuple[float, int, int]:
    kept = np.where(where, values, np.inf)
    q, t = (int(j) for j in np.unravel_index(int(kept.argmin()), kept.shape))
    return float(kept[q, t]), q, t


def _exact(problem: AttentionProblem, selection: Selection, low: BoolArray, name: str, seed: int) -> Check:
    head = problem.head
    assert head is not None
    chosen = selection.indices.reshape(-1, 1)
    labels = problem.Y.reshape(-1)
    anchors = np.take_along_axis(query_tokens(problem), chosen[..., None], axis=1)[:, 0]
    convex = labels > 0 if head.bend == "convex" else labels < 0
    if bool((head.kinks(anchors) & ~convex & low.any(axis=1)).any()):
        return _sampled(problem, selection, low, name, seed)  # a kink at the selected token: no gradient there
    scores = problem.scores().reshape(-1, problem.T)
    lead = np.take_along_axis(scores, chosen, axis=1) - np.where(low, scores, 0.0)
    slopes = labels[:, None] * head_slopes(problem, anchors)
    drop = np.take_along_axis(slopes, chosen, axis=1) - slopes
    c, q, t = _smallest(np.where(convex[:, None], lead, drop), low)
    if c > 0:
        kind = "convex" if convex.all() else "concave" if not convex.any() else "convex or concave by label"
        return Check(name, "holds", {"c": c}, f"Y h is {kind}; c = {c:.3g} by the slope at the selected tokens")
    example = _best_on_segment(problem, anchors[q], q, t)
    place = [int(j) for j in np.unravel_index(q, problem.query_shape)]
    values = {"c": c, "query": place, "token": t} | example
    if example["gain"] > 0:
        text = f"{example['weight']:.2g} of token {t} mixed into it raises its score by {example['gain']:.3g}"
    else:
        text = f"moving towards token {t} costs nothing to first order, so no c > 0 exists"
    return Check(name, "fails", values, f"at query {place} the selected token is not the best mixture: {text}")


def _best_on_segment(problem: AttentionProblem, anchor: FloatArray, q: int, t: int) -> dict[str, float]:
    """The mixture of the selected token and token t that scores best, on a grid."""
    assert problem.head is not None
    weight = np.concatenate([np.geomspace(1e-9, 0.01, 200), np.linspace(0.01, 1.0, 400)[1:]])
    points = anchor + weight[:, None] * (query_tokens(problem)[q, t] - anchor)
    label = float(problem.Y.reshape(-1)[q])
    gain = label * (problem.head(points) - problem.head(anchor[None]))
    k = int(gain.argmax())
    return {"weight": float(weight[k]), "gain": float(gain[k])}


def _sampled(problem: AttentionProblem, selection: Selection, low: BoolArray, name: str, seed: int) -> Check:
    assert problem.head is not None
    rng = generator(seed)
    X, labels, chosen = query_tokens(problem), problem.Y.reshape(-1), selection.indices.reshape(-1)
    smallest, values = np.inf, {}
    for q in np.flatnonzero(low.any(axis=1)):
        tokens = np.concatenate([[chosen[q]], np.flatnonzero(low[q])])
        weights = _mixtures(rng, len(tokens), _SAMPLES)
        weights = weights[weights[:, 0] < 1 - 1e-9]
        predictions = labels[q] * problem.head(weights @ X[q, tokens])
        lead = float(labels[q] * problem.head(X[q, tokens[:1]])[0]) - predictions
        ratio = lead / (1.0 - weights[:, 0])
        k = int(ratio.argmin())
        if ratio[k] < smallest:
            smallest = float(ratio[k])
            place = [int(j) for j in np.unravel_index(q, problem.query_shape)]
            mixture = {int(t): float(w) for t, w in zip(tokens, weights[k], strict=True)}
            values = {"c": smallest, "query": place, "mixture": mixture, "gain": -float(lead[k])}
    if smallest <= 0:
        text = f"a mixture at query {values['query']} scores {values['gain']:.3g} more than the selected token"
        return Check(name, "fails", values, text)
    text = (
        f"no counterexample in {3 * _SAMPLES} mixtures per query (smallest c found {smallest:.3g}), which is no proof"
    )
    return Check(name, "unknown", {"c": smallest}, text)
