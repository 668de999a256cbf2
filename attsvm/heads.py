"""What a prediction head is: one class that serves scores, training, Assumption E and problem files.

Heads made of any callable.

The heads of the papers: linear, one hidden ReLU layer, and concave.

Prediction heads h: what a composed token is worth before the label's sign.

A head is one class: its parameters, its value and, where it is known, its gradient, each written once for NumPy
arrays and torch tensors (`Head` says how). Scores, training, Assumption E and problem files all use that class. Any
callable that maps vectors ``(..., d)`` to numbers ``(...)`` is a head, too (`CallableHead`); what it cannot do it says
when asked.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from attsvm._callables import ArrayFunction
from attsvm.solvers.arrays import BoolArray
from attsvm.user_input import AnyFloatArray, ArrayT, is_tensor, namespace, own, real_array, require_finite, short

if TYPE_CHECKING:
    from torch import Tensor

Bend = Literal["linear", "convex", "concave"]

_DIFFERENCE = 1e-6  # central differences: error about 1e-12 + 1e-10 |h|


class Head(ABC):
    """A prediction head; derive from it to make a new one.

    A subclass is a frozen dataclass (``eq=False``) whose fields are listed in ``parameters`` with the names of their
    axes: ``{"V": ("d", "width")}`` is a matrix whose first axis is that of the tokens, ``{"lam": ()}`` a number. Every
    array may carry a leading batch axis. With `project` and `lift` the same lines serve one head and a batch of them,
    arrays and tensors. Only `value` must be written; `gradient` makes slopes exact and cheap, `bend` lets Assumption E
    be decided rather than sampled, and a ``kind`` of its own lets problems with the head be saved.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import attsvm
    >>> from attsvm.heads import Head
    >>> @dataclass(frozen=True, eq=False)
    ... class SquaredHead(Head):
    ...     parameters = {"v": ("d",)}
    ...     bend = "convex"
    ...     v: object
    ...     def value(self, x):
    ...         return self.project("v", x) ** 2
    ...     def gradient(self, x):
    ...         return self.lift("v", 2 * self.project("v", x))
    >>> SquaredHead([1.0, 2.0])([[1.0, 1.0], [1.0, 0.0]])
    array([9., 1.])
    """

    kind: ClassVar[str | None] = None  # its name in problem files
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    bend: ClassVar[Bend | None] = None  # what is known of h as a function: linear, convex, concave, or nothing

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if "__repr__" not in cls.__dict__:  # before a dataclass writes its own, with every number
            cls.__repr__ = Head.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        parameters = {name: getattr(self, name) for name in self.parameters}
        shown = (f"{name}={short(np.asarray(x)) if np.ndim(x) else x}" for name, x in parameters.items())
        return f"{self.name}({', '.join(shown)})"

    def __post_init__(self) -> None:
        self._store(**{name: getattr(self, name) for name in self.parameters})

    def _store(self, **values: npt.ArrayLike) -> None:
        """Check parameters and keep them, read-only."""
        for name, axes in self.parameters.items():
            object.__setattr__(self, name, _read_parameter(name, values[name], axes))
        batches = {size for name in self.parameters if (size := self._batch_of(name)) is not None}
        if len(batches) > 1:
            raise ValueError(f"parameters must agree on the batch, got {sorted(batches)}")

    # -- sizes ------------------------------------------------------------------------------------

    def _batch_of(self, name: str) -> int | None:
        array = np.asarray(getattr(self, name))
        return int(array.shape[0]) if array.ndim > len(self.parameters[name]) else None

    @property
    def dim(self) -> int | None:
        """Dimension of the tokens; None when any will do."""
        for name, axes in self.parameters.items():
            if "d" in axes:
                return int(getattr(self, name).shape[axes.index("d") - len(axes)])
        return None

    @property
    def batch(self) -> int | None:
        """Number of heads, None for a single one."""
        return next((size for name in self.parameters if (size := self._batch_of(name)) is not None), None)

    @property
    def name(self) -> str:
        """For messages and reports."""
        return type(self).__name__

    @property
    def is_linear(self) -> bool:
        """Whether ``h(x) = v . x`` for some v."""
        return self.bend == "linear"

    def __getitem__(self, index: int) -> Self:
        batched = [name for name in self.parameters if self._batch_of(name) is not None]
        return replace(self, **{name: getattr(self, name)[index] for name in batched}) if batched else self  # type: ignore[type-var]

    # -- the function -----------------------------------------------------------------------------

    @overload
    def __call__(self, x: Tensor) -> Tensor: ...
    @overload
    def __call__(self, x: npt.ArrayLike) -> AnyFloatArray: ...
    def __call__(self, x: Any) -> Any:
        """Evaluate the head on vectors (..., d): an array gives an array, a tensor a tensor."""
        return self.value(x) if is_tensor(x) else np.asarray(self.value(np.asarray(x)))

    @abstractmethod
    def value(self, x: ArrayT) -> ArrayT:
        """``h`` at vectors (..., d), shape (...)."""

    def gradient(self, x: ArrayT) -> ArrayT | None:
        """``grad h`` at vectors (..., d), same shape; None (the default) when there is no formula."""
        return None

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """Values and slopes ``grad h(point) . x_t`` at points, with what depends on the tokens alone computed once.

        Slopes come from `gradient` where there is one; else from autograd for tensors, from central differences for
        arrays.

        Parameters
        ----------
        tokens : array or tensor, shape (..., T, d)

        Returns
        -------
        callable
            Points (..., K, d) to values (..., K) and slopes, shape (..., K, T) or, where all points share them,
            (..., 1, T).

        Examples
        --------
        >>> import attsvm
        >>> import numpy as np
        >>> value, slopes = attsvm.ConcaveHead([2.0], lam=0.5).along(np.array([[1.0], [-1.0]]))(np.array([[1.0]]))
        >>> value, slopes
        (array([1.5]), array([[ 1., -1.]]))
        """

        def evaluate(points: ArrayT) -> tuple[ArrayT, ArrayT]:
            value, gradient = self._with_gradient(points)
            slopes: ArrayT = self._differences(points, tokens) if gradient is None else gradient @ _turned(tokens)
            return value, slopes

        return evaluate

    def _with_gradient(self, points: Any) -> Any:
        """Values, and gradients (None for arrays without a formula)."""
        gradient = self.gradient(points)
        if gradient is None and is_tensor(points):
            return ArrayFunction(self.value, "head").value_and_gradient(points)
        return self.value(points), gradient

    def _differences(self, points: Any, tokens: Any) -> Any:
        step = _DIFFERENCE * tokens[..., None, :, :]
        ahead, behind = (self(points[..., None, :] + sign * step) for sign in (1.0, -1.0))
        return np.asarray((ahead - behind) / (2 * _DIFFERENCE))

    def kinks(self, points: AnyFloatArray) -> BoolArray:
        """Where the head has no gradient, shape (...) for points (..., d); nowhere unless overridden."""
        return np.zeros(points.shape[:-1], dtype=bool)

    # -- products with a parameter, alone or in a batch, of arrays or tensors -------------------------

    def parameter(self, name: str, like: ArrayT) -> ArrayT:
        """A parameter as an array or tensor of the kind of ``like``, its batch axis aligned with the first of it."""
        value = np.asarray(getattr(self, name))
        missing = like.ndim - value.ndim
        if self._batch_of(name) is not None and missing > 0:
            value = value.reshape(value.shape[0], *[1] * missing, *value.shape[1:])
        aligned: ArrayT = _of_kind(value, like)
        return aligned

    def project(self, name: str, x: ArrayT) -> ArrayT:
        """``x . v`` (...) for a vector v, ``x V`` (..., width) for a matrix V, at vectors x (..., d)."""
        value: Any = np.asarray(getattr(self, name))
        axes, tensor = len(self.parameters[name]), is_tensor(x)
        vector, batched = axes == 1, value.ndim > axes
        product: ArrayT
        if not (batched or tensor):
            product = x @ value
        elif vector and tensor:
            product = (x * self.parameter(name, x)).sum(-1)  # no matrix product: a batch then rounds like its members
        elif not batched or (x.ndim > 2 and tensor):
            product = x @ self.parameter(name, x)
        else:
            rule = "b...d,bd->b..." if vector else "b...d,bdw->b...w"
            product = namespace(x).einsum(rule, x, _of_kind(value, x))
        return product

    def lift(self, name: str, c: ArrayT) -> ArrayT:
        """The adjoint of `project`: ``c v`` for numbers c (...), ``V c`` for vectors c (..., width); shape (..., d)."""
        lifted: ArrayT
        if len(self.parameters[name]) == 1:
            column: Any = c[..., None]
            lifted = column * self.parameter(name, column)
        elif self._batch_of(name) is None:
            lifted = c @ _turned(self.parameter(name, c))
        else:
            lifted = namespace(c).einsum("b...w,bdw->b...d", c, _of_kind(getattr(self, name), c))
        return lifted


def _turned(array: Any) -> Any:
    """Matrices transposed."""
    return array.swapaxes(-1, -2)


def _of_kind(array: npt.NDArray[Any], like: Any) -> Any:
    return like.new_tensor(array) if is_tensor(like) else array


def _read_parameter(name: str, value: npt.ArrayLike, axes: tuple[str, ...]) -> AnyFloatArray | float:
    array = real_array(name, value)
    if not axes:
        if array.ndim or not np.isfinite(array):
            raise ValueError(f"{name} must be a finite number, got {value!r}")
        return float(array)
    if array.ndim not in (len(axes), len(axes) + 1) or 0 in array.shape:
        shape = f"({', '.join(axes)}{',' if len(axes) == 1 else ''})"
        raise ValueError(f"{name} must have shape {shape}, optionally with a leading batch axis, got {array.shape}")
    require_finite(name, array)
    return own(array)


def stored_heads() -> dict[str, type[Head]]:
    """Heads that problem files can name, by their ``kind``: every subclass that the program has defined.

    Examples
    --------
    >>> {"linear", "relu", "concave"} <= set(stored_heads())
    True
    """
    found: dict[str, type[Head]] = {}
    waiting = list(Head.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        kind = vars(cls).get("kind")
        if isinstance(kind, str):
            found[kind] = cls
    return found


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
            raise ValueError(
                f"head must be callable on arrays of tokens (..., dx), got {type(function).__name__}; "
                "attsvm.LinearHead(v) scores tokens by v . x"
            )
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
    >>> as_head(abs), as_head(None)
    (CallableHead(abs), None)
    """
    return head if head is None or isinstance(head, Head) else CallableHead(head)


@dataclass(frozen=True, eq=False, init=False)
class LinearHead(Head):
    """``h(x) = v . x``.

    Parameters
    ----------
    v : array_like, shape (d,) or (batch, d)

    Examples
    --------
    >>> from attsvm import LinearHead
    >>> LinearHead([1.0, -1.0])([[3.0, 1.0], [0.0, 1.0]])
    array([ 2., -1.])
    """

    kind: ClassVar[str] = "linear"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"v": ("d",)}
    bend: ClassVar[Bend] = "linear"
    v: AnyFloatArray

    def __init__(self, v: npt.ArrayLike) -> None:
        self._store(v=v)

    def value(self, x: ArrayT) -> ArrayT:
        """``v . x``."""
        return self.project("v", x)

    def gradient(self, x: ArrayT) -> ArrayT:
        """``v`` at every point."""
        gradient: ArrayT = self.lift("v", _ones(x))
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`: the slopes are the same at all points."""
        slopes = self.project("v", tokens)[..., None, :]
        return lambda points: (self.project("v", points), slopes)


@dataclass(frozen=True, eq=False, init=False)
class ReluHead(Head):
    """``h(x) = 1 . relu(V^T x)``: one hidden layer with unit output weights.

    ``V = I`` is the head that the text of the Gen-SVM experiments states; a Gaussian V is what their
    code uses.

    Parameters
    ----------
    V : array_like, shape (d, width) or (batch, d, width)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm import ReluHead
    >>> ReluHead(np.eye(2))([[3.0, -1.0], [2.0, 1.0]])
    array([3., 3.])
    """

    kind: ClassVar[str] = "relu"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"V": ("d", "width")}
    bend: ClassVar[Bend] = "convex"
    V: AnyFloatArray

    def __init__(self, V: npt.ArrayLike) -> None:
        self._store(V=V)

    def value(self, x: ArrayT) -> ArrayT:
        """The sum of the hidden units that are on."""
        total: ArrayT = self.project("V", x).clip(0.0).sum(-1)
        return total

    def gradient(self, x: ArrayT) -> ArrayT:
        """The sum of the columns of V whose units are on; that of the side where they are off at a kink."""
        gradient: ArrayT = self.lift("V", _active(self.project("V", x)))
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`, with the hidden units of the tokens kept."""
        V = self.parameter("V", tokens)
        hidden_tokens = (tokens @ V).swapaxes(-1, -2)

        def evaluate(points: ArrayT) -> tuple[ArrayT, ArrayT]:
            hidden = points @ V
            active = _active(hidden)
            return (hidden * active).sum(-1), active @ hidden_tokens

        return evaluate

    def kinks(self, points: AnyFloatArray) -> BoolArray:
        """Where a hidden unit is exactly 0."""
        return np.asarray((self.project("V", points) == 0).any(axis=-1))


def _ones(x: Any) -> Any:
    """1 per vector."""
    return namespace(x).ones_like(x[..., 0])


def _active(hidden: Any) -> Any:
    """1 where a unit is on, else 0."""
    on = hidden > 0
    return on.to(hidden.dtype) if is_tensor(hidden) else on.astype(hidden.dtype)


@dataclass(frozen=True, eq=False, init=False)
class ConcaveHead(Head):
    """``h(x) = v . x - lam |x|^2``: concave, so that mixing tokens can beat every single token (Lemma 6).

    Parameters
    ----------
    v : array_like, shape (d,) or (batch, d)
    lam : float
        Nonnegative strength of the concave term.

    Examples
    --------
    >>> from attsvm import ConcaveHead
    >>> ConcaveHead([1.0, 0.0], lam=0.5)([[1.0, 0.0], [0.5, 0.5]])
    array([0.5 , 0.25])
    """

    kind: ClassVar[str] = "concave"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"v": ("d",), "lam": ()}
    bend: ClassVar[Bend] = "concave"
    v: AnyFloatArray
    lam: float

    def __init__(self, v: npt.ArrayLike, lam: float) -> None:
        self._store(v=v, lam=lam)
        if self.lam < 0:
            raise ValueError(f"lam must be a finite number >= 0, got {self.lam:g}")

    @property
    def is_linear(self) -> bool:
        """Without its concave term only."""
        return self.lam == 0

    def value(self, x: ArrayT) -> ArrayT:
        """``v . x - lam |x|^2``."""
        value: ArrayT = self.project("v", x) - self.lam * (x * x).sum(-1)
        return value

    def gradient(self, x: ArrayT) -> ArrayT:
        """``v - 2 lam x``."""
        gradient: ArrayT = self.lift("v", _ones(x)) - 2 * self.lam * x
        return gradient

    def along(self, tokens: ArrayT) -> Callable[[ArrayT], tuple[ArrayT, ArrayT]]:
        """As for `Head`, with the linear part of the slopes kept."""
        linear = self.project("v", tokens)[..., None, :]
        turned = tokens.swapaxes(-1, -2)
        return lambda points: (self.value(points), linear - 2 * self.lam * (points @ turned))
