"""Hypotheses of the theorems, each judged on given data with its numbers.

The printed hypotheses are corrected where they were found too weak: see ``docs/diagnose.md``.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray
from attsvm.attention import logits, probabilities
from attsvm.enumeration.space import duplicated_tokens
from attsvm.local_proof import LocalProof
from attsvm.losses import Loss
from attsvm.optimality import high_score_tokens, prove
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.solvers import Status
from attsvm.solvers.exact import ExactLeastNorm
from attsvm.svm import att_svm
from attsvm.theory.check import Check, verdict_of
from attsvm.theory.mixtures import head_slopes, query_tokens

__all__ = [
    "check_equal_scores",
    "check_feasible",
    "check_first_step",
    "check_local",
    "check_size",
    "check_support_sets",
    "check_unique",
    "gradient_at_zero",
    "solve_selection",
]

FloatArray = npt.NDArray[np.float64]

_TIE = 1e-12  # scores closer than this, relative to the largest, differ by rounding only


def score_tolerance(problem: AttentionProblem) -> float:
    """Distance within which two scores are equal up to rounding."""
    return _TIE * float(np.abs(problem.scores()[problem.allowed]).max())


def check_unique(problem: AttentionProblem) -> Check:
    """Unique optimal tokens: the best score of every query leads strictly.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.assumptions import check_unique
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
    >>> from attsvm.theory.assumptions import check_size
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
    >>> from attsvm.theory.assumptions import check_feasible
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
    >>> from attsvm.theory.assumptions import check_equal_scores
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
    >>> from attsvm.theory.assumptions import gradient_at_zero
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> gradient_at_zero(problem, attsvm.correlation_loss)
    array([[-0.25]])
    """
    assert problem.head is not None
    X, labels = query_tokens(problem), problem.Y.reshape(-1)
    s = probabilities(problem, np.zeros((problem.dx, problem.dz))).reshape(-1, problem.T)
    mixed = np.einsum("qt,qtd->qd", s, X)
    slopes = labels[:, None] * head_slopes(problem, mixed)
    prediction = labels * problem.head(mixed)
    in_logits = s * (slopes - (s * slopes).sum(axis=1, keepdims=True)) * loss.derivative(prediction)[:, None]
    pulled = np.einsum("qt,qtd->qd", in_logits, X)
    return np.asarray(pulled.T @ problem.Z.astype(np.float64).reshape(-1, problem.dz) / problem.n)


def check_first_step(problem: AttentionProblem, optimal: Selection, loss: Loss) -> Check:
    """Assumption C: the first step of descent from W = 0 separates the optimal tokens.

    ``iota = min (x_t - x_opt)^T grad L(0) z > 0`` over queries and tokens t other than the optimal one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.assumptions import check_first_step
    >>> problem = attsvm.random_problem(n=3, T=4, d=50, seed=0)
    >>> check_first_step(problem, problem.optimal_tokens(), attsvm.logistic).verdict
    'holds'
    """
    gradient = gradient_at_zero(problem, loss)
    size = float(np.linalg.norm(gradient))
    values = logits(problem, gradient).reshape(-1, problem.T)
    best = optimal.indices.reshape(-1, 1)
    others = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != best)
    iota = float((values - np.take_along_axis(values, best, axis=1))[others].min())
    found = {"iota": iota, "gradient": size, "mu": iota / size if size > 0 else 0.0}
    if iota > 0:
        return Check("C", "holds", found, f"iota = {iota:.3g}, so mu < iota / |grad L(0)| = {found['mu']:.3g}")
    return Check("C", "fails", found, f"iota = {iota:.3g}: the first step ranks another token over an optimal one")


def check_local(problem: AttentionProblem, selection: Selection, solution: Solution | None) -> Check:
    """Local optimality of a selection (Definition 2): its support tokens score strictly less.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.assumptions import check_local
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> check_local(problem, problem.optimal_tokens(), attsvm.att_svm(problem)).verdict
    'holds'
    """
    if solution is None or solution.status is Status.INFEASIBLE:
        return Check("locally optimal", "fails", {}, "the selection is infeasible: no W stays with it")
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
    >>> from attsvm.theory.assumptions import check_support_sets
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
