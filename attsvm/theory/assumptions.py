"""A verdict with the numbers behind it.

Assumption E: no mixture of lower-score tokens may score as much as the selected token.

For a concave ``g = Y h`` the ratio ``(g(x_alpha) - g(x_alpha + e (x - x_alpha))) / e`` does not decrease in e, so that
the largest constant c of Assumption E is its limit at e = 0, the directional derivative: linear in the mixture wherever
g is differentiable, and so decided by the single tokens. For a convex g the vertices decide, too. Heads that say how
they bend, those of the library among them, are therefore judged exactly; any other head is sampled.

Assumption A with ``l' < 0``, on the interval of predictions that a problem can produce.

Hypotheses of the theorems, each judged on given data with its numbers.

The printed hypotheses are corrected where they were found too weak: see ``docs/diagnose.md``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from attsvm.attention import logits, probabilities
from attsvm.enumeration.selection_space import duplicated_tokens
from attsvm.losses import Loss
from attsvm.optimality import LocalProof, high_score_tokens, low_score_tokens, prove
from attsvm.problem import AttentionProblem
from attsvm.records import plain
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.solvers import Status
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.exact import ExactLeastNorm
from attsvm.svm import att_svm
from attsvm.user_input import generator

Verdict = Literal["holds", "fails", "unknown", "not applicable", "applies", "does not apply"]

"""A hypothesis holds or fails; a theorem applies or does not apply, since its hypotheses fail, not the theorem."""


@dataclass(frozen=True)
class Check:
    """One hypothesis or theorem, judged on given data.

    Attributes
    ----------
    name : str
    verdict : {"holds", "fails", "unknown", "not applicable"} or {"applies", "does not apply", "unknown"}
        Of a hypothesis, or of a theorem.
    values : mapping
        The numbers behind the verdict.
    detail : str
        The verdict in plain words.

    Examples
    --------
    >>> from attsvm.theory import Check
    >>> bool(Check("B.2", "holds", {"spread": 0.0}, "equal scores"))
    True
    """

    name: str
    verdict: Verdict
    values: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""

    def __repr__(self) -> str:
        return f"Check({self.name!r}, {self.verdict!r}, values of {', '.join(self.values) or 'nothing'})"

    def __bool__(self) -> bool:
        return self.verdict in ("holds", "applies")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become None."""
        return {"name": self.name, "verdict": self.verdict, "values": plain(self.values), "detail": self.detail}


def verdict_of(condition: bool) -> Verdict:
    """Two-valued verdict."""
    return "holds" if condition else "fails"


def all_of(checks: Iterable[Check]) -> Verdict:
    """Conjunction: one failure decides, then one unknown; hypotheses that do not apply count as failed."""
    verdicts = {check.verdict for check in checks}
    if verdicts & {"fails", "not applicable"}:
        return "fails"
    return "unknown" if "unknown" in verdicts else "holds"


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
        text = f"moving towards token {t} does not lower the score to first order, so no c > 0 exists"
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


_GRID = 2001

# A slope this small relative to the largest, inside the interval, is a zero up to the accuracy of the search for it.
_TOUCH = 1e-12

# The trapezoidal rule on the grid is far better than this for any smooth loss; a wrong derivative is not.
_MISMATCH = 1e-3


def prediction_range(problem: AttentionProblem, seed: int = 0) -> tuple[float, float, bool]:
    """Interval of ``Y h(X^T s)``: exact (the scores' range) for linear heads, sampled mixtures for others.

    Returns
    -------
    low, high : float
    exact : bool

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.AttentionProblem([[[1.0], [-1.0]]], [1], [[1.0]], attsvm.LinearHead([2.0]))
    >>> prediction_range(problem)
    (-2.0, 2.0, True)
    """
    scores = problem.scores()[problem.allowed]
    low, high = float(scores.min()), float(scores.max())
    if problem.head is not None and problem.head.is_linear:
        return low, high, True
    sampled = sampled_predictions(problem, seed)
    return min(low, float(sampled.min())), max(high, float(sampled.max())), False


def check_loss(loss: Loss, low: float, high: float) -> Check:
    """Assumption A on ``[low, high]`` with ``l' < 0``, which the proofs use; M0 and M1 are measured there.

    The losses of the library satisfy it everywhere. Any other loss is examined on a grid, refined around
    the largest slope, so that ``-u^3``, which is strictly decreasing but flat at 0, is caught.

    Examples
    --------
    >>> import attsvm
    >>> cubic = attsvm.Loss("cubic", lambda u: -(u**3), lambda u: -3 * u**2, lambda u: -6 * u)
    >>> check_loss(attsvm.logistic, -1.0, 2.0).verdict, check_loss(cubic, -1.0, 2.0).verdict
    ('holds', 'fails')
    """
    if loss.is_standard:
        M0, M1 = loss.constants(low, high)
        slope = float(loss.derivative(np.array([high])).max())  # l' increases: they are convex
        values = {"M0": M0, "M1": M1, "largest slope": slope, "interval": [low, high]}
        detail = f"l' <= {slope:.3g} < 0 on [{low:.3g}, {high:.3g}]; M0 = {M0:.3g}, M1 = {M1:.3g}"
        return Check("A", "holds", values, detail)
    return _examine(loss, low, high)


def _examine(loss: Loss, low: float, high: float) -> Check:
    u = np.linspace(low, high, _GRID) if high > low else np.array([low])
    value, slope, curve = (np.asarray(f(u), dtype=np.float64) for f in (loss.value, loss.derivative, loss.second))
    where = f"on [{low:.3g}, {high:.3g}]"
    if not (np.isfinite(value).all() and np.isfinite(slope).all() and np.isfinite(curve).all()):
        return Check("A", "fails", {"interval": [low, high]}, f"{loss.name} is not finite everywhere {where}")
    M0, M1 = float(np.abs(curve).max()), float(np.abs(slope).max())
    worst, at, inside = _largest_slope(loss, u, slope)
    values = {"M0": M0, "M1": M1, "largest slope": worst, "at": at, "interval": [low, high]}
    rise = np.diff(value)
    error = np.abs(rise - 0.5 * np.diff(u) * (slope[1:] + slope[:-1])).sum()
    if error > _MISMATCH * np.abs(rise).sum() and len(u) > 1:
        return Check("A", "fails", values, f"the derivative given for {loss.name} is not that of its values {where}")
    if worst >= 0 or (inside and worst >= -_TOUCH * M1):
        sign = "> 0" if worst > _TOUCH * M1 else "= 0"
        return Check("A", "fails", values, f"l' {sign} at u = {at:.3g} {where}: the proofs need l' < 0")
    return Check("A", "holds", values, f"l' <= {worst:.3g} < 0 {where} (on a grid); M0 = {M0:.3g}, M1 = {M1:.3g}")


def _largest_slope(
    loss: Loss, u: np.ndarray[tuple[int], np.dtype[np.float64]], slope: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> tuple[float, float, bool]:
    """Largest ``l'``, where, and whether that is inside the interval: golden search around the best grid point."""
    from scipy.optimize import minimize_scalar

    k = int(slope.argmax())
    best, at = float(slope[k]), float(u[k])
    if not 0 < k < len(u) - 1:
        return best, at, False
    found = minimize_scalar(
        lambda x: -float(loss.derivative(np.array([x]))[0]), bounds=(u[k - 1], u[k + 1]), method="bounded",
        options={"xatol": 1e-14},
    )  # fmt: skip
    if -found.fun > best:
        best, at = -float(found.fun), float(found.x)
    return best, at, True


_TIE = 1e-12  # scores closer than this, relative to the largest, differ by rounding only


def score_tolerance(problem: AttentionProblem) -> float:
    """Distance within which two scores are equal up to rounding."""
    return _TIE * float(np.abs(problem.scores()[problem.allowed]).max())


def check_unique(problem: AttentionProblem) -> Check:
    """Unique optimal tokens: the best score of every query leads strictly.

    Examples
    --------
    >>> import attsvm
    >>> check_unique(attsvm.random_problem(n=3, T=4, d=5, seed=0)).verdict
    'holds'
    """
    scores = problem.scores()
    top = np.sort(scores, axis=-1)[..., -2:]
    gap = float((top[..., 1] - top[..., 0]).min())
    ties = problem.optimal_tokens(score_tolerance(problem)).ties
    if not ties:
        return Check("unique optimal tokens", "holds", {"gap": gap}, f"smallest lead of a best score {gap:.3g}")
    query, tokens = next(iter(ties.items()))
    text = f"{len(ties)} queries have ties, e.g. query {list(query)} between tokens {list(tokens)}"
    named = {str(list(key)): list(value) for key, value in ties.items()}
    return Check("unique optimal tokens", "fails", {"gap": gap, "ties": named}, text)


def check_size(problem: AttentionProblem) -> Check:
    """Theorems 1 and 6: enough dimensions for every selection of almost every data set to be feasible.

    The feature rows ``(x_alpha - x_t) z^T`` are independent when the differences of each query are (dx >= T - 1) and
    the queries are (dz >= their number): sufficient, not necessary.

    Examples
    --------
    >>> import attsvm
    >>> [check_size(attsvm.random_problem(n=6, T=8, d=d)).verdict for d in (10, 5)]
    ['holds', 'fails']
    """
    seen = problem.allowed.sum(axis=-1).reshape(-1)
    tokens, queries = int(seen.max()) - 1, int((seen > 1).sum())
    enough = problem.dx >= tokens and problem.dz >= queries
    values = {"dx": problem.dx, "dz": problem.dz, "T - 1": tokens, "queries": queries}
    sizes = f"dx = {problem.dx}, dz = {problem.dz} against T - 1 = {tokens}, {queries} queries"
    says = "generic data are feasible for every selection" if enough else "no guarantee (sufficient, not necessary)"
    return Check("Theorem 1 size", verdict_of(enough), values, f"{sizes}: {says}")


def solve_selection(problem: AttentionProblem, selection: Selection, norm: str) -> Solution | None:
    """The SVM of a selection; None when a selected token has a duplicate, so that there is nothing to solve."""
    doubled = np.take_along_axis(duplicated_tokens(problem), selection.indices[..., None], axis=-1)
    if doubled.any():
        return None
    solution: Solution = att_svm(problem, selection, norm=norm)
    return solution


def _below(value: float) -> str:
    """The next power of ten; what is smaller than 1e-12 differs between machines."""
    return f"< {10.0 ** max(-12, math.floor(math.log10(max(value, 1e-300))) + 1):.0e}"


def check_feasible(solution: Solution | None, name: str = "feasible") -> Check:
    """Whether some W selects the tokens: certified by a solution or by a Farkas proof.

    Examples
    --------
    >>> import attsvm
    >>> X = [[[1.0], [0.0]], [[1.0], [0.0]]]
    >>> problem = attsvm.AttentionProblem(X, [1, 1], [[1.0], [-1.0]], attsvm.LinearHead([1.0]))
    >>> check_feasible(attsvm.att_svm(problem)).detail
    'no W satisfies the rows of queries [0], [1] together (Farkas proof, residual < 1e-12)'
    """
    if solution is None:
        return Check(
            name, "fails", {}, "a selected token has a duplicate in its sequence: no W prefers one to the other"
        )
    farkas = solution.certificate.farkas
    if farkas is not None:
        places = [list(solution.rows.query_index(int(o))) for o in solution.conflicting_queries]
        text = f"no W satisfies the rows of queries {', '.join(map(str, places))} together"
        values = {"conflict": places, "residual": farkas.residual}
        return Check(name, "fails", values, f"{text} (Farkas proof, residual {_below(farkas.residual)})")
    gap = solution.certificate.gap
    if solution.status is not Status.OPTIMAL:
        return Check(name, "unknown", {"gap": gap}, f"the solve ended {solution.status} with gap {gap:.1e}")
    values = {"margin": solution.margin, "norm": solution.norm, "gap": gap}
    return Check(name, "holds", values, f"margin {solution.margin:.4g}, certified (gap {_below(gap)})")


def check_equal_scores(problem: AttentionProblem, optimal: Selection) -> Check:
    """Assumption B.2: all tokens but the optimal one of a query have the same score, less than that one's.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=2, d=4)
    >>> check_equal_scores(problem, problem.optimal_tokens()).verdict  # one other token only
    'holds'
    """
    scores = problem.scores().reshape(-1, problem.T)
    others = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != optimal.indices.reshape(-1, 1))
    some = others.any(axis=1)
    high = np.where(others, scores, -np.inf)[some].max(axis=1)
    low = np.where(others, scores, np.inf)[some].min(axis=1)
    spread = float((high - low).max(initial=0.0))
    best = np.take_along_axis(scores, optimal.indices.reshape(-1, 1), axis=1)[some, 0]
    lead = float((best - high).min(initial=np.inf))
    tolerance = score_tolerance(problem)
    text = f"scores of the other tokens spread by {spread:.3g}, smallest lead of an optimal token {lead:.3g}"
    return Check("B.2", verdict_of(spread <= tolerance < lead), {"spread": spread, "lead": lead}, text)


def gradient_at_zero(problem: AttentionProblem, loss: Loss) -> FloatArray:
    """``grad L(0)``, where attention is uniform over the allowed tokens, shape (dx, dz).

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> gradient_at_zero(problem, attsvm.correlation_loss)
    array([[-0.25]])
    """
    direction, size = _gradient_at_zero(problem, loss)
    return size * direction


def _gradient_at_zero(problem: AttentionProblem, loss: Loss) -> tuple[FloatArray, float]:
    """The gradient at W = 0 as a matrix of moderate size, and what it is multiplied by (which may be 0 or infinite)."""
    assert problem.head is not None
    X, labels = query_tokens(problem), problem.Y.reshape(-1)
    s = probabilities(problem, np.zeros((problem.dx, problem.dz))).reshape(-1, problem.T)
    mixed = np.einsum("qt,qtd->qd", s, X)
    slopes = labels[:, None] * head_slopes(problem, mixed)
    prediction = labels * problem.head(mixed)
    in_logits = s * (slopes - (s * slopes).sum(axis=1, keepdims=True)) * loss.derivative(prediction)[:, None]
    Z = problem.Z.astype(np.float64).reshape(-1, problem.dz)
    # Each factor relative to its largest entry: the product of tokens and queries near 1e150 or 1e-150 has no double.
    sizes = [float(np.abs(part).max()) or 1.0 for part in (in_logits, X, Z)]
    pulled = np.einsum("qt,qtd->qd", in_logits / sizes[0], X / sizes[1])
    return np.asarray(pulled.T @ (Z / sizes[2]) / problem.n), math.prod(sizes)


def check_first_step(problem: AttentionProblem, optimal: Selection, loss: Loss) -> Check:
    """Assumption C: the first step of descent from W = 0 separates the optimal tokens.

    ``iota = min (x_t - x_opt)^T grad L(0) z > 0`` over queries and tokens t other than the optimal one.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=50, seed=0)
    >>> check_first_step(problem, problem.optimal_tokens(), attsvm.logistic).verdict
    'holds'
    """
    direction, largest = _gradient_at_zero(problem, loss)
    values = logits(problem, direction).reshape(-1, problem.T)
    best = optimal.indices.reshape(-1, 1)
    others = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != best)
    relative = float((values - np.take_along_axis(values, best, axis=1))[others].min())
    length = float(np.linalg.norm(direction))
    iota = relative * largest
    found = {"iota": iota, "gradient": length * largest, "mu": relative / length if length > 0 else 0.0}
    if relative > 0:
        return Check("C", "holds", found, f"iota = {iota:.3g}, so mu < iota / |grad L(0)| = {found['mu']:.3g}")
    return Check("C", "fails", found, f"iota = {iota:.3g}: the first step ranks another token over an optimal one")


def check_local(problem: AttentionProblem, selection: Selection, solution: Solution | None) -> Check:
    """Local optimality of a selection (Definition 2): its support tokens score strictly less.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> check_local(problem, problem.optimal_tokens(), attsvm.att_svm(problem)).verdict
    'holds'
    """
    if solution is None or solution.status is Status.INFEASIBLE:
        return Check("locally optimal", "fails", {}, "the selection is infeasible: no W selects it")
    if solution.status is not Status.OPTIMAL:
        return Check("locally optimal", "unknown", {}, f"the solve ended {solution.status}")
    proof = prove(solution)
    if proof.undecided[0]:
        return Check("locally optimal", "unknown", {}, f"undecided: {proof.reasons[0]}")
    support = _exact_support(solution, proof)
    beaten = support & high_score_tokens(problem, selection)
    values = {"support": int(support.sum()), "support of no lower score": int(beaten.sum())}
    if proof.local[0]:
        text = f"all {values['support']} support tokens score less than the selected ones"
        return Check("locally optimal", "holds", values, text)
    text = f"{values['support of no lower score']} of {values['support']} support tokens do not score less"
    if not beaten.any():  # proved by norms, while no computed margin is within the tolerance of 1
        return Check(
            "locally optimal", "fails", values, "a token of no lower score lies on the margin of every solution"
        )
    place = [int(j) for j in np.argwhere(beaten)[0]]
    example = f"e.g. token {place[-1]} of query {place[:-1]}"
    return Check("locally optimal", "fails", values | {"example": place}, f"{text}, {example}")


def _exact_support(solution: Solution, proof: LocalProof) -> BoolArray:
    """Support tokens: exact ones if the proof went through the rationals, computed ones otherwise."""
    exact = proof.exact.get(0)
    if not isinstance(exact, ExactLeastNorm):
        return solution.support
    return np.asarray(solution.rows.scatter(exact.support, fill=0.0) > 0)


def check_support_sets(problem: AttentionProblem, selection: Selection, solution: Solution | None) -> Check:
    """Support sets that must not be empty: Lemma 5 and Theorem 7 fail where a query has high-score tokens but none.

    Examples
    --------
    >>> import attsvm
    >>> X = [[[1.0], [0.0]], [[3.0], [0.0]]]
    >>> problem = attsvm.AttentionProblem(X, [1, -1], [[1.0], [1.0]], attsvm.LinearHead([1.0]))
    >>> solution = attsvm.att_svm(problem, [0, 0])
    >>> check_support_sets(problem, solution.selection, solution).detail
    '1 of 2 support sets empty, 1 of them where other tokens score more, e.g. query [1]'
    """
    if solution is None or not solution.status.has_solution:
        return Check("support sets", "not applicable", {}, "the selection has no solution, so no support")
    alone = problem.allowed.sum(axis=-1) == 1
    empty = ~solution.support.any(axis=-1) & ~alone
    bad = empty & high_score_tokens(problem, selection).any(axis=-1)
    values = {"empty": int(empty.sum()), "empty with higher scores": int(bad.sum())}
    if bad.any():
        place = [int(j) for j in np.argwhere(bad)[0]]
        text = (
            f"{values['empty']} of {empty.size} support sets empty, {values['empty with higher scores']} of them where"
        )
        return Check("support sets", "fails", values, f"{text} other tokens score more, e.g. query {place}")
    text = f"{values['empty']} of {empty.size} support sets empty, none where other tokens score more"
    return Check("support sets", "holds", values, text)
