"""The optimization geometry of softmax attention: max-margin token selection, solved with certificates."""

from importlib.metadata import PackageNotFoundError, version

from attsvm.generate import random_problem
from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.local import SeparatingCone, high_score_tokens, is_locally_optimal, low_score_tokens, separating_cone
from attsvm.losses import Loss, correlation, exponential, get_loss, logistic
from attsvm.problem import AttentionProblem
from attsvm.selection import SelectedSets, Selection
from attsvm.solution import Solution, SolutionBatch, support_indices
from attsvm.solvers import Certificate, FarkasCertificate, InfeasibleError, Status
from attsvm.svm import att_svm, finite_part, gen_svm, satt_svm, verify

try:
    __version__ = version("attsvm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "AttentionProblem",
    "Certificate",
    "ConcaveHead",
    "FarkasCertificate",
    "InfeasibleError",
    "LinearHead",
    "Loss",
    "ReluHead",
    "SelectedSets",
    "Selection",
    "SeparatingCone",
    "Solution",
    "SolutionBatch",
    "Status",
    "att_svm",
    "correlation",
    "exponential",
    "finite_part",
    "gen_svm",
    "get_loss",
    "high_score_tokens",
    "is_locally_optimal",
    "logistic",
    "low_score_tokens",
    "random_problem",
    "satt_svm",
    "separating_cone",
    "support_indices",
    "verify",
]
