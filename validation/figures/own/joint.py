"""Head and attention trained together: which margin problems they follow, far past underflow."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.joint import JointSolution, compare_joint, joint_path
from attsvm.records import median_of, share_of
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots

__all__ = ["FIGURE", "MODELS", "draw", "paths", "run", "trained"]

_MARKS = (200, 500, 1000, 2000, 5000, 10_000, 20_000, 40_000)
# What is trained, its sizes, and the step size of the head; attention has 0.1.
MODELS: dict[str, dict[str, Any]] = {
    "(v, W), head 5x slower": {"form": "W", "size": (6, 5, 6), "head_lr": 0.02},
    "(v, W), equal steps": {"form": "W", "size": (6, 5, 6), "head_lr": 0.1},
    "(v, W), head 5x faster": {"form": "W", "size": (6, 5, 6), "head_lr": 0.5},
    "(v, p), equal steps": {"form": "prompt", "size": (4, 3, 10), "head_lr": 0.1},
}
_MEASURES = ("head", "attention", "plain", "relaxed")
# A run that is further than this from its prediction at the last step is printed as an exception.
_AWAY = 1e-2
_PATH_AWAY = 1e-3


def _problems(form: str, size: tuple[int, int, int], trials: int, seed: int) -> attsvm.AttentionProblem:
    n, T, d = size
    batch = attsvm.random_problem(n=n, T=T, d=d, batch=trials, seed=seed)
    if form == "W":
        return batch
    return attsvm.AttentionProblem(batch.X, batch.Y, np.ones((trials, n, 1)), batch.head)


def trained(trials: int, seed: int, *, model: str, steps: int) -> dict[str, Any]:
    """1 - corr of v with the label SVM, and of W with three attention SVMs, at the marked steps: (trials, marks).

    ``attention`` is the SVM for the ratio ``|v| / |W|`` of that step, ``plain`` Att-SVM, ``relaxed`` the one of ratio
    inf, all of the tokens selected then. NaN where a problem has no solution. ``settled`` is the first marked step from
    which on the selected tokens stay the same.

    Examples
    --------
    >>> from attsvm.validation.figures.own.joint import trained
    >>> found = trained(1, 0, model="(v, W), equal steps", steps=500)
    >>> found["attention"].shape, bool(found["head"][0, -1] < 0.1)
    ((1, 2), True)
    """
    chosen = MODELS[model]
    batch = _problems(chosen["form"], chosen["size"], trials, seed)
    marks = [k for k in _MARKS if k <= steps]
    run = attsvm.train(
        batch, chosen["form"], steps=steps, train_head=True, head_lr=chosen["head_lr"], snapshots=marks, seed=seed
    )
    at = np.minimum(np.searchsorted(run.history.steps, marks), len(run.history) - 1)  # all may have stopped early
    compared = [compare_joint(run[b], at.tolist()) for b in range(trials)]
    found: dict[str, Any] = {name: np.stack([getattr(c, name) for c in compared]) for name in _MEASURES}
    found["log_rest"] = run.history.log_rest[at].T
    found["settled"] = [marks[_settled(c.solutions)] for c in compared]
    return found | columns_of(_ended(c.solutions[-1]) for c in compared)


def _settled(solutions: tuple[JointSolution, ...]) -> int:
    """The first snapshot from which on the selected tokens are those of the last one."""
    tokens = [solution.selection.indices for solution in solutions]
    others = [k for k, own in enumerate(tokens) if not np.array_equal(own, tokens[-1])]
    return others[-1] + 1 if others else 0


def _ended(solution: JointSolution) -> dict[str, Any]:
    solved = solution.status.has_solution
    return {
        "status": str(solution.status),
        "consistent": solved and solution.is_consistent,
        "support": int(solution.support.sum()) if solved else -1,
    }


def paths(trials: int, seed: int, *, ratio: float, radii: list[float]) -> dict[str, Any]:
    """1 - corr of the pair with `joint_svm` along its regularization path: (trials, radii).

    Examples
    --------
    >>> from attsvm.validation.figures.own.joint import paths
    >>> bool(paths(1, 0, ratio=1.0, radii=[10.0, 160.0])["head"][0, -1] < 1e-2)
    True
    """
    found = [
        joint_path(attsvm.random_problem(n=6, T=5, d=6, seed=seed + k), radii, ratio=ratio, starts=2)
        for k in range(trials)
    ]
    return {
        "head": np.stack([path.head_distance for path in found]),
        "attention": np.stack([path.attention_distance for path in found]),
        "consistent": [_ended(path.predicted[-1])["consistent"] for path in found],
    }


def run(context: Context) -> Outcome:
    """Descent of every model, then paths at three ratios."""
    s = context.settings
    cells = [{"model": name, "steps": s["steps"]} for name in MODELS]
    descents = context.sweep(trained, cells, chunk=s["trials"], name="descent").columns
    both = [{"ratio": ratio, "radii": list(s["radii"])} for ratio in (0.2, 1.0, 5.0)]
    walked = context.sweep(paths, both, s["paths"], chunk=5, name="paths").columns
    marks = [k for k in _MARKS if k <= s["steps"]]
    tables = [
        _descent_table(descents, marks, s["trials"]),
        _course_table(descents, marks),
        _path_table(both, walked),
    ]
    curves = {"steps": marks, "models": list(MODELS)} | {
        name: [np.asarray(found[name], dtype=float) for found in descents] for name in _MEASURES
    }
    return Outcome(tables, curves, [*_notes(descents), *_path_notes(both, walked)])


def _solved(found: Any) -> np.ndarray:
    return np.asarray(np.isfinite(np.asarray(found["attention"], dtype=float)[:, -1]))


def _descent_table(descents: Any, marks: list[int], trials: int) -> Table:
    rows = []
    for name, found in zip(MODELS, descents, strict=True):
        ends = [median_of(np.asarray(found[measure], dtype=float)[:, -1]) for measure in _MEASURES]
        lowered = np.asarray(found["support"]) < MODELS[name]["size"][0]
        rows.append((name, *map(str, ends), str(share_of(lowered)), f"{int(_solved(found).sum())} of {trials}"))
    heads = (
        "model", "v: label SVM", "W: at the run's ratio", "W: Att-SVM", "W: relaxed", "not all support v", "solved",
    )  # fmt: skip
    return Table(f"1 - corr after {marks[-1]} steps: medians over {trials} draws with 95 % intervals", heads, rows)


def _course_table(descents: Any, marks: list[int]) -> Table:
    rows = []
    for name, found in zip(MODELS, descents, strict=True):
        joint = np.asarray(found["attention"], dtype=float)
        rows.append((name, *(f"{np.nanmedian(joint[:, j]):.1e}" for j in range(len(marks)))))
    return Table("W against the SVM at the run's ratio: medians at each step", ("model", *map(str, marks)), rows)


def _path_table(cells: list[dict[str, Any]], walked: Any) -> Table:
    rows = [
        (f"{cell['ratio']:g}", block, *(str(median_of(column)) for column in np.asarray(found[name], dtype=float).T))
        for cell, found in zip(cells, walked, strict=True)
        for block, name in (("v", "head"), ("W", "attention"))
    ]
    heads = ("|v| / |W|", "block", *(f"R = {radius:g}" for radius in cells[0]["radii"]))
    return Table("Regularization path of the pair: 1 - corr with its SVM", heads, rows)


def _notes(descents: Any) -> list[str]:
    notes = []
    for name, found in zip(MODELS, descents, strict=True):
        joint, plain = (np.asarray(found[m], dtype=float)[:, -1] for m in ("attention", "plain"))
        lowered = (np.asarray(found["support"]) < MODELS[name]["size"][0]) & _solved(found)
        nearer = share_of(joint[lowered] < plain[lowered])
        off = np.median(np.asarray(found["log_rest"], dtype=float)[:, -1])
        notes.append(
            f"{name}: where not all support v, W is nearer to the SVM at its ratio than to Att-SVM in {nearer};"
            f" median of the largest probability off the selected tokens: e^{off:.0f}"
        )
        for b in np.flatnonzero(~(joint <= _AWAY)):
            what = f"1 - corr of W {joint[b]:.1e}" if np.isfinite(joint[b]) else f"the SVM is {found['status'][b]}"
            best = "" if found["consistent"][b] else "; some selected token is not the best under v"
            late = found["settled"][b]
            when = f"; its tokens changed after step {_before(late)}" if late > _MARKS[0] else ""
            notes.append(f"exception: {name}, draw {b}: {what}{when}{best}")
    return notes


def _before(mark: int) -> int:
    return max(k for k in _MARKS if k < mark)


def _path_notes(cells: list[dict[str, Any]], walked: Any) -> list[str]:
    """Paths that end away from their prediction, and whether their tokens are the best under v."""
    notes = []
    for cell, found in zip(cells, walked, strict=True):
        last = np.asarray(found["attention"], dtype=float)[:, -1]
        good = np.asarray(found["consistent"], dtype=bool)
        away = ~(last <= _PATH_AWAY)
        if away.any():
            ends = ", ".join(f"{x:.1e}" for x in np.sort(last[away]))
            odd, others = int((away & ~good).sum()), int((~away & ~good).sum())
            notes.append(
                f"paths at ratio {cell['ratio']:g}: {int(away.sum())} of {len(last)} end further than {_PATH_AWAY:g} "
                f"from their SVM ({ends}); selected tokens are not the best under v in {odd} of these and in {others} "
                "of the others"
            )
    return notes


def draw(outcome: Outcome) -> Picture:
    """Medians and quartiles over the steps, one panel per model."""
    c = outcome.curves
    picture, axes = subplots(1, len(c["models"]), size=(3.3 * len(c["models"]), 3.4), sharey=True)
    labels = ("v: label SVM", r"W: at the ratio $|v|/|W|$", "W: Att-SVM", "W: relaxed")
    for k, (axis, name) in enumerate(zip(axes, c["models"], strict=True)):
        for measure, label in zip(_MEASURES, labels, strict=True):
            low, middle, high = np.nanquantile(np.asarray(c[measure][k], dtype=float), (0.25, 0.5, 0.75), axis=0)
            axis.fill_between(c["steps"], low, high, alpha=0.2)
            axis.plot(c["steps"], middle, marker="o", markersize=3, label=label)
        axis.set(xscale="log", yscale="log", xlabel="steps", title=name)
        axis.set_xticks(c["steps"][::2], [f"{k:,}" for k in c["steps"][::2]], minor=False)
        axis.xaxis.minorticks_off()
    axes[0].set(ylabel=r"$1 - $ correlation")
    return finish(picture, [axes[0]], legend=7)


FIGURE = Figure(
    paper="own",
    name="joint",
    title="Head and attention trained together, and the SVMs they follow",
    protocol="""Normalized gradient descent on both blocks at once, logistic loss, attention with lr 0.1, the head from
        the unit vector of random_problem; n = 6, T = 5, d = 6 for (v, W), n = 4, T = 3, d = 10 for (v, p). At each step
        W is compared with the SVM whose rows are lowered for sequences that v classifies better than necessary (at the
        ratio |v| / |W| of that step), with Att-SVM, and with the relaxed SVM in which only support vectors of v need a
        margin; tokens are those selected at that step. Paths: n = 6, T = 5, d = 6, seeds from SEED on.""",
    full={"trials": 100, "steps": 40_000, "paths": 20, "radii": (10.0, 40.0, 160.0, 640.0)},
    quick={"trials": 4, "steps": 1000, "paths": 1, "radii": (10.0, 80.0)},
    run=run,
    draw=draw,
)
