"""Cases of what a solved problem can do: derivatives against differences of solves, files against their checker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attsvm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.certificate_judge import checker
from attsvm.validation.matrix import EXPRESSIONS
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case
from attsvm.validation.matrix_calls.tensor_calls import differences

__all__: list[str] = []

_AGREE = 1e-2
_SMOOTH = ("frobenius", "nuclear")
_WRITTEN = ("frobenius", "nuclear", "spectral", "l1", "linf")


def _solved(call: Call, X: FloatArray, Z: FloatArray, selection: Any) -> Any:
    return attsvm.att_svm(attsvm.AttentionProblem(X, Z=Z), selection, norm=call["norm"], **call.options(C=100.0))


def _drawn(call: Call) -> tuple[FloatArray, FloatArray, Any, dict[str, FloatArray]]:
    """Tokens, queries, selection, and a direction in both."""
    n, T, d = call.pick((2, 3, 3), (4, 5, 6), (6, 8, 10))
    problem = attsvm.random_problem(n=n, T=T, d=d, batch=call.batch, seed=int(call.rng.integers(1 << 30)))
    along = {name: call.rng.normal(size=getattr(problem, name).shape) for name in ("X", "Z")}
    X, Z = (np.asarray(part, dtype=np.float64) for part in (problem.X, problem.Z))
    return X, Z, problem.optimal_tokens(), along


def _compared(slope: float, tried: list[float]) -> Iterator[str]:
    if min(abs(slope - one) for one in tried) > _AGREE * max(1.0, abs(slope)):
        yield f"the slope is {slope:.6g}, differences give {', '.join(f'{x:.6g}' for x in tried)}"


@case(
    "attsvm.solution.Solution.sensitivity", forms=FORMS, words={"norm": tuple(EXPRESSIONS), "C": (None, GIVEN)},
    work=20_000,
)  # fmt: skip
def _sensitivity(call: Call) -> Iterator[str]:
    """The slope of the optimal value along a direction; with ``query_tokens`` the queries move with their tokens."""
    X, Z, selection, along = _drawn(call)
    tied = call.given("query_tokens")
    if tied:
        Z = X[..., 0, :]
    solution = _solved(call, X, Z, selection)
    found = call.run(solution.sensitivity, **call.options(query_tokens=0)).gradients

    def value(X: FloatArray, Z: FloatArray) -> float:
        return float(np.sum(_solved(call, X, X[..., 0, :] if tied else Z, selection).certificate.primal_value))

    slope = float((found.X * along["X"]).sum()) + (0.0 if tied else float((found.Z * along["Z"]).sum()))
    yield from _compared(slope, differences(value, {"X": X, "Z": Z}, along))


@case("attsvm.solution.Solution.derivative", words={"norm": _SMOOTH, "C": (None, GIVEN)}, work=40_000)
def _derivative(call: Call) -> Iterator[str]:
    """Its products both ways, against differences of W."""
    X, Z, selection, along = _drawn(call)
    solution = _solved(call, X, Z, selection)
    weights = call.rng.normal(size=solution.W.shape)
    found = call.run(solution.derivative)
    back, ahead = call.run(found.vjp, weights), call.run(found.jvp, X=along["X"], Z=along["Z"])

    def value(X: FloatArray, Z: FloatArray) -> float:
        return float((weights * _solved(call, X, Z, selection).W).sum())

    tried = differences(value, {"X": X, "Z": Z}, along)
    yield from _compared(float((back.X * along["X"]).sum() + (back.Z * along["Z"]).sum()), tried)
    yield from _compared(float((weights * ahead).sum()), tried)


def _accepted(call: Call, save: Any, wanted: str) -> Iterator[str]:
    """The file as its checker reads it."""
    file = call.folder / "proof.json"
    claims = call.run(save, file)
    module = checker()
    try:
        module.check(module.read(file))
    except module.Refused as error:
        yield f"the checker refuses what was written: {error}"
    if wanted not in claims:
        yield f"claims {claims}, wanted {wanted!r}"


def _save_refused(row: Row) -> bool:
    return row["norm"] not in _WRITTEN and row["feasible"]  # a contradiction is one in every norm


@case(
    "attsvm.solvers.Certificate.save", words={"norm": (*_WRITTEN, "l3"), "feasible": (True, False)},
    refused=_save_refused, work=100_000,
)  # fmt: skip
def _save(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 3), (3, 4, 4), (4, 4, 5)) if call["feasible"] else (6, 5, 1)
    rng = np.random.default_rng(call.seed)
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, distribution="gaussian")
    selection = np.einsum("ntd,de,ne->nt", problem.X, rng.normal(size=(d, d)), problem.Z).argmax(axis=-1)
    if not call["feasible"]:  # the same query with two answers
        problem = attsvm.AttentionProblem(np.stack([problem.X[0]] * 2), Z=np.stack([problem.Z[0]] * 2))
        selection = np.array([0, 1])
    solution = attsvm.att_svm(problem, selection, norm=call["norm"])
    yield from _accepted(call, solution.certificate.save, "optimal" if call["feasible"] else "infeasible")


@case(
    "attsvm.enumeration.LocalOptima.save_certificate", words={"norm": _SMOOTH},
    refused=lambda row: row["norm"] != "frobenius", work=200_000,
)  # fmt: skip
def _save_listing(call: Call) -> Iterator[str]:
    problem = attsvm.random_problem(*call.pick((2, 3, 3), (2, 4, 3), (3, 3, 3)), seed=call.seed)
    found = attsvm.locally_optimal_selections(problem, norm=call["norm"])
    yield from _accepted(call, found.save_certificate, "complete listing")
