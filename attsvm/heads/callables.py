"""Heads made of any callable."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attsvm._arrays import ArrayT, is_tensor
from attsvm._callables import ArrayFunction
from attsvm.heads.base import Head

__all__ = ["CallableHead", "as_head"]


class CallableHead(Head):
    """A head made of any callable on vectors ``(..., d)``.

    What the callable maps, arrays, tensors or both, is found out when it is first called. Slopes come from its method
    ``gradient(x)`` if it has one, else from autograd for tensors and from differences for arrays. A callable of NumPy
    arrays without ``gradient`` cannot be trained through, and training says so.

    Parameters
    ----------
    function : callable

    Examples
    --------
    >>> from attsvm.heads import CallableHead
    >>> CallableHead(lambda x: x[..., 0] ** 2)([[3.0, 1.0]])
    array([9.])
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise ValueError(f"head must be callable on arrays of tokens (..., dx), got {type(function).__name__}")
        self.function = ArrayFunction(function, "head")
        slope = getattr(function, "gradient", None)
        self._gradient = ArrayFunction(slope, "the gradient of the head") if callable(slope) else None

    def __repr__(self) -> str:
        return f"CallableHead({self.function.name})"

    @property
    def name(self) -> str:
        """That of the callable's type."""
        return type(self.function.function).__name__

    @property
    def dim(self) -> int | None:
        """The attribute ``dim`` of the callable, if it is a number."""
        return _number(self.function.function, "dim")

    @property
    def batch(self) -> int | None:
        """The attribute ``batch`` of the callable, if it is a number."""
        return _number(self.function.function, "batch")

    def __getitem__(self, index: int) -> CallableHead:
        return self if self.batch is None else CallableHead(self.function.function[index])  # type: ignore[index]

    def value(self, x: ArrayT) -> ArrayT:
        """The function, with its argument converted if need be."""
        return self.function(x)

    def gradient(self, x: ArrayT) -> ArrayT | None:
        """The callable's own ``gradient``, if it has one."""
        return None if self._gradient is None else self._gradient(x)

    def _with_gradient(self, points: Any) -> Any:
        if self._gradient is None and is_tensor(points):
            return self.function.value_and_gradient(points)
        return self.value(points), self.gradient(points)


def _number(thing: object, name: str) -> int | None:
    value = getattr(thing, name, None)
    return value if isinstance(value, int) else None


def as_head(head: Head | Callable[[Any], Any] | None) -> Head | None:
    """A `Head` as it is, any other callable wrapped in `CallableHead`.

    Examples
    --------
    >>> from attsvm.heads import as_head
    >>> as_head(abs), as_head(None)
    (CallableHead(abs), None)
    """
    return head if head is None or isinstance(head, Head) else CallableHead(head)
