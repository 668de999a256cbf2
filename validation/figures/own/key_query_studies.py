"""Which margin problem (K, Q) follows under each optimizer, and the problems themselves beside models in cvxpy."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.comparison import angle, misalignment
from attsvm.records import median_of
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.figures.figure import Context, Figure, Outcome, Table

NORMS = ("frobenius", "nuclear", "spectral", "linf")


def token_rows(problem: attsvm.AttentionProblem, selection: npt.ArrayLike) -> FloatArray:
    """The matrices ``(x_alpha - x_t) z^T`` of every sequence and other token, shape (n (T - 1), dx, dz).

    Examples
    --------
    >>> token_rows(attsvm.random_problem(n=2, T=4, d=3), [0, 1]).shape
    (6, 3, 3)
    """
    X, Z, chosen = np.asarray(problem.X), np.asarray(problem.Z), np.asarray(selection)
    return np.array(
        [np.outer(X[i, a] - X[i, t], Z[i]) for i, a in enumerate(chosen) for t in range(X.shape[1]) if t != a]
    )


# -- the problems as semidefinite programs -----------------------------------------------------------------------------


def _lifted(rows: FloatArray, soft: bool = False) -> tuple[Any, Any, list[Any], Any]:
    """A positive semidefinite matrix [[P, W], [W^T, R]], its blocks and margins row by row, with slacks if soft."""
    import cvxpy as cp

    m, dx, dz = rows.shape
    lifted = cp.Variable((dx + dz, dx + dz), PSD=True)
    slack = cp.Variable(m, nonneg=True) if soft else np.zeros(m)
    W = lifted[:dx, dx:]
    return lifted, W, [cp.sum(cp.multiply(rows[r], W)) >= 1 - slack[r] for r in range(m)], slack


def _solved(objective: Any, constraints: list[Any]) -> float:
    import cvxpy as cp

    accuracy = dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), 1e-10)
    model = cp.Problem(cp.Minimize(objective), constraints)
    model.solve(solver=cp.CLARABEL, **accuracy)
    return float(model.value)


def _least_trace(rows: FloatArray) -> float:
    import cvxpy as cp

    lifted, _, margins, _ = _lifted(rows)
    return _solved(cp.trace(lifted) / 2, margins)


def _least_spectral(rows: FloatArray) -> float:
    import cvxpy as cp

    lifted, _, margins, _ = _lifted(rows)
    dx, t = rows.shape[1], cp.Variable()
    dz = rows.shape[2]
    fixed = [lifted[:dx, :dx] == t * np.eye(dx), lifted[dx:, dx:] == t * np.eye(dz)]
    return _solved(t, [*margins, *fixed])


def _soft_trace(rows: FloatArray) -> float:
    import cvxpy as cp

    lifted, _, margins, slack = _lifted(rows, soft=True)
    return _solved(cp.trace(lifted) / 2 + _C * cp.sum(slack), margins)


def _gamma_2(rows: FloatArray) -> float:
    import cvxpy as cp

    lifted, _, margins, _ = _lifted(rows)
    t = cp.Variable()
    return _solved(t, [*margins, cp.diag(lifted) <= t])


_C = 0.05  # weight of the slacks of the soft margin: some are positive, some are not


def _soft_value(problem: attsvm.AttentionProblem, chosen: npt.ArrayLike) -> float:
    solution = attsvm.att_svm(problem, chosen, norm="nuclear", C=_C, slack="row")
    return float(get_norm("nuclear")(solution.W) + _C * np.sum(solution.slacks))


def _hard_value(norm: str) -> Callable[[attsvm.AttentionProblem, npt.ArrayLike], float]:
    return lambda problem, chosen: float(attsvm.att_svm(problem, chosen, norm=norm).norm)


class Program(NamedTuple):
    """A problem: what the library answers, and a semidefinite program written constraint by constraint."""

    says: str
    ours: Callable[[attsvm.AttentionProblem, npt.ArrayLike], float]
    model: Callable[[FloatArray], float]


PROGRAMS = {
    "flow": Program("(|K|_F^2 + |Q|_F^2) / 2", _hard_value("nuclear"), _least_trace),
    "muon": Program(
        "max(|K|_op, |Q|_op)^2, and |W|_op of compositional Muon", _hard_value("spectral"), _least_spectral
    ),
    "decay": Program("(|K|_F^2 + |Q|_F^2) / 2 + C slacks", _soft_value, _soft_trace),
}


def program_differences(trials: int, _: int, *, draw: int, program: str) -> dict[str, Any]:
    """Relative differences of the library's value from the model's, draw by draw.

    Examples
    --------
    >>> max(program_differences(1, 0, draw=0, program="muon")["difference"]) < 1e-7
    True
    """
    found = []
    for k in range(draw, draw + trials):
        rng = np.random.default_rng(k)
        n, T = int(rng.integers(2, 5)), int(rng.integers(3, 6))
        problem = attsvm.random_problem(n=n, T=T, d=int(rng.integers(n + 1, n + 4)), seed=k)
        chosen = rng.integers(0, T, size=n)
        model = PROGRAMS[program].model(token_rows(problem, chosen))
        found.append(abs(PROGRAMS[program].ours(problem, chosen) / model - 1))
    return {"difference": found}


def run_programs(context: Context) -> Outcome:
    """The largest difference of each program over the draws."""
    trials = context.settings["trials"]
    cells = [{"draw": context.seed, "program": name} for name in PROGRAMS]
    columns = context.sweep(program_differences, cells, chunk=trials, name="programs").columns
    worst = {name: float(np.max(c["difference"])) for name, c in zip(PROGRAMS, columns, strict=True)}
    rows = [(name, PROGRAMS[name].says, f"{value:.1e}") for name, value in worst.items()]
    refuted = [f"{name} differs from its model by {value:.1e}" for name, value in worst.items() if not value < 1e-7]
    title = f"Least values of the problems of (K, Q), {trials} draws: largest relative difference from cvxpy"
    return Outcome([Table(title, ("problem", "minimized", "difference"), rows)], worst, [], refuted)


FIGURE_PROGRAMS = Figure(
    paper="own",
    name="factor_programs",
    title="The margin problems of (K, Q) beside semidefinite programs",
    protocol="""Random problems, n = 2 to 4, T = 3 to 5, d > n, random selections. The models have one constraint per
        token and [[P, W], [W^T, R]] positive semidefinite; least half trace, P = R = t I with least t, and half trace
        plus slacks. CLARABEL at 1e-10.""",
    full={"trials": 200},
    quick={"trials": 2},
    run=run_programs,
)


# -- entries of K and Q ------------------------------------------------------------------------------------------------


def _signs(d: int) -> FloatArray:
    return np.array(np.meshgrid(*[[1.0, -1.0]] * d, indexing="ij")).reshape(d, -1).T


def _least_projective(rows: FloatArray) -> tuple[float, float]:
    """Least ``sum w_k`` with ``W = sum w_k x_k y_k^T``, x and y signs: a feasible value, a bound from multipliers."""
    from scipy.optimize import linprog

    m, dx, dz = rows.shape
    left, right = _signs(dx), _signs(dz)
    margins = np.einsum("kx,rxy,ly->rkl", left[: len(left) // 2], rows, right, optimize=True).reshape(m, -1)
    found = linprog(np.ones(margins.shape[1]), A_ub=-margins, b_ub=-np.ones(m), method="highs")
    multipliers = np.maximum(-found.ineqlin.marginals, 0.0)
    weights = np.maximum(found.x, 0.0)
    value = float(weights.sum() / (margins @ weights).min())
    return value, float(multipliers.sum() / (multipliers @ margins).max())


def _alternated(rows: FloatArray, K: FloatArray, Q: FloatArray, rounds: int) -> float:
    """``m |K|_max |Q|_max`` at margin 1 after linear programs in K and in Q by turns."""
    best, factors, tensors = np.inf, [K, Q], [rows, rows.transpose(0, 2, 1)]
    for k in range(rounds):
        other = factors[1 - k % 2] / np.abs(factors[1 - k % 2]).max()
        found = _best_factor(tensors[k % 2] @ other)
        if found is None or not np.abs(found).max() < best * (1 - 1e-6):
            break
        factors[k % 2], factors[1 - k % 2] = found, other
        best = float(np.abs(found).max())
    return float(best * K.shape[1])


def _best_factor(linear: FloatArray) -> FloatArray | None:
    """The factor of least largest entry whose inner products with all of ``linear`` (rows, d, m) are at least 1."""
    from scipy.optimize import linprog

    flat = linear.reshape(len(linear), -1)
    # Entries scaled to [-1, 1], the margin maximized.
    cost = np.append(np.zeros(flat.shape[1]), -1.0)
    margins = np.hstack([-flat, np.ones((len(flat), 1))])
    bounds = [(-1.0, 1.0)] * flat.shape[1] + [(None, None)]
    found = linprog(cost, A_ub=margins, b_ub=np.zeros(len(flat)), bounds=bounds, method="highs")
    if found.status != 0 or not found.x[-1] > 1e-12:
        return None
    return np.asarray(found.x[:-1].reshape(linear.shape[1:]) / found.x[-1])


def _gaussians(rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
    return rng.standard_normal(shape), rng.standard_normal(shape)


def entry_bounds(trials: int, seed: int, *, draw: int, starts: int) -> dict[str, Any]:
    """What is known of the least ``m max(|K|_max, |Q|_max)^2``, on the optimal tokens, draw by draw.

    ``linf <= gamma_2 <= projective``, all lower bounds, and ``found``, the best of alternating linear programs from
    random starts, an upper bound.

    Examples
    --------
    >>> found = entry_bounds(1, 0, draw=0, starts=2)
    >>> bool(found["linf"][0] < found["gamma_2"][0] < found["projective"][0] < found["found"][0])
    True
    """
    batch, rng = _problems(trials, draw), np.random.default_rng(seed)
    names = ("linf", "gamma_2", "projective", "gap", "found")
    columns: dict[str, list[float]] = {name: [] for name in names}
    for problem in batch:
        rows = token_rows(problem, problem.optimal_tokens().indices)
        value, bound = _least_projective(rows)
        shape = (problem.dx, problem.dx)
        ends = [_alternated(rows, *_gaussians(rng, shape), 60) for _ in range(starts)]
        known = (float(attsvm.att_svm(problem, norm="linf").norm), _gamma_2(rows), bound, value / bound - 1, min(ends))
        for name, number in zip(names, known, strict=True):
            columns[name].append(number)
    return columns


# -- runs --------------------------------------------------------------------------------------------------------------


class Way(NamedTuple):
    """How (K, Q) is trained: options, start, the size of (K, Q) that is predicted to be least, and what is known."""

    options: dict[str, Any]
    norm: Literal["nuclear", "spectral", "product", "entries"]
    known: str
    start: Literal["uniform", "small", "aligned"] = "uniform"
    decay: bool = False  # of the step, as 1/k after a quarter


_ROOT = {"decay_after": 1, "decay_power": 0.5}  # steps of K Q^T stay about constant
_AS_LINEAR = "conjecture (our derivation)"

WAYS = {
    "gradient flow, aligned start": Way(
        {"optimizer": "flow", "lr": 0.02}, "nuclear", "theorem (abstract of 2403.08699)", "aligned", True
    ),
    "gradient flow, small random start": Way({"optimizer": "flow", "lr": 0.02}, "nuclear", "conjecture", "small", True),
    "gradient descent, aligned start": Way(
        {"optimizer": "gd", "lr": 1.0}, "nuclear", "theorem for the flow (abstract of 2403.08699)", "aligned"
    ),
    "normalized descent": Way({"optimizer": "normalized_gd"}, "nuclear", "conjecture"),
    "ridge e^-200": Way({"optimizer": "ridge_decay"}, "nuclear", "theorem for paths (2308.16898)"),
    "normalized descent, weight decay 0.01": Way(
        {"optimizer": "normalized_gd", "weight_decay": 0.01}, "nuclear", "theorem for paths (2308.16898)", decay=True
    ),
    "Muon on K and Q, no momentum": Way({"optimizer": "spectral", "lr": 0.3, **_ROOT}, "spectral", _AS_LINEAR),
    "the same, weight decay 0.02": Way(
        {"optimizer": "spectral", "lr": 0.02, "weight_decay": 0.02}, "spectral", _AS_LINEAR, decay=True
    ),
    "the same, large steps": Way({"optimizer": "spectral", "lr": 0.05}, "spectral", "-"),
    "Muon on K and Q, momentum 0.95": Way({"optimizer": "muon", "lr": 0.1, **_ROOT}, "spectral", _AS_LINEAR),
    "compositional Muon, half-split": Way({"optimizer": "compositional_muon", "lr": 0.1}, "product", _AS_LINEAR),
    "sign descent on K and Q": Way({"optimizer": "sign", "lr": 0.1, **_ROOT}, "entries", "conjecture"),
    "sign descent, weight decay 0.1": Way(
        {"optimizer": "sign", "lr": 0.004, "weight_decay": 0.1}, "entries", "conjecture", decay=True
    ),
    "Adam": Way({"optimizer": "adam", "lr": 0.1, **_ROOT}, "entries", "conjecture"),
    "AdamW, weight decay 0.1": Way(
        {"optimizer": "adam", "lr": 0.004, "weight_decay": 0.1}, "entries", "conjecture", decay=True
    ),
}


def _problems(trials: int, draw: int) -> attsvm.AttentionProblem:
    return attsvm.random_problem(n=4, T=5, d=6, batch=trials, seed=draw)


def _start(batch: attsvm.AttentionProblem, kind: str, seed: int) -> Any:
    """K and Q at step 0."""
    if kind == "uniform":
        return kind
    if kind == "small":
        K, Q = _gaussians(np.random.default_rng(seed), (len(batch.X), batch.dx, batch.dx))
        return 1e-2 * K, 1e-2 * Q
    from attsvm.losses import get_loss
    from attsvm.training.loop import separating_init
    from attsvm.training.tensors import tensor_problem

    W = separating_init(tensor_problem(batch), get_loss("logistic"), 0.1).numpy()
    U, S, Vt = np.linalg.svd(W)
    return U * np.sqrt(S)[:, None, :], Vt.transpose(0, 2, 1) * np.sqrt(S)[:, None, :]


def _size(norm: str, K: FloatArray, Q: FloatArray) -> float:
    """What the way is predicted to make least at margin 1, as a bound on a norm of W."""
    if norm == "nuclear":
        return float((K**2).sum() + (Q**2).sum()) / 2
    if norm == "spectral":
        return float(max(np.linalg.norm(K, 2), np.linalg.norm(Q, 2)) ** 2)
    if norm == "product":
        return float(np.linalg.norm(K @ Q.T, 2))
    return float(K.shape[1] * max(np.abs(K).max(), np.abs(Q).max()) ** 2)


def _nearest(rows: FloatArray, W: FloatArray, least: float) -> float:
    """Degrees between W and the nearest W' within 1e-5 of the least spectral norm, whose solutions are not unique.

    NaN where the solver gives up: the solutions are a thin cone.
    """
    import cvxpy as cp

    unit, shape = W / np.linalg.norm(W), W.shape
    near, c = cp.Variable(shape), cp.Variable(nonneg=True)
    limits = [cp.sigma_max(near) <= c * least * (1 + 1e-5)]
    limits += [cp.sum(cp.multiply(row, near)) >= c for row in rows]
    model = cp.Problem(cp.Minimize(cp.sum_squares(near - unit)), limits)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of inaccurate answers, which are not used
        try:
            model.solve(solver=cp.CLARABEL)
        except cp.SolverError:
            return float("nan")
    return float(angle(misalignment(unit, near.value))) if model.status == cp.OPTIMAL else float("nan")


def ends_of_way(trials: int, _: int, *, draw: int, way: str, steps: int) -> dict[str, Any]:
    """Angles with the solution in every norm and shares of its margin, shape (trials, norms), for the tokens selected.

    ``own`` is the margin relative to the way's own size of (K, Q), as a share of the largest; ``nearest`` the angle
    with the nearest solution in the spectral norm, for the ways that follow it; ``improved`` what alternating linear
    programs make of ``own``, for those that follow the largest entry; ``best`` whether the tokens are optimal.

    Examples
    --------
    >>> found = ends_of_way(2, 0, draw=0, way="normalized descent", steps=100)
    >>> found["angle"].shape, len(found["own"])
    ((2, 4), 2)
    """
    rule, batch = WAYS[way], _problems(trials, draw)
    schedule: dict[str, Any] = {"decay_after": max(1, steps // 4)} if rule.decay else {}
    start = _start(batch, rule.start, draw)
    run = attsvm.train(batch, "KQ", steps, init=start, seed=draw, snapshots=2, **rule.options, **schedule)
    angles, shares = np.full((2, trials, len(NORMS)), np.nan)
    own, nearest, improved = np.full((3, trials), np.nan)
    for k, norm in enumerate(NORMS):
        solution: Any = attsvm.att_svm(batch, run.selection, norm=norm)
        for b in range(trials):
            if solution.status[b] is not attsvm.Status.OPTIMAL:
                continue
            rows, W = token_rows(batch[b], run.selection[b].indices), run.W[b]
            margin, least = float(np.einsum("rxy,xy->r", rows, W).min()), float(solution.norm[b])
            angles[b, k] = float(angle(misalignment(W, solution.W[b])))
            shares[b, k] = margin / get_norm(norm)(W) * least
            K, Q = run.parameters["K"][b], run.parameters["Q"][b]
            if norm == ("spectral" if rule.norm == "product" else rule.norm):
                own[b] = margin / _size(rule.norm, K, Q) * least
                nearest[b] = _nearest(rows, W, least) if norm == "spectral" else np.nan
            if rule.norm == "entries" and k == 0:
                bound = _least_projective(rows)[1]
                own[b], improved[b] = margin / _size("entries", K, Q) * bound, bound / _alternated(rows, K, Q, 60)
    best = (np.asarray(run.selection) == np.asarray(batch.optimal_tokens())).all(axis=-1)
    return {
        "angle": angles, "share": shares, "own": own, "nearest": nearest, "improved": improved, "best": best,
        "norm": run.history.norm[-1],
    }  # fmt: skip


def inner_dimensions(trials: int, _: int, *, draw: int, m: int, steps: int) -> dict[str, Any]:
    """Share of the largest margin in the spectral norm that Muon without momentum reaches with m columns.

    Examples
    --------
    >>> len(inner_dimensions(2, 0, draw=0, m=2, steps=50)["own"])
    2
    """
    batch, options = _problems(trials, draw), WAYS["Muon on K and Q, no momentum"].options
    run = attsvm.train(batch, "KQ", steps, m=m, seed=draw, snapshots=2, **options)
    least = np.atleast_1d(attsvm.att_svm(batch, run.selection, norm="spectral").norm)
    own = []
    for b in range(trials):
        rows = token_rows(batch[b], run.selection[b].indices)
        margin = float(np.einsum("rxy,xy->r", rows, run.W[b]).min())
        own.append(margin / _size("spectral", run.parameters["K"][b], run.parameters["Q"][b]) * float(least[b]))
    return {"own": own}


def decay_ends(trials: int, _: int, *, draw: int, decay: float, steps: int) -> dict[str, Any]:
    """Normalized and plain descent with weight decay: where they stop.

    ``path``: degrees between W of normalized descent and the minimizer of the loss with
    ``|K|_F^2 + |Q|_F^2 <= 1 / decay^2``; ``star``: with Att-SVM*. For plain descent ``excess`` and ``gap`` measure the
    optimality conditions of ``L(W) + decay |W|_*``: how far the gradient's spectral norm exceeds decay, and
    ``1 + <gradient, W> / (decay |W|_*)``.

    Examples
    --------
    >>> sorted(decay_ends(2, 0, draw=0, decay=0.1, steps=200))
    ['excess', 'gap', 'path', 'star']
    """
    import torch

    from attsvm.training.log_gradient import naive_gradient
    from attsvm.training.tensors import tensor_problem

    batch = _problems(trials, draw)
    shared: dict[str, Any] = {"seed": draw, "snapshots": 2, "weight_decay": decay}
    run = attsvm.train(batch, "KQ", steps, optimizer="normalized_gd", decay_after=max(1, steps // 4), **shared)
    star = attsvm.att_svm(batch, run.selection, norm="nuclear")
    path = np.full(trials, np.nan)
    optimal = (np.asarray(run.selection) == np.asarray(batch.optimal_tokens())).all(axis=-1)
    for b in np.flatnonzero(optimal).tolist():
        best = attsvm.regularization_path(batch[b], [1 / (2 * decay**2)], parameterization="KQ")
        path[b] = float(angle(misalignment(run.W[b], best.W[-1])))
    plain = attsvm.train(batch, "KQ", steps, optimizer="gd", lr=1.0, **shared)
    G = naive_gradient(tensor_problem(batch), torch.tensor(plain.W), "logistic").direction.numpy()
    size = decay * np.linalg.norm(plain.W, "nuc", axis=(1, 2))
    size[size < 1e-6] = np.nan  # a penalty so large that W = 0 is best
    return {
        "path": path, "star": angle(misalignment(run.W, star.W)),
        "excess": np.linalg.norm(G, 2, axis=(1, 2)) / decay - 1, "gap": 1 + (G * plain.W).sum(axis=(1, 2)) / size,
    }  # fmt: skip


# -- the figure --------------------------------------------------------------------------------------------------------


def _verdict(way: Way, own: FloatArray) -> str:
    """Known of the way, and whether these runs agree: the lower end of the median's interval is above 98 %."""
    reached = "reached" if median_of(own).low > 0.98 else "not reached"
    return f"{way.known}; {reached}" if way.known != "-" else reached


def run_factors(context: Context) -> Outcome:
    """Angles and shares of the margin, then the experiments that explain them."""
    s = context.settings
    trials = s["trials"]

    def swept(fn: Any, cells: list[dict[str, Any]], name: str, count: int = trials) -> Any:
        cells = [{"draw": context.seed, **cell} for cell in cells]
        return context.sweep(fn, cells, count, chunk=count, name=name).columns

    found = dict(zip(WAYS, swept(ends_of_way, [{"way": w, "steps": s["steps"]} for w in WAYS], "ways"), strict=True))
    found = {way: {k: np.asarray(v, dtype=float) for k, v in columns.items()} for way, columns in found.items()}
    heads = ("trained by", *NORMS)
    tables = [
        Table(f"{what}: medians of {trials} problems with 95 % intervals", heads, [
            (way, *(str(median_of(found[way][key][:, k])) for k in range(len(NORMS)))) for way in WAYS
        ])
        for key, what in (("angle", "Degrees between W and the SVM"), ("share", "Share of the largest margin of W"))
    ]  # fmt: skip
    tables.append(_own_table(found))
    few = s["few"]
    dims = swept(inner_dimensions, [{"m": m, "steps": s["steps"]} for m in s["columns"]], "columns", few)
    rows = [(m, str(median_of(c["own"]))) for m, c in zip(s["columns"], dims, strict=True)]
    title = f"Muon without momentum with m columns, d = 6, {few} problems"
    tables.append(Table(title, ("m", "share of the largest margin for m >= d"), rows))
    ends = swept(decay_ends, [{"decay": x, "steps": s["steps"]} for x in s["decays"]], "decays", few)
    names = ("path", "star", "excess", "gap")
    columns = ("weight decay", "degrees: path", "degrees: Att-SVM*", "|gradient|_op / decay - 1", "gap")
    tables.append(Table(f"Where weight decay stops, {few} problems", columns, [
        (x, *(str(median_of(c[name])) for name in names)) for x, c in zip(s["decays"], ends, strict=True)
    ]))  # fmt: skip
    (entries,) = swept(entry_bounds, [{"starts": s["starts"]}], "entries", few)
    scaled = {k: np.asarray(entries[k], dtype=float) / np.asarray(entries["projective"], dtype=float)
              for k in ("linf", "gamma_2", "found")}  # fmt: skip
    tables.append(Table(f"Bounds on m max(|K|_max, |Q|_max)^2 relative to the projective norm, {few} problems",
                        ("bound", "median"), [(k, str(median_of(v))) for k, v in scaled.items()]))  # fmt: skip
    gap = float(np.max(entries["gap"]))
    notes = [f"largest relative gap of the linear programs of the projective norm: {gap:.1e}"]
    return Outcome(tables, {way: found[way] for way in WAYS}, notes, _refuted(found) if s["judge"] else [])


def _own_table(found: dict[str, dict[str, FloatArray]]) -> Table:
    rows = []
    for way, rule in WAYS.items():
        c = found[way]
        told = [str(median_of(c[key])) for key in ("own", "nearest", "improved", "norm")]
        reached = int(np.nansum(c["own"] > 0.98))
        rows.append((way, rule.norm, *told, f"{reached} of {int(np.isfinite(c['own']).sum())}",
                     _verdict(rule, c["own"])))  # fmt: skip
    heads = ("trained by", "predicted", "share of its margin by K and Q", "degrees: nearest solution",
             "share after linear programs", "|W|", "above 98 %", "what is known; this run")  # fmt: skip
    return Table("The size of (K, Q) that is predicted to be least", heads, rows)


def _refuted(found: dict[str, dict[str, FloatArray]]) -> list[str]:
    said = []
    for way, rule in WAYS.items():
        if rule.known.startswith("theorem") and rule.options["optimizer"] != "gd":
            nearest = median_of(found[way]["angle"][:, NORMS.index("nuclear")])
            if not nearest.value < 1:
                said.append(f"{way}: {nearest} degrees from Att-SVM*, not below one")
    return said


FIGURE_FACTORS = Figure(
    paper="own",
    name="factors",
    title="Which margin problem (K, Q) follows under each optimizer",
    protocol="""n = 4, T = 5, d = m = 6, logistic loss, exact gradients in the log domain; the problems of
        random_problem(seed=SEED), each with a start of its own: uniform, Gaussian of size 0.01 (small), or balanced
        factors of the negative gradient at W = 0, of length 0.1 (aligned). Flow takes normalized steps of 2 % of the
        length of (K, Q), decaying. Shares and angles are with the problem of the tokens that a run selects.""",
    full={"trials": 50, "steps": 16_000, "few": 12, "columns": [2, 3, 4], "decays": [0.1, 0.03, 0.01],
          "starts": 5, "judge": True},
    quick={"trials": 2, "steps": 60, "few": 2, "columns": [2], "decays": [0.3], "starts": 1, "judge": False},
    run=run_factors,
)  # fmt: skip
