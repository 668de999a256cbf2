"""Where training starts: weights that are given, drawn, or inside a cone around a solution."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.losses import Loss, get_loss
from attsvm.parameterizations import Parameterization
from attsvm.problem import AttentionProblem
from attsvm.training.log_gradient import scaled_gradient
from attsvm.training.options import TrainOptions
from attsvm.training.tensors import Parameters, TensorProblem
from attsvm.user_input import generator, real_array

__all__ = [
    "cone_init",
    "initial_head",
    "initial_parameters",
    "separating_init",
]


def initial_parameters(
    problem: AttentionProblem, data: TensorProblem, form: Parameterization, options: TrainOptions
) -> Parameters:
    """Parameters at step 0.

    ``options.init`` is "zero", "uniform" (every entry uniform in ``+-1/sqrt(fan_in)``, what torch's Linear layers do),
    "separating" (Theorem 4's first step of length ``radius``, W only), or arrays: W, or the pair (K, Q), or p.
    """
    init, name = options.init, form.name
    shapes = form.shapes(problem.dx, problem.dz, options.m or min(problem.dx, problem.dz))
    if isinstance(init, str):
        return _named_start(data, form, shapes, options)
    if name == "KQ":
        if not (isinstance(init, tuple) and len(init) == 2):
            raise ValueError("init for parameterization 'KQ' must be a name or a pair (K, Q)")
        return {n: _given(problem, n, value, shapes[n], data) for n, value in zip("KQ", init, strict=True)}
    (only,) = shapes
    return {only: _given(problem, "init", init, shapes[only], data)}


def _given(problem: AttentionProblem, name: str, value: Any, shape: tuple[int, ...], data: TensorProblem) -> Tensor:
    array = real_array(name, value)
    lead = () if problem.batch is None else (problem.batch,)
    if array.shape not in (shape, (*lead, *shape)):
        raise ValueError(f"{name} must have shape {(*lead, *shape)}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    tensor = torch.tensor(array, dtype=data.X.dtype, device=data.X.device)
    return tensor.expand(data.batch, *shape).clone() if tensor.ndim == len(shape) else tensor


def _named_start(
    data: TensorProblem, form: Parameterization, shapes: dict[str, tuple[int, ...]], options: TrainOptions
) -> Parameters:
    if options.init == "zero":
        if form.name == "KQ":
            raise ValueError("init='zero' is a stationary point of (K, Q): start from init='uniform' or give (K, Q)")
        return {n: data.X.new_zeros(data.batch, *shape) for n, shape in shapes.items()}
    if options.init == "uniform":
        rng = generator(options.seed)
        fan_in = {n: shape[-1] if n == "W" else shape[0] for n, shape in shapes.items()}
        return {n: _uniform(data, shape, fan_in[n] ** -0.5, rng) for n, shape in shapes.items()}
    if options.init == "separating" and form.name == "W":
        return {"W": separating_init(data, get_loss(options.loss), options.radius)}
    raise ValueError(
        "init must be 'zero', 'uniform', 'separating' (parameterization 'W' only) or arrays, "
        f"got {options.init!r} with parameterization {form.name!r}"
    )


def _uniform(data: TensorProblem, shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    # Drawn by NumPy, so that a seed gives the same start on every device.
    draw = rng.uniform(-bound, bound, size=(data.batch, *shape))
    return torch.tensor(draw, dtype=data.X.dtype, device=data.X.device)


def _vectors(problem: AttentionProblem) -> tuple[int, ...]:
    """One token per problem: the gradient of a linear head there is v."""
    return (problem.dx,) if problem.batch is None else (problem.batch, problem.dx)


def separating_init(data: TensorProblem, loss: Loss, radius: float) -> Tensor:
    """``-radius * grad L(0) / |grad L(0)|``, the first step of Theorem 4 (Assumption C asks that it separates)."""
    B, dx, dz = data.batch, data.X.shape[-1], data.Z.shape[-1]
    zero = torch.zeros(B, dx, dz, dtype=data.X.dtype, device=data.X.device)
    direction = scaled_gradient(data, zero, loss).direction
    size = direction.flatten(1).norm(dim=1)
    return -radius * direction / torch.where(size > 0, size, 1.0)[:, None, None]


def cone_init(
    direction: npt.ArrayLike, radius: float, correlation: float = 0.99, seed: int | np.random.Generator = 0
) -> npt.NDArray[np.float64]:
    """A random W of given norm at a given correlation with a direction (the start of Theorem 5).

    Parameters
    ----------
    direction : array_like, shape (dx, dz) or (batch, dx, dz)
    radius : float
        Frobenius norm of the result.
    correlation : float in (-1, 1]
        ``<W, direction> / (|W| |direction|)``.
    seed : int or Generator

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.training import cone_init
    >>> W = cone_init(np.eye(3), radius=10.0, correlation=0.9)
    >>> round(float(np.linalg.norm(W)), 6), round(float(np.trace(W) / np.sqrt(3) / 10), 6)
    (10.0, 0.9)
    """
    D = real_array("direction", direction).astype(np.float64)
    if not (radius > 0 and -1 < correlation <= 1):
        raise ValueError(f"radius must be positive and correlation in (-1, 1], got {radius} and {correlation}")
    rng = generator(seed)
    axes = (-2, -1)
    D = D / np.linalg.norm(D, axis=axes, keepdims=True)
    if correlation < 1 and D.shape[-1] * D.shape[-2] < 2:
        raise ValueError(f"direction has one entry: nothing is at correlation {correlation} with it")
    noise = _orthogonal(rng, D) if correlation < 1 else np.zeros_like(D)
    return np.asarray(radius * (correlation * D + np.sqrt(1 - correlation**2) * noise))


def _orthogonal(rng: np.random.Generator, D: np.ndarray) -> np.ndarray:
    """Random matrices of norm 1 orthogonal to those of D, which have norm 1.

    Drawn again while little more than rounding is left: a direction drawn from the same seed is the first draw itself.
    """
    axes = (-2, -1)
    noise = np.zeros_like(D)
    short = np.ones(D.shape[:-2], dtype=bool)
    while short.any():
        drawn = rng.standard_normal(D.shape)
        left = drawn - (drawn * D).sum(axis=axes, keepdims=True) * D
        noise = np.where(short[..., None, None], left, noise)
        short &= np.linalg.norm(left, axis=axes) < 1e-3 * np.linalg.norm(drawn, axis=axes)
    noise -= (noise * D).sum(axis=axes, keepdims=True) * D
    return np.asarray(noise / np.linalg.norm(noise, axis=axes, keepdims=True))


def initial_head(problem: AttentionProblem, data: TensorProblem, options: TrainOptions) -> Parameters:
    """The v of a head that is trained, at step 0; nothing otherwise."""
    if not options.train_head:
        return {}
    head = problem.head
    if head is None or not head.is_linear:
        raise ValueError(f"train_head=True trains a LinearHead, got {'no head' if head is None else head.name}")
    given = options.head_init
    if isinstance(given, str):
        given = np.zeros(problem.dx) if given == "zero" else np.asarray(head.gradient(np.zeros(_vectors(problem))))
    return {"head.v": _given(problem, "head_init", given, (problem.dx,), data)}
