"""Assumption D: for every other selection some missed optimal token is a support token.

Exactly by solving every selection while they can be listed. Beyond, by a sufficient condition that looks at pairs of
queries only: if for every selection alpha the Gram matrix G of its rows has ``G^-1 1 >= 0``, then all tokens are
support tokens whatever is selected, and D holds. Write G = B + E with B the blocks of single queries,
``lam = B^-1 1 > 0`` and ``M = diag(lam)^-1 B^-1 E diag(lam)``. Then ``G^-1 1 = lam * (1 + delta)`` with
``(I + M) delta = -M 1``, so

    |delta| <= |M 1| / (1 - |M|)   in the maximum norm,   and   |M 1| + |M| <= 1   gives   G^-1 1 >= 0.

Both norms are sums over queries j of terms that depend on the selected tokens of i and j alone, so that their maxima
over all selections are bounded by taking the worst token of each j separately.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.theory.check import Check
from attsvm.theory.exhaustive import SelectionTable, count_selections, solve_every_selection, solve_some_selections
from attsvm.theory.mixtures import query_tokens

__all__ = ["check_optimal_support", "every_token_supports_bound", "misses_optimal_support"]

FloatArray = npt.NDArray[np.float64]

_WORK = 2_000_000_000  # multiplications of the bound beyond which it is not computed
_SAMPLES = 200
_AT_ONCE = 25  # counterexamples are usually among the first
_SAMPLED_ROWS = 2000  # rows per problem beyond which no selection is solved on suspicion


def misses_optimal_support(table: SelectionTable, optimal: Selection) -> npt.NDArray[np.bool_]:
    """Feasible selections other than the optimal one without a missed optimal token in their support.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import solve_every_selection
    >>> from attsvm.theory.optimal_support import misses_optimal_support
    >>> problem = attsvm.random_problem(n=3, T=3, d=4, seed=0)
    >>> int(misses_optimal_support(solve_every_selection(problem), problem.optimal_tokens()).sum())
    2
    """
    missed = table.indices != optimal.indices
    supported = np.take_along_axis(table.support, optimal.indices[None, ..., None], axis=-1)[..., 0]
    axes = tuple(range(1, missed.ndim))
    return np.asarray(table.feasible & missed.any(axis=axes) & ~(missed & supported).any(axis=axes))


def _blocks(problem: AttentionProblem) -> list[tuple[FloatArray, FloatArray, FloatArray]] | None:
    """Rows (S, r, dx), ``B^-1 rows`` (S, r, dx) and ``B^-1 1`` (S, r) per query, for its S selectable tokens."""
    Z = problem.Z.astype(np.float64).reshape(-1, problem.dz)
    out = []
    for q, (x, allowed) in enumerate(zip(query_tokens(problem), problem.allowed.reshape(-1, problem.T), strict=True)):
        tokens = np.flatnonzero(allowed)
        if len(tokens) < 2:
            continue
        rows = np.stack([x[t] - x[tokens[tokens != t]] for t in tokens])
        gram = (rows @ rows.transpose(0, 2, 1)) * float(Z[q] @ Z[q])
        singular = np.linalg.svd(gram, compute_uv=False)
        if bool((singular[:, -1] <= 1e-10 * singular[:, 0]).any()):
            return None
        alone = np.linalg.solve(gram, np.ones((*gram.shape[:2], 1)))[..., 0]
        if not bool((alone > 0).all()):
            return None
        out.append((rows, np.linalg.solve(gram, rows), alone))
    return out


def every_token_supports_bound(problem: AttentionProblem) -> float:
    """Upper bound of ``|M 1| + |M|`` over all selections; at most 1 proves that every token always supports.

    Infinite when a single query already fails (or the tokens are not in general position).

    Examples
    --------
    Independent tokens and queries leave nothing to couple:

    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.theory.optimal_support import every_token_supports_bound
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
    for i, (_, pulled, alone) in enumerate(blocks):
        scaled = (pulled / alone[..., None]).reshape(-1, problem.dx)  # (S_i r_i, dx)
        total, size = np.zeros(len(scaled)), np.zeros(len(scaled))
        for j, (rows, _, other) in enumerate(blocks):
            if i == j or cosines[i, j] == 0:
                continue
            M = np.einsum("rd,std->rst", scaled, rows * other[..., None], optimize=True)
            total += cosines[i, j] * np.abs(M.sum(axis=-1)).max(axis=-1)
            size += cosines[i, j] * np.abs(M).sum(axis=-1).max(axis=-1)
        worst_sum, worst_norm = max(worst_sum, float(total.max())), max(worst_norm, float(size.max()))
    return worst_sum + worst_norm


def _bound_work(problem: AttentionProblem) -> int:
    tokens = problem.n * problem.K * problem.T**2
    return tokens * tokens * problem.dx


def check_optimal_support(
    problem: AttentionProblem, optimal: Selection, norm: str = "frobenius", exact_limit: int = 20_000, seed: int = 0
) -> Check:
    """Assumption D, exactly up to ``exact_limit`` selections, else by the sufficient condition or a counterexample.

    Infeasible selections have no support; as descent cannot follow them, D is read over the feasible ones.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory.optimal_support import check_optimal_support
    >>> problem = attsvm.random_problem(n=3, T=3, d=4, seed=0)
    >>> check_optimal_support(problem, problem.optimal_tokens()).detail
    '2 of 27 selections (0 infeasible) have no missed optimal token as support, e.g. [1, 0, 0]; 2 locally optimal'
    """
    count = count_selections(problem)
    if count <= exact_limit:
        return _exact(solve_every_selection(problem, norm, exact_limit), optimal)
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
        suspects = _suspects(problem, optimal, seed)
        for start in range(0, len(suspects), _AT_ONCE):
            table = solve_some_selections(problem, suspects[start : start + _AT_ONCE], norm)
            tried += len(table)
            wrong = table.decided & misses_optimal_support(table, optimal)
            if wrong.any():
                example = table.indices[int(np.flatnonzero(wrong)[0])].tolist()
                text = f"of {size} selections {tried} were tried and {int(wrong.sum())} refute it, e.g. {example}"
                return Check("D", "fails", values | {"tried": tried, "example": example}, text)
    text = f"{size} selections are too many to list (exact_limit {exact_limit}); the sufficient condition fails"
    return Check("D", "unknown", values | {"tried": tried}, f"{text}, and none of {tried} tried refutes it")


def _exact(table: SelectionTable, optimal: Selection) -> Check:
    wrong = misses_optimal_support(table, optimal)
    values = {
        "selections": len(table),
        "infeasible": int((table.decided & ~table.feasible).sum()),
        "undecided": int((~table.decided).sum()),
        "locally optimal": int(table.locally_optimal.sum()),
        "counterexamples": int(wrong.sum()),
    }
    counted = f"{len(table)} selections ({values['infeasible']} infeasible)"
    tail = f"{values['locally optimal']} locally optimal"
    certain = wrong & table.decided
    if certain.any():
        example = table.indices[int(np.flatnonzero(certain)[0])].tolist()
        text = (
            f"{values['counterexamples']} of {counted} have no missed optimal token as support, e.g. {example}; {tail}"
        )
        return Check("D", "fails", values | {"example": example}, text)
    if not table.decided.all():
        return Check("D", "unknown", values, f"{values['undecided']} of {counted} were not certified")
    if not table.feasible.any():
        return Check("D", "not applicable", values, f"none of {len(table)} selections is feasible")
    return Check("D", "holds", values, f"all {counted}: a missed optimal token always supports; {tail}")


def _suspects(problem: AttentionProblem, optimal: Selection, seed: int) -> npt.NDArray[np.int64]:
    """Optimal selections with one token swapped, then random ones: where counterexamples are cheap to find."""
    rng = np.random.default_rng(seed)
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
