"""What a figure is: a protocol, settings for a full and a quick run, a computation and a picture.

A figure's module ends in ``FIGURE = Figure(...)``. Its ``run(context)`` computes through ``context.sweep``, so that
finished chunks survive an interruption, and returns an :class:`Outcome`; ``draw(outcome)`` makes the picture from the
outcome alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.sweeps import Sweep, sweep
from attsvm.theory.attraction import wilson_interval

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture

__all__ = ["Context", "Figure", "Interval", "Outcome", "Table", "mean_of", "share_of"]


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % confidence interval."""

    value: float
    low: float
    high: float
    percent: bool = False

    def __str__(self) -> str:
        if not np.isfinite(self.value):
            return "-"
        if self.percent:
            return f"{100 * self.value:.1f} % [{100 * self.low:.1f}, {100 * self.high:.1f}]"
        half = (self.high - self.low) / 2
        return f"{self.value:.3g} ± {half:.1g}" if np.isfinite(half) else f"{self.value:.3g} (one value)"


def mean_of(values: Any) -> Interval:
    """Mean of the finite values with its normal 95 % interval.

    Examples
    --------
    >>> from attsvm.validation.figures.framework import mean_of
    >>> str(mean_of([1.0, 2.0, 3.0]))
    '2 ± 1'
    """
    x = np.asarray(values, dtype=np.float64).ravel()
    x = x[np.isfinite(x)]
    if not len(x):
        return Interval(float("nan"), float("nan"), float("nan"))
    half = 1.96 * float(x.std(ddof=1)) / float(np.sqrt(len(x))) if len(x) > 1 else float("nan")
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half)


def share_of(flags: Any) -> Interval:
    """Share of true values with Wilson's 95 % interval (right also at 0 and 100 %).

    Examples
    --------
    >>> from attsvm.validation.figures.framework import share_of
    >>> str(share_of([True] * 10))
    '100.0 % [72.2, 100.0]'
    """
    x = np.asarray(flags, dtype=bool).ravel()
    n = len(x)
    if not n:
        return Interval(float("nan"), float("nan"), float("nan"), percent=True)
    return Interval(float(x.mean()), *wilson_interval(int(x.sum()), n), percent=True)


@dataclass(frozen=True)
class Table:
    """A table of an outcome; cells are strings, numbers or :class:`Interval`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"table {self.title!r}: a row has {len(row)} cells, expected {len(self.columns)}")

    def texts(self) -> list[list[str]]:
        """Cells as they are printed."""
        return [[_text(cell) for cell in row] for row in self.rows]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a figure found.

    Parameters
    ----------
    tables : sequence of Table
        Printed, and written to the record and the summary.
    curves : dict
        Numbers that the picture is drawn from: numbers, strings, lists, dicts, arrays.
    notes : sequence of str
        What a reader must know: choices, what differs from the paper, what could not be reproduced.
    """

    tables: Sequence[Table]
    curves: Mapping[str, Any]
    notes: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Context:
    """What a figure's ``run`` is given.

    Parameters
    ----------
    settings : dict
        The figure's full or quick settings, with ``trials`` replaced when the user gave it.
    seed : int
    device : str or None
        Torch device on which training runs.
    store : str or Path
        SQLite file of this figure.
    executor : object, optional
        Shared worker processes.
    workers : int, optional
        0 computes in this process.
    progress : callable, optional
        ``progress(label, finished, total)``.
    fresh : bool
        Discard stored chunks first.
    """

    settings: Mapping[str, Any]
    seed: int = 0
    device: str | None = None
    store: str | Path = ":memory:"
    executor: Any = None
    workers: int | None = 0
    progress: Callable[[str, int, int], None] | None = None
    fresh: bool = False
    seconds: list[float] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    def sweep(
        self,
        fn: Callable[..., Mapping[str, Any]],
        grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
        trials: int | None = None,
        *,
        chunk: int = 100,
        name: str | None = None,
        extend: bool = False,
    ) -> Sweep:
        """:func:`attsvm.sweep` with this figure's store, seed, workers and progress display.

        ``fn(trials, seed, **cell)`` must be a function of a module; put ``device`` into the cells if it trains.
        """
        label = name or str(getattr(fn, "__name__", "sweep"))
        shown = self.progress
        done = sweep(
            fn,
            grid,
            self.settings["trials"] if trials is None else trials,
            self.executor,
            self.store,
            seed=self.seed,
            chunk=chunk,
            workers=self.workers,
            name=label,
            extend=extend,
            fresh=self.fresh,
            progress=None if shown is None else partial(shown, label),
        )
        self.seconds.append(done.seconds)
        self.resumed.append(done.resumed)
        return done


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure (or table) of a paper.

    Parameters
    ----------
    paper : str
        ``svm``, ``conditioning``, ``polarization``, ``localization`` or ``specialization``.
    name : str
        As on the command line: ``fig5``.
    title : str
        One line.
    protocol : str
        The paper's protocol and, where the paper is silent, our choices; printed with the results.
    full, quick : dict
        Settings; both have ``trials``. The full ones are the paper's.
    run : callable
        ``run(context) -> Outcome``.
    draw : callable
        ``draw(outcome) -> matplotlib.figure.Figure``.
    aliases : tuple of str
        Other figures that the same computation shows.
    """

    paper: str
    name: str
    title: str
    protocol: str
    full: Mapping[str, Any]
    quick: Mapping[str, Any]
    run: Callable[[Context], Outcome]
    draw: Callable[[Outcome], Picture]
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label, settings in (("full", self.full), ("quick", self.quick)):
            if not isinstance(settings.get("trials"), int):
                raise ValueError(f"{self.name}: {label} must hold an integer 'trials'")

    def settings(self, quick: bool = False, trials: int | None = None) -> dict[str, Any]:
        """The settings of a run."""
        chosen = dict(self.quick if quick else self.full)
        if trials is not None:
            if trials < 1:
                raise ValueError(f"trials must be at least 1, got {trials}")
            chosen["trials"] = trials
        return chosen


def _text(cell: Any) -> str:
    if isinstance(cell, bool | np.bool_):
        return "yes" if cell else "no"
    if isinstance(cell, float | np.floating):
        return "-" if not np.isfinite(cell) else f"{cell:.3g}"
    return str(cell)
