"""One driver for every iteration: its budget, its patience, the best point so far, and numbers that are not finite."""

from __future__ import annotations

import math
import time
from typing import Generic, TypeVar

from attsvm.solvers.deadline import late

__all__ = ["Driver"]

Point = TypeVar("Point")


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
    >>> from attsvm.solvers.driver import Driver
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
