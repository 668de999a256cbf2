"""Attention problems in certificate files: tokens, queries and selection, from which a checker builds the rows itself.

The file then speaks of the attention problem, and nobody has to believe that its rows are the right ones. Of an Att-SVM
in the Frobenius norm whose tokens have scores, local optimality (Definition 2) is proved as well, where it holds.
`tools/check_certificate.py` has the arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from attsvm.exact_tokens import score_order
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem, require_single
from attsvm.selection_rows import AttentionRows
from attsvm.solvers.arrays import BoolArray
from attsvm.solvers.certify.proof_file import Proof, Record, numbers_text
from attsvm.solvers.exact import ExactLeastNorm, ExactRows, exact_least_norm
from attsvm.solvers.exact.measures import EXACT_ENTRIES

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat


def attention_record(problem: AttentionProblem) -> Record:
    """Tokens, queries and mask of one problem; ``allowed`` only where some token is not.

    Examples
    --------
    >>> import attsvm
    >>> attention_record(attsvm.AttentionProblem([[[1.0], [0.5]]], Z=[[2.0]]))
    {'kind': 'attention', 'tokens': [[['1'], ['0x1p-1']]], 'queries': [[['2']]]}
    """
    require_single(problem, "a certificate file is about one problem")
    queries = np.asarray(problem.Z).reshape(problem.n, problem.K, problem.dz)
    record: Record = {"kind": "attention", "tokens": numbers_text(problem.X), "queries": numbers_text(queries)}
    return record


def _allowed_record(allowed: BoolArray) -> Record:
    return {} if allowed.all() else {"allowed": allowed.astype(int).tolist()}


def scores_record(problem: AttentionProblem) -> Record:
    """What scores are made of: a linear head and labels, or the numbers that another head returned.

    Examples
    --------
    >>> import attsvm
    >>> head = attsvm.LinearHead([1.0])
    >>> scores_record(attsvm.AttentionProblem([[[1.0], [0.5]]], [-1.0], [[2.0]], head))
    {'head': ['1'], 'labels': ['-1']}
    """
    if isinstance(problem.head, LinearHead):
        labels = np.asarray(problem.Y, dtype=np.float64).reshape(-1)
        return {"head": numbers_text(np.asarray(problem.head.v)), "labels": numbers_text(labels)}
    scores = np.broadcast_to(problem.scores(), (*problem.query_shape, problem.T))
    return {"scores": numbers_text(scores.reshape(-1, problem.T))}


def _whole(value: fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))


def decided_locally(rows: ExactRows, low: Sequence[bool], W: fmpq_mat, weights: Sequence[fmpq]) -> bool | None:
    """What W and multipliers of the low rows tell of local optimality, exactly; None where they do not.

    Parameters
    ----------
    rows : ExactRows
        Of all allowed tokens, right-hand sides 1.
    low : sequence of bool, length m
        Rows against tokens that score less than the selected one.
    W : fmpq_mat, shape (dx, dz)
        Satisfies the low rows.
    weights : sequence of fmpq, length m
        Nonnegative; those of other rows count as 0.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_least_norm, exact_rows
    >>> rows = exact_rows([[1.0, 0.0], [1.5, 1.0]], [[1.0]], [0, 0])
    >>> best = exact_least_norm(rows)
    >>> decided_locally(rows, [True, False], best.matrix, best.values)
    True
    """
    from attsvm.solvers.exact.rows import rational

    used = [y if is_low else rational(0) for y, is_low in zip(weights, low, strict=True)]
    length, total = _squared(rows.combination(used)), sum(used, start=rational(0))
    if length == 0 and total > 0:
        return False
    margins = rows.margins(W)
    if any(v < 1 for v, is_low in zip(margins, low, strict=True) if is_low):
        return None
    distance = _squared(W) - (total * total / length if length else rational(0))
    others = [k for k, is_low in enumerate(low) if not is_low]
    sides = [_side(margins[k] - 1, distance * _row_squared(rows, k)) for k in others]
    return False if -1 in sides else None if 0 in sides else True


def _squared(matrix: fmpq_mat) -> fmpq:
    from attsvm.solvers.exact.rows import rational

    return sum((x * x for x in matrix.entries()), start=rational(0))


def _row_squared(rows: ExactRows, k: int) -> fmpq:
    """``|a_k|^2 |b_k|^2``; the scale of a row includes that of its query."""
    query = rows.right[int(rows.owner[k])]
    return sum(x * x for x in rows.left[k]) * sum(x * x for x in query) * rows.scale[k] * rows.scale[k]


def _side(excess: fmpq, error_squared: fmpq) -> int:
    """Of a number within ``sqrt(error_squared)`` of ``excess``: 1 if it is above 0, -1 if not, 0 if that is unknown."""
    room = excess * excess - error_squared
    if excess > 0:
        return int(room > 0)
    return -int(room >= 0)


@dataclass(frozen=True, eq=False)
class AttentionOrigin:
    """What the rows of an attention SVM were made of, for certificate files.

    Attributes
    ----------
    problem : AttentionProblem
        One problem.
    rows : AttentionRows
        Its rows.
    """

    problem: AttentionProblem
    rows: AttentionRows

    def problem_record(self) -> Record:
        """Tokens, queries, the token that each query selects, and which others it has rows against."""
        margins, T = self.rows.margin_problem, self.rows.T
        place = margins.owner * T + self.rows.token
        if (np.diff(place) <= 0).any():
            raise ArithmeticError("rows are not in the order of queries and tokens, which is a bug")
        allowed = np.zeros((margins.q, T), dtype=bool)
        allowed.reshape(-1)[place] = True
        allowed[np.arange(margins.q), self.rows.anchors] = True
        record = attention_record(self.problem) | {"selected": self.rows.anchors.tolist()}
        return record | _allowed_record(allowed)

    def more_claims(self, rows: ExactRows, proof: Proof) -> tuple[Proof, list[Record], Record]:
        """Local optimality, if there are scores and it holds: by the numbers as they are, or by exact ones."""
        if self.problem.head is None:
            return proof, [], {}
        order = score_order(self.problem).reshape(-1, self.rows.T)
        scores = order[rows.owner, self.rows.token]
        low = (scores < order[rows.owner, self.rows.anchors[rows.owner]]).tolist()
        verdict = decided_locally(rows, low, proof.W, proof.weights)
        if verdict is None and rows.m * rows.shape[0] * rows.shape[1] <= EXACT_ENTRIES:
            try:
                best = exact_least_norm(rows, [float(_whole(y)) for y in proof.weights])
            except RuntimeError:  # too many exchanges of rows
                return proof, [], {}
            if isinstance(best, ExactLeastNorm):
                exact = Proof(best.matrix, list(best.values))
                verdict = decided_locally(rows, low, *exact)
                proof = exact if verdict else proof
        if not verdict:
            return proof, [], {}
        return proof, [{"claim": "locally optimal"}], scores_record(self.problem)
