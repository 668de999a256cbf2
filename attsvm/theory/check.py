"""A verdict with the numbers behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from attsvm.records import plain

__all__ = ["Check", "Verdict", "all_of", "verdict_of"]

Verdict = Literal["holds", "fails", "unknown", "not applicable", "applies", "does not apply"]
"""A hypothesis holds or fails; a theorem applies or does not apply, since its hypotheses fail, not the theorem."""


@dataclass(frozen=True)
class Check:
    """One hypothesis or theorem, judged on given data.

    Attributes
    ----------
    name : str
    verdict : {"holds", "fails", "unknown", "not applicable"} or {"applies", "does not apply", "unknown"}
        Of a hypothesis, or of a theorem.
    values : mapping
        The numbers behind the verdict.
    detail : str
        The verdict in plain words.

    Examples
    --------
    >>> from attsvm.theory import Check
    >>> bool(Check("B.2", "holds", {"spread": 0.0}, "equal scores"))
    True
    """

    name: str
    verdict: Verdict
    values: Mapping[str, Any] = field(default_factory=dict)
    detail: str = ""

    def __repr__(self) -> str:
        return f"Check({self.name!r}, {self.verdict!r}, values of {', '.join(self.values) or 'nothing'})"

    def __bool__(self) -> bool:
        return self.verdict in ("holds", "applies")

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; numbers that are not finite become None."""
        return {"name": self.name, "verdict": self.verdict, "values": plain(self.values), "detail": self.detail}


def verdict_of(condition: bool) -> Verdict:
    """Two-valued verdict."""
    return "holds" if condition else "fails"


def all_of(checks: Iterable[Check]) -> Verdict:
    """Conjunction: one failure decides, then one unknown; hypotheses that do not apply count as failed."""
    verdicts = {check.verdict for check in checks}
    if verdicts & {"fails", "not applicable"}:
        return "fails"
    return "unknown" if "unknown" in verdicts else "holds"
