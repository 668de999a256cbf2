"""What a figure is: a protocol, settings for a full and a quick run, a computation and a picture.

A figure is a ``Figure(...)`` at the top level of its module. Its ``run(context)`` computes
through ``context.sweep``, so that finished chunks survive an interruption, and returns an :class:`Outcome`;
``draw(outcome)`` makes the picture from the outcome alone. Cells share files in a folder beside the store.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attsvm.records import Interval, Table, mean_of, mean_share_of, share_of
from attsvm.sweeps import Sweep, sweep
from attsvm.sweeps.store import Grid, Task
from attsvm.user_input import require_count

__all__ = [
    "DEFAULTS",
    "Context",
    "Figure",
    "Interval",
    "Options",
    "Outcome",
    "Picture",
    "Table",
    "finish",
    "folder_beside",
    "mean_of",
    "mean_share_of",
    "read_settings",
    "share_of",
    "subplots",
]


@contextmanager
def folder_beside(store: str | Path) -> Iterator[Path]:
    """The folder of a store, or one for the time being where the store is in memory.

    Examples
    --------
    >>> from attsvm.validation.figures.figure import folder_beside
    >>> with folder_beside("results/own.sqlite") as folder:
    ...     print(folder)
    results
    """
    if str(store) != ":memory:":
        yield Path(store).parent
        return
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


if TYPE_CHECKING:
    from matplotlib.figure import Figure as Picture
else:  # listing the figures loads no matplotlib
    Picture = Any


@dataclass(frozen=True)
class Options:
    """How figures are run: one object from the command line to the context of a figure.

    Parameters
    ----------
    quick : bool
        The small settings.
    trials : int, optional
        Instead of the figure's own number.
    seed : int
    device : str, optional
        Torch device on which training runs.
    workers : int, optional
        Processes (None: one per core); 0 computes in this one.
    fresh : bool
        Discard stored chunks first.
    command : str
        What the record names as its origin.
    change : dict
        Settings to use instead of the figure's own.
    """

    quick: bool = False
    trials: int | None = None
    seed: int = 0
    device: str | None = None
    workers: int | None = 0
    fresh: bool = False
    command: str = "attsvm.validation.figures.figure_runs"
    change: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_count("trials", self.trials, optional=True)


DEFAULTS = Options()


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Settings from words ``name=value``, values in JSON.

    Examples
    --------
    >>> from attsvm.validation.figures.figure import read_settings
    >>> read_settings(["starts=100", "ends=[2, 3]"])
    {'starts': 100, 'ends': [2, 3]}
    """
    found = {}
    for word in words:
        name, _, value = word.partition("=")
        try:
            found[name] = json.loads(value)
        except json.JSONDecodeError:
            raise ValueError(f"--set takes NAME=VALUE with a value in JSON, got {word!r}") from None
    return found


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
    refuted : sequence of str
        Statements that a run should confirm and this one did not; the command then ends with exit code 1.
    """

    tables: Sequence[Table]
    curves: Mapping[str, Any]
    notes: Sequence[str] = ()
    refuted: Sequence[str] = ()


@dataclass(frozen=True, eq=False)
class Context:
    """What a figure's ``run`` is given.

    Parameters
    ----------
    settings : dict
        The figure's full or quick settings, with ``trials`` replaced when the user gave it.
    options : Options
    store : str or Path
        SQLite file of this figure.
    executor : object, optional
        Shared worker processes.
    progress : callable, optional
        ``progress(label, finished, total)``.
    """

    settings: Mapping[str, Any]
    options: Options = DEFAULTS
    store: str | Path = ":memory:"
    executor: Any = None
    progress: Callable[[str, int, int], None] | None = None
    seconds: list[float] = field(default_factory=list)
    resumed: list[int] = field(default_factory=list)

    @property
    def seed(self) -> int:
        """Seed of everything random."""
        return self.options.seed

    @property
    def device(self) -> str | None:
        """Torch device on which training runs."""
        return self.options.device

    def cell(self, *names: str) -> dict[str, Any]:
        """These settings and the device, for functions that train."""
        return {name: self.settings[name] for name in names} | {"device": self.device}

    def sweep(
        self,
        fn: Task,
        grid: Grid,
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
        done = sweep(
            fn, grid, self.settings["trials"] if trials is None else trials, self.executor, self.store, chunk=chunk,
            seed=self.seed, workers=self.options.workers, name=label, extend=extend, fresh=self.options.fresh,
            progress=None if self.progress is None else partial(self.progress, label),
        )  # fmt: skip
        self.seconds.append(done.seconds)
        self.resumed.append(done.resumed)
        return done


@dataclass(frozen=True, eq=False)
class Figure:
    """One figure (or table) of a paper, or a check of our own.

    Parameters
    ----------
    paper : str
        ``svm``, ``conditioning``, ``polarization``, ``localization``, ``specialization`` or ``own``.
    name : str
        As on the command line: ``fig5``.
    title : str
        One line.
    protocol : str
        The paper's protocol and, where the paper is silent, our choices; printed with the results.
    full, quick : dict
        Settings; both have ``trials``. The full ones are the paper's; of the quick ones only those that
        differ need be given.
    run : callable
        ``run(context) -> Outcome``.
    draw : callable, optional
        ``draw(outcome) -> matplotlib.figure.Figure``; without it the figure is its tables.
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
    draw: Callable[[Outcome], Picture] | None = None
    aliases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for label, settings in (("full", self.full), ("quick", self.quick)):
            if not isinstance(settings.get("trials"), int):
                raise ValueError(f"{self.name}: {label} must hold an integer 'trials'")
        object.__setattr__(self, "quick", {**self.full, **self.quick})

    @property
    def names(self) -> str:
        """All names, as they are listed."""
        return "/".join((self.name, *self.aliases))

    def settings(self, options: Options = DEFAULTS) -> dict[str, Any]:
        """The settings of a run."""
        chosen = dict(self.quick if options.quick else self.full)
        for name in options.change:
            if name not in chosen:
                raise ValueError(f"{self.name} has no setting {name!r}; it has {', '.join(chosen)}")
        chosen |= options.change
        return chosen if options.trials is None else chosen | {"trials": options.trials}


def subplots(rows: int, columns: int, size: tuple[float, float], **options: Any) -> tuple[Picture, Any]:
    """A picture and its axes (as ``matplotlib.pyplot.subplots`` gives them), with room for labels."""
    from matplotlib import pyplot

    picture, axes = pyplot.subplots(rows, columns, figsize=size, layout="constrained", **options)
    return picture, axes


def finish(picture: Picture, axes: Iterable[Any], *, legend: int | None = 8, grid: float | None = 0.3) -> Picture:
    """Put a grid and a legend on the axes and return the picture."""
    for axis in axes:
        if grid is not None:
            axis.grid(alpha=grid)
        if legend is not None:
            axis.legend(fontsize=legend)
    return picture
