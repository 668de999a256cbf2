"""Whether the checks have teeth: forms that are off by ten per cent, and mistakes that a careful reader could make.

Every check is given the form that holds with one of its numbers scaled, and the mistakes of `slips`. A variant is
caught when the check rejects it, or when it changes the recorded tightness of a loose bound: the worst error of the
right form on reference instances, drawn with a seed of their own. A variant that survives is listed with its reason.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.resources import files
from typing import Any

import numpy as np

from attsvm.validation.ledger.claim_record import Claim, Measurement

FACTORS = (1.1, 1 / 1.1)
_REFERENCE_SEED = 20_231  # of the reference instances
_REFERENCE_TRIALS = 40
_SAME = 1e-2  # a tightness that moves by less than this share is the same,
_FLOOR = 1e-3  # and near zero (attained) or -1 (far from it) by less than this times the share


@dataclass(frozen=True)
class Mutation:
    """One variant of a claim's form, and what its check said.

    Parameters
    ----------
    claim : str
    name : str
        What was changed.
    scaled : bool
        A number off by ten per cent; else a planted slip.
    caught : bool
    how : str
        The measurement that caught it or did not.
    reason : str
        Why it survives, where that is known.
    """

    claim: str
    name: str
    scaled: bool
    caught: bool
    how: str
    reason: str = ""

    @property
    def invariant(self) -> bool:
        """Whether the statement does not depend on what was scaled."""
        return self.reason.startswith("invariant")


@cache
def survivors() -> dict[str, str]:
    """Why variants of a claim may survive, by claim id; ``invariant: ...`` where scaling changes nothing.

    Examples
    --------
    >>> survivors()["svm:thm4-limit"]
    'invariant: compared up to a positive factor'
    """
    text = (files("attsvm.validation.ledger") / "survivors.toml").read_text(encoding="utf-8")
    return {place: str(reason) for place, reason in tomllib.loads(text).items()}


def reference(claim: Claim, formula: Any = None) -> tuple[float, float]:
    """Worst and mean error of a form (default: the one that holds) on the reference instances.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import find_claims
    >>> round(reference(find_claims(["svm:eq17"])[0])[0], 2)  # |S'|_F reaches half of the bound 1
    -0.5
    """
    if claim.measure is None:
        raise ValueError(f"claim must have a check, got {claim.id}")
    rng = np.random.default_rng(_REFERENCE_SEED)
    found = claim.measure(claim.right if formula is None else formula, rng, min(claim.trials, _REFERENCE_TRIALS))
    return found.worst, found.mean


def is_tight(claim: Claim, formula: Any = None) -> tuple[bool, str]:
    """Whether a form has the recorded tightness (true where none is recorded), and what was found.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import find_claims
    >>> claim = find_claims(["svm:eq17"])[0]
    >>> is_tight(claim)[0], is_tight(claim, 1.1 * claim.printed)[0]
    (True, False)
    """
    if not claim.tight:
        return True, ""
    found = reference(claim, formula)
    same = all(
        abs(a - b) <= _SAME * max(min(abs(b), abs(1 + b)), _FLOOR)
        for a, b in zip(found, claim.tight, strict=True)
        if not np.isnan(b)
    )
    return same, f"tightness {found[0]:.4g}, {found[1]:.4g}; recorded {claim.tight[0]:.4g}, " + (
        f"{claim.tight[1]:.4g}"
    )


def _scaled_value(value: Any, factor: float, part: int) -> Any:
    """A number, an array, or part of a tuple of them, times a factor."""
    if isinstance(value, tuple):
        return tuple(_scaled_value(v, factor, 0) if k == part else v for k, v in enumerate(value))
    return factor * value


def _parts(value: Any) -> int:
    """How many numbers of a form's value can be scaled one at a time; 0 where none can."""
    if isinstance(value, tuple):
        return len(value) if value and all(_parts(v) == 1 for v in value) else 0
    if isinstance(value, bool | np.bool_ | str | int | None.__class__):
        return 0
    if isinstance(value, float | np.floating):
        return int(np.isfinite(value) and value != 0)
    return int(isinstance(value, np.ndarray) and value.dtype.kind == "f")


def _watched(formula: Callable[..., Any], seen: list[Any]) -> Callable[..., Any]:
    def watch(*arguments: Any) -> Any:
        value = formula(*arguments)
        seen.append(value)
        return value

    return watch


def _scaled_callable(formula: Callable[..., Any], factor: float, part: int) -> Callable[..., Any]:
    def scaled(*arguments: Any) -> Any:
        return _scaled_value(formula(*arguments), factor, part)

    return scaled


def _scales(claim: Claim) -> Iterator[tuple[str, Any]]:
    """The form that holds with one number off by ten per cent, as far as it has numbers."""
    right = claim.right
    if callable(right):
        seen: list[Any] = []
        assert claim.measure is not None
        claim.measure(_watched(right, seen), np.random.default_rng(0), min(claim.trials, 6))
        parts = min((_parts(value) for value in seen), default=0)
        for part in range(parts):
            for factor in FACTORS:
                yield _label(factor, part, parts), _scaled_callable(right, factor, part)
    elif isinstance(right, tuple):
        for part, value in enumerate(right):
            for name, changed in _scaled_part(value):
                yield f"{name} in part {part + 1} of {len(right)}", (*right[:part], changed, *right[part + 1 :])
    elif _parts(right):
        for factor in FACTORS:
            yield _label(factor, 0, 1), factor * right


def _scaled_part(value: Any) -> Iterator[tuple[str, Any]]:
    """A member of a tuple of forms, scaled: a function by what it returns, numbers one at a time."""
    for factor in FACTORS:
        if callable(value):
            yield _label(factor, 0, 1), _scaled_callable(value, factor, 0)
        for part in range(0 if callable(value) else _parts(value)):
            yield _label(factor, part, _parts(value)), _scaled_value(value, factor, part)


def _label(factor: float, part: int, parts: int) -> str:
    return f"x {factor:.3g}" + (f" in part {part + 1} of {parts}" if parts > 1 else "")


def slips_of(claim: Claim) -> list[Any]:
    """The wrong formulas that the check of a claim must reject: those beside it, and those of `slips`.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import find_claims
    >>> len(slips_of(find_claims(["newer:joint-attention"])[0]))
    2
    """
    table: Mapping[str, Any] = import_module("attsvm.validation.ledger.slips").SLIPS[claim.paper]
    found = table.get(claim.id.split(":", 1)[1])
    return [*claim.slips, *(found if isinstance(found, list) else [found] if found is not None else [])]


def _slips(claim: Claim) -> Iterator[tuple[str, Any]]:
    for k, formula in enumerate(slips_of(claim)):
        yield f"slip {k + 1}", formula


def _caught(claim: Claim, formula: Any, seed: int, trials: int) -> tuple[bool, str]:
    assert claim.measure is not None
    try:
        found: Measurement = claim.measure(formula, np.random.default_rng([seed, 1]), trials)
        if not found.holds:
            return True, str(found)
        same, tightness = is_tight(claim, formula)
        if not same:
            return True, tightness
    except (ValueError, ZeroDivisionError, FloatingPointError) as error:
        return True, f"refused: {error}"
    return False, str(found)


def mutations(claim: Claim, seed: int = 0, trials: int | None = None, *, scaled: bool | None = None) -> list[Mutation]:
    """Every variant of a claim, tried on its check.

    Parameters
    ----------
    claim : Claim
    seed : int
    trials : int, optional
        Instances of the check (default: the claim's own number).
    scaled : bool, optional
        Only numbers off by ten per cent (True) or only planted slips (False); both by default.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import find_claims
    >>> [m.caught for m in mutations(find_claims(["conditioning:P1-lin"])[0])]
    [True, True, True]
    """
    if claim.measure is None:
        return []
    same, tightness = is_tight(claim)
    if not same:  # else every variant would seem caught
        raise ValueError(f"{claim.id}: tight must be that of the form that holds, got {tightness}")
    tried = claim.trials if trials is None else trials
    reason = survivors().get(claim.id, "")
    found = []
    for kind, variants in ((True, _scales), (False, _slips)):
        for name, formula in variants(claim) if scaled in (None, kind) else ():
            caught, how = _caught(claim, formula, seed, tried)
            found.append(Mutation(claim.id, name, kind, caught, how, "" if caught else reason))
    return found


def shares(found: list[Mutation]) -> tuple[int, int]:
    """Variants caught, and variants that could be: those that change the statement.

    Examples
    --------
    >>> kept = Mutation("svm:b", "x 1.1", True, False, "", "invariant: sign")
    >>> shares([Mutation("svm:a", "x 1.1", True, True, ""), kept])
    (1, 1)
    """
    counted = [m for m in found if not m.invariant]
    return sum(m.caught for m in counted), len(counted)
