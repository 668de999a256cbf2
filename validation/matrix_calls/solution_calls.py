"""Cases of what follows from solutions: derivatives (also of tensors), certificate files, key dimensions of a head.

Functions of tensors: values against the solve of arrays, gradients against differences of values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import attsvm
from attsvm import key_dimensions
from attsvm.solvers.arrays import FloatArray
from attsvm.trained_head import TrainedHead
from attsvm.validation.certificate_judge import checker
from attsvm.validation.matrix import EXPRESSIONS
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case, close
from attsvm.validation.matrix_calls.svm_calls import slack_refused

# Steps of central differences: values scatter by the gap (1e-8 at most), and kinks of polyhedral norms may be near.
_STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
_AGREE = 1e-2

_SKIP = {
    "support_tolerance": "a number; it decides nothing here",
    "rank": "a limited rank has no derivative",
    "warm_start": "where a solve starts changes no derivative",
    "solver": "own methods; certified values do not depend on it",
}


def _smooth(row: Row) -> bool:
    return row["norm"] in ("frobenius", "nuclear")


def _margin_refused(row: Row) -> bool:
    """With C the margin is a function of W, which has a derivative in two norms."""
    return slack_refused(row) or (row["C"] is not None and not _smooth(row))


def _matrix_refused(row: Row) -> bool:
    return slack_refused(row) or not _smooth(row)


def differences(value: Any, inputs: dict[str, Any], directions: dict[str, Any]) -> list[float]:
    """Central differences of a function of named tensors along directions, one for each of several steps.

    Examples
    --------
    >>> import torch
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
    # Gaps of 1e-7 determine values; W of a nuclear norm only to the root of them.
    accuracy = 3e-4 if weights is not None and call["norm"] == "nuclear" else 1e-5
    if abs(float(value) - known) > accuracy * max(1.0, abs(known)):
        yield f"{name} is {float(value):.9g}, the solve of arrays gives {known:.9g}"
    slope = sum(float((leaves[key].grad * directions[key]).sum()) for key in inputs)
    tried = differences(total, inputs, directions)
    yield from _compared(slope, tried)
    if call.given("mask") and leaves["X"].grad[~torch.tensor(mask)].any():
        yield "a masked token has a gradient"


@case("attsvm.torch.objective", forms=FORMS, skip=_SKIP, refused=slack_refused)
def _objective(call: Call) -> Iterator[str]:
    yield from _judged(call, "objective")


@case("attsvm.torch.margin", forms=FORMS, skip=_SKIP, refused=_margin_refused)
def _margin(call: Call) -> Iterator[str]:
    yield from _judged(call, "margin")


@case("attsvm.torch.att_svm", forms=FORMS, skip=_SKIP, refused=_matrix_refused)
def _att_svm(call: Call) -> Iterator[str]:
    yield from _judged(call, "att_svm")


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


@case("attsvm.key_dimension", words={"head": ("bare", "trained")},
      refused=lambda row: row["head"] == "bare" and row["of"] == "keys", work=300_000)  # fmt: skip
def _key_dimension(call: Call) -> Iterator[str]:
    """Least nuclear norm against cvxpy, selections of the smaller head, and all scores for KQ-SVD."""
    import cvxpy as cp

    n, T, d = call.pick((4, 3, 4), (6, 4, 4), (8, 5, 5))
    rng = call.rng
    head = TrainedHead.from_weights(rng.standard_normal((3, d)), rng.standard_normal((3, d)))
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    other = attsvm.AttentionProblem(rng.standard_normal((2, T, d)), Z=rng.standard_normal((2, d)))
    given: Any = head.W if call["head"] == "bare" else head
    found = call.run(
        attsvm.key_dimension, given, attsvm.AttentionProblem(X, Z=Z),
        **call.options("of", held_out=other, ranks=[2], tolerance=1e-9, time_limit=60.0),
    )  # fmt: skip
    own = np.einsum("ntd,de,ne->nt", X, head.W, Z).argmax(axis=1)
    if (np.einsum("ntd,de,ne->nt", X, found.W, Z).argmax(axis=1) != own).any():
        yield f"a head of rank {found.rank} selects other tokens"
    keys, queries = (X @ head.key_map.T, Z @ head.query_map.T) if call["of"] == "keys" else (X, Z)
    M = cp.Variable((keys.shape[-1], queries.shape[-1]))
    rows = [(keys[i, own[i]] - keys[i, t]) @ M @ queries[i] >= 1 for i in range(n) for t in range(T) if t != own[i]]
    size = cp.Problem(cp.Minimize(cp.normNuc(M)), rows).solve(
        solver="CLARABEL", tol_gap_abs=1e-9, tol_gap_rel=1e-9, tol_feas=1e-9
    )
    yield from close("nuclear norm", found.solution.norm, size, 1e-5)
    scores = X.reshape(-1, d) @ head.W @ Z.T
    U, s, Vt = np.linalg.svd(scores, full_matrices=False)
    nearest = ((U[:, :2] * s[:2]) @ Vt[:2]).reshape(n, T, n)[np.arange(n), :, np.arange(n)]
    row = found.row(2, "kq_svd")
    yield from close("selections of KQ-SVD", row.kept, (nearest.argmax(axis=1) == own).mean())
    attention = [np.exp(s - s.max(axis=1, keepdims=True)) for s in (nearest, np.einsum("ntd,de,ne->nt", X, head.W, Z))]
    one, two = (a / a.sum(axis=1, keepdims=True) for a in attention)
    yield from close("attention of KQ-SVD", row.attention_error, 0.5 * np.abs(one - two).sum(axis=1).mean())
    if call.given("held_out") == np.isnan(row.kept_held_out):
        yield "held-out shares where there are no held-out queries, or none where there are"


@case("attsvm.key_dimensions.kq_svd")
def _kq_svd(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 4), (2, 3, 4), (5, 4, 3))
    X, Z, W = (call.rng.standard_normal(shape) for shape in ((n, T, d), (n, 2, d), (d, d)))
    K, Q = call.run(key_dimensions.kq_svd, attsvm.AttentionProblem(X, Z=Z), W, 2)
    U, s, Vt = np.linalg.svd(X.reshape(-1, d) @ W @ Z.reshape(-1, d).T)
    yield from close("scores", X.reshape(-1, d) @ K.T @ Q @ Z.reshape(-1, d).T, (U[:, :2] * s[:2]) @ Vt[:2])


@case("attsvm.key_dimensions.proved_lead")
def _proved_lead(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 3), (2, 3, 4), (4, 5, 6))
    X, Z, K, Q = (call.rng.standard_normal(shape) for shape in ((n, T, d), (n, d), (2, d), (2, d)))
    chosen = call.rng.integers(0, T, size=n)
    found = call.run(key_dimensions.proved_lead, attsvm.AttentionProblem(X, Z=Z), K, Q, chosen)
    leads = [(X[i, chosen[i]] - X[i, t]) @ K.T @ Q @ Z[i] for i in range(n) for t in range(T) if t != chosen[i]]
    yield from close("least lead", found, min(leads), 1e-12)
    if found > min(leads):
        yield "the proved lead exceeds the computed one"


@case("attsvm.key_dimensions.rank_one_conflict")
def _rank_one_conflict(call: Call) -> Iterator[str]:
    """Where every query sees every token there is a conflict exactly when a sequence has three selections."""
    n, T = call.pick((1, 3), (2, 4), (3, 5))
    chosen = call.rng.integers(0, T, size=(n, 4))
    problem = attsvm.AttentionProblem(call.rng.standard_normal((n, T, 3)), Z=call.rng.standard_normal((n, 4, 3)))
    found = call.run(key_dimensions.rank_one_conflict, problem, chosen)
    if bool(found) != any(len(set(row)) > 2 for row in chosen.tolist()):
        yield f"conflict {found} of selections {chosen.tolist()}"
