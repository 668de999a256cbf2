"""Timing, peak memory and time-outs."""

from __future__ import annotations

import gc
import multiprocessing
import queue
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Measurement", "measure", "measure_with_timeout", "peak_memory", "reset_peak"]


@dataclass(frozen=True)
class Measurement:
    """One solver on one piece of work.

    Attributes
    ----------
    seconds : float
        Per problem: the best of the repeats.
    gap : float
        Relative distance of the answer, scaled to satisfy every row, from the certified lower bound.
    memory : float
        Peak resident memory above the start, in bytes; NaN where the system does not tell.
    note : str
        Empty, or why there is no number.
    """

    seconds: float
    gap: float
    memory: float
    note: str = ""


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


def measure(work: Callable[[], Any], repeats: int) -> tuple[Any, float, float]:
    """Answer, best time of the repeats and peak memory above the start.

    Examples
    --------
    >>> from attsvm.validation.bench.measure import measure
    >>> answer, seconds, _ = measure(lambda: 6 * 7, repeats=3)
    >>> answer, seconds >= 0
    (42, True)
    """
    before = reset_peak()
    best, answer = float("inf"), None
    for _ in range(repeats):
        start = time.perf_counter()
        answer = work()
        best = min(best, time.perf_counter() - start)
    return answer, best, peak_memory() - before


def _child(work: Callable[[Any], Any], warm: Any, argument: Any, channel: Any) -> None:
    try:
        work(warm)  # imports and caches are not what is measured
        before, start = reset_peak(), time.perf_counter()
        answer = work(argument)
        channel.put((answer, time.perf_counter() - start, peak_memory() - before, ""))
    except Exception as error:
        channel.put((None, float("nan"), float("nan"), f"failed: {type(error).__name__}"))


def measure_with_timeout(
    work: Callable[[Any], Any], warm: Any, argument: Any, limit: float
) -> tuple[Any, float, float, str]:
    """The same in a child process that is killed at the limit: for peers that may never return.

    Parameters
    ----------
    work : callable
        Importable by name, so that a new process can find it.
    warm, argument : object
        A small argument for a first call that is not timed, and the one that is.
    limit : float
        Seconds.

    Returns
    -------
    answer, seconds, memory, note
    """
    context = multiprocessing.get_context("spawn")  # a fork would inherit locked thread pools
    channel = context.Queue()
    process = context.Process(target=_child, args=(work, warm, argument, channel))
    process.start()
    try:
        result: tuple[Any, float, float, str] = channel.get(timeout=limit)
    except queue.Empty:
        result = (None, float("nan"), float("nan"), f"timed out at {limit:.0f} s")
    process.kill()
    process.join()
    return result
