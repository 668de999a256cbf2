"""Exact judges: rational arithmetic on the float data as given (small problems)."""

from attsvm.solvers.exact.feasibility import ExactFeasibility, exact_farkas, exact_feasibility
from attsvm.solvers.exact.least_norm import ExactLeastNorm, exact_least_norm
from attsvm.solvers.exact.linear_programs import ExactPolyhedral, exact_polyhedral
from attsvm.solvers.exact.nuclear import NuclearEnclosure, nearest, nuclear_enclosure, repair
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, exact_rows

__all__ = [
    "ExactFarkas",
    "ExactFeasibility",
    "ExactLeastNorm",
    "ExactPolyhedral",
    "ExactRows",
    "NuclearEnclosure",
    "exact_farkas",
    "exact_feasibility",
    "exact_least_norm",
    "exact_polyhedral",
    "exact_rows",
    "nearest",
    "nuclear_enclosure",
    "repair",
]
