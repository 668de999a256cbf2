"""A claim of a paper, its formulas and the paper's own words, and how a verdict follows from measuring the formulas.

The check of a claim is a function ``measure(formula, rng, trials)`` that confronts *any* formula of the claim's kind
with random instances and counts violations. The printed formula and, where it fails, the corrected one are both given
to the same check; so is a wrong one in the tests. A run derives a verdict from the measurements and compares it with
the stored one.

What a claim says, where, what it supposes and why it was decided so stands in one TOML file per paper, or beside its
check. Whoever writes a quotation checks it against the paper's text; the papers are not shipped.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache, wraps
from importlib.resources import files
from typing import Any

import numpy as np

_FIELDS = (
    "source", "statement", "verdict", "answer", "quote", "hypotheses", "correction", "holds", "proof", "evidence",
    "reason", "same_as", "tight",
)  # fmt: skip


@cache
def records(paper: str) -> dict[str, dict[str, Any]]:
    """The fields of `Claim` that are words, by place; no verdict stands where the claim holds.

    Examples
    --------
    >>> records("svm")["thm6"]["statement"]
    'The same size makes every selection of tokens feasible.'
    """
    text = (files("attsvm.validation.ledger") / f"{paper}.toml").read_text(encoding="utf-8")
    tables: dict[str, dict[str, Any]] = tomllib.loads(text)
    for place, table in tables.items():
        if unknown := table.keys() - set(_FIELDS):
            raise ValueError(f"{paper}.toml: {place} has the unknown fields {sorted(unknown)}")
    return {
        place: {key: tuple(value) if isinstance(value, list) else value for key, value in table.items()}
        for place, table in tables.items()
    }


class Verdict(StrEnum):
    """What became of a claim."""

    HOLDS = "holds"
    FAILS = "fails as printed"
    MISSING = "missing hypothesis"
    IMPRECISE = "imprecise"
    TYPO = "typo"
    OPEN = "open"

    @property
    def refuted(self) -> bool:
        """Whether the printed form, read literally, does not survive and a corrected one is stored."""
        return self not in (Verdict.HOLDS, Verdict.OPEN)


@dataclass(frozen=True)
class Measurement:
    """What a check found for one formula.

    Parameters
    ----------
    violations, trials : int
        Instances on which the formula was wrong, and instances tried.
    worst : float
        The largest error or excess (what it measures is said by ``detail``).
    detail : str
        One line on what was measured.
    mean : float
        The mean of the errors, where there are errors: with the worst it tells how loose a bound is.
    """

    violations: int
    trials: int
    worst: float
    detail: str = ""
    mean: float = float("nan")

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError("a measurement needs at least one trial: nothing was checked")

    @property
    def holds(self) -> bool:
        """Whether no instance contradicted the formula."""
        return self.violations == 0

    def __str__(self) -> str:
        return f"{self.violations}/{self.trials} violated, worst {self.worst:.2g}" + (
            f" ({self.detail})" if self.detail else ""
        )


def count(errors: Any, tolerance: float, detail: str = "") -> Measurement:
    """A measurement from errors: those above the tolerance, or not a number, are violations.

    Examples
    --------
    >>> str(count([1e-12, 0.5], 1e-9, "relative error"))
    '1/2 violated, worst 0.5 (relative error)'
    """
    x = np.atleast_1d(np.asarray(errors, dtype=np.float64)).ravel()
    bad = ~(x <= tolerance)  # not a number counts as bad
    worst = float("inf") if np.isnan(x).any() else float(x.max())
    finite = x[np.isfinite(x)]
    return Measurement(int(bad.sum()), len(x), worst, detail, float(finite.mean()) if finite.size else float("nan"))


def implication(cases: Iterable[tuple[Any, Any]], detail: str) -> Measurement:
    """Count the cases whose hypothesis holds and whose conclusion does not, out of those whose hypothesis holds.

    Examples
    --------
    >>> str(implication([(True, True), (True, False), (False, False)], "x > 0"))
    '1/2 violated, worst 0.5 (x > 0)'
    """
    conclusions = [bool(conclusion) for hypothesis, conclusion in cases if hypothesis]
    bad = conclusions.count(False)
    return Measurement(bad, len(conclusions), bad / max(len(conclusions), 1), detail)


Formula = Any

Measure = Callable[[Formula, np.random.Generator, int], Measurement]

Instance = Callable[[Formula, np.random.Generator, int], Any]


def each(tolerance: float, detail: str = "") -> Callable[[Instance], Measure]:
    """Make a check of a function that measures one instance.

    The function ``error(formula, rng, k)`` draws instance k and returns its error, several of them, or None to leave
    the instance out, or yields them; the check counts the errors above the tolerance.

    Examples
    --------
    >>> @each(1e-12, "error of a square")
    ... def square(formula, rng, k):
    ...     x = rng.normal()
    ...     return abs(formula(x) - x * x)
    >>> square(lambda x: x**2, np.random.default_rng(0), 10).holds
    True
    """

    def decorate(error: Instance) -> Measure:
        @wraps(error)
        def measure(formula: Formula, rng: np.random.Generator, trials: int) -> Measurement:
            drawn = (error(formula, rng, k) for k in range(trials))
            found = (list(e) if isinstance(e, Iterator) else e for e in drawn)
            return count(np.concatenate([np.ravel(e) for e in found if e is not None]), tolerance, detail)

        return measure

    return decorate


def each_case(detail: str) -> Callable[[Instance], Measure]:
    """As `each` for an implication: the function returns its hypothesis and its conclusion on one instance.

    Examples
    --------
    >>> @each_case("powers")
    ... def grows(formula, rng, k):
    ...     return formula(k), 2**k > k
    >>> grows(lambda k: k > 0, None, 10).holds
    True
    """

    def decorate(case: Instance) -> Measure:
        @wraps(case)
        def measure(formula: Formula, rng: np.random.Generator, trials: int) -> Measurement:
            found = (case(formula, rng, k) for k in range(trials))
            return implication((pair for pair in found if pair is not None), detail)

        return measure

    return decorate


@dataclass(frozen=True)
class Check:
    """How a claim is measured; a section of the ledger lists these by the place of their claim in ``CHECKS``.

    Parameters
    ----------
    measure : callable
        ``measure(formula, rng, trials) -> Measurement``.
    printed, corrected : object
        Formulas, in the form that ``measure`` takes; ``corrected`` for refuted claims.
    trials : int
        Instances of a normal run.
    slips : tuple
        Wrong formulas that the check must reject, where they do not stand in `attsvm.validation.ledger.slips`.
    words : dict
        The record of the claim, where it does not stand in ``<paper>.toml``; what is a list there is a tuple here.
    """

    measure: Measure
    printed: Formula
    corrected: Formula = None
    trials: int = 100
    slips: tuple[Formula, ...] = ()
    words: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """One statement of a paper: its record, joined with its check by `all_claims`.

    Parameters
    ----------
    id : str
        ``paper:place``, for instance ``svm:thm1``.
    source : str
        The items of the paper that it concerns, separated by commas; it is told in full at the first of them.
    statement : str
        What the paper says, in our words.
    verdict : Verdict
        ``HOLDS``: the printed form survives. All others but ``OPEN``: the printed form, read literally, meets a
        counterexample and the corrected one survives. ``FAILS``: under every reasonable reading. ``MISSING``: true
        under a hypothesis that is not stated there. ``IMPRECISE``: false under one reading only. ``TYPO``: the paper
        itself has the right form elsewhere. ``OPEN``: not settled.
    measure : callable or None
        ``measure(formula, rng, trials) -> Measurement``. None only for open claims that no computation here can test.
    printed, corrected : object
        Formulas, in the form that ``measure`` takes. ``corrected`` is needed for refuted claims.
    answer : str
        One sentence that answers whether the item holds, and under which correction.
    quote : str
        The paper's words or formula, as extracted; parts are separated by "...".
    hypotheses : tuple of str
        What is supposed there. The check draws only instances that satisfy them.
    correction, holds : str
        The corrected statement in words and plain letters, and in TeX; for HOLDS a sharper form, if known.
    proof : str
        Why the printed form fails and the corrected one holds, with formulas in TeX.
    evidence : str
        What was found when the verdict was stored.
    reason : str
        Why there is no check (open claims only).
    same_as : str
        The claim of which this one is a consequence and not a finding of its own; counted there.
    tight : tuple of float
        For a bound: the worst and the mean error of the form that holds on the reference instances of
        `attsvm.validation.ledger.mutate`. They say how loose it is (a worst relative excess of -0.9: a tenth of it is
        reached; 0: it is attained), and a constant that is off by ten per cent gives other numbers.
    trials : int
        Instances of a normal run of the check.
    slips : tuple
        Wrong formulas that stand with the check.
    """

    id: str
    source: str
    statement: str
    verdict: Verdict
    measure: Measure | None = None
    printed: Formula = None
    corrected: Formula = None
    answer: str = ""
    quote: str = ""
    hypotheses: tuple[str, ...] = ()
    correction: str = ""
    holds: str = ""
    proof: str = ""
    evidence: str = ""
    reason: str = ""
    same_as: str = ""
    tight: tuple[float, ...] = ()
    trials: int = 100
    slips: tuple[Formula, ...] = ()

    def __post_init__(self) -> None:
        if ":" not in self.id:
            raise ValueError(f"id must read paper:place, got {self.id!r}")
        if self.measure is None and (self.verdict is not Verdict.OPEN or not self.reason):
            raise ValueError(f"{self.id}: only an open claim with a reason may lack a check")
        if self.measure is not None and self.printed is None:
            raise ValueError(f"{self.id}: printed must hold the formula that measure takes")
        if self.verdict.refuted:
            self._require_correction()
        elif self.corrected is not None:
            raise ValueError(f"{self.id}: corrected belongs to refuted claims; put a sharper form into correction")

    def _require_correction(self) -> None:
        if self.corrected is None or not (self.correction or self.holds):
            raise ValueError(f"{self.id}: a refuted claim needs its corrected form")
        if not (self.quote and self.hypotheses and self.answer and self.proof):
            raise ValueError(f"{self.id}: a refuted claim needs a quotation, its hypotheses, an answer and a proof")

    @property
    def paper(self) -> str:
        """The paper that the claim belongs to."""
        return self.id.split(":", 1)[0]

    @property
    def items(self) -> tuple[str, ...]:
        """The items of the paper that it concerns: ``Theorem 4``, ``(34a)``, ``Section 5.1``."""
        return tuple(part.strip() for part in self.source.split(","))

    @property
    def right(self) -> Formula:
        """The form that survives: the corrected one where there is one, else the printed one."""
        return self.printed if self.corrected is None else self.corrected
