"""What a case of the benchmark measures and returns.

Times, peak memory and time-outs; numbers with their spread over draws, and which goals their medians met; tables,
records and a picture of them.
"""

from __future__ import annotations

import gc
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich import box
from rich.table import Table


@dataclass(frozen=True)
class Timed:
    """What a call returned, its median time in seconds, and the peak of resident memory above the start, in bytes."""

    answer: Any
    seconds: float
    memory: float


class Stopwatch:
    """Seconds since it was made: of the clock or of the processors, whichever are fewer.

    On a busy machine waiting for a processor is not counted (it would flatter whoever is done within one slice of
    time), on an idle one threads count as one.

    Examples
    --------
    >>> Stopwatch().seconds() >= 0
    True
    """

    def __init__(self) -> None:
        self._wall, self._processors = time.perf_counter(), time.process_time()

    def seconds(self) -> float:
        """Seconds so far."""
        return min(time.perf_counter() - self._wall, time.process_time() - self._processors)


@contextmanager
def one_thread() -> Iterator[None]:
    """Context in which neither BLAS nor torch starts threads: processor time adds up over them.

    Examples
    --------
    >>> import torch
    >>> with one_thread():
    ...     torch.get_num_threads()
    1
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1, user_api="blas"):
            yield
    finally:
        torch.set_num_threads(before)


def reset_peak() -> float:
    """Forget the peak of resident memory so far (Linux); return the present size in bytes."""
    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return float("nan")
    return _status("VmRSS")


def peak_memory() -> float:
    """Peak of resident memory since `reset_peak`, in bytes."""
    return _status("VmHWM")


def _status(field: str) -> float:
    try:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(field):
                return 1024.0 * float(line.split()[1])
    except OSError:
        pass
    return float("nan")


def measure(
    work: Callable[[Any], Any], prepare: Callable[[], Any], repeats: int = 1, budget: float = float("inf")
) -> Timed:
    """The median time of ``work(prepare())``, of which ``prepare`` is not timed.

    The best time would flatter whoever is short: a quiet microsecond is found sooner than a quiet second.

    Parameters
    ----------
    work, prepare : callable
    repeats : int
    budget : float
        Seconds after which no further repeat is begun.

    Examples
    --------
    >>> found = measure(lambda x: 6 * x, lambda: 7, repeats=3)
    >>> found.answer, found.seconds >= 0
    (42, True)
    """
    before = reset_peak()
    times: list[float] = []
    answer = None
    for _ in range(repeats):
        argument = prepare()
        watch = Stopwatch()
        answer = work(argument)
        times.append(watch.seconds())
        if sum(times) >= budget:
            break
    return Timed(answer, median(times), peak_memory() - before)


def timed(
    work: Callable[[], Any], repeats: int, take: Callable[[Iterable[float]], float] = median
) -> tuple[Any, float]:
    """What the last of some calls returned, and the median (or the least) of their seconds; a first one is not timed.

    Examples
    --------
    >>> timed(lambda: 42, repeats=3, take=min)[0]
    42
    """
    work()  # loads what it needs
    seconds, answer = [], None
    for _ in range(repeats):
        watch = Stopwatch()
        answer = work()
        seconds.append(watch.seconds())
    return answer, take(seconds)


def _child(work: Callable[[Any], Any], warm: Any, arguments: Sequence[Any], channel: Any) -> None:
    try:
        work(warm)  # imports and caches are not what is measured
        for argument in arguments:
            channel.put(measure(work, lambda given=argument: given))  # type: ignore[misc]
        channel.put("")
    except Exception as error:
        channel.put(f"failed: {type(error).__name__}")


def measure_with_timeout(
    work: Callable[[Any], Any], warm: Any, arguments: Sequence[Any], limit: float
) -> tuple[list[Timed], str]:
    """One call per argument in a child process that is killed at the limit: for peers that may never return.

    Parameters
    ----------
    work : callable
        Importable by name, so that a new process can find it.
    warm : object
        A small argument for a first call that is not timed.
    arguments : sequence
    limit : float
        Seconds for all of them.

    Returns
    -------
    done : list of Timed
        For the arguments that were finished, from the first on.
    note : str
        Empty, or why it ended early.
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit locked thread pools
    channel = context.Queue()
    process = context.Process(target=_child, args=(work, warm, arguments, channel))
    process.start()
    deadline = time.monotonic() + limit
    done: list[Timed] = []
    note = ""
    while True:
        try:
            message = channel.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            note = f"timed out at {limit:.0f} s"
            break
        if isinstance(message, str):
            note = message
            break
        done.append(message)
    process.kill()
    process.join()
    return done, note


Numbers = dict[str, dict[str, float]]  # what one draw of a case measures: by line of its table, then by name


@dataclass(frozen=True)
class Spread:
    """One number per draw.

    Examples
    --------
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
    >>> missed([Result("a", "", (), (Verdict("fast", 1.0, False), Verdict("small", None, None)))])
    ['a: fast']
    """
    return [
        f"{result.case}: {verdict.text}" for result in results for verdict in result.verdicts if verdict.met is False
    ]


_COLUMNS = ("gap", "seconds", "ratio", "memory")


def _time(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _one(name: str, value: float) -> str:
    if value != value:
        return "-"
    if name == "gap":
        return f"{value:.0e}"
    if "seconds" in name or name.endswith(" rows"):
        return _time(value)
    if name == "memory":
        return f"{value / 2**20:.0f} MiB"
    return f"{value:.3g}x" if name == "ratio" else f"{value:.3g}"


def _cell(name: str, found: Spread | None) -> str:
    """Median with the range of the draws."""
    if found is None:
        return "-"
    middle, low, high = (_one(name, v) for v in (found.median, found.low, found.high))
    return middle if low == high else f"{middle} ({low} to {high})"


def _row(line: Line) -> list[str]:
    more = [f"{name} {_cell(name, found)}" for name, found in line.numbers.items() if name not in _COLUMNS]
    return [line.name, *(_cell(name, line.numbers.get(name)) for name in _COLUMNS), "; ".join(more)]


def as_table(results: Sequence[Result]) -> Table:
    """One section per case, one row per solver that has numbers.

    Examples
    --------
    >>> as_table([Result("x", "work", (Line("ours", {"seconds": Spread((1.0, 2.0, 3.0))}),))]).row_count
    1
    """
    table = Table(title="medians over the draws (smallest to largest)", box=box.SIMPLE, width=180)
    for name in ("work", "solver", "gap", "time per problem", "ratio", "peak memory", "more"):
        table.add_column(name)
    for result in results:
        for k, line in enumerate(line for line in result.lines if line.numbers):
            table.add_row("" if k else f"{result.case}: {result.title}", *_row(line))
        table.add_section()
    return table


def as_verdicts(results: Sequence[Result]) -> list[str]:
    """One line per goal.

    Examples
    --------
    >>> as_verdicts([Result("x", "", (), (Verdict("fast", 1.25, False), Verdict("small", None, None)))])
    ['MISSED     x: fast (1.25)', 'not judged x: small']
    """
    words = {True: "ok", False: "MISSED", None: "not judged"}
    return [
        f"{words[v.met]:10s} {result.case}: {v.text}" + ("" if v.value is None else f" ({v.value:.3g})")
        for result in results
        for v in result.verdicts
    ]


def as_record(results: Sequence[Result]) -> list[dict[str, Any]]:
    """What ``--json`` prints: every draw of every number.

    Examples
    --------
    >>> as_record([Result("x", "work", (Line("ours", {"ratio": Spread((2.0,))}),))])[0]["lines"][0]["ratio"]
    {'median': 2.0, 'low': 2.0, 'high': 2.0, 'draws': [2.0]}
    """

    def numbers(line: Line) -> dict[str, Any]:
        return {
            name: {"median": s.median, "low": s.low, "high": s.high, "draws": list(s.values)}
            for name, s in line.numbers.items()
        }

    return [
        {
            "case": result.case,
            "title": result.title,
            "lines": [{"name": line.name, "note": line.note, **numbers(line)} for line in result.lines],
            "goals": [{"text": v.text, "value": v.value, "met": v.met} for v in result.verdicts],
        }
        for result in results
    ]


def draw_growth(path: Path, result: Result) -> None:
    """Time against rows with the fitted power, written to ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.ticker import LogLocator, StrMethodFormatter

    numbers = dict(result.lines[0].numbers)
    exponent = numbers.pop("exponent").median
    rows = np.array([int(name.split()[0]) for name in numbers])
    seconds = np.array([s.median for s in numbers.values()])
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    axis.loglog(rows, seconds, "o-", label="attsvm, certificate included")
    fitted = np.exp(np.log(seconds).mean() + exponent * (np.log(rows) - np.log(rows).mean()))
    axis.loglog(rows, fitted, "--", color="0.5", label=f"fitted rows^{exponent:.2f}")
    axis.set(xlabel="rows", ylabel="seconds", title="Frobenius solve, T = 64, d = 512")
    axis.set_xticks(rows, [f"{count:,}" for count in rows])
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.minorticks_off()
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)
