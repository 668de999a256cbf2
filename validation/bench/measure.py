"""Timing, peak memory and time-outs."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

__all__ = ["Stopwatch", "Timed", "measure", "measure_with_timeout", "one_thread", "peak_memory", "reset_peak"]


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
    >>> from attsvm.validation.bench.measure import Stopwatch
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
    >>> from attsvm.validation.bench.measure import one_thread
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
    >>> from attsvm.validation.bench.measure import measure
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
