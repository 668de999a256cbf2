"""Exact judges: rational arithmetic on the float data as given (small problems)."""

from attsvm.solvers.exact.feasibility import ExactFeasibility, exact_farkas, exact_feasibility
from attsvm.solvers.exact.rows import ExactFarkas, ExactRows, exact_rows

__all__ = ["ExactFarkas", "ExactFeasibility", "ExactRows", "exact_farkas", "exact_feasibility", "exact_rows"]
