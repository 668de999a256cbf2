"""Preconditioned conjugate gradients on arrays of any shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from attsvm.solvers.arrays import FloatArray

__all__ = ["Descended", "conjugate_gradient"]


class Descended(NamedTuple):
    """Where conjugate gradients stopped: the point, the direction taken last, how many steps, and why."""

    x: FloatArray
    direction: FloatArray
    steps: int
    ending: Literal["solved", "limit", "singular"]


def conjugate_gradient(
    product: Callable[[FloatArray], FloatArray],
    precondition: Callable[[FloatArray], FloatArray],
    target: FloatArray,
    accuracy: float,
    max_steps: int,
    flat: float = 1e-13,
    stop: Callable[[], bool] | None = None,
) -> Descended:
    """Solve ``G x = target`` from 0 for a positive semidefinite G.

    Parameters
    ----------
    product, precondition : callable
        G, and an approximation of its inverse, applied to an array shaped as the target.
    target : ndarray
        It is overwritten with what is left of it.
    accuracy : float
        Stop when the preconditioned residual has fallen by this factor.
    max_steps : int
    flat : float
        A direction whose curvature is at most this times its square has none: "singular".
    stop : callable, optional
        Asked after every step; True ends it as the limit of steps would.

    Returns
    -------
    Descended
        x is an ascent direction of ``<target, x> - <x, G x> / 2`` however early it stops.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.conjugate_gradient import conjugate_gradient
    >>> found = conjugate_gradient(lambda x: 2.0 * x, lambda x: x, np.array([1.0, 4.0]), 1e-9, 10)
    >>> found.x, found.ending
    (array([0.5, 2. ]), 'solved')
    """
    x = np.zeros_like(target, dtype=np.float64)
    solved = precondition(target)
    direction = solved.copy()
    energy = float(np.vdot(target, solved))
    goal = accuracy**2 * energy
    steps = 0
    while steps < max_steps and energy > max(goal, 0.0):
        steps += 1
        image = product(direction)
        curvature = float(np.vdot(direction, image))
        if curvature <= flat * float(np.vdot(direction, direction)):
            return Descended(x, direction, steps, "singular")
        step = energy / curvature
        x += step * direction
        target -= step * image
        solved = precondition(target)
        following = float(np.vdot(target, solved))
        direction *= following / energy
        direction += solved
        energy = following
        if stop is not None and stop():
            break
    return Descended(x, direction, steps, "solved" if energy <= goal else "limit")
