"""Complete listings as certificate files: every selection decided by multipliers of its low rows.

For each selection the SVM over the rows against tokens of lower score (the low rows) is solved. Its multipliers decide
local optimality up to a distance that is known exactly; where float64 multipliers leave a row undecided, exact ones are
taken, and where the low rows contradict each other, integers that cancel them. Everything is decided over the
rationals before it is written. `tools/check_certificate.py` has the theorem.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from attsvm.attention_proofs import attention_record, decided_locally, scores_record
from attsvm.exact_tokens import EXACT_SELECTIONS, exact_selection_rows, score_order
from attsvm.selection_rows import rows_of_selections
from attsvm.solvers import solve_batch
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.proof_file import Record, cancelling_integers, file_record, number_text, write_record
from attsvm.solvers.exact import ExactFarkas, ExactRows, exact_least_norm

if TYPE_CHECKING:
    from flint import fmpq

    from attsvm.enumeration.selection_space import LocalOptima
    from attsvm.problem import AttentionProblem

__all__ = ["listing_record", "save_listing"]

# Low rows of so many selections are solved at once.
_AT_ONCE = 2048


def _low_multipliers(problem: AttentionProblem, selections: IntArray, low: BoolArray) -> FloatArray:
    """Float multipliers of the low rows of every selection, shape (S, n*K, T), NaN where they were not solved."""
    out = np.zeros(low.shape)  # without low rows W = 0, which every other row refutes
    some = np.flatnonzero(low.any(axis=(1, 2)))
    for start in range(0, len(some), _AT_ONCE):
        part = some[start : start + _AT_ONCE]
        rows = rows_of_selections(problem, selections[part], low[part])
        found = solve_batch(rows.margin_problem)
        grid = rows.scatter(found.multipliers, fill=0.0).reshape(len(part), *low.shape[1:])
        out[part] = np.where((found.status == "optimal")[:, None, None], grid, np.nan)
    return out


def _decision(rows: ExactRows, low: list[bool], multipliers: FloatArray) -> tuple[bool, list[fmpq]]:
    """Whether a selection is locally optimal, and multipliers of its low rows that prove it."""
    from attsvm.solvers.exact.rows import rational

    kept = [k for k, is_low in enumerate(low) if is_low]
    known = bool(np.isfinite(multipliers).all())
    if known:
        weights = [rational(max(x, 0.0)) for x in multipliers.tolist()]
        W = rows.combination(weights)
        margins = [v for v, is_low in zip(rows.margins(W), low, strict=True) if is_low]
        if all(v > 0 for v in margins):
            longer = W * (1 / min(margins)) if margins else W
            verdict = decided_locally(rows, low, longer, weights)
            if verdict is not None:
                return verdict, weights
    best = exact_least_norm(rows.take(kept), multipliers[kept] if known else None)
    exact = [rational(0)] * rows.m
    if isinstance(best, ExactFarkas):
        for k, whole in zip(kept, cancelling_integers(best), strict=True):
            exact[k] = rational(whole)
        return False, exact
    for k, y in zip(kept, best.values, strict=True):
        exact[k] = y
    decided = decided_locally(rows, low, best.matrix, exact)
    assert decided is not None  # the distance is 0
    return decided, exact


def listing_record(found: LocalOptima) -> Record:
    """What `LocalOptima.save_certificate` writes, as data.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.listing_proof import listing_record
    >>> record = listing_record(attsvm.locally_optimal_selections(attsvm.random_problem(n=2, T=3, d=3, seed=0)))
    >>> record["claims"][0]["claim"], len(record["claims"][0]["selections"]), len(record["proofs"])
    ('complete listing', 2, 9)
    """
    if found.norm_name != "frobenius":
        raise ValueError(f"listings are certified in the Frobenius norm, got {found.norm_name!r}")
    if not found.complete:
        raise ValueError("the listing is not proved complete: a certificate file says that it is")
    problem, size = found.problem, found.counts.selections
    if size > EXACT_SELECTIONS:
        raise ValueError(f"listings of up to {EXACT_SELECTIONS:,} selections are certified, this one has {size:,}")
    allowed = problem.allowed.reshape(-1, problem.T)
    grids = np.meshgrid(*(np.flatnonzero(row) for row in allowed), indexing="ij")
    selections = np.stack([grid.ravel() for grid in grids], axis=-1)
    order = np.broadcast_to(score_order(problem), (*problem.query_shape, problem.T)).reshape(-1, problem.T)
    chosen = np.take_along_axis(order[None], selections[..., None], axis=-1)
    low = (order[None] < chosen) & allowed
    multipliers = _low_multipliers(problem, selections, low)
    proofs, listed = [], []
    for tokens, is_low, lam in zip(selections, low, multipliers, strict=True):
        rows, token = exact_selection_rows(problem, tokens.reshape(problem.query_shape))
        place = (rows.owner, token)
        local, weights = _decision(rows, is_low[place].tolist(), lam[place])
        proofs.append({"tokens": tokens.tolist(), "multipliers": [number_text(y) for y in weights]})
        listed += [tokens.tolist()] if local else []
    if {tuple(tokens) for tokens in listed} != {item.tokens for item in found}:
        raise ArithmeticError("exact arithmetic finds other locally optimal selections than the listing, a bug")
    described = attention_record(problem) | scores_record(problem)
    if not allowed.all():
        described["allowed"] = allowed.astype(int).tolist()
    claim: Record = {"claim": "complete listing", "selections": [list(item.tokens) for item in found]}
    return file_record(described, "frobenius", {"proofs": proofs}, [claim])


def save_listing(found: LocalOptima, path: str | Path) -> tuple[str, ...]:
    """Write the certificate of a complete listing; the names of its claims."""
    return write_record(listing_record(found), path)
