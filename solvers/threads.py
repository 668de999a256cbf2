"""How many threads a solve gets.

NumPy and SciPy each ship their own BLAS with its own pool of threads. A solver that alternates between the two on
matrices of a few hundred rows leaves both pools spinning for the same cores: on two cores a solve of 25 ms took
1.5 s. Below the size where threads help, a solve therefore runs on one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

__all__ = ["blas_threads", "torch_threads"]

# Entries of the left factors above which matrix products are long enough for every core to help.
_LARGE = 1 << 23
# The same for tensors that are worked on elementwise.
_LARGE_TENSOR = 1 << 22


@lru_cache(maxsize=1)
def _keep_freed_memory() -> None:
    """Let the GNU allocator keep freed memory at hand, once per process.

    It fetches blocks above a threshold from the system and gives them back at once, zeroed pages every time: up to
    half of a solve of a few milliseconds. The threshold rises to the largest such block (of up to 32 MiB) that it
    has seen freed, so one block, freed untouched, is enough; other allocators do not notice.
    """
    np.empty(31 << 20, dtype=np.uint8)


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
    _keep_freed_memory()
    if elements > _LARGE:
        return nullcontext()
    limit: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limit


@contextmanager
def torch_threads(device: torch.device, elements: int = 0) -> Iterator[None]:
    """Context in which torch uses one thread on a CPU, unless ``elements`` is large.

    Small tensors lose more by meeting at barriers than they gain by sharing.

    Parameters
    ----------
    device : torch.device
    elements : int
        Entries of the largest tensor in the loop.

    Examples
    --------
    >>> import torch
    >>> from attsvm.solvers.threads import torch_threads
    >>> with torch_threads(torch.device("cpu")):
    ...     torch.get_num_threads()
    1
    """
    import torch

    before = torch.get_num_threads()
    if device.type != "cpu" or elements > _LARGE_TENSOR:
        yield
        return
    _keep_freed_memory()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
