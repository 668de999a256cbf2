"""Definition 2 proved: is every token on the margin worth less than the selected one? Yes, no, or undecided and why.

*Frobenius norm.* The solution is unique; rows of high-score tokens that are all proved to lie beyond the margin say
yes, a proof that some of them carries a multiplier says no (`attsvm.support_proof`), and rationals decide the rest.

*Other norms.* There may be many solutions, and Definition 2 may depend on which is meant. Two statements hold for all
of them, each proved by certificates of margin problems alone:

- no solution has all high-score rows beyond the margin when the norm without those rows is strictly less: such a
  solution would solve the smaller problem too;
- every solution has row k beyond the margin when the norm with that row held at exactly 1 is strictly more.

Where neither is proved the readings may differ, and the answer is "undecided".
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray
from attsvm.rows import AttentionRows
from attsvm.solvers import Certificate, CertificateBatch, MarginProblem, MarginSolution, certify, solve, solve_batch
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm
from attsvm.solvers.problem import EitherProblem, is_batch
from attsvm.solvers.solution import EitherSolution, is_one
from attsvm.support_proof import MarginBounds, carries_weight_outside, margin_bounds, solve_exactly, upper_norm

__all__ = ["LocalProof", "prove_local"]

FloatArray = npt.NDArray[np.float64]

# A high-score row this close to the margin is suspected to lie on it: which proof is tried first.
_CLOSE = 1e-3
# Problems with a row held at 1 that are solved as one batch.
_AT_ONCE = 2048


@dataclass(frozen=True, eq=False)
class LocalProof:
    """What is proved about each of S selections.

    Attributes
    ----------
    local : ndarray of bool, shape (S,)
        Proved locally optimal.
    undecided : ndarray of bool, shape (S,)
        Neither that nor the contrary is proved.
    reasons : dict from int to str
        Why, for the undecided ones.
    exact : dict from int to ExactLeastNorm or ExactFarkas
        Solved over the rationals on the way.
    """

    local: BoolArray
    undecided: BoolArray
    reasons: dict[int, str] = field(default_factory=dict)
    exact: dict[int, ExactLeastNorm | ExactFarkas] = field(default_factory=dict)


def prove_local(rows: AttentionRows, result: EitherSolution, high: BoolArray) -> LocalProof:
    """Decide Definition 2 / 4 for a solved Att-SVM, or for each of a batch.

    Parameters
    ----------
    rows : AttentionRows
        Of all allowed tokens.
    result : MarginSolution
        Its solution, in any norm.
    high : ndarray of bool, shape (*batch, *query_shape, T)
        Tokens that do not score less than the selected one.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.local_proof import prove_local
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> solution = attsvm.att_svm(problem, [0, 0, 0])
    >>> prove_local(solution.rows, solution.result, attsvm.high_score_tokens(problem, [0, 0, 0])).local
    array([False])
    """
    problem: EitherProblem = rows.margin_problem
    above = rows.pick(high) & (problem.rhs != 0)
    status = np.atleast_1d(np.asarray(result.status, dtype=object))
    optimal, infeasible = status == "optimal", status == "infeasible"
    # No token scores as much: any solution will do.
    local = optimal & ~np.atleast_1d(above.any(axis=-1))
    proof = LocalProof(local, ~local & ~infeasible)
    if result.norm_kind.name == "frobenius":
        return _frobenius(problem, result, result.certificate, above, optimal, proof)
    if min(problem.shape) == 1 and result.norm_kind.unitarily_invariant:  # on vectors these norms are one
        certificate: Certificate | CertificateBatch = result.certificate
        if optimal.any():
            # There may be no W; and squares that leave the range make error bounds infinite, which decide nothing.
            with np.errstate(over="ignore", invalid="ignore"):
                certificate = certify(problem, np.asarray(result.W), result.multipliers, "frobenius")
        return _frobenius(problem, result, certificate, above, optimal, proof)
    return _any_norm(problem, result, above, optimal, proof)


def _one(result: EitherSolution, problem: EitherProblem, index: int) -> tuple[MarginProblem, MarginSolution]:
    if is_one(result):
        assert not is_batch(problem)
        return problem, result
    return problem[index], result[index]


def _own_rows(problem: EitherProblem, values: BoolArray, index: int) -> BoolArray:
    """The entries of one problem of a batch, without its void rows."""
    if not problem.batch:
        return values
    return np.asarray(values[index] if problem.valid is None else values[index][problem.valid[index]])


def _frobenius(
    problem: EitherProblem,
    result: EitherSolution,
    certificate: Certificate | CertificateBatch,
    above: BoolArray,
    optimal: BoolArray,
    proof: LocalProof,
) -> LocalProof:
    local, left = proof.local.copy(), proof.undecided.copy()
    bounds: MarginBounds | None = None
    if optimal.any():
        bounds = margin_bounds(problem, result.W, certificate)
        local |= optimal & ~np.atleast_1d((above & ~bounds.beyond).any(axis=-1))
        left &= ~local
        left &= ~_refuted(problem, result, bounds, above, left & optimal)
    reasons: dict[int, str] = {}
    exact: dict[int, ExactLeastNorm | ExactFarkas] = {}
    for i in np.flatnonzero(left):
        one, solved = _one(result, problem, int(i))
        answer = solve_exactly(one, solved.multipliers)
        if answer is None:
            reasons[int(i)] = _why(problem, result, bounds, above, int(i), bool(optimal[i]))
            continue
        exact[int(i)] = answer
        left[i] = False
        if isinstance(answer, ExactLeastNorm):
            local[i] = not bool((answer.support & _own_rows(problem, above, int(i))).any())
    return LocalProof(local, left, reasons, exact)


def _refuted(
    problem: EitherProblem, result: EitherSolution, bounds: MarginBounds, above: BoolArray, some: BoolArray
) -> BoolArray:
    """Where the high-score rows are proved to carry a multiplier, shape (S,)."""
    out = np.zeros(len(some), dtype=bool)
    below = ~above & (problem.rhs != 0)
    if not problem.batch:
        if some[0]:
            out[0] = carries_weight_outside(problem, bounds, result.multipliers, below)
        return out
    index = np.flatnonzero(some)
    if len(index):
        out[index] = carries_weight_outside(problem.take(index), bounds[index], result.multipliers[index], below[index])
    return out


def _why(
    problem: EitherProblem,
    result: EitherSolution,
    bounds: MarginBounds | None,
    above: BoolArray,
    index: int,
    optimal: bool,
) -> str:
    """Why a selection stays undecided, with the resolution at which margins are known."""
    if not optimal or bounds is None:
        _, solved = _one(result, problem, index)
        return f"the solve ended {solved.status} with gap {solved.certificate.gap:.1e}"
    margins, error = np.atleast_2d(bounds.margins)[index], np.atleast_2d(bounds.error)[index]
    rows = np.atleast_2d(above)[index]
    distance = np.where(rows, np.abs(margins - 1.0), np.inf)
    k = int(distance.argmin())
    return (
        f"the margin of a token of no lower score is {margins[k]:.12g}, known to within {error[k]:.1e}, "
        "and the problem is too large for exact arithmetic"
    )


def _any_norm(
    problem: EitherProblem, result: EitherSolution, above: BoolArray, optimal: BoolArray, proof: LocalProof
) -> LocalProof:
    norm = result.norm_kind.name
    local, left = proof.local.copy(), proof.undecided.copy()
    most = np.atleast_1d(upper_norm(result.certificate))
    least = np.atleast_1d(np.asarray(result.certificate.lower_bound))
    high = np.atleast_2d(above)
    if (left & optimal).any():
        with np.errstate(invalid="ignore"):
            close = (high & (np.atleast_2d(problem.margins(result.W)) <= 1.0 + _CLOSE)).any(axis=-1)
        index = np.flatnonzero(left & optimal & close)
        if len(index):
            left[index[_least_without(_some(problem, index), high[index], norm) < least[index]]] = False
        index = np.flatnonzero(left & optimal)
        if len(index):
            local[index] = _beyond_in_every_solution(_some(problem, index), high[index], most[index], norm)
        left &= ~local
    reasons = {}
    for i in np.flatnonzero(left):
        if optimal[i]:
            reasons[int(i)] = (
                f"the solutions of the {norm}-norm problem differ, or are not proved not to, on whether a token of no "
                f"lower score lies on the margin (norms known to {most[i] / least[i] - 1.0:.0e})"
            )
        else:
            reasons[int(i)] = _why(problem, result, None, above, int(i), False)
    return LocalProof(local, left, reasons)


def _some(problem: EitherProblem, index: npt.NDArray[np.intp]) -> EitherProblem:
    return problem.take(index) if is_batch(problem) else problem


def _least_without(problem: EitherProblem, high: BoolArray, norm: str) -> FloatArray:
    """Upper bounds on the least norm over the rows that are not high, shape (S,)."""
    pair = problem.rows.gather(np.arange(problem.m))
    a, queries = np.asarray(pair.a), np.asarray(pair.queries)
    if not problem.batch:
        a, queries = a[None], queries[None]
    keep = ~high & np.atleast_2d(problem.rhs != 0)
    out = np.zeros(len(high))  # without any row W = 0
    some = np.flatnonzero(keep.any(axis=-1))
    if len(some):
        owner = pair.owner if pair.owner.ndim == 1 else pair.owner[some]
        found = solve_batch(MarginProblem(a[some], queries[some], owner, valid=keep[some]), norm)
        out[some] = upper_norm(found.certificate)
    return out


def _beyond_in_every_solution(problem: EitherProblem, high: BoolArray, most: FloatArray, norm: str) -> BoolArray:
    """Whether holding any high row at exactly 1 costs more than ``most``, shape (S,)."""
    if not problem.batch:
        for k in np.flatnonzero(high[0]):
            held: MarginProblem = MarginProblem.from_rows(problem.rows, None, np.arange(problem.m) == k)
            if not _proved_least(solve(held, norm)) > most[0]:
                return np.zeros(1, dtype=bool)
        return np.ones(1, dtype=bool)
    which, row = np.nonzero(high)
    beyond = np.ones(len(which), dtype=bool)
    for start in range(0, len(which), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        copies = problem.take(which[part])
        equality = np.arange(problem.m) == row[part, None]
        tied = solve_batch(MarginProblem.from_rows(copies.rows, copies.rhs, equality, copies.valid), norm)
        beyond[part] = _proved_least(tied) > most[which[part]]
    out = np.ones(len(high), dtype=bool)
    np.logical_and.at(out, which, beyond)
    return out


def _proved_least(found: EitherSolution) -> FloatArray:
    """Proved lower bounds on the norm: infinite where infeasible, 0 where the solve failed."""
    failed = np.asarray(np.asarray(found.status, dtype=object) == "failed", dtype=bool)
    return np.where(failed, 0.0, found.certificate.lower_bound)
