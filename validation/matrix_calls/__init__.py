"""Every public function with all pairs of its options, judged by separate arithmetic."""

from attsvm.validation.matrix_calls import (  # noqa: F401  # their cases
    data,
    flows,
    heads,
    prompts,
    selections,
    svms,
    tokens,
    training,
)
from attsvm.validation.matrix_calls.axes import covering, public_functions
from attsvm.validation.matrix_calls.case import CASES, Case, Judged, case, judge, rows_of

__all__ = ["CASES", "Case", "Judged", "case", "covering", "judge", "public_functions", "rows_of"]
