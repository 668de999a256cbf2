"""Every public function with all pairs of its options, judged by separate arithmetic."""

from attsvm.validation.matrix_calls import (  # noqa: F401  # their cases
    file_calls,
    flow_calls,
    head_calls,
    prompt_calls,
    selection_calls,
    solution_calls,
    svm_calls,
    token_calls,
    training_calls,
)
from attsvm.validation.matrix_calls.call_cases import (
    CASES,
    Case,
    Judged,
    case,
    covering,
    judge,
    public_functions,
    rows_of,
)

__all__ = ["CASES", "Case", "Judged", "case", "covering", "judge", "public_functions", "rows_of"]
