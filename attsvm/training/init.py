"""Where training starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm._arrays import real_array
from attsvm.problem import AttentionProblem
from attsvm.training.data import TensorProblem
from attsvm.training.gradient import scaled_gradient
from attsvm.training.parameters import Parameters

__all__ = ["cone_init", "initial_parameters", "separating_init"]


def cone_init(
    direction: Any, radius: float, correlation: float = 0.99, seed: int | np.random.Generator = 0
) -> np.ndarray:
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
    rng = np.random.default_rng(seed)
    axes = (-2, -1)
    D = D / np.linalg.norm(D, axis=axes, keepdims=True)
    noise = rng.standard_normal(D.shape)
    noise -= (noise * D).sum(axis=axes, keepdims=True) * D
    noise /= np.linalg.norm(noise, axis=axes, keepdims=True)
    return np.asarray(radius * (correlation * D + np.sqrt(1 - correlation**2) * noise))


def separating_init(data: TensorProblem, loss: str, radius: float) -> Tensor:
    """``-radius * grad L(0) / |grad L(0)|``, the first step of Theorem 4 (Assumption C asks that it separates)."""
    B, dx, dz = data.batch, data.X.shape[-1], data.Z.shape[-1]
    zero = torch.zeros(B, dx, dz, dtype=data.X.dtype, device=data.X.device)
    direction = scaled_gradient(data, zero, loss).direction
    size = direction.flatten(1).norm(dim=1)
    return -radius * direction / torch.where(size > 0, size, 1.0)[:, None, None]


def _given(problem: AttentionProblem, name: str, value: Any, shape: tuple[int, ...], data: TensorProblem) -> Tensor:
    array = real_array(name, value)
    lead = () if problem.batch is None else (problem.batch,)
    if array.shape not in (shape, (*lead, *shape)):
        raise ValueError(f"{name} must have shape {(*lead, *shape)}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    tensor = torch.tensor(array, dtype=data.X.dtype, device=data.X.device)
    return tensor.expand(data.batch, *shape).clone() if tensor.ndim == len(shape) else tensor


def _uniform(data: TensorProblem, shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    # Drawn by NumPy, so that a seed gives the same start on every device.
    draw = rng.uniform(-bound, bound, size=(data.batch, *shape))
    return torch.tensor(draw, dtype=data.X.dtype, device=data.X.device)


def initial_parameters(
    problem: AttentionProblem,
    data: TensorProblem,
    parameterization: str,
    init: Any,
    *,
    m: int,
    loss: str,
    radius: float,
    seed: int | np.random.Generator,
    prompt_dim: int,
) -> Parameters:
    """Parameters at step 0.

    ``init`` is "zero", "uniform" (every entry uniform in ``+-1/sqrt(fan_in)``, what torch's Linear layers do),
    "separating" (Theorem 4's first step of length ``radius``, W only), or arrays: W, or the pair (K, Q), or p.
    """
    rng = np.random.default_rng(seed)
    dx, dz = problem.dx, problem.dz
    shapes: dict[str, tuple[int, ...]] = {
        "W": {"W": (dx, dz)},
        "KQ": {"K": (dx, m), "Q": (dz, m)},
        "prompt": {"p": (prompt_dim,)},
    }[parameterization]  # type: ignore[assignment]
    if isinstance(init, str):
        if init == "zero":
            if parameterization == "KQ":
                raise ValueError(
                    "init='zero' is a stationary point of (K, Q): start from init='uniform' or give (K, Q)"
                )
            return {n: torch.zeros(data.batch, *s, dtype=data.X.dtype, device=data.X.device) for n, s in shapes.items()}
        if init == "uniform":
            fan_in = {"W": dz, "K": dx, "Q": dz, "p": prompt_dim}
            return {n: _uniform(data, s, fan_in[n] ** -0.5, rng) for n, s in shapes.items()}
        if init == "separating" and parameterization == "W":
            return {"W": separating_init(data, loss, radius)}
        raise ValueError(
            "init must be 'zero', 'uniform', 'separating' (parameterization 'W' only) or arrays, "
            f"got {init!r} with parameterization {parameterization!r}"
        )
    if parameterization == "KQ":
        if not (isinstance(init, tuple) and len(init) == 2):
            raise ValueError("init for parameterization 'KQ' must be a name or a pair (K, Q)")
        return {n: _given(problem, n, value, shapes[n], data) for n, value in zip("KQ", init, strict=True)}
    (name,) = shapes
    return {name: _given(problem, "init", init, shapes[name], data)}
