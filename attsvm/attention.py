"""Attention of a problem under weights W: logits ``x_t^T W z``, probabilities, predictions and risk.

The one place that forms them. ``W`` decides the kind: a NumPy array gives arrays, a torch tensor gives tensors (on its
device, differentiable in W). Leading axes of W that the problem does not have come first in the result: the snapshots
``run.history.W`` of a run, shape (S, dx, dz), give all its logits at once. Masked tokens have logit -inf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

import numpy as np
import numpy.typing as npt

from attsvm.losses import Loss, get_loss
from attsvm.problem import AttentionProblem, require_problem
from attsvm.softmax import log_softmax, softmax
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.user_input import ArrayT, is_tensor, namespace, real_array

if TYPE_CHECKING:
    from torch import Tensor

    from attsvm.training.tensors import TensorProblem

__all__ = ["likeliest", "log_attention", "logits", "predictions", "probabilities", "risk", "token_logits"]


def token_logits(X: ArrayT, W: ArrayT, Z: ArrayT) -> ArrayT:
    """``x_t^T W z`` of bare arrays or tensors.

    Parameters
    ----------
    X : array or tensor, shape (..., n, T, dx)
    W : array or tensor, shape (..., dx, dz)
    Z : array or tensor, shape (..., n, K, dz)

    Returns
    -------
    array or tensor, shape (..., n, K, T)

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.attention import token_logits
    >>> token_logits(np.eye(2)[None], np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[[1.0, 0.0]]]))
    array([[[1., 3.]]])
    """
    n, K, dz = Z.shape[-3:]
    # All queries in one product with W: with one product per sequence W would be copied n times on a device.
    keys = Z.reshape(*Z.shape[:-3], n * K, dz) @ W.swapaxes(-1, -2)
    return keys.reshape(*keys.shape[:-2], n, K, -1) @ X.swapaxes(-1, -2)


def _repeated_logits(problem: TensorProblem, W: Tensor) -> Tensor:
    """`token_logits` of one problem under many W: one product per sequence with all of them, shape (B, n, K, T).

    Stored with the sequences first, as the products give them and as the gradient's products take them: copies into
    the order of the axes would take as long as the products.
    """
    B, (n, K, dz) = len(W), problem.Z.shape[1:]
    keys = problem.Z[0].reshape(n * K, dz) @ W.permute(2, 0, 1).reshape(dz, -1)  # (n K, B dx)
    values = keys.reshape(n, K * B, -1) @ problem.X[0].transpose(1, 2)  # (n, K B, T)
    return values.reshape(n, K, B, -1).permute(2, 0, 1, 3)


def _weights(problem: AttentionProblem, W: Any) -> Any:
    matrix = W if is_tensor(W) else real_array("W", W).astype(np.float64, copy=False)
    lead = () if problem.batch is None else (problem.batch,)
    expected = (problem.dx, problem.dz)
    given = tuple(matrix.shape)
    if given[-2:] != expected or (len(given) > 2 and lead and given[-3] != lead[0]):
        shape = ", ".join(["...", *map(str, lead), *map(str, expected)])
        raise ValueError(f"W must have shape ({shape}), got {given}")
    return matrix


def _like(array: npt.NDArray[Any], W: Any) -> Any:
    return W.new_tensor(array) if is_tensor(W) else array.astype(np.float64, copy=False)


def _with_query_axis(problem: AttentionProblem, array: npt.NDArray[Any], behind: int) -> npt.NDArray[Any]:
    """Insert the axis of K = 1 queries where the problem has none, in front of the last ``behind`` axes."""
    return array if problem.multi_query else np.expand_dims(array, array.ndim - behind)


def _full_logits(problem: AttentionProblem | TensorProblem, W: Any) -> Any:
    """Logits with an axis of K queries, shape (..., n, K, T)."""
    if not isinstance(problem, AttentionProblem):
        values = _repeated_logits(problem, W) if problem.is_repeated else token_logits(problem.X, W, problem.Z)
        return values if problem.masked is None else values.masked_fill(problem.masked, -float("inf"))
    matrix = _weights(problem, W)
    Z = _with_query_axis(problem, problem.Z, 1)
    values = token_logits(_like(problem.X, matrix), matrix, _like(Z, matrix))
    if problem.mask is None:
        return values
    allowed = _with_query_axis(problem, problem.allowed, 1)
    if is_tensor(values):
        return values.masked_fill(namespace(values).tensor(~allowed, device=values.device), -float("inf"))
    return np.where(allowed, values, -np.inf)


def _read(problem: AttentionProblem | TensorProblem) -> AttentionProblem | TensorProblem:
    return problem if hasattr(problem, "masked") else require_problem(problem)


def _shaped(problem: AttentionProblem | TensorProblem, values: Any, behind: int) -> Any:
    """Drop the axis of queries where an `AttentionProblem` has none; tensor problems always have it."""
    if not isinstance(problem, AttentionProblem) or problem.multi_query:
        return values
    return values.squeeze(values.ndim - behind - 1)


def _logits(problem: AttentionProblem | TensorProblem, W: Any) -> Any:
    return _shaped(problem, _full_logits(_read(problem), W), 1)


@overload
def logits(problem: AttentionProblem | TensorProblem, W: Tensor) -> Tensor: ...
@overload
def logits(problem: AttentionProblem, W: npt.ArrayLike) -> FloatArray: ...
def logits(problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor) -> FloatArray | Tensor:
    """Logits ``x_t^T W z``, -inf where masked.

    Parameters
    ----------
    problem : AttentionProblem or TensorProblem
    W : array_like or Tensor, shape (..., dx, dz)

    Returns
    -------
    array or tensor, shape (...) + query_shape + (T,)
        A `TensorProblem` always has axes for the batch and for K queries.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.attention import logits
    >>> problem = attsvm.AttentionProblem([[[1.0, 0.0], [0.0, 2.0]]], Z=[[1.0, 0.0]])
    >>> logits(problem, np.ones((2, 2))), logits(problem, np.ones((7, 2, 2))).shape
    (array([[1., 2.]]), (7, 1, 2))
    """
    found: FloatArray | Tensor = _logits(problem, W)
    return found


@overload
def log_attention(problem: AttentionProblem | TensorProblem, W: Tensor) -> Tensor: ...
@overload
def log_attention(problem: AttentionProblem, W: npt.ArrayLike) -> FloatArray: ...
def log_attention(problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor) -> FloatArray | Tensor:
    """Logarithm of the attention probabilities, shaped as `logits`; -inf where masked.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.attention import log_attention
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], Z=[[1.0]])
    >>> log_attention(problem, [[2000.0]])
    array([[    0., -2000.]])
    """
    values = _logits(problem, W)
    return values.log_softmax(-1) if is_tensor(values) else log_softmax(values)


@overload
def probabilities(problem: AttentionProblem | TensorProblem, W: Tensor) -> Tensor: ...
@overload
def probabilities(problem: AttentionProblem, W: npt.ArrayLike) -> FloatArray: ...
def probabilities(problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor) -> FloatArray | Tensor:
    """Attention probabilities ``softmax(X W z)``, shaped as `logits`; 0 where masked.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.attention import probabilities
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], Z=[[1.0]], mask=[[True, False]])
    >>> probabilities(problem, [[5.0]])
    array([[1., 0.]])
    """
    values = _logits(problem, W)
    return values.softmax(-1) if is_tensor(values) else softmax(values)


@overload
def likeliest(problem: AttentionProblem | TensorProblem, W: Tensor) -> Tensor: ...
@overload
def likeliest(problem: AttentionProblem, W: npt.ArrayLike) -> IntArray: ...
def likeliest(problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor) -> IntArray | Tensor:
    """The token of highest probability of each query, shape (...) + query_shape: what W selects.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.attention import likeliest
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> likeliest(problem, attsvm.att_svm(problem, [3, 0, 2]).W)
    array([3, 0, 2])
    """
    found: IntArray | Tensor = _logits(problem, W).argmax(-1)
    return found


@overload
def predictions(problem: AttentionProblem | TensorProblem, W: Tensor) -> Tensor: ...
@overload
def predictions(problem: AttentionProblem, W: npt.ArrayLike) -> FloatArray: ...
def predictions(problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor) -> FloatArray | Tensor:
    """Signed predictions ``Y h(X^T softmax(X W z))``, shape (...) + query_shape.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.attention import predictions
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [-1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> predictions(problem, np.zeros((1, 1)))
    array([-0.5])
    """
    found: FloatArray | Tensor = _predictions(problem, W)
    return found


def _predictions(problem: AttentionProblem | TensorProblem, W: Any) -> Any:
    values = _full_logits(_read(problem), W)
    s: Any = values.softmax(-1) if is_tensor(values) else softmax(values)
    if not isinstance(problem, AttentionProblem):
        return problem.Y * problem.head(s @ problem.X)[0]
    if problem.head is None:
        raise ValueError("predictions need a prediction head: pass head=attsvm.LinearHead(v) or any callable")
    composed = s @ _like(problem.X, values)
    labels = _like(_with_query_axis(problem, problem.Y, 0), values)
    extra = composed.ndim - (3 if problem.batch is None else 4)
    if problem.head.batch is not None and extra:  # a batch of heads needs its axis in front
        flat = composed.reshape(-1, *composed.shape[extra:])
        h = namespace(values).stack([problem.head(one) for one in flat]).reshape(composed.shape[:-1])
    else:
        h = problem.head(composed)
    return _shaped(problem, labels * h, 0)


@overload
def risk(problem: AttentionProblem | TensorProblem, W: Tensor, loss: str | Loss = ...) -> Tensor: ...
@overload
def risk(problem: AttentionProblem, W: npt.ArrayLike, loss: str | Loss = ...) -> FloatArray: ...
def risk(
    problem: AttentionProblem | TensorProblem, W: npt.ArrayLike | Tensor, loss: str | Loss = "logistic"
) -> FloatArray | Tensor:
    """``(1/n) sum_i sum_k l(Y_ik h(X_i^T softmax(X_i W z_ik)))``: one number per W (and per problem of a batch).

    Parameters
    ----------
    problem : AttentionProblem or TensorProblem
    W : array_like or Tensor, shape (..., dx, dz)
    loss : str or Loss

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.attention import risk
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> float(risk(problem, np.zeros((1, 1)), "correlation"))
    -0.5
    """
    signed = _predictions(problem, W)
    axes = (-2, -1) if not isinstance(problem, AttentionProblem) or problem.multi_query else (-1,)
    sequences = problem.X.shape[-3]
    found: FloatArray | Tensor = get_loss(loss).value(signed).sum(axes) / sequences
    return found
