"""Scalars that users give: numbers, counts and seeds, refused by name."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

__all__ = ["generator", "require_choice", "require_count", "require_number"]


def require_choice(name: str, value: object, *choices: str | None) -> None:
    """Refuse what is none of the choices.

    Examples
    --------
    >>> from attsvm._checks import require_choice
    >>> require_choice("form", "rounded", "corrected", "sharp", "printed")
    Traceback (most recent call last):
    ...
    ValueError: form must be 'corrected', 'sharp' or 'printed', got 'rounded'
    """
    if value not in choices:
        *most, last = map(repr, choices)
        raise ValueError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


def require_count(name: str, value: object, least: int = 1, optional: bool = False) -> None:
    """Refuse what is not an integer of at least ``least``; flags and whole floats are no integers.

    Examples
    --------
    >>> from attsvm._checks import require_count
    >>> require_count("steps", 2.0)
    Traceback (most recent call last):
    ...
    ValueError: steps must be an integer >= 1, got 2.0
    """
    if optional and value is None:
        return
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} must be {'None or ' if optional else ''}an integer >= {least}, got {value!r}")


def require_number(
    name: str, value: object, wanted: str, low: float = -np.inf, high: float = np.inf, optional: bool = False
) -> None:
    """Refuse what is not a finite real number strictly between two ends.

    Examples
    --------
    >>> from attsvm._checks import require_number
    >>> require_number("lr", "fast", "a positive number", low=0.0)
    Traceback (most recent call last):
    ...
    ValueError: lr must be a positive number, got 'fast'
    """
    if optional and value is None:
        return
    real = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
    if not (real and np.isfinite(value) and low < value < high):  # type: ignore[call-overload, operator]
        raise ValueError(f"{name} must be {'None or ' if optional else ''}{wanted}, got {value!r}")


def generator(seed: Any) -> np.random.Generator:
    """The generator of a seed; what cannot be one is refused by name.

    Examples
    --------
    >>> from attsvm._checks import generator
    >>> generator("zero")
    Traceback (most recent call last):
    ...
    ValueError: seed must be an integer >= 0 or a numpy Generator, got 'zero'
    """
    try:
        if isinstance(seed, bool):
            raise TypeError("a flag is no seed")
        return np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise ValueError(f"seed must be an integer >= 0 or a numpy Generator, got {seed!r}") from error
