"""Assumptions about support tokens: B.1, that all tokens are, and D, that a missed optimal token always is one.

B.1 is proved or refuted by error bounds, or decided over the rationals. D is decided by solving every selection while
they can be listed. Beyond, by a sufficient condition that looks at pairs of queries only: if for every selection alpha
the Gram matrix G of its rows has ``G^-1 1 >= 0``, then all tokens are support tokens whatever is selected, and D holds.
Write G = B + E with B the blocks of single queries, ``lam = B^-1 1 > 0`` and ``M = diag(lam)^-1 B^-1 E diag(lam)``.
Then ``G^-1 1 = lam * (1 + delta)`` with ``(I + M) delta = -M 1``, so

    |delta| <= |M 1| / (1 - |M|)   in the maximum norm,   and   |M 1| + |M| <= 1   gives   G^-1 1 >= 0.

Both norms are sums over queries j of terms that depend on the selected tokens of i and j alone, so that their maxima
over all selections are bounded by taking the worst token of each j separately.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.enumeration import SelectionTable, count_selections, solve_every_selection, solve_selections
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.selection_rows import AttentionRows
from attsvm.solution import Solution
from attsvm.solvers import Status
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact import ExactLeastNorm
from attsvm.support_proof import MarginBounds, margin_bounds, on_margin, solve_exactly
from attsvm.theory.assumptions import Check, Verdict, query_tokens, verdict_of
from attsvm.user_input import generator

PUBLISHED_MARGIN = 1.1  # the published stand-in for B.1: average margin of the other tokens below this
_DENSE_ROWS = 4000  # rows up to which the Gram matrix is formed (128 MB)
_SINGULAR = 1e-10  # reciprocal condition number below which a matrix counts as singular
_WORK = 2_000_000_000  # multiplications of the bound beyond which it is not computed
_AT_A_TIME = 1 << 20  # entries of M that are formed at a time
_SAMPLES = 200
_SAMPLED_WORK = 40_000_000  # squares of rows in all selections that are solved on suspicion: some seconds
_AT_ONCE = 25  # counterexamples are usually among the first
_SAMPLED_ROWS = 2000  # rows per problem beyond which no selection is solved on suspicion


def interpolating_multipliers(rows: AttentionRows) -> tuple[FloatArray, float]:
    """Multipliers lam with ``G lam = 1`` (nonnegative if possible) and the residual of that system.

    All tokens are support tokens exactly when a nonnegative solution exists: by the optimality conditions, the SVM
    solution is then the minimum-norm W whose margins are all 1. G is the Gram matrix of the rows; when it is
    regular the solution is ``G^-1 1``, else a nonnegative least-squares problem decides.

    Returns
    -------
    multipliers : ndarray, shape (m,)
    residual : float
        Largest entry of ``|G lam - 1|``.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.selection_rows import selection_rows
    >>> rows = selection_rows(attsvm.random_problem(n=2, T=3, d=40, seed=0))
    >>> multipliers, residual = interpolating_multipliers(rows)
    >>> bool((multipliers >= 0).all()), residual < 1e-12
    (True, True)
    """
    from scipy.optimize import nnls

    if (regular := _regular_multipliers(rows)) is not None:
        return regular
    G, scale = _unit_gram(rows)
    scaled, _ = nnls(G, scale)
    return scaled * scale, _residual(G, scaled, scale)


def _unit_gram(rows: AttentionRows) -> tuple[FloatArray, FloatArray]:
    """The Gram matrix with unit diagonal, and the scales of its rows: signs of multipliers do not change."""
    p = rows.margin_problem
    scale = 1.0 / np.where(p.row_norms > 0, p.row_norms, 1.0)
    return p.gram() * scale[:, None] * scale, scale


def _residual(G: FloatArray, scaled: FloatArray, scale: FloatArray) -> float:
    return float((np.abs(G @ scaled - scale) / scale).max())


def _regular_multipliers(rows: AttentionRows) -> tuple[FloatArray, float] | None:
    """``G^-1 1`` and its residual by a Cholesky factor; None where G is singular or nearly so."""
    from scipy.linalg import cho_solve
    from scipy.linalg.lapack import dpocon, dpotrf

    dx, dz = rows.margin_problem.shape
    if rows.margin_problem.m > dx * dz:
        return None  # more rows than entries of W
    with np.errstate(over="ignore", invalid="ignore"):
        G, scale = _unit_gram(rows)
    if not np.isfinite(G).all():
        return None  # rows of 1e154 or longer
    factor, failed = dpotrf(G, lower=1)
    if failed or dpocon(factor, np.abs(G).sum(axis=0).max(), uplo="L")[0] <= _SINGULAR:
        return None
    scaled = cho_solve((factor, True), scale)
    return scaled * scale, _residual(G, scaled, scale)


def check_all_support(solution: Solution | None) -> tuple[Check, Check]:
    """Assumption B.1 proved, and the published proxy, average margin below 1.1.

    B.1 fails when some row is proved to lie beyond the margin, and holds when every row is proved to carry a multiplier
    (`attsvm.support_proof`; ``G^-1 1 > 0`` with error bounds). What lies between is decided over the rationals if the
    problem is small, and unknown otherwise.

    Parameters
    ----------
    solution : Solution or None
        Att-SVM of the optimal tokens, Frobenius norm; None when it has no rows to solve.

    Examples
    --------
    The proxy accepts data for which half the tokens are no support tokens:

    >>> import attsvm
    >>> exact, proxy = check_all_support(attsvm.att_svm(attsvm.random_problem(n=5, T=5, d=15, seed=0)))
    >>> exact.verdict, proxy.verdict
    ('fails', 'holds')
    """
    if solution is None or solution.status is Status.INFEASIBLE:
        text = "the optimal tokens are infeasible: there is no solution to support"
        return Check("B.1", "fails", {}, text), Check("B.1 proxy", "fails", {}, text)
    if solution.status is not Status.OPTIMAL:
        text = f"the solve ended {solution.status}"
        return Check("B.1", "unknown", {}, text), Check("B.1 proxy", "unknown", {}, text)
    rows = solution.rows.margin_problem
    bounds = margin_bounds(rows, solution.W, solution.certificate)
    average, largest = float(bounds.margins.mean()), float(bounds.margins.max())
    verdict, support, why = _every_row_on_margin(solution, bounds)
    counted = f"{support} of {rows.m} tokens support{why}, largest margin {largest:.4g}"
    values: dict[str, Any] = {"support": support, "tokens": rows.m, "largest margin": largest}
    regular = _regular_multipliers(solution.rows) if rows.m <= _DENSE_ROWS else None
    if regular is not None:
        multipliers, residual = regular
        ratio = float(multipliers.min() / np.abs(multipliers).max())
        values |= {"smallest multiplier": ratio, "residual": residual}
        counted = f"smallest entry of G^-1 1 is {ratio:.3g} of the largest; {counted}"
    proxy = Check(
        "B.1 proxy",
        verdict_of(average < PUBLISHED_MARGIN),
        {"average margin": average},
        f"average margin {average:.4g} against the published {PUBLISHED_MARGIN}",
    )
    return Check("B.1", verdict, values, counted), proxy


def _every_row_on_margin(solution: Solution, bounds: MarginBounds) -> tuple[Verdict, int, str]:
    """Whether all rows lie exactly on the margin, how many do (as far as known), and a remark."""
    rows = solution.rows.margin_problem
    if bounds.beyond.any():
        return "fails", int((~bounds.beyond).sum()), ""
    if on_margin(rows, bounds).all():
        return "holds", rows.m, ""
    exact = solve_exactly(rows, solution.result.multipliers)
    if isinstance(exact, ExactLeastNorm):
        return verdict_of(bool(exact.support.all())), int(exact.support.sum()), " (exact arithmetic)"
    return "unknown", rows.m, f" or lie within {float(bounds.error.max()):.1e} of the margin (undecided)"


def misses_optimal_support(table: SelectionTable, optimal: Selection) -> npt.NDArray[np.bool_]:
    """Feasible selections other than the optimal one whose missed optimal tokens all lie beyond the margin.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import solve_every_selection
    >>> problem = attsvm.random_problem(n=3, T=3, d=4, seed=0)
    >>> int(misses_optimal_support(solve_every_selection(problem), problem.optimal_tokens()).sum())
    2
    """
    return _without(table, optimal, table.support | table.doubtful)


def _without(table: SelectionTable, optimal: Selection, support: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Feasible selections other than the optimal one of whose missed optimal tokens none is in the support given."""
    missed = table.indices != optimal.indices
    supported = np.take_along_axis(support, optimal.indices[None, ..., None], axis=-1)[..., 0]
    axes = tuple(range(1, missed.ndim))
    return np.asarray(table.feasible & missed.any(axis=axes) & ~(missed & supported).any(axis=axes))


def _blocks(problem: AttentionProblem) -> list[tuple[FloatArray, FloatArray]] | None:
    """Tokens x (S, dx) and ``P`` (S, S) of each query that has a choice; None where the condition fails for one alone.

    P is the pseudoinverse of the Gram matrix of the centred tokens, over |z|^2. It holds all the blocks B of a query,
    whichever token t is selected: without row and column t it is ``B^-1``, and as its rows sum to 0, ``B^-1 1`` is
    ``-P[:, t]`` and ``B^-1 rows`` is ``-P x``.
    """
    Z = problem.Z.astype(np.float64).reshape(-1, problem.dz)
    out = []
    for q, (x, allowed) in enumerate(zip(query_tokens(problem), problem.allowed.reshape(-1, problem.T), strict=True)):
        if allowed.sum() < 2:
            continue
        tokens = x[allowed]
        centred = tokens - tokens.mean(axis=0)
        values, vectors = np.linalg.eigh(centred @ centred.T * float(Z[q] @ Z[q]))
        if values[1] <= _SINGULAR * values[-1]:
            return None
        P = (vectors[:, 1:] / values[1:]) @ vectors[:, 1:].T
        if not bool((P[~np.eye(len(P), dtype=bool)] < 0).all()):
            return None
        out.append((centred, P))
    return out


def every_token_supports_bound(problem: AttentionProblem) -> float:
    """Upper bound of ``|M 1| + |M|`` over all selections; at most 1 proves that every token always supports.

    Infinite when a single query already fails (or the tokens are not in general position).

    Examples
    --------
    Independent tokens and queries leave nothing to couple:

    >>> import numpy as np
    >>> import attsvm
    >>> problem = attsvm.AttentionProblem(np.eye(6).reshape(2, 3, 6), [1, 1], np.eye(2))
    >>> every_token_supports_bound(problem)
    0.0
    """
    blocks = _blocks(problem)
    if blocks is None:
        return float("inf")
    Z = problem.Z.astype(np.float64).reshape(-1, problem.dz)
    Z = Z[problem.allowed.reshape(-1, problem.T).sum(axis=1) > 1]
    cosines = np.abs(Z @ Z.T)
    worst_sum = worst_norm = 0.0
    for i, (x, P) in enumerate(blocks):
        # Row (t, s) of M is that of s divided by P[s, t]: the worst selected token t is the one of smallest |P[s, t]|.
        other = np.abs(P) + np.diag(np.full(len(P), np.inf))
        total, size = np.zeros(len(P)), np.zeros(len(P))
        for j, (y, R) in enumerate(blocks):
            if i == j or cosines[i, j] == 0:
                continue
            along = (P @ x) @ y.T  # (S_i, S_j): B^-1 rows with the tokens of j
            # Entries of M for selected token t and row u of j: (along[t] - along[u]) * -R[u, t], which is 0 for u = t.
            for some in np.array_split(np.arange(len(along)), 1 + along.size * len(y) // _AT_A_TIME):
                M = (along[some, :, None] - along[some, None, :]) * R
                total[some] += cosines[i, j] * np.abs(M.sum(axis=-1)).max(axis=-1)
                size[some] += cosines[i, j] * np.abs(M).sum(axis=-1).max(axis=-1)
        worst = 1.0 / other.min(axis=1)
        worst_sum = max(worst_sum, float((total * worst).max()))
        worst_norm = max(worst_norm, float((size * worst).max()))
    return worst_sum + worst_norm


def _bound_work(problem: AttentionProblem) -> int:
    return (problem.n * problem.K) ** 2 * problem.T**2 * (problem.T + problem.dx)


def check_optimal_support(
    problem: AttentionProblem,
    optimal: Selection,
    norm: str = "frobenius",
    exact_limit: int = 20_000,
    seed: int = 0,
    *,
    progress: bool = False,
) -> Check:
    """Assumption D, exactly up to ``exact_limit`` selections, else by the sufficient condition or a counterexample.

    Infeasible selections have no support; as descent cannot follow them, D is read over the feasible ones.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=3, d=4, seed=0)
    >>> check_optimal_support(problem, problem.optimal_tokens()).detail
    '2 of 27 selections (0 infeasible) have no missed optimal token as support, e.g. [1, 0, 0]; 2 locally optimal'
    """
    count = count_selections(problem)
    if count <= exact_limit:
        return _exact(solve_every_selection(problem, norm=norm, limit=exact_limit, progress=progress), optimal)
    bound = float("inf")
    if norm == "frobenius" and _bound_work(problem) <= _WORK:
        bound = every_token_supports_bound(problem)
        if bound <= 1:
            text = f"sufficient condition: every token is a support token of every selection (bound {bound:.3g} <= 1)"
            return Check("D", "holds", {"selections": count, "bound": bound}, text)
    size = f"{float(count):.2g}" if count < 1e300 else "more than 1e300"
    values = {"selections": size, "bound": bound}
    tried = 0
    if problem.n * problem.K * (problem.T - 1) <= _SAMPLED_ROWS:
        rows = problem.n * problem.K * (problem.T - 1)
        suspects = _suspects(problem, optimal, seed)[: max(_AT_ONCE, _SAMPLED_WORK // rows**2)]
        at_once = int(np.clip(_SAMPLED_WORK // (10 * rows**2), 4, _AT_ONCE))
        for start in range(0, len(suspects), at_once):
            table = solve_selections(problem, suspects[start : start + at_once], norm=norm)
            tried += len(table)
            wrong = misses_optimal_support(table, optimal)
            if wrong.any():
                example = table.indices[int(np.flatnonzero(wrong)[0])].tolist()
                text = f"of {size} selections {tried} were tried and {int(wrong.sum())} refute it, e.g. {example}"
                return Check("D", "fails", values | {"tried": tried, "example": example}, text)
    text = f"{size} selections are too many to list (exact_limit {exact_limit}); the sufficient condition fails"
    return Check("D", "unknown", values | {"tried": tried}, f"{text}, and none of {tried} tried refutes it")


def _exact(table: SelectionTable, optimal: Selection) -> Check:
    wrong = misses_optimal_support(table, optimal)
    unsure = (_without(table, optimal, table.support) & ~wrong) | np.isnan(table.margin)
    values = {
        "selections": len(table),
        "infeasible": int((table.margin == 0).sum()),
        "undecided": int(unsure.sum()),
        "locally optimal": int(table.locally_optimal.sum()),
        "counterexamples": int(wrong.sum()),
    }
    counted = f"{len(table)} selections ({values['infeasible']} infeasible)"
    tail = f"{values['locally optimal']} locally optimal"
    if wrong.any():
        example = table.indices[int(np.flatnonzero(wrong)[0])].tolist()
        text = (
            f"{values['counterexamples']} of {counted} have no missed optimal token as support, e.g. {example}; {tail}"
        )
        return Check("D", "fails", values | {"example": example}, text)
    if unsure.any():
        return Check("D", "unknown", values, f"{values['undecided']} of {counted} were not certified")
    if not table.feasible.any():
        return Check("D", "not applicable", values, f"none of {len(table)} selections is feasible")
    return Check("D", "holds", values, f"all {counted}: a missed optimal token always supports; {tail}")


def _suspects(problem: AttentionProblem, optimal: Selection, seed: int) -> npt.NDArray[np.int64]:
    """Optimal selections with one token swapped, then random ones: where counterexamples are cheap to find."""
    rng = generator(seed)
    best = optimal.indices.reshape(-1)
    allowed = problem.allowed.reshape(-1, problem.T)
    q, t = np.nonzero(allowed & (np.arange(problem.T) != best[:, None]))
    swaps = np.repeat(best[None], len(q), axis=0)
    swaps[np.arange(len(q)), q] = t
    swaps = swaps[rng.permutation(len(swaps))[: _SAMPLES // 2]]
    # Gumbel keys: a uniformly random allowed token per query.
    keys = np.where(allowed, rng.gumbel(size=(_SAMPLES - len(swaps), *allowed.shape)), -np.inf)
    both = np.concatenate([swaps, keys.argmax(axis=-1)])
    return np.asarray(both[(both != best).any(axis=1)].reshape(-1, *problem.query_shape), dtype=np.int64)
