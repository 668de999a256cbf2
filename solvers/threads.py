"""How many BLAS threads a solve gets.

NumPy and SciPy each ship their own BLAS with its own pool of threads. A solver that alternates between the two on
matrices of a few hundred rows leaves both pools spinning for the same cores: on two cores a solve of 25 ms took
1.5 s. Below the size where threads help, a solve therefore runs on one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

__all__ = ["blas_threads"]

# Entries of the left factors above which matrix products are long enough for every core to help.
_LARGE = 1 << 23


@lru_cache(maxsize=1)
def _controller() -> Any:
    import scipy.linalg  # noqa: F401  loads SciPy's BLAS, so that the controller finds both
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def blas_threads(elements: int) -> AbstractContextManager[Any]:
    """Context in which BLAS uses one thread, or every core when ``elements`` is large.

    The setting belongs to the process: other threads of the caller see it for as long as the solve lasts.

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
    if elements > _LARGE:
        return nullcontext()
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit
