"""The paper's own words beside a claim: where they stand, what they suppose, and what a second reading decided.

One file ``claims.toml`` per paper, one table per claim, with the record of the claim itself. A quotation is checked
against the paper's text by whoever writes it; the papers are not shipped.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

__all__ = ["WEIGHTS", "Reading", "readings", "records"]

# What a correction changes, in the order of the page: a result or its proof, what a user does, a sentence, a symbol.
WEIGHTS = ("result", "practice", "wording", "slip")

_RECORD = ("source", "statement", "verdict", "correction", "evidence", "reason")


@dataclass(frozen=True)
class Reading:
    """What stands in the paper, and how it was judged.

    Parameters
    ----------
    quote : str
        The paper's words or formula, as extracted.
    hypotheses : tuple of str
        What the paper supposes there. The check draws only instances that satisfy them.
    related : tuple of str
        Other claims on the same point.
    same_as : str
        The claim of which this one is a consequence and not a finding of its own; counted there.
    before : str
        The verdict of the first reading, for statements that it called refuted.
    why : str
        Why the verdict stands or was changed, in one line.
    weight : str
        One of `WEIGHTS`, or empty.
    printed, holds : str
        The statement and its correction in TeX.
    tight : tuple of float
        For a bound: the worst and the mean error of the form that holds on the reference instances of
        `attsvm.validation.ledger.mutate`. They say how loose it is (a worst relative excess of -0.9: a tenth of it is
        reached; 0: it is attained), and a constant that is off by ten per cent gives other numbers.

    Examples
    --------
    >>> from attsvm.validation.ledger.reading import Reading
    >>> Reading(quote="for all lambda > 2").hypotheses
    ()
    """

    quote: str = ""
    hypotheses: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    same_as: str = ""
    before: str = ""
    why: str = ""
    weight: str = ""
    printed: str = ""
    holds: str = ""
    tight: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.weight and self.weight not in WEIGHTS:
            raise ValueError(f"weight must be one of {', '.join(WEIGHTS)}, got {self.weight!r}")


@cache
def _tables(paper: str) -> dict[str, dict[str, Any]]:
    text = (files("attsvm.validation.ledger") / paper / "claims.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def records(paper: str) -> dict[str, dict[str, str]]:
    """What `Claim` says in words, by place and in the order of the ledger; no verdict stands where the claim holds.

    Examples
    --------
    >>> from attsvm.validation.ledger.reading import records
    >>> records("svm")["thm6"]["statement"]
    'The same size makes every selection of tokens feasible.'
    """
    return {place: {k: table[k] for k in _RECORD if k in table} for place, table in _tables(paper).items()}


def readings(paper: str) -> dict[str, Reading]:
    """The readings of a paper by claim id.

    Examples
    --------
    >>> from attsvm.validation.ledger.reading import readings
    >>> readings("localization")["localization:12"].hypotheses[0]
    'W_QK symmetric and independent of X'
    """
    return {
        f"{paper}:{place}": Reading(**{k: _frozen(value) for k, value in table.items() if k not in _RECORD})
        for place, table in _tables(paper).items()
    }


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
