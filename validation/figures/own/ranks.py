"""Ranks of Att-SVM* solutions: what loose solves report against what a certificate proves."""

from __future__ import annotations

from typing import Any

import attsvm
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table, mean_of
from attsvm.validation.figures.svm.ranks_published import published_rank

__all__ = ["FIGURE", "rank_trials", "run"]

_LABELS = {
    "published_scs": "published protocol (tol 1e-7, default accuracy), SCS",
    "published_clarabel": "published protocol (tol 1e-7, default accuracy), CLARABEL",
    "numerical": "numerical rank of a certified solve",
    "certified": "certified rank (dual singular values equal to 1)",
}


def rank_trials(trials: int, _: int, *, draw: int, n: int, T: int, d: int) -> dict[str, Any]:
    """Ranks by the published protocol with two solvers, and certified; problem seeds from ``draw`` on.

    None where the draw is infeasible (the published code counts it as rank 1).

    Examples
    --------
    >>> from attsvm.validation.figures.own.ranks import rank_trials
    >>> found = rank_trials(1, 0, draw=0, n=3, T=3, d=5)
    >>> found["certified"] == found["numerical"]
    True
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        certificate = attsvm.att_svm(problem, norm="nuclear").certificate
        rank = certificate.rank_certificate
        if rank is None:
            return dict.fromkeys((*_LABELS, "gap", "singular_gap"))
        published = {f"published_{solver.lower()}": published_rank(problem, solver) for solver in ("SCS", "CLARABEL")}
        found = {"numerical": rank.numerical_rank, "certified": rank.rank, "singular_gap": rank.singular_gap}
        return {**published, **found, "gap": certificate.gap}

    return columns_of(row(draw + k) for k in range(trials))


def run(context: Context) -> Outcome:
    """Mean ranks over the feasible draws."""
    s = context.settings
    size = {name: s[name] for name in ("n", "T", "d")}
    cells = [{"draw": draw, **size} for draw in range(context.seed, context.seed + s["trials"])]
    found = context.sweep(rank_trials, cells, 1, chunk=1, name="ranks").columns
    kept = [{name: values[0] for name, values in c.items()} for c in found if c["certified"][0] is not None]
    if not kept:
        raise ValueError(f"every draw was infeasible at {size}; raise d")
    values = {name: [row[name] for row in kept] for name in kept[0]}
    equal = sum(row["certified"] == row["numerical"] for row in kept)
    title = f"Mean rank of Att-SVM* solutions, n={s['n']}, T={s['T']}, d={s['d']}, {len(kept)} feasible draws"
    rows = [(label, mean_of(values[name]), max(values[name])) for name, label in _LABELS.items()]
    note = (
        f"certified = numerical in {equal} of {len(kept)}; worst relative gap {max(values['gap']):.0e}; smallest "
        f"singular-value gap {min(values['singular_gap']):.0e}"
    )
    return Outcome([Table(title, ("", "mean", "largest"), rows)], {"rows": kept}, [note])


FIGURE = Figure(
    paper="own",
    name="ranks",
    title="Published and certified ranks of Att-SVM* solutions",
    protocol="""The published protocol solves at the modelling package's default accuracy, one constraint object per
        row, and counts singular values above an absolute 1e-7. Optimal tokens, unit sphere, one problem per seed
        from SEED on; infeasible draws are dropped.""",
    full={"trials": 100, "n": 15, "T": 5, "d": 20},
    quick={"trials": 3, "n": 8, "T": 4, "d": 10},
    run=run,
)
