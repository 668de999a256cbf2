"""Trials shared by the figures that classify where gradient descent ends: Global, Local or Not local.

Descent runs in the span of the queries, with fewer numbers: logits ``x^T W z_i`` and gradients ``X_i^T g z_i^T`` (15)
know W only there. With an orthonormal basis B of that span, descent on ``W B`` with queries ``B^T z_i`` takes the
same steps as descent on W and selects the same tokens; off the span W stays as it was at the start. For (K, Q) the
same holds for ``B^T Q`` until the ridge, of the size of the machine epsilon, is felt: it then no longer shrinks the
part of Q that no logit sees. By that time the softmax has saturated to about e^-36 and the tokens are settled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

import attsvm
from attsvm.optimality import convergence_of
from attsvm.solvers.arrays import FloatArray
from attsvm.theory.support_assumptions import check_all_support

if TYPE_CHECKING:
    from attsvm.training.options import Arithmetic

__all__ = [
    "NORM_OF",
    "ends_of_descent",
    "in_query_span",
    "support_assumption",
    "train_in_span",
]


NORM_OF = {"W": "frobenius", "KQ": "nuclear"}  # the norm whose support decides local optimality


# (K, Q) as published: both factors by their joint gradient, with a ridge of the size of the machine epsilon.
PUBLISHED_KQ: dict[str, Any] = {
    "optimizer": "normalized_gd",
    "normalization": "factor",
    "log_ridge": float(np.log(2.2e-16)),
}


def ends_of_descent(
    trials: int,
    seed: int,
    *,
    n: int,
    T: int,
    d: int,
    parameterization: str,
    steps: int,
    min_score_gap: float | None = 0.1,
    arithmetic: Arithmetic = "log",
    device: str | None = None,
) -> dict[str, Any]:
    """Draw problems, train them, and say of each whether its tokens are globally or locally optimal.

    Local optimality (Definition 2) is judged by the certified solution in the norm of the parameterization.

    Examples
    --------
    >>> from attsvm.validation.figures.svm.descent_trials import ends_of_descent
    >>> ends = ends_of_descent(3, 0, n=2, T=3, d=6, parameterization="W", steps=200)
    >>> len(ends["is_global"]), all(ends["is_local"])
    (3, True)
    """
    rng = np.random.default_rng(seed)
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=rng, min_score_gap=min_score_gap)
    options = PUBLISHED_KQ if parameterization == "KQ" else {}
    run = attsvm.train(
        problems, parameterization, steps=steps, lr=0.1, seed=rng, arithmetic=arithmetic, device=device,
        snapshots=[steps], **options,
    )  # fmt: skip
    solutions = attsvm.att_svm(problems, run.selection, norm=NORM_OF[parameterization])
    kinds = convergence_of(solutions)
    return {
        "is_global": kinds == "Global",
        "is_local": np.array([kind.is_local for kind in kinds]),
        "undecided": kinds == "Undecided",
        "saturated": run.history.log_rest[-1] < np.log(1e-6),
        "margin": solutions.margin,
        "empty_support": (solutions.support.sum(axis=-1) == 0).any(axis=-1),
    }


def support_assumption(trials: int, seed: int, *, n: int, T: int, d: int, min_score_gap: float = 0.1) -> dict[str, Any]:
    """Assumption B.1 for the optimal tokens: exactly, and by the published proxy (average margin below 1.1).

    Examples
    --------
    >>> from attsvm.validation.figures.svm.descent_trials import support_assumption
    >>> found = support_assumption(2, 0, n=2, T=3, d=30)
    >>> sorted(found)
    ['exact', 'feasible', 'proxy']
    """
    problems = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed, min_score_gap=min_score_gap)
    solutions = attsvm.att_svm(problems)
    checks = [check_all_support(solution) for solution in solutions]
    return {
        "feasible": [status is attsvm.Status.OPTIMAL for status in solutions.status],
        "exact": [exact.verdict == "holds" for exact, _ in checks],
        "proxy": [proxy.verdict == "holds" for _, proxy in checks],
    }


def in_query_span(problems: attsvm.AttentionProblem) -> tuple[attsvm.AttentionProblem, FloatArray]:
    """Problems with queries in coordinates of their span, and the bases, shape (batch, d, min(n, d)).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.validation.figures.svm.descent_trials import in_query_span
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
    >>> from attsvm.validation.figures.svm.descent_trials import train_in_span
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
