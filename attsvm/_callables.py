"""Functions that users write for NumPy arrays, for torch tensors, or for both."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from attsvm.user_input import AnyFloatArray, is_tensor, real_array

if TYPE_CHECKING:
    from torch import Tensor


class ArrayFunction:
    """A function of arrays or tensors, called with what it was written for.

    Whether it maps arrays, tensors or both is found out at the first call of each kind and remembered; where it does
    not, its argument is converted on the way in and its value on the way out. Gradients need a function of tensors.

    Parameters
    ----------
    function : callable
    role : str
        What it is, for messages: "head", "the derivative of loss 'mine'".

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> square, sine = ArrayFunction(lambda x: x**2, "square"), ArrayFunction(lambda x: np.asarray(np.sin(x)), "sine")
    >>> square([1, 2]), square(torch.tensor(3.0)), sine(torch.zeros(2))
    (array([1., 4.]), tensor(9.), tensor([0., 0.]))
    """

    def __init__(self, function: Callable[[Any], Any], role: str) -> None:
        self.function: Callable[[Any], Any] = function.function if isinstance(function, ArrayFunction) else function
        self.role = role
        self._maps: dict[str, bool] = {}  # "arrays", "tensors": found out at the first call

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArrayFunction) and self.function == other.function

    def __hash__(self) -> int:
        return hash(self.function)

    @property
    def name(self) -> str:
        """Name of the function, or of its type."""
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: npt.ArrayLike) -> AnyFloatArray: ...
    def __call__(self, x: Any) -> Any:
        """The value, of the kind of ``x``."""
        return self._of_tensor(x) if is_tensor(x) else self._of_array(real_array(self.role, x))

    def _of_array(self, x: AnyFloatArray) -> AnyFloatArray:
        if self._maps.get("arrays", True):
            try:
                value = self.function(x)
            except Exception:  # perhaps a function of tensors only; any other mistake is raised again
                converted = None if "arrays" in self._maps else self._through_torch(x)
                if converted is None:
                    raise
                self._maps["arrays"] = False
                return converted
            self._maps["arrays"] = True
            return _as_array(value)
        converted = self._through_torch(x)
        assert converted is not None
        return converted

    def _through_torch(self, x: AnyFloatArray) -> AnyFloatArray | None:
        """The value by way of a tensor; None when torch is not loaded, or on the first call if that fails, too."""
        torch = sys.modules.get("torch")
        if torch is None:
            return None
        tensor = torch.tensor(np.array(x))
        if "arrays" in self._maps:
            return _as_array(self.function(tensor))
        try:
            return _as_array(self.function(tensor))
        except Exception:
            return None

    def _of_tensor(self, x: Tensor) -> Tensor:
        if self._maps.get("tensors", True):
            try:
                value = self.function(x)
            except Exception:
                if "tensors" in self._maps:
                    raise
                value = None
            if is_tensor(value):
                self._maps["tensors"] = True
                return value
            self._maps["tensors"] = False
        return x.new_tensor(_as_array(self.function(x.detach().cpu().numpy())))

    def value_and_gradient(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values (...) and gradients (..., d) of a function of vectors, at points (..., d), by autograd.

        Raises
        ------
        ValueError
            Says what the function lacks.
        """
        torch = sys.modules["torch"]
        wanted = f"{self.role} must map torch tensors (..., dx) to tensors (...) to be trained through"
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            try:
                value = self.function(point)
            except Exception as error:
                text = f"{wanted}; {self.name} raised {type(error).__name__}: {error}"
                raise ValueError(f"{text}. Write it with torch operations, or give it a method gradient(x)") from error
            if not is_tensor(value) or value.shape != x.shape[:-1]:
                found = f"{type(value).__name__} of shape {getattr(value, 'shape', None)}"
                raise ValueError(f"{wanted}; got {found} for {tuple(x.shape)}")
            slope = None
            if value.requires_grad:
                (slope,) = torch.autograd.grad(value.sum(), point, allow_unused=True)
        if slope is None:
            raise ValueError(f"{wanted}; the value of {self.name} does not depend on its argument by torch operations")
        return value.detach(), slope


def _as_array(value: Any) -> AnyFloatArray:
    if is_tensor(value):
        return real_array("the value", value)
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ValueError(f"a head or a loss must return real numbers, got dtype {array.dtype}")
    return array if array.dtype.kind == "f" else array.astype(np.float64)
