"""What a case of the benchmark returns: numbers with their spread over draws, and which goals their medians met."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

__all__ = ["Line", "Numbers", "Result", "Spread", "Verdict", "at_least", "at_most", "missed"]

Numbers = dict[str, dict[str, float]]  # what one draw of a case measures: by line of its table, then by name


@dataclass(frozen=True)
class Spread:
    """One number per draw.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Spread
    >>> found = Spread((3.0, 1.0, 8.0))
    >>> found.median, found.low, found.high
    (3.0, 1.0, 8.0)
    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("values must hold at least one number, one per draw")

    @property
    def median(self) -> float:
        """Middle of the draws; NaN when one of them is."""
        return float("nan") if any(v != v for v in self.values) else float(median(self.values))

    @property
    def low(self) -> float:
        """Smallest draw."""
        return min(self.values)

    @property
    def high(self) -> float:
        """Largest draw."""
        return max(self.values)


@dataclass(frozen=True)
class Line:
    """One solver on one piece of work.

    Attributes
    ----------
    name : str
    numbers : dict
        ``seconds`` (per problem), ``gap``, ``ratio`` (its seconds over ours, draw by draw), ``memory`` (bytes), others.
    note : str
        Empty, or why numbers are missing.
    """

    name: str
    numbers: Mapping[str, Spread] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """A goal, the number that was judged and whether it was met; None where it could not be measured."""

    text: str
    value: float | None
    met: bool | None


@dataclass(frozen=True)
class Result:
    """What a case found."""

    case: str
    title: str
    lines: tuple[Line, ...]
    verdicts: tuple[Verdict, ...] = ()


def at_least(text: str, goal: float, found: Spread | None) -> Verdict:
    """Whether the median reaches the goal.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Spread, at_least
    >>> at_least("fast", 2.0, Spread((1.0, 2.5, 9.0))).met
    True
    >>> at_least("fast", 2.0, None).met is None
    True
    """
    return Verdict(text, None, None) if found is None else Verdict(text, found.median, found.median >= goal)


def at_most(text: str, goal: float, found: Spread | None, *, every_draw: bool = False) -> Verdict:
    """Whether the median (or every draw: accuracy has no excuse) stays within the goal.

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Spread, at_most
    >>> errors = Spread((1e-12, 1e-3, 1e-12))
    >>> at_most("gap", 1e-8, errors).met, at_most("gap", 1e-8, errors, every_draw=True).met
    (True, False)
    """
    if found is None:
        return Verdict(text, None, None)
    value = found.high if every_draw else found.median
    return Verdict(text, value, value <= goal)


def missed(results: Iterable[Result]) -> list[str]:
    """Goals that were measured and not met, as "case: goal".

    Examples
    --------
    >>> from attsvm.validation.bench.judge import Result, Verdict, missed
    >>> missed([Result("a", "", (), (Verdict("fast", 1.0, False), Verdict("small", None, None)))])
    ['a: fast']
    """
    return [
        f"{result.case}: {verdict.text}" for result in results for verdict in result.verdicts if verdict.met is False
    ]
