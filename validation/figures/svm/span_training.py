"""Training in the span of the queries: the same descent with fewer numbers.

Logits ``x^T W z_i`` and gradients ``X_i^T g z_i^T`` (15) know W only on the span of the queries. With an orthonormal
basis B of that span, descent on ``W B`` with queries ``B^T z_i`` takes the same steps as descent on W and selects the
same tokens; off the span W stays as it was at the start. For (K, Q) the same holds for ``B^T Q`` until the ridge, of
the size of the machine epsilon, is felt: it then no longer shrinks the part of Q that no logit sees. By that time the
softmax has saturated to about e^-36 and the tokens are settled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.validation.figures.svm.convergence import PUBLISHED_KQ

__all__ = ["in_query_span", "train_in_span"]

FloatArray = npt.NDArray[np.float64]


def in_query_span(problems: attsvm.AttentionProblem) -> tuple[attsvm.AttentionProblem, FloatArray]:
    """Problems with queries in coordinates of their span, and the bases, shape (batch, d, min(n, d)).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.span_training import in_query_span
    >>> reduced, basis = in_query_span(attsvm.random_problem(n=2, T=3, d=7, batch=4))
    >>> reduced.Z.shape, basis.shape
    ((4, 2, 2), (4, 7, 2))
    """
    Z = problems.Z
    if Z.shape[-2] >= Z.shape[-1]:
        return problems, np.broadcast_to(np.eye(Z.shape[-1]), (len(Z), Z.shape[-1], Z.shape[-1]))
    basis = np.linalg.qr(Z.transpose(0, 2, 1)).Q
    return attsvm.AttentionProblem(problems.X, problems.Y, Z @ basis, problems.head), basis


def train_in_span(
    problems: attsvm.AttentionProblem,
    parameterization: str,
    *,
    steps: int,
    seed: int | np.random.Generator,
    lr: float = 0.1,
    device: str | None = None,
) -> attsvm.Run:
    """Normalized gradient descent from uniform(+-1/sqrt(d)) weights, with m = d and the published ridge for (K, Q).

    Returns
    -------
    Run
        Its ``selection`` is that of the full descent; its W has min(n, d) columns.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.span_training import train_in_span
    >>> run = train_in_span(attsvm.random_problem(n=2, T=3, d=7, batch=4), "W", steps=50, seed=0)
    >>> run.W.shape, run.selection.indices.shape
    ((4, 7, 2), (4, 2))
    """
    if parameterization not in ("W", "KQ"):
        raise ValueError(f"parameterization must be 'W' or 'KQ', got {parameterization!r}")
    reduced, basis = in_query_span(problems)
    rng = np.random.default_rng(seed)
    d = problems.dx

    def uniform() -> FloatArray:
        return np.asarray(rng.uniform(-1.0, 1.0, size=(len(problems.X), d, d)) * d**-0.5)

    options: dict[str, Any] = {}
    if parameterization == "W":
        start: Any = uniform() @ basis
    else:
        start, options = (uniform(), basis.transpose(0, 2, 1) @ uniform()), {**PUBLISHED_KQ, "m": d}
    return attsvm.train(
        reduced, parameterization, steps=steps, lr=lr, init=start, device=device, snapshots=[steps], **options
    )
