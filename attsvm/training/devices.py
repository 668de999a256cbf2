"""Which torch device is meant, whether it can be used here, and how many threads torch gets there."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from attsvm._lazy import needs
from attsvm.solvers.threads import OneThread, ThreadPool, ThreadSetting, keep_freed_memory

if TYPE_CHECKING:
    import torch

__all__ = ["torch_device", "torch_threads"]

# Entries of a tensor, worked on elementwise, above which every core helps.
_LARGE_TENSOR = 1 << 22
_OPENMP = threading.local()  # one number of threads per thread of the caller


def torch_device(device: torch.device | str | int | None) -> torch.device:
    """The device, after a first number was put there; None is the CPU.

    Raises
    ------
    ImportError
        Without torch.
    ValueError
        No device, one that this machine or this build of torch does not have, or one that holds no numbers ("meta").

    Examples
    --------
    >>> from attsvm.training.devices import torch_device
    >>> torch_device(None)
    device(type='cpu')
    >>> torch_device("meta")
    Traceback (most recent call last):
    ...
    ValueError: device 'meta' cannot be used here: it holds no numbers
    """
    with needs("device="):
        import torch
    try:
        place = torch.device("cpu" if device is None else device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"device must name a torch device such as 'cpu' or 'cuda', got {device!r}") from error
    if place.type == "meta":
        raise ValueError(f"device {device!r} cannot be used here: it holds no numbers")
    try:
        torch.zeros(1, device=place).item()
    except Exception as error:  # every backend has exceptions of its own
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ValueError(f"device {device!r} cannot be used here: {reason}") from error
    return place


class _Torch:
    """Torch's number of threads, where torch was built without OpenMP."""

    def get_num_threads(self) -> int:
        import torch

        return torch.get_num_threads()

    def set_num_threads(self, num_threads: int) -> None:
        import torch

        torch.set_num_threads(num_threads)


@lru_cache(maxsize=1)
def _torch_pools() -> list[ThreadPool]:
    import torch
    from threadpoolctl import ThreadpoolController

    found = [pool for pool in ThreadpoolController().lib_controllers if pool.user_api == "openmp"]
    return found if "OpenMP" in torch.__config__.parallel_info() and found else [_Torch()]


def torch_threads(device: torch.device, elements: int = 0) -> AbstractContextManager[Any]:
    """Context in which torch uses one thread on a CPU, unless ``elements`` is large.

    Small tensors lose more by meeting at barriers than they gain by sharing. The setting belongs to the calling
    thread (``torch.set_num_threads`` would also reach threads that start meanwhile, and stay with them).

    Parameters
    ----------
    device : torch.device
    elements : int
        Entries of the largest tensor in the loop.

    Examples
    --------
    >>> import torch
    >>> from attsvm.training.devices import torch_threads
    >>> with torch_threads(torch.device("cpu")):
    ...     torch.get_num_threads()
    1
    """
    if device.type != "cpu" or elements > _LARGE_TENSOR:
        return nullcontext()
    import torch

    keep_freed_memory()
    torch.get_num_threads()  # a thread's first use of torch sets its number: before ours
    if not hasattr(_OPENMP, "setting"):
        _OPENMP.setting = ThreadSetting()
    return OneThread(_OPENMP.setting, _torch_pools())
