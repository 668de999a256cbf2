"""Problems and parameters as torch tensors: the problem, arithmetic on all parameters at once, devices and threads.

A problem has one leading batch axis and K queries always, on any device and in any dtype.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import Tensor

from attsvm._lazy import needs
from attsvm.problem import AttentionProblem, require_problem
from attsvm.solvers.threads import OneThread, ThreadPool, ThreadSetting, keep_freed_memory

if TYPE_CHECKING:
    import torch

# Entries of a tensor, worked on elementwise, above which every core helps.
_LARGE_TENSOR = 1 << 22
_OPENMP = threading.local()  # one number of threads per thread of the caller
# Beyond scores of this size the slope of a loss may be too small to square.
_FLAT_LOSS = 300.0
Parameters = dict[str, Tensor]
# Maps composed tokens x (B, n, K, dx) to h(x) (B, n, K) and to the slopes grad h(x) . x_t (B, n, K, T).
ValueAndSlopes = Callable[[Tensor], tuple[Tensor, Tensor]]


# -- problems ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TensorProblem:
    """An attention problem on a device.

    Attributes
    ----------
    X : Tensor, shape (B, n, T, dx)
    Z : Tensor, shape (B, n, K, dz)
    Y : Tensor, shape (B, n, K)
    allowed : Tensor of bool, shape (B, n, K, T)
    head : callable
        Composed tokens ``(B, n, K, dx)`` to ``h`` and to the slopes ``grad h . x_t``.
    scores : Tensor or None, shape (B, n, K, T)
        ``Y h(x_t)``, constant slopes of a linear head; None for other heads.
    masked : Tensor of bool or None, shape (B, n, K, T)
        The complement of ``allowed``; None when everything is allowed.
    idle : Tensor of bool or None, shape (B, n, K, 1)
        Queries whose gradient is zero whatever W is: they see one token only, or are zero. None when there are none.
    irregular : bool
        Whether the gradient of a query may vanish or underflow for other reasons: tokens of equal scores, a head that
        is not linear, scores at which a loss is flat.
    """

    X: Tensor
    Z: Tensor
    Y: Tensor
    allowed: Tensor
    head: ValueAndSlopes
    scores: Tensor | None
    masked: Tensor | None = None
    idle: Tensor | None = None
    irregular: bool = True

    @property
    def batch(self) -> int:
        """Number of problems."""
        return int(self.X.shape[0])

    @property
    def is_repeated(self) -> bool:
        """Whether all problems have the same tokens and queries, which are stored once: `AttentionProblem.repeat`."""
        return self.batch > 1 and self.X.stride(0) == 0 and self.Z.stride(0) == 0


def tensor_problem(
    problem: AttentionProblem, device: torch.device | str | None = None, dtype: torch.dtype = torch.float64
) -> TensorProblem:
    """Move a problem (or a batch of them) to a device.

    Examples
    --------
    >>> import attsvm
    >>> tensor_problem(attsvm.random_problem(n=2, T=3, d=4, batch=5)).Z.shape
    torch.Size([5, 2, 1, 4])
    """
    head = require_problem(problem).head
    if head is None:
        raise ValueError("training needs a prediction head: pass head=attsvm.LinearHead(v) or any torch callable")

    place = torch_device(device)

    def move(array: npt.NDArray[Any]) -> Tensor:
        if problem.batch is not None and problem.batch > 1 and array.strides[0] == 0:  # one for all
            return torch.tensor(array[0], dtype=dtype, device=place).expand(array.shape)
        return torch.tensor(array, dtype=dtype, device=place)

    X, Z, Y = move(problem.X), move(problem.Z), move(problem.Y)
    allowed = torch.tensor(problem.allowed.copy(), device=place)
    if problem.batch is None:
        X, Z, Y, allowed = X[None], Z[None], Y[None], allowed[None]
    if not problem.multi_query:
        Z, Y, allowed = Z[:, :, None], Y[:, :, None], allowed[:, :, None]
    evaluate = head.along(X)
    scores = Y[..., None] * evaluate(X[:, :, :1])[1] if head.is_linear else None
    if scores is not None and len(X) > 1 and X.stride(0) == 0 and bool((scores == scores[:1]).all()):
        scores = scores[:1].clone().expand(scores.shape)  # stored once like the tokens: it stays in the cache
    masked = None if problem.mask is None else ~allowed
    idle = ((allowed.sum(-1) == 1) | (Z == 0).all(-1)).unsqueeze(-1)
    irregular = scores is None or _has_ties(scores, masked) or bool((scores.abs() > _FLAT_LOSS).any())
    return TensorProblem(X, Z, Y, allowed, evaluate, scores, masked, idle if bool(idle.any()) else None, irregular)


def with_linear_head(data: TensorProblem, v: Tensor) -> TensorProblem:
    """The same data under the linear heads v, shape (B, dx): what training of the head sees at a step.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> data = tensor_problem(attsvm.random_problem(n=2, T=3, d=4, batch=5))
    >>> with_linear_head(data, torch.zeros(5, 4, dtype=torch.float64)).scores.shape
    torch.Size([5, 2, 1, 3])
    """
    slopes = (data.X @ v[:, None, :, None])[..., 0].unsqueeze(2)  # (B, n, 1, T)

    def head(points: Tensor) -> tuple[Tensor, Tensor]:
        return (points @ v[:, None, :, None])[..., 0], slopes

    return replace(data, head=head, scores=data.Y.unsqueeze(-1) * slopes, irregular=True)


def _has_ties(scores: Tensor, masked: Tensor | None) -> bool:
    """Whether two allowed tokens of a query have the same score."""
    ranked = (scores if masked is None else scores.masked_fill(masked, torch.nan)).sort(dim=-1).values
    return bool((ranked[..., 1:] == ranked[..., :-1]).any())  # no NaN equals another


# -- parameters: one tensor per name -----------------------------------------------------------------------------------


def of_block(tensors: Parameters, prefix: str = "") -> Parameters:
    """Tensors of attention, or with the prefix "head." those of a trained head, by their names without it.

    Examples
    --------
    >>> import torch
    >>> tensors = {"W": torch.zeros(1), "head.v": torch.ones(1)}
    >>> list(of_block(tensors)), list(of_block(tensors, "head."))
    (['W'], ['v'])
    """
    if not prefix:
        return {name: t for name, t in tensors.items() if not name.startswith("head.")}
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def squared_norms(tensors: Parameters) -> dict[str, Tensor]:
    """Squared Frobenius norm of each parameter, shape (B,)."""
    # Over the axes, not over a flat copy: gradients are not stored in the order of their axes.
    return {name: torch.linalg.vector_norm(t, dim=tuple(range(1, t.ndim))).square_() for name, t in tensors.items()}


def like(value: Tensor, tensor: Tensor) -> Tensor:
    """One number per problem, shaped to multiply a parameter."""
    return value.reshape(-1, *([1] * (tensor.ndim - 1)))


def scale_each(tensors: Parameters, factor: Tensor) -> Parameters:
    """Multiply every parameter of problem b by ``factor[b]``."""
    return {name: t * like(factor, t) for name, t in tensors.items()}


def polar(matrix: Tensor, growth: Tensor | None = None) -> Tensor:
    """``U V^T`` of the singular value decomposition, without the null space, shape (B, rows, columns).

    ``growth``, shape (B,), is by how much rounding errors in the matrix may have grown relative to its size.

    Examples
    --------
    >>> import torch
    >>> polar(torch.tensor([[[0.0, 3.0], [0.0, 0.0]]])).abs()
    tensor([[[0., 1.],
             [0., 0.]]])
    """
    U, S, Vh = torch.linalg.svd(matrix, full_matrices=False)
    rounding = S.narrow(1, 0, 1) * (matrix.shape[-1] * torch.finfo(matrix.dtype).eps)
    kept = ((rounding if growth is None else rounding * growth[:, None]) < S).to(matrix.dtype)
    factor: Tensor = (U * kept.unsqueeze(1)) @ Vh
    return factor


def where(condition: Tensor, yes: Parameters, no: Parameters) -> Parameters:
    """Problem by problem choice between two sets of tensors."""
    return {name: torch.where(like(condition, t), t, no[name]) for name, t in yes.items()}


# -- devices and threads -----------------------------------------------------------------------------------------------


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
