"""Attention SVMs as functions of torch tensors: margins, objectives and W with gradients, one problem or a batch.

Problems are solved on the CPU in float64, whatever the tensors are; results have the dtype and the device of X.
Gradients of the margin and of the objective come from the multipliers (`attsvm.sensitivity`), those of W from
implicit differentiation (`attsvm.solvers.implicit`). Second derivatives are not offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from typing_extensions import Unpack

from attsvm._lazy import needs
from attsvm.margin_options import AttSvmOptions, check_options, takes
from attsvm.problem import AttentionProblem
from attsvm.selection import SelectionLike
from attsvm.sensitivity import (
    INPUTS,
    Derivative,
    Gradients,
    differentiable_in,
    in_words,
    kinks_in_tokens,
    value_gradients,
)
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers.active_rows import Fault
from attsvm.solvers.arrays import FloatArray, require_choice
from attsvm.solvers.status import DegenerateError, InfeasibleError, NoSolutionError
from attsvm.svm import att_svm as solve_att_svm

with needs("attsvm.torch"):
    import torch
    from torch import Tensor
    from torch.autograd.function import once_differentiable

__all__ = ["att_svm", "margin", "objective"]

# Tolerance of soft margins in the nuclear norm whose support a derivative reads: a step or two more than values take.
_SHARP = 1e-9

if TYPE_CHECKING:
    MaskLike = Tensor | npt.ArrayLike | None
    SelectionOfTensors = SelectionLike | Tensor


@dataclass(frozen=True, eq=False)
class _Call:
    """What a solve is given besides the tensors, and whether a gradient at a kink is accepted."""

    selection: Any
    mask: Any
    options: dict[str, Any]
    accept: bool = False

    def solved(self, X: Tensor, Z: Tensor, offset: Tensor | None, prior: Tensor | None) -> Solution | SolutionBatch:
        """The problem of these tensors, solved; an error where there is no W."""
        problem = AttentionProblem(_array(X), Z=_array(Z), mask=_plain(self.mask))
        given: dict[str, Any] = {
            name: _array(value) for name, value in (("offset", offset), ("prior", prior)) if value is not None
        }
        found: Solution | SolutionBatch = solve_att_svm(problem, _plain(self.selection), **given, **self.options)
        _require_solution(found)
        return found


def _plain(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else value


def _array(value: Tensor) -> FloatArray:
    return np.asarray(value.detach().to(device="cpu", dtype=torch.float64).numpy())


def _require_solution(found: Solution | SolutionBatch) -> None:
    """Raise what reading W raises; of a batch, with the problems that have none."""
    if isinstance(found, Solution):
        _ = found.W
        return
    missing = np.flatnonzero(~found.has_solution)
    if not len(missing):
        return
    listed = ", ".join(map(str, missing[:10].tolist())) + (", ..." if len(missing) > 10 else "")
    first = found[int(missing[0])]
    try:
        _ = first.W
    except NoSolutionError as error:
        kind = InfeasibleError if isinstance(error, InfeasibleError) else NoSolutionError
        raise kind(f"problem{'s' if len(missing) > 1 else ''} {listed} of the batch: {error}") from None


def _back(like: Tensor, value: object) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=like.dtype, device=like.device)


def _gradient_tensors(ctx: Any, found: Gradients) -> tuple[Tensor | None, ...]:
    """One gradient for each tensor that wants one, in its dtype and on its device; None for the call."""
    arrays = (found.X, found.Z, found.offset, found.prior)
    wanted = zip(ctx.needs_input_grad, ctx.like, arrays, strict=False)
    return (*(_back(like, array) if need and like is not None else None for need, like, array in wanted), None)


def _keep(ctx: Any, solved: Solution | SolutionBatch, call: _Call, tensors: Sequence[Tensor | None]) -> None:
    """What backward needs: the solution, and an empty tensor of the dtype and device of each input."""
    ctx.solved, ctx.call = solved, call
    ctx.like = tuple(None if tensor is None else tensor.detach().new_empty(0) for tensor in tensors)


def _tangents(given: Sequence[Tensor | None]) -> list[FloatArray | None]:
    return [None if tensor is None else _array(tensor) for tensor in given]


def _wanted(flags: Sequence[bool]) -> list[str]:
    return [name for name, want in zip(INPUTS, flags, strict=False) if want]


class _Objective(torch.autograd.Function):
    """The optimal value, shape () or (batch,)."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor, offset: Tensor | None, prior: Tensor | None, call: _Call) -> Tensor:
        solved = call.solved(X, Z, offset, prior)
        _keep(ctx, solved, call, (X, Z, offset, prior))
        soft = solved.rows.margin_problem.penalty is not None
        return _back(X, solved.certificate.primal_value if soft else solved.norm)

    @staticmethod
    def _gradients(ctx: Any, wanted: Sequence[bool]) -> Gradients:
        solved = ctx.solved
        if not ctx.call.accept:
            _refuse_kinks(solved, _wanted(wanted))
        return value_gradients(solved.problem, solved.rows, solved.result, solved.W)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        found = _Objective._gradients(ctx, ctx.needs_input_grad)
        return _gradient_tensors(ctx, found.scaled(_array(grads[0])))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        given = _tangents(tangents[:4])
        found = _Objective._gradients(ctx, [tangent is not None for tangent in given])
        lead = 0 if ctx.solved.problem.batch is None else 1
        total = np.zeros(np.shape(ctx.solved.norm))
        for array, tangent in zip((found.X, found.Z, found.offset, found.prior), given, strict=True):
            if tangent is not None:
                total = total + (array * tangent).sum(axis=tuple(range(lead, array.ndim)))
        return _back(ctx.like[0], total)


def _refuse_kinks(solved: Solution | SolutionBatch, wanted: Sequence[str]) -> None:
    """Raise where the value has no derivative in an input for which one is wanted."""
    kinks = kinks_in_tokens(solved.problem, solved.rows, solved.result)
    smooth = differentiable_in(kinks)
    bad = np.zeros(len(kinks.row), dtype=bool)
    for name in wanted:
        bad |= ~smooth[name]
    if not bad.any():
        return
    faults = {
        int(b): Fault(int(kinks.row[b]), "depends on other active rows: the multipliers are not unique")
        if kinks.multipliers[b]
        else Fault(-1, "W is not unique in what the tokens or the queries see of it")
        for b in np.flatnonzero(bad)
    }
    text = in_words(solved.rows, faults, solved.problem.batch is not None)
    raise DegenerateError(
        f"the optimal value has no derivative here: {text}; degenerate='accept' takes that of the multipliers found"
    )


def _derivative(solved: Solution | SolutionBatch) -> Derivative:
    return Derivative(solved.problem, solved.rows, solved.result)


class _Matrix(torch.autograd.Function):
    """W, shape (*batch, dx, dz)."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor, offset: Tensor | None, prior: Tensor | None, call: _Call) -> Tensor:
        solved = call.solved(X, Z, offset, prior)
        _keep(ctx, solved, call, (X, Z, offset, prior))
        exact = solved.norm_name == "frobenius"  # such a W is exact to rounding, others are refined on their support
        if not exact or any(ctx.needs_input_grad):  # the factored system of this point: backward only solves with it
            ctx.derivative = _derivative(solved)
        return _back(X, solved.W if exact else ctx.derivative.W)

    @staticmethod
    def _derivative(ctx: Any) -> Derivative:
        found: Derivative = ctx.derivative if hasattr(ctx, "derivative") else _derivative(ctx.solved)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:
        return _gradient_tensors(ctx, _Matrix._derivative(ctx).vjp(_array(grads[0]), _wanted(ctx.needs_input_grad)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return _back(ctx.like[0], _Matrix._derivative(ctx).jvp(*_tangents(tangents[:4])))


def _applied(function: type[torch.autograd.Function], arguments: tuple[Any, ...]) -> Tensor:
    found: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch types it not
    return found


def _require_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(value).__name__}")
    if not value.dtype.is_floating_point:
        raise ValueError(f"{name} must hold floating-point numbers, got {value.dtype}")
    return value


def _expanded(name: str, value: Any, like: Tensor, shape: tuple[int, ...]) -> Tensor | None:
    """An optional input in its full shape, so that autograd sums what was broadcast."""
    if value is None:
        return None
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value), dtype=like.dtype)
    _require_tensor(name, tensor)
    try:
        return torch.broadcast_to(tensor, shape)
    except RuntimeError:
        raise ValueError(f"{name} must have shape {shape}, got {tuple(tensor.shape)}") from None


def _arguments(
    function: str, X: Tensor, Z: Tensor, call: tuple[Any, Any, str], options: AttSvmOptions
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None, _Call]:
    """The inputs of the autograd functions, from arguments that were given by name."""
    selection, mask, degenerate = call
    check_options(function, AttSvmOptions, options)
    require_choice("degenerate", degenerate, "raise", "accept")
    _require_tensor("X", X), _require_tensor("Z", Z)
    if X.ndim not in (3, 4):
        raise ValueError(f"X must have shape (n, T, dx) or (batch, n, T, dx), got {tuple(X.shape)}")
    if selection is None:
        raise ValueError(
            "selection must name one token per query: tensors have no head whose optimal tokens it could be"
        )
    others: dict[str, Any] = {name: value for name, value in options.items() if name not in ("offset", "prior")}
    offset = _expanded("offset", options.get("offset"), X, (*Z.shape[:-1], X.shape[-2]))
    prior = _expanded("prior", options.get("prior"), X, (*X.shape[:-3], X.shape[-1], Z.shape[-1]))
    return X, Z, offset, prior, _Call(selection, mask, others, degenerate == "accept")


@takes(AttSvmOptions)
def objective(
    X: Tensor,
    Z: Tensor,
    selection: SelectionOfTensors,
    *,
    mask: MaskLike = None,
    degenerate: str = "raise",
    **options: Unpack[AttSvmOptions],
) -> Tensor:
    """The optimal value: the least norm of a hard margin, or with C the objective of a soft one; in every norm.

    Parameters
    ----------
    X : Tensor, shape (n, T, dx) or (batch, n, T, dx)
    Z : Tensor, shape (n, dz) or (n, K, dz), with the batch axis in front if there is one
    selection : Selection, Tensor or array_like of int
        One token per query.
    mask : Tensor or array_like of bool, optional
        True where attention is allowed.
    degenerate : {"raise", "accept"}
        At a kink of the value, where the multipliers or W are not unique: raise `DegenerateError` in backward, or
        return the gradient that belongs to the multipliers and the W that were found.
    **options
        Passed to the solver. ``prior`` and ``offset`` may be tensors that require gradients.
        All keywords: `attsvm.margin_options.AttSvmOptions`.

    Returns
    -------
    Tensor, shape () or (batch,)

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> X = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64, requires_grad=True)
    >>> value = attsvm.torch.objective(X, torch.tensor([[1.0]], dtype=torch.float64), [0])
    >>> value.backward()
    >>> round(value.item(), 4), X.grad[0, 0].round(decimals=4).tolist()
    (0.7071, [-0.3536, 0.3536])
    """
    arguments = _arguments("objective", X, Z, (selection, mask, degenerate), options)
    return _applied(_Objective, arguments)


@takes(AttSvmOptions)
def margin(
    X: Tensor,
    Z: Tensor,
    selection: SelectionOfTensors,
    *,
    mask: MaskLike = None,
    degenerate: str = "raise",
    **options: Unpack[AttSvmOptions],
) -> Tensor:
    """The margin ``1 / norm`` of a selection, with its gradient.

    A hard margin has a gradient in every norm. With C the norm of W is not what is minimized: its gradient comes from
    that of W and exists in the Frobenius and the nuclear norm; `objective` has one in every norm.

    Parameters
    ----------
    X : Tensor, shape (n, T, dx) or (batch, n, T, dx)
    Z : Tensor, shape (n, dz) or (n, K, dz), with the batch axis in front if there is one
    selection : Selection, Tensor or array_like of int
        One token per query.
    mask : Tensor or array_like of bool, optional
        True where attention is allowed.
    degenerate : {"raise", "accept"}
        See `objective`. With C always "raise".
    **options
        Passed to the solver. ``prior`` and ``offset`` may be tensors that require gradients.
        All keywords: `attsvm.margin_options.AttSvmOptions`.

    Returns
    -------
    Tensor, shape () or (batch,)
        Infinite where W is 0 or the prior.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> X, Z = torch.tensor(problem.X, requires_grad=True), torch.tensor(problem.Z)
    >>> value = attsvm.torch.margin(X, Z, problem.optimal_tokens(), norm="nuclear")
    >>> value.backward()
    >>> round(value.item(), 4), X.grad.shape
    (0.4329, torch.Size([3, 4, 5]))
    """
    arguments = _arguments("margin", X, Z, (selection, mask, degenerate), options)
    if options.get("C") is None:
        return 1.0 / _applied(_Objective, arguments)
    norm = options.get("norm", "frobenius")
    if norm not in _OF_MATRIX:
        raise ValueError(
            f"with C= the margin has a gradient in the norms {', '.join(_OF_MATRIX)}, got norm={norm!r}; "
            "attsvm.torch.objective has one in every norm"
        )
    W = _applied(_Matrix, arguments)
    prior = arguments[3]
    size: Tensor = torch.linalg.matrix_norm(W if prior is None else W - prior, ord=_OF_MATRIX[norm])
    return 1.0 / size


# Norms in which W has a derivative, as torch calls them.
_OF_MATRIX = {"frobenius": "fro", "nuclear": "nuc"}


@takes(AttSvmOptions)
def att_svm(
    X: Tensor,
    Z: Tensor,
    selection: SelectionOfTensors,
    *,
    mask: MaskLike = None,
    **options: Unpack[AttSvmOptions],
) -> Tensor:
    """W of Att-SVM (or SAtt-SVM, for K queries) as a function of tensors, in the Frobenius or the nuclear norm.

    Parameters
    ----------
    X : Tensor, shape (n, T, dx) or (batch, n, T, dx)
    Z : Tensor, shape (n, dz) or (n, K, dz), with the batch axis in front if there is one
    selection : Selection, Tensor or array_like of int
        One token per query.
    mask : Tensor or array_like of bool, optional
        True where attention is allowed.
    **options
        Passed to the solver; ``tolerance`` is 1e-9 by default for a soft margin in the nuclear norm. ``prior`` and
        ``offset`` may be tensors that require gradients. All keywords: `attsvm.margin_options.AttSvmOptions`.

    Returns
    -------
    Tensor, shape (dx, dz) or (batch, dx, dz)

    Raises
    ------
    InfeasibleError
        No W selects these tokens; of a batch, the message names the problems.
    DegenerateError
        In backward: W has no derivative here.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> X, Z = torch.tensor(problem.X, requires_grad=True), torch.tensor(problem.Z)
    >>> W = attsvm.torch.att_svm(X, Z, problem.optimal_tokens())
    >>> W.square().sum().backward()
    >>> W.shape, X.grad.shape
    (torch.Size([5, 5]), torch.Size([3, 4, 5]))
    """
    norm = options.get("norm", "frobenius")
    if norm not in _OF_MATRIX:
        raise ValueError(f"W has a gradient in the norms {', '.join(_OF_MATRIX)}, got norm={norm!r}")
    if norm == "nuclear" and options.get("C") is not None and options.get("tolerance") is None:
        options["tolerance"] = _SHARP
    return _applied(_Matrix, _arguments("att_svm", X, Z, (selection, mask, "raise"), options))
