"""The optimization geometry of softmax attention: max-margin token selection, solved with certificates."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from attsvm import attention
from attsvm._lazy import load
from attsvm.comparison import Report, compare
from attsvm.generate import random_problem
from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.losses import Loss, correlation_loss, exponential, get_loss, logistic
from attsvm.optimality import SeparatingCone, high_score_tokens, is_locally_optimal, low_score_tokens, separating_cone
from attsvm.problem import AttentionProblem, ProblemBatch
from attsvm.selection import SelectedSets, Selection
from attsvm.solution import Solution, SolutionBatch, support_indices
from attsvm.solvers import Certificate, FarkasCertificate, InfeasibleError, NoSolutionError, Status
from attsvm.svm import att_svm, finite_part, gen_svm, satt_svm, verify

try:
    __version__ = version("attsvm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

# Loaded at first use: `import attsvm` must load neither torch nor networkx.
_LAZY = {
    "Attraction": "attsvm.theory",
    "Decomposition": "attsvm.paths",
    "Diagnosis": "attsvm.theory",
    "ProblemFileError": "attsvm.files",
    "RegularizationPath": "attsvm.paths",
    "Run": "attsvm.training",
    "TrainOptions": "attsvm.training",
    "attraction": "attsvm.theory",
    "cone_init": "attsvm.training",
    "decompose": "attsvm.paths",
    "diagnose": "attsvm.theory",
    "iter_locally_optimal": "attsvm.enumeration",
    "load_problem": "attsvm.files",
    "locally_optimal_selections": "attsvm.enumeration",
    "regularization_path": "attsvm.paths",
    "save_problem": "attsvm.files",
    "selection_graph": "attsvm.enumeration",
    "smoothness_constant": "attsvm.training",
    "sweep": "attsvm.sweeps",
    "train": "attsvm.training",
    "write_report": "attsvm.reports",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "AttentionProblem",
    "Attraction",
    "Certificate",
    "ConcaveHead",
    "Decomposition",
    "Diagnosis",
    "FarkasCertificate",
    "InfeasibleError",
    "LinearHead",
    "Loss",
    "NoSolutionError",
    "ProblemBatch",
    "ProblemFileError",
    "RegularizationPath",
    "ReluHead",
    "Report",
    "Run",
    "SelectedSets",
    "Selection",
    "SeparatingCone",
    "Solution",
    "SolutionBatch",
    "Status",
    "TrainOptions",
    "att_svm",
    "attention",
    "attraction",
    "compare",
    "cone_init",
    "correlation_loss",
    "decompose",
    "diagnose",
    "exponential",
    "finite_part",
    "gen_svm",
    "get_loss",
    "high_score_tokens",
    "is_locally_optimal",
    "iter_locally_optimal",
    "load_problem",
    "locally_optimal_selections",
    "logistic",
    "low_score_tokens",
    "random_problem",
    "regularization_path",
    "satt_svm",
    "save_problem",
    "selection_graph",
    "separating_cone",
    "smoothness_constant",
    "support_indices",
    "sweep",
    "train",
    "verify",
    "write_report",
]
