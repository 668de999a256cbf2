"""The words of this field in one line each, for whoever meets them first in a table."""

from __future__ import annotations

__all__ = ["WORDS", "glossary"]

WORDS: dict[str, str] = {
    "selection": "one token per query, the one that attention is to end on",
    "support": "tokens whose margin against the selected token is exactly 1: they hold the solution in place",
    "margin": "1 / norm of the smallest W that ranks every selected token first by at least 1",
    "Att-SVM": "that smallest W in the Frobenius norm; where training W is predicted to point",
    "Att-SVM*": "the same in the nuclear norm (few singular values); where training (K, Q) is predicted to point",
    "certificate": "bounds from the data alone that prove the answer optimal, or impossible, whoever computed it",
    "gap": "proved distance between the norm found and the best possible one, relative",
    "locally optimal": "no support token scores higher than the selected one: a place where training can end",
    "Global, Local": "the run ends on the tokens of highest score; on other tokens that are locally optimal",
    "degrees": "angle between W and the solution: 0 is the same direction, 90 is unrelated",
    "1 - corr": "1 - cosine of that angle",
    "rate": "1 - corr falls like steps to the power of minus this, fitted to the last snapshots",
    "effective rank": "exponential of the entropy of the singular values: how many of them matter (in brackets)",
    "A": "Assumption A: the loss decreases strictly, with bounded slopes",
    "B.1, B.2": "Assumption B: every token supports the solution (B.1), or all other tokens score alike (B.2)",
    "C": "Assumption C: the first gradient step already ranks the best tokens first",
    "D": "wherever a best token is missed, it is a support token: no other selection is locally optimal",
    "E": "Assumption E: mixing in unselected tokens always costs score (free for linear heads)",
    "NOT confirmed": "this run contradicts what the figure is to show",
    "± and [ , ]": "95 % confidence intervals over the trials",
}


def glossary(*words: str) -> list[str]:
    """Lines ``word: meaning`` for the given words.

    Examples
    --------
    >>> from attsvm.reports.words import glossary
    >>> glossary("rate")
    ['rate: 1 - corr falls like steps to the power of minus this, fitted to the last snapshots']
    """
    return [f"{word}: {WORDS[word]}" for word in words]
