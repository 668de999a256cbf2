"""One driver for every iteration: its budget, its patience, the best point so far, and numbers that are not finite.

`Driver` is for one problem, `BatchDriver` for problems that advance together and leave one by one.
"""

from __future__ import annotations

import math
import time
from typing import Generic, TypeVar

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray

__all__ = ["BatchDriver", "Driver"]

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
        """Steps that remain."""
        return self.budget - self.steps

    @property
    def stalled(self) -> bool:
        """True when more offers than the patience allows failed to improve."""
        return self.patience is not None and self.waited > self.patience

    def advance(self, steps: int = 1) -> bool:
        """Take steps from the budget; False, and nothing taken, when there are none left."""
        if self.steps >= self.budget:
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


class BatchDriver:
    """Counts the steps of problems that advance together, and keeps the best point of each.

    Parameters
    ----------
    budget : int
        Steps that each may take.
    *points : ndarray, shape (B, ...)
        Parts of the points that they start from.

    Attributes
    ----------
    best : tuple of ndarray, shape (B, ...)
        Parts of the point with the smallest measure so far, by problem.
    measure : ndarray, shape (B,)
        Its measure; infinite before the first one. An offer that is not a number never becomes the best.
    steps : ndarray of int, shape (B,)
    index : ndarray of int, shape (k,)
        Problems that are still running; offers are about them.

    Examples
    --------
    Two problems, which are done at 1 and at 3:

    >>> import numpy as np
    >>> from attsvm.solvers.driver import BatchDriver
    >>> driver = BatchDriver(10, np.zeros(2))
    >>> while driver.advance():
    ...     driver.offer(np.array([1.0, 3.0])[driver.index] - driver.steps[driver.index], driver.steps[driver.index])
    ...     _ = driver.leave(driver.measure[driver.index] <= 0.0)
    >>> driver.best[0], driver.steps
    (array([1., 3.]), array([1, 3]))
    """

    def __init__(self, budget: int, *points: FloatArray) -> None:
        size = len(points[0])
        self.budget, self.best = budget, tuple(point.copy() for point in points)
        self.measure = np.full(size, np.inf)
        self.steps: IntArray = np.zeros(size, dtype=np.int64)
        self.index: IntArray = np.arange(size)
        self._waited: IntArray = np.zeros(size, dtype=np.int64)
        self._taken = 0

    def advance(self) -> bool:
        """Take a step for every problem that is running; False when none is, or no step is left."""
        if self._taken >= self.budget or not len(self.index):
            return False
        self._taken += 1
        self.steps[self.index] += 1
        return True

    def offer(self, measure: FloatArray, *points: FloatArray, of: IntArray | None = None) -> None:
        """Tell where the running problems stand, or those of them that ``of`` numbers."""
        if not len(measure):
            return
        index = self.index if of is None else self.index[of]
        better = measure < self.measure[index]  # False where it is not a number
        chosen = index[better]
        for best, point in zip(self.best, points, strict=True):
            best[chosen] = point[better]
        self.measure[chosen] = measure[better]
        if of is None:
            self._waited[index] = np.where(better, 0, self._waited[index] + 1)

    def waited(self, offers: int) -> BoolArray:
        """Which of the running problems have not improved for so many offers in a row."""
        return np.asarray(self._waited[self.index] >= offers)

    def leave(self, done: BoolArray) -> bool:
        """Problems that are done run no longer; whether there were any."""
        if not done.any():
            return False
        self.index = self.index[~done]
        return True
