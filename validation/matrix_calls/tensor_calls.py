"""Cases of the functions of tensors: values against the solve of arrays, gradients against differences of values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attsvm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix_calls.call_cases import FORMS, Call, Row, case

__all__ = ["differences"]

# Steps of central differences: values scatter by the gap (1e-8 at most), and kinks of polyhedral norms may be near.
_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
_AGREE = 1e-2

_SKIP = {
    "support_tolerance": "a number; it decides nothing here",
    "rank": "a limited rank has no derivative",
    "warm_start": "where a solve starts changes no derivative",
    "solver": "own methods; certified values do not depend on it",
}


def _soft_refused(row: Row) -> bool:
    """Slack and loss need C."""
    return row["C"] is None and (row["slack"], row["loss"]) != ("query", "hinge")


def _smooth(row: Row) -> bool:
    return row["norm"] in ("frobenius", "nuclear")


def _margin_refused(row: Row) -> bool:
    """With C the margin is a function of W, which has a derivative in two norms."""
    return _soft_refused(row) or (row["C"] is not None and not _smooth(row))


def _matrix_refused(row: Row) -> bool:
    return _soft_refused(row) or not _smooth(row)


def differences(value: Any, inputs: dict[str, Any], directions: dict[str, Any]) -> list[float]:
    """Central differences of a function of named tensors along directions, one for each of several steps.

    Examples
    --------
    >>> import torch
    >>> from attsvm.validation.matrix_calls.tensor_calls import differences
    >>> one = torch.ones(1)
    >>> [round(x, 2) for x in differences(lambda x: (x**2).sum(), {"x": one.double()}, {"x": one})][:2]
    [2.0, 2.0]
    """
    found = []
    for h in _STEPS:
        up, down = (float(value(**{name: inputs[name] + s * h * directions[name] for name in inputs})) for s in (1, -1))
        found.append((up - down) / (2 * h))
    return found


def _known(
    name: str, problem: Any, selection: Any, options: dict[str, Any], inputs: dict[str, Any], weights: FloatArray | None
) -> float:
    """The value of a function, from the solve of arrays."""
    given = {key: inputs[key].numpy() for key in ("offset", "prior") if key in inputs}
    plain = {key: options[key] for key in ("norm", "C", "slack", "loss")} | given
    shown = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, mask=options["mask"])
    solved = attsvm.att_svm(shown, selection, **plain)
    if weights is not None:
        return float((weights * solved.W).sum())
    return float(np.sum(solved.margin if name == "margin" else solved.certificate.primal_value))


def _judged(call: Call, name: str) -> Iterator[str]:
    import torch

    n, T, d = call.pick((2, 3, 3), (4, 5, 6), (6, 8, 10))
    function = getattr(attsvm.torch, name)
    problem = attsvm.random_problem(n=n, T=T, d=d, batch=call.batch, seed=int(call.rng.integers(1 << 30)))
    selection = problem.optimal_tokens().indices
    mask = np.ones((*problem.query_shape, T), dtype=bool)
    if call.given("mask"):  # the last token of the first sequence, unless it is selected
        mask[..., 0, T - 1] = selection[..., 0] == T - 1

    def drawn(shape: tuple[int, ...]) -> Any:
        return torch.tensor(0.1 * call.rng.normal(size=shape))

    inputs = {"X": torch.tensor(problem.X), "Z": torch.tensor(problem.Z)}
    lead = () if call.batch is None else (call.batch,)
    inputs |= {"offset": drawn((*problem.query_shape, T))} if call.given("offset") else {}
    inputs |= {"prior": drawn((*lead, d, d))} if call.given("prior") else {}
    options = call.options("norm", "slack", "loss", C=100.0, mask=mask)
    if name != "att_svm":
        options["degenerate"] = call["degenerate"]
    weights: FloatArray | None = None if name != "att_svm" else call.rng.normal(size=(*lead, d, d))

    def total(X: Any, Z: Any, **others: Any) -> Any:
        found = function(X, Z, torch.tensor(selection), **options, **others)
        return found.sum() if weights is None else (found * torch.tensor(weights)).sum()

    directions = {key: torch.tensor(call.rng.normal(size=tuple(x.shape))) for key, x in inputs.items()}
    leaves: dict[str, Any] = {key: value.clone().requires_grad_() for key, value in inputs.items()}

    def gradient() -> Any:
        value = total(**leaves)
        value.backward()
        return value

    value = call.run(gradient).detach()
    known = _known(name, problem, selection, options, inputs, weights)
    if abs(float(value) - known) > 1e-5 * max(1.0, abs(known)):
        yield f"{name} is {float(value):.9g}, the solve of arrays gives {known:.9g}"
    slope = sum(float((leaves[key].grad * directions[key]).sum()) for key in inputs)
    tried = differences(total, inputs, directions)
    if min(abs(slope - one) for one in tried) > _AGREE * max(1.0, abs(slope)):
        yield f"the gradient along a direction is {slope:.6g}, differences give {', '.join(f'{x:.6g}' for x in tried)}"
    if call.given("mask") and leaves["X"].grad[~torch.tensor(mask)].any():
        yield "a masked token has a gradient"


@case("attsvm.torch.objective", forms=FORMS, skip=_SKIP, refused=_soft_refused)
def _objective(call: Call) -> Iterator[str]:
    yield from _judged(call, "objective")


@case("attsvm.torch.margin", forms=FORMS, skip=_SKIP, refused=_margin_refused)
def _margin(call: Call) -> Iterator[str]:
    yield from _judged(call, "margin")


@case("attsvm.torch.att_svm", forms=FORMS, skip=_SKIP, refused=_matrix_refused)
def _att_svm(call: Call) -> Iterator[str]:
    yield from _judged(call, "att_svm")
