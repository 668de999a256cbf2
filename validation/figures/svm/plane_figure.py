"""Figure 1: paths of gradient descent on W and on (K, Q) towards their SVM directions, in the plane."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, LinearHead
from attsvm.comparison import misalignment
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, mean_of, subplots

_EPS = float(np.log(np.finfo(np.float64).eps))

# (K, Q) as published normalizes each factor's gradient and has a ridge of the machine epsilon.
METHODS: dict[str, dict[str, Any]] = {
    "W": {},
    "W, published arithmetic": {"arithmetic": "naive"},
    "(K, Q), ridge 2.2e-16": {"optimizer": "normalized_gd", "normalization": "factor", "log_ridge": _EPS},
    "(K, Q), ridge e^-300": {"optimizer": "normalized_gd", "normalization": "factor", "log_ridge": -300.0},
}

_SHOWN = {"W": "(a) W", "(K, Q), ridge 2.2e-16": "(b) (K, Q)"}


def plane_problem() -> AttentionProblem:
    """Two sequences of five tokens in the plane, placed by hand so that the two norms have different solutions.

    Examples
    --------
    >>> plane_problem().optimal_tokens().indices
    array([0, 0])
    """
    X = np.array([
        [[-1.1, 0.95], [-0.6, 0.55], [-0.8, 0.65], [-0.9, -0.1], [-0.4, -0.4]],
        [[1.2, 0.8], [0.5, 0.5], [0.9, 0.1], [0.3, 0.2], [0.6, -0.5]],
    ])  # fmt: skip
    angles = np.deg2rad([20.0, 80.0])
    Z = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return AttentionProblem(X, np.ones(2), Z, LinearHead(np.array([0.0, 1.0])))


def paths(
    trials: int, seed: int, *, method: str, steps: int, marks: list[int], device: str | None = None
) -> dict[str, Any]:
    """Train from ``trials`` starts: 1 - corr with both SVM directions at the marked steps, and the path of W.

    W starts at 0, so that all its trials are equal; (K, Q) from Q = 0 and K = 0.1 times Gaussian.

    Examples
    --------
    >>> found = paths(2, 0, method="(K, Q), ridge 2.2e-16", steps=200, marks=[100, 200])
    >>> [len(errors) for errors in found["nuclear"]]
    [2, 2]
    """
    problem = plane_problem()
    factors = method.startswith("(K, Q)")
    starts = trials if factors else 1
    batch = AttentionProblem(
        np.repeat(problem.X[None], starts, axis=0), np.repeat(problem.Y[None], starts, axis=0),
        np.repeat(problem.Z[None], starts, axis=0), problem.head,
    )  # fmt: skip
    K = 0.1 * np.random.default_rng(seed).standard_normal((starts, 2, 2))
    kept = sorted({*marks, *np.geomspace(1, steps, 40).round().astype(int).tolist()})
    run = attsvm.train(
        batch, "KQ" if factors else "W", steps=steps, lr=0.1, init=(K, np.zeros_like(K)) if factors else "zero",
        snapshots=kept, device=device, **METHODS[method],
    )  # fmt: skip
    at = np.searchsorted(run.history.steps, marks)
    columns: dict[str, Any] = {"path": np.moveaxis(run.history.W, 0, 1)}
    for norm in ("frobenius", "nuclear"):
        columns[norm] = misalignment(run.history.W[at], attsvm.att_svm(problem, norm=norm).W).T
    optimal = problem.optimal_tokens().indices
    columns["selects_optimal"] = (run.selection.indices == optimal).all(axis=-1)
    return {name: np.repeat(np.asarray(values), trials // starts, axis=0) for name, values in columns.items()}


def run(context: Context) -> Outcome:
    """Train with every method and measure the distance from the SVM directions."""
    s = context.settings
    cells = [{"method": m, "steps": s["steps"], "marks": list(s["marks"]), "device": context.device} for m in METHODS]
    found = context.sweep(paths, cells, chunk=s["trials"], name="paths")
    problem = plane_problem()
    solutions = {norm: attsvm.att_svm(problem, norm=norm) for norm in ("frobenius", "nuclear")}
    rows = []
    for cell, columns in found:
        norm = "nuclear" if cell["method"].startswith("(K, Q)") else "frobenius"
        for other in ("frobenius", "nuclear"):
            errors = columns[other]
            rows.append((
                cell["method"], f"{'own' if other == norm else 'other'}: {other}",
                *map(_mean, errors.T), int(columns["selects_optimal"].sum()),
            ))  # fmt: skip
    curves = {
        "X": problem.X, "Z": problem.Z, "optimal": problem.optimal_tokens().indices,
        "solutions": {norm: solution.W for norm, solution in solutions.items()},
        "paths": {method: found.where(method=method)["path"][0] for method in _SHOWN},
    }  # fmt: skip
    ranks = [solution.rank for solution in solutions.values()]
    between = float(misalignment(solutions["frobenius"].W, solutions["nuclear"].W))
    return Outcome(
        tables=[Table("1 - corr with the SVM solution", ("trained", "solution", *(f"{k} steps" for k in s["marks"]),
                      "starts that end at the optimal tokens"), rows)],
        curves=curves,
        notes=[
            "The paper's tokens are placed by hand and not listed in its text; these are others of the same kind.",
            f"The two solutions differ by 1 - corr = {between:.3g} and have ranks {ranks[0]} and {ranks[1]}.",
            "W starts at 0, so that its trials are all the same; (K, Q) has a random start each. Gradients are exact "
            "unless said.",
        ],
    )  # fmt: skip


def _mean(errors: Any) -> Any:
    """Mean with its interval, or the one number that all trials share up to rounding."""
    return float(errors[0]) if np.ptp(errors) <= 1e-12 else mean_of(errors)


def draw(outcome: Outcome) -> Picture:
    """Tokens, SVM directions of both queries with their hyperplanes, and the paths of W z_i."""
    curves = outcome.curves
    X, Z, optimal = (np.asarray(curves[name]) for name in ("X", "Z", "optimal"))
    picture, axes = subplots(1, 2, (10, 4.8), sharex=True, sharey=True)
    reach = 1.2
    for axis, (method, title), norm in zip(axes, _SHOWN.items(), ("frobenius", "nuclear"), strict=True):
        W, path = np.asarray(curves["solutions"][norm]), np.asarray(curves["paths"][method])
        for i, (token, line) in enumerate((("teal", "tab:red"), ("gold", "tab:blue"))):
            axis.scatter(*X[i].T, color=token, edgecolor="0.3", s=45, zorder=3)
            axis.scatter(*X[i, optimal[i]], color=token, edgecolor="black", marker="*", s=260, zorder=4)
            key = W @ Z[i]
            end = reach * key / np.linalg.norm(key)
            axis.plot(
                [0, end[0]], [0, end[1]], "-", color=line, lw=(7, 4)[i], alpha=0.4, label=f"SVM direction, $z_{i + 1}$"
            )
            # The plane half way between the optimal token's similarity and the margin below it.
            foot = (X[i, optimal[i]] @ key - 0.5) * key / (key @ key)
            along = np.array([-key[1], key[0]]) / np.linalg.norm(key)
            axis.axline(foot, foot + along, color=line, ls=":", lw=1.2)
            walk = path[1:] @ Z[i]
            size = np.linalg.norm(walk, axis=1, keepdims=True)
            walk = reach * walk / size * np.log1p(size) / np.log1p(size[-1])  # shows the turns at the start
            axis.plot(*walk.T, color=line, lw=1, marker=".", ms=4, label=f"path, $z_{i + 1}$")
            axis.annotate("", 1.02 * walk[-1], 0.9 * walk[-1], arrowprops={"arrowstyle": "-|>", "color": line})
        axis.set(title=f"{title}: paths towards {'Att-SVM' if norm == 'frobenius' else 'Att-SVM*'}", aspect="equal")
        axis.set(xlim=(-1.7, 1.7), ylim=(-1.4, 1.4))
        axis.legend(fontsize=8, loc="lower left")
    return picture


FIGURE = Figure(
    paper="svm",
    name="fig1",
    title="Paths of W z and K Q^T z towards the SVM directions in the plane",
    protocol="""n = d = m = 2, T = 5, labels 1, cross-attention with queries independent of the tokens, logistic loss,
        normalized gradient descent, lr 0.1, 2,000 steps, W(0) = 0, or Q(0) = 0 and K(0) = 0.1 times Gaussian,
        each factor normalized, ridge 2.2e-16 (as published). The paper does not list its tokens: ours are placed
        by hand as well, such that the solution has rank 2 in the Frobenius and rank 1 in the nuclear norm.
        Added: many starts of (K, Q), a ridge of e^-300, and the published arithmetic for W. Paths are drawn with
        the logarithm of their length.""",
    full={"trials": 100, "steps": 2000, "marks": (100, 500, 2000)},
    quick={"trials": 5, "steps": 500, "marks": (100, 500)},
    run=run,
    draw=draw,
)
