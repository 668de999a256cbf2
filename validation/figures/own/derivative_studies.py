"""Whether derivatives through the solve are right: torch's gradcheck, and W against differences of certified solves."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import attsvm
from attsvm.validation.figures.figure import Context, Figure, Outcome, Table

__all__ = ["FIGURE_GRADIENTS", "NORMS_OF_MARGIN", "NORMS_OF_W", "check_gradients", "run_gradients"]

NORMS_OF_MARGIN = ("frobenius", "nuclear", "spectral", "l1", "linf", "l3")
NORMS_OF_W = ("frobenius", "nuclear")
# Steps of gradcheck's central differences, and tolerances of the solves: values scatter by their gap, which is divided
# by the step. In polyhedral norms kinks are nearer, so that steps are shorter and tolerances smaller.
_STEP = {"frobenius": 1e-6, "nuclear": 1e-5, "spectral": 1e-4, "l1": 1e-6, "linf": 1e-6, "l3": 1e-4}
_SOLVE = {"l1": 1e-12, "linf": 1e-12}


def check_gradients(trials: int, seed: int, *, norm: str, of: str) -> dict[str, Any]:
    """Random problems through gradcheck, both modes; of W also against differences of certified solves.

    Columns, one entry per problem: ``passed``, ``degenerate`` (the library refuses: no derivative), and ``difference``
    of the derivative of W along random directions from a fourth-order difference, relative to its largest entry (NaN
    for the margin).

    Examples
    --------
    >>> from attsvm.validation.figures.own.derivative_studies import check_gradients
    >>> check_gradients(1, 0, norm="frobenius", of="W")["passed"]
    [True]
    """
    import torch

    rng, rows = np.random.default_rng(seed), []
    for _ in range(trials):
        n, T, d = (int(x) for x in rng.integers((1, 2, 2), (4, 5, 5)))
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, distribution="gaussian")
        X, Z = (torch.tensor(value, requires_grad=True) for value in (problem.X, problem.Z))
        selection = problem.optimal_tokens()
        if not attsvm.att_svm(problem, selection, norm=norm).status.has_solution:
            continue  # an infeasible draw has no derivative
        function = attsvm.torch.att_svm if of == "W" else attsvm.torch.margin

        def value(X: Any, Z: Any, function: Any = function, selection: Any = selection) -> Any:
            return function(X, Z, selection, norm=norm, tolerance=_SOLVE.get(norm))

        row: dict[str, Any] = {"passed": False, "degenerate": False, "difference": float("nan")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                # Of W in random projections ("fast mode"), forward and backward: all entries would take minutes.
                row["passed"] = torch.autograd.gradcheck(
                    value, (X, Z), eps=_STEP[norm], atol=1e-4, rtol=1e-3, raise_exception=False,
                    fast_mode=of == "W", check_forward_ad=of == "W",
                )  # fmt: skip
                row["difference"] = _difference(problem, selection, norm, rng) if of == "W" else float("nan")
            except attsvm.DegenerateError:
                row["degenerate"] = True
        rows.append(row)
    return {name: [row[name] for row in rows] for name in ("passed", "degenerate", "difference")}


def _difference(problem: attsvm.AttentionProblem, selection: Any, norm: str, rng: np.random.Generator) -> float:
    """Of the derivative of W along random directions from differences of solves, relative to its largest entry."""
    dX, dZ = rng.normal(size=problem.X.shape), rng.normal(size=problem.Z.shape)

    def W(h: float) -> Any:
        moved = attsvm.AttentionProblem(problem.X + h * dX, problem.Y, problem.Z + h * dZ)
        return attsvm.att_svm(moved, selection, norm=norm, tolerance=1e-10).W

    known, best = attsvm.att_svm(problem, selection, norm=norm).derivative().jvp(X=dX, Z=dZ), np.inf
    for h in (1e-4, 1e-5):  # a kink may be nearer than the longer step
        found = (8 * (W(h) - W(-h)) - (W(2 * h) - W(-2 * h))) / (12 * h)
        best = min(best, float(np.abs(found - known).max() / np.abs(known).max()))
    return best


def run_gradients(context: Context) -> Outcome:
    """How many random problems pass, by norm."""
    cells = [{"norm": norm, "of": "margin"} for norm in NORMS_OF_MARGIN]
    cells += [{"norm": norm, "of": "W"} for norm in NORMS_OF_W]
    rows, refuted = [], []
    for cell, columns in context.sweep(check_gradients, cells, chunk=20, name="gradients"):
        passed, degenerate = np.asarray(columns["passed"], bool), np.asarray(columns["degenerate"], bool)
        off = np.asarray(columns["difference"], dtype=np.float64)
        known = off[np.isfinite(off)]
        worst = f"{known.max():.1e}" if len(known) else ""
        within = f"{int((known <= 1e-6).sum())} of {len(known)}" if len(known) else ""
        failed = int((~passed & ~degenerate).sum())
        rows.append(
            (cell["of"], cell["norm"], len(passed), int(passed.sum()), int(degenerate.sum()), failed, within, worst)
        )
        if failed:
            refuted.append(f"gradcheck of {cell['of']}, {cell['norm']}: {failed} of {len(passed)} fail")
        if len(known) and (known > 1e-6).any():
            refuted.append(f"derivative of W to 1e-6, {cell['norm']}: the worst is {known.max():.1e}")
    columns_ = ("of", "norm", "problems", "pass gradcheck", "refused as degenerate", "fail", "W within 1e-6", "worst")
    return Outcome(
        tables=[Table("Gradients at random points", columns_, rows, align="llrrrrrr")], curves={}, refuted=refuted
    )


FIGURE_GRADIENTS = Figure(
    paper="own",
    name="gradients",
    title="Whether the derivatives through the solve are right",
    protocol="""Random problems with Gaussian tokens, n = 1 to 3, T = 2 to 4, d = 2 to 4: torch's gradcheck of the
        margin in six norms and of W in two (random projections, forward and backward mode), and the derivative of W
        along random directions against fourth-order differences of certified solves.""",
    full={"trials": 200},
    quick={"trials": 5},
    run=run_gradients,
)
