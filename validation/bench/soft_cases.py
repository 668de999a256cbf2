"""Cases about soft margins: the matrix of norms and margins, classification, and a realistic size."""

from __future__ import annotations

from attsvm.validation.bench.draws import DrawCase, NumberGoal, later

__all__ = ["SOFT_CASES"]

# How much faster than cvxpy soft margins of small problems are to be, in the median over margins and sizes.
_SOFT_RATIOS = {
    "frobenius": 20.0, "nuclear": 20.0, "spectral": 10.0, "l1": 10.0, "linf": 10.0, "l1.5": 10.0, "l3": 10.0,
}  # fmt: skip

SOFT_CASES: tuple[DrawCase, ...] = (
    DrawCase(
        "matrix",
        "norm x margin x kind x size, alone and in batches, every solver, against cvxpy (one draw is all of it)",
        later("matrix_speed:matrix_agreement"),
        (NumberGoal("no fault", "all norms", "faults", "at most", 0.0, every_draw=True),),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "matrix-speed",
        "Att-SVM, norm x margin x size, alone and in batches of 50, against cvxpy CLARABEL",
        later("matrix_speed:matrix_speed"),
        (
            NumberGoal("every answer proved", "all", "unproved", "at most", 0.0, every_draw=True),
            NumberGoal("never slower than cvxpy", "all", "worst ratio", "at least", 1.0),
            NumberGoal("never slower than cvxpy in batches", "all", "worst ratio in a batch", "at least", 1.0),
            NumberGoal(
                "soft batch <= 5x the hard batch", "all", "worst time of a batch over the hard batch", "at most", 5.0
            ),
            *(
                NumberGoal(f"soft {norm}: {number} >= {bound:g} over cvxpy", f"{norm}, soft", number, "at least", bound)
                for norm, bound in _SOFT_RATIOS.items()
                for number in ("ratio", "ratio in a batch")
            ),
        ),
        slow=True,
        opt_in=True,
    ),
    DrawCase(
        "multiclass",
        "Crammer-Singer SVM of iris, wine and digits, standardized features, against LinearSVC at tolerance 1e-8",
        later("multiclass:multiclass_speed"),
        (
            NumberGoal("no worse than LinearSVC", "all", "largest excess", "at most", 1e-6, every_draw=True),
            NumberGoal("gap <= 1e-8", "all", "gap", "at most", 1e-8, every_draw=True),
        ),
        slow=True,
    ),
    DrawCase(
        "soft-large",
        "soft margin, one slack per query, n = 5,000, T = 20, d = 128, one label in ten wrong",
        later("multiclass:soft_size"),
        (NumberGoal("proved", "attsvm", "unproved", "at most", 0.0, every_draw=True),),
        slow=True,
        opt_in=True,
    ),
)
