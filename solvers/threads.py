"""How many threads a solve gets.

NumPy and SciPy each ship their own BLAS with its own pool of threads. A solver that alternates between the two on
matrices of a few hundred rows leaves both pools spinning for the same cores: on two cores a solve of 25 ms took
1.5 s. Below the size where threads help, a solve therefore runs on one.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from types import TracebackType
from typing import Protocol

import numpy as np

__all__ = ["blas_threads"]

# Entries of the left factors above which matrix products are long enough for every core to help.
_LARGE = 1 << 23


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let the GNU allocator keep freed memory at hand, once per process.

    It fetches blocks above a threshold from the system and gives them back at once, zeroed pages every time: up to
    half of a solve of a few milliseconds. The threshold rises to the largest such block (of up to 32 MiB) that it
    has seen freed, so one block, freed untouched, is enough; other allocators do not notice.
    """
    np.empty(31 << 20, dtype=np.uint8)


class ThreadPool(Protocol):
    """A library's pool of threads, as threadpoolctl knows it."""

    def get_num_threads(self) -> int:
        """Threads that it uses now."""

    def set_num_threads(self, num_threads: int) -> object:
        """Let it use so many."""


@lru_cache(maxsize=1)
def _blas_pools() -> list[ThreadPool]:
    import scipy.linalg  # noqa: F401  loads SciPy's BLAS, so that the controller finds both
    from threadpoolctl import ThreadpoolController

    return [pool for pool in ThreadpoolController().lib_controllers if pool.user_api == "blas"]


def _set(pool: ThreadPool, number: int) -> None:
    """Set a pool's number whoever set it last: newer threadpoolctl lets one thread of the process do so, no other."""
    free = getattr(pool, "clear_controlling_thread", None)
    if free is not None:
        free(force=True)
    pool.set_num_threads(number)
    if free is not None:
        free(force=True)


class ThreadSetting:
    """A number of threads that several users lower to one at the same time; the last one to leave restores it.

    Whoever comes and goes is kept in a set, not counted, so that leaving twice does no harm: an interrupt may fall into
    any line, and what it leaves undone is done by the next call.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users: set[OneThread] = set()
        self._before: list[tuple[ThreadPool, int]] = []

    def lower(self, user: OneThread, pools: list[ThreadPool]) -> None:
        """Set the pools to one thread, unless another user has done so."""
        with self._lock:
            self._users.add(user)
            if not self._before:
                self._before = [(pool, pool.get_num_threads()) for pool in pools]
                for pool, number in self._before:
                    if number != 1:
                        _set(pool, 1)

    def restore(self, user: OneThread) -> None:
        """Give the pools their threads back if this was the last user."""
        with self._lock:
            self._users.discard(user)
            if not self._users:
                for pool, number in self._before:
                    if pool.get_num_threads() != number:
                        _set(pool, number)
                self._before = []


class OneThread:
    """Context that holds a setting at one thread; an interrupt at any moment finds the way back."""

    def __init__(self, setting: ThreadSetting, pools: list[ThreadPool]) -> None:
        self._setting, self._pools = setting, pools

    def __enter__(self) -> None:
        try:
            self._setting.lower(self, self._pools)
        except BaseException:
            self._setting.restore(self)
            raise

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        try:
            self._setting.restore(self)
        finally:  # once more, for the interrupt that came inside
            self._setting.restore(self)


_BLAS = ThreadSetting()  # one number of threads per process


def blas_threads(elements: int) -> AbstractContextManager[object]:
    """Context in which BLAS uses one thread, or every core when ``elements`` is large.

    The setting belongs to the process: other threads of the caller see it for as long as a solve lasts. Solves may
    overlap and nest; the number of threads from before the first is back after the last.

    Parameters
    ----------
    elements : int
        Entries of the largest array that the solve multiplies with.

    Examples
    --------
    >>> from threadpoolctl import threadpool_info
    >>> from attsvm.solvers.threads import blas_threads
    >>> with blas_threads(1000):
    ...     {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}
    {1}
    """
    keep_freed_memory()
    return nullcontext() if elements > _LARGE else OneThread(_BLAS, _blas_pools())
