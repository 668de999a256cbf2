"""Which torch device is meant, and whether it can be used here."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

__all__ = ["torch_device"]


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
    >>> from attsvm.solvers.devices import torch_device
    >>> torch_device(None)
    device(type='cpu')
    >>> torch_device("meta")
    Traceback (most recent call last):
    ...
    ValueError: device 'meta' cannot be used here: it holds no numbers
    """
    try:
        import torch
    except ImportError as error:
        raise ImportError("batches in lockstep and device= need torch: pip install 'attsvm[torch]'") from error
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
