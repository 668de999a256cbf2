"""Why no W exists, in words: the sequences, queries and tokens that a Farkas proof sets against each other."""

from __future__ import annotations

from itertools import combinations

import numpy as np

from attsvm.problem import AttentionProblem
from attsvm.rows import AttentionRows
from attsvm.solvers import FarkasCertificate

__all__ = ["conflict_in_words"]


def conflict_in_words(
    problem: AttentionProblem, rows: AttentionRows, farkas: FarkasCertificate, *, probabilities: bool = False
) -> str:
    """What the proof says; ``probabilities`` where the rows ask for given probabilities (W_fin) and not for a choice.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.conflict import conflict_in_words
    >>> problem = attsvm.AttentionProblem([[[1.0], [1.0]]], Z=[[1.0]])
    >>> solution = attsvm.att_svm(problem, [0])
    >>> conflict_in_words(problem, solution.rows, solution.certificate.farkas)
    'X[0] holds the same vector as tokens 0 and 1, so no W can select token 0 over token 1'
    """
    queries = [rows.query_index(int(o)) for o in farkas.owners]
    twins = _twins(problem, rows, farkas)
    if twins is not None:
        i, chosen, other = twins
        what = "give them different probabilities" if probabilities else f"select token {chosen} over token {other}"
        return f"X[{i}] holds the same vector as tokens {chosen} and {other}, so no W can {what}"
    if farkas.proof == "zero row":
        place = ", ".join(map(str, queries[0]))
        return f"Z[{place}] is zero, so all tokens of sequence {queries[0][0]} score the same for every W"
    if not problem.multi_query:
        names = [str(i) for (i,) in queries]
        return f"no W satisfies the rows of sequence{'s' if len(names) > 1 else ''} {', '.join(names)} together"
    return f"no W satisfies the rows of (sequence, query) {', '.join(map(str, queries))} together"


def _twins(
    problem: AttentionProblem, attention_rows: AttentionRows, farkas: FarkasCertificate
) -> tuple[int, int, int] | None:
    """Sequence and two of its tokens that are one vector, of which the proof asks for a difference."""
    margins = attention_rows.margin_problem
    for owner in farkas.owners:
        i = attention_rows.query_index(int(owner))[0]
        rows = farkas.rows[margins.owner[farkas.rows] == owner]
        tokens = np.append(attention_rows.anchors[owner], attention_rows.token[rows])
        # What is asked of a token against the anchor: to keep a distance, or at least one.
        fixed, sides = np.append(True, margins.equality[rows]), np.append(0.0, margins.rhs[rows])
        for u, v in combinations(range(len(tokens)), 2):
            asked = (fixed[u] or fixed[v]) and (fixed[u] != fixed[v] or sides[u] != sides[v])
            if asked and np.array_equal(problem.X[i, tokens[u]], problem.X[i, tokens[v]]):
                chosen, other = (u, v) if fixed[u] else (v, u)
                return i, int(tokens[chosen]), int(tokens[other])
    return None
