"""When to stop: one deadline for everything that a call does, however deep, and compiled work that can be stopped.

Whoever takes a ``time_limit`` runs its work `within` it. Loops look at `late` and return what they have; a deadline
inside another one can only be earlier. Python answers Ctrl-C between two of its own instructions, so compiled work that
may last longer than a blink runs in a thread of its own (`watched`): the calling thread waits, answers an interrupt or
the deadline, and sets a flag that the loops in C look at once per step.

Loops of steps count them with a `Driver`, which keeps the best point and tells when nothing improves any more.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Generic, ParamSpec, TypeVar

from attsvm.solvers.arrays import is_number

__all__ = ["Driver", "OutOfTime", "late", "now", "read_time_limit", "require_time", "seconds_left", "watched", "within"]

P = ParamSpec("P")
Result = TypeVar("Result")
Point = TypeVar("Point")

_DEADLINE: ContextVar[float] = ContextVar("deadline", default=math.inf)
# Seconds between two looks of a waiting thread: Windows answers no interrupt while a thread waits.
_LOOK = 0.1
# What is left of the time after the deadline: positive, so that it is a time limit, too.
_LEAST = 1e-9
# Seconds that an interrupted call waits for its threads.
_PATIENCE = 1.0


def now() -> float:
    """Seconds on the clock of all deadlines."""
    return time.perf_counter()


def read_time_limit(given: object) -> float:
    """Seconds from now that a ``time_limit`` allows, or what is left until the deadline if that is less.

    Examples
    --------
    >>> from attsvm.solvers.deadline import read_time_limit, within
    >>> read_time_limit(None), read_time_limit(2), within(1.0, read_time_limit, 2) <= 1.0
    (inf, 2.0, True)
    """
    left = max(seconds_left(), _LEAST)
    if given is None:
        return left
    if not is_number(given, 0.0, ends="(]"):
        raise ValueError(f"time_limit must be None or a positive number of seconds, got {given!r}")
    return min(float(given), left)


def seconds_left() -> float:
    """Seconds until the deadline; infinite without one, negative after it."""
    return _DEADLINE.get() - now()


def late() -> bool:
    """Whether the deadline has passed.

    Examples
    --------
    >>> from attsvm.solvers.deadline import late, within
    >>> late(), within(1e-9, late), late()
    (False, True, False)
    """
    return now() > _DEADLINE.get()


class OutOfTime(RuntimeError):
    """The deadline has passed, and half of an answer is none."""


def require_time() -> None:
    """Raise `OutOfTime` after the deadline."""
    if late():
        raise OutOfTime("the time limit was reached")


def within(seconds: float, work: Callable[P, Result], /, *args: P.args, **options: P.kwargs) -> Result:
    """Call ``work`` with a deadline so many seconds from now, or the one that holds already if that is earlier.

    Not a context manager: an interrupt on the way out of one would leave its deadline behind.

    Examples
    --------
    >>> from attsvm.solvers.deadline import seconds_left, within
    >>> within(60.0, seconds_left) <= 60.0, within(1.0, within, 60.0, seconds_left) <= 1.0
    (True, True)
    """
    if seconds == math.inf:
        return work(*args, **options)
    context = copy_context()
    context.run(_DEADLINE.set, min(_DEADLINE.get(), now() + seconds))
    return context.run(work, *args, **options)


def watched(work: Callable[[], None], stop: Callable[[], None], threads: int = 1) -> None:
    """Run ``work`` in other threads; ``stop`` is called at the deadline and at an interrupt, and must make it end.

    Parameters
    ----------
    work : callable
        Spends its time in compiled code. Its exceptions are raised here.
    stop : callable
    threads : int
        That run it at the same time.

    Examples
    --------
    >>> import threading
    >>> from attsvm.solvers.deadline import watched, within
    >>> flag = threading.Event()
    >>> within(0.01, watched, lambda: print("stopped:", flag.wait(60)), flag.set)
    stopped: True
    """
    done = threading.Semaphore(0)
    faults: list[BaseException] = []

    def body() -> None:
        try:
            work()
        except BaseException as error:
            faults.append(error)
        finally:
            done.release()

    workers = [threading.Thread(target=body, daemon=True) for _ in range(threads)]
    if stopped := late():  # whether anything is done then must not depend on which thread runs first
        stop()
    try:
        for worker in workers:
            worker.start()
        for _ in workers:
            while not done.acquire(timeout=min(max(seconds_left(), 0.0), _LOOK) if not stopped else _LOOK):
                if late() and not stopped:
                    stopped = True
                    stop()
    except BaseException:
        stop()
        until = now() + _PATIENCE
        for _ in workers:  # most end a step later; what the others hold stays alive until they do
            done.acquire(timeout=max(until - now(), 0.0))
        raise
    if faults:
        raise faults[0]


class Driver(Generic[Point]):
    """Counts the steps of a method and keeps the best point that it has offered.

    Parameters
    ----------
    budget : int
        Steps that may be taken.
    patience : int, optional
        Offers in a row that may fail to improve on the best one before `stalled` says so.

    Attributes
    ----------
    best : object or None
        The point with the smallest measure so far.
    measure : float
        Its measure; infinite before the first one. An offer that is not a number never becomes the best.
    steps : int
        Steps taken.

    Examples
    --------
    >>> from attsvm.solvers.deadline import Driver
    >>> driver = Driver(budget=10, patience=2)
    >>> while driver.advance() and not driver.stalled:
    ...     _ = driver.offer(abs(driver.steps - 3), driver.steps)
    >>> driver.best, driver.steps
    (3, 7)
    """

    def __init__(self, budget: int, patience: int | None = None) -> None:
        self.budget, self.patience = budget, patience
        self.steps = self.waited = 0
        self.best: Point | None = None
        self.measure = math.inf
        self.begin = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Wall time since the start."""
        return time.perf_counter() - self.begin

    @property
    def left(self) -> int:
        """Steps that remain; none after the deadline."""
        return 0 if late() else self.budget - self.steps

    @property
    def stalled(self) -> bool:
        """True when more offers than the patience allows failed to improve."""
        return self.patience is not None and self.waited > self.patience

    def advance(self, steps: int = 1) -> bool:
        """Take steps from the budget; False, and nothing taken, when there are none left or the deadline has passed."""
        if self.left <= 0:
            return False
        self.steps += steps
        return True

    def offer(self, measure: float, point: Point) -> bool:
        """Tell where the method stands; True when that is better than anything before."""
        if not measure < self.measure:  # also where it is not a number
            self.waited += 1
            return False
        self.best, self.measure, self.waited = point, measure, 0
        return True
