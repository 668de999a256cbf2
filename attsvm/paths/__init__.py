"""Where weights lead: regularization paths over growing balls, and trained weights split into their limits (NumPy)."""

from attsvm.paths.ball_search import PathStatus
from attsvm.paths.regularization import RegularizationPath, regularization_path
from attsvm.paths.weight_decomposition import Decomposition, DecompositionStatus, decompose
from attsvm.svm import SoftPath, soft_path

__all__ = [
    "Decomposition",
    "DecompositionStatus",
    "PathStatus",
    "RegularizationPath",
    "SoftPath",
    "decompose",
    "regularization_path",
    "soft_path",
]
