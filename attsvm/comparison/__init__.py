"""Training against theory: metrics, reports, tables and pictures."""

from attsvm.comparison.metrics import angle, correlation, effective_rank, fitted_rate, numerical_rank, reached_margin
from attsvm.comparison.report import BatchReport, Comparison, Report, compare

__all__ = [
    "BatchReport",
    "Comparison",
    "Report",
    "angle",
    "compare",
    "correlation",
    "effective_rank",
    "fitted_rate",
    "numerical_rank",
    "reached_margin",
]
