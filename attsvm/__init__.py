"""The optimization geometry of softmax attention: max-margin token selection, solved with certificates."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from attsvm import attention
from attsvm._lazy import load
from attsvm.comparison import Report, compare
from attsvm.generate import random_problem, structured_problem
from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.losses import Loss, correlation_loss, exponential, logistic
from attsvm.optimality import is_locally_optimal, separating_cone
from attsvm.problem import AttentionProblem, ProblemBatch
from attsvm.selection import SelectedSets, Selection
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import Certificate, ConvergenceWarning, InfeasibleError, NoSolutionError, Status
from attsvm.svm import att_svm, finite_part, gen_svm, satt_svm
from attsvm.verification import verify

try:
    __version__ = version("attsvm")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0+unknown"

if TYPE_CHECKING:  # what is loaded at first use, for type checkers
    from attsvm import next_token
    from attsvm.editing import edit
    from attsvm.enumeration import locally_optimal_selections, selection_graph
    from attsvm.files import load_problem, save_problem
    from attsvm.paths import decompose, regularization_path, soft_path
    from attsvm.probing import Monitor, probe
    from attsvm.reports import write_report
    from attsvm.sweeps import sweep
    from attsvm.theory import attraction, diagnose
    from attsvm.trained_head import TrainedHead
    from attsvm.training import Run, TrainOptions, train

# Loaded at first use: `import attsvm` must load neither torch nor networkx.
_LAZY = {
    "Monitor": "attsvm.probing",
    "Run": "attsvm.training",
    "TrainOptions": "attsvm.training",
    "TrainedHead": "attsvm.trained_head",
    "attraction": "attsvm.theory",
    "decompose": "attsvm.paths",
    "diagnose": "attsvm.theory",
    "edit": "attsvm.editing",
    "load_problem": "attsvm.files",
    "locally_optimal_selections": "attsvm.enumeration",
    "next_token": "attsvm.next_token",
    "probe": "attsvm.probing",
    "regularization_path": "attsvm.paths",
    "soft_path": "attsvm.paths",
    "save_problem": "attsvm.files",
    "selection_graph": "attsvm.enumeration",
    "sweep": "attsvm.sweeps",
    "train": "attsvm.training",
    "write_report": "attsvm.reports",
    # Helpers and classes of results; not part of the surface, at home in their modules.
    "Attraction": "attsvm.theory",
    "Decomposition": "attsvm.paths",
    "Diagnosis": "attsvm.theory",
    "Edit": "attsvm.editing",
    "FarkasCertificate": "attsvm.solvers",
    "ProblemFileError": "attsvm.files",
    "RegularizationPath": "attsvm.paths",
    "SoftPath": "attsvm.paths",
    "SeparatingCone": "attsvm.optimality",
    "cone_init": "attsvm.training",
    "get_loss": "attsvm.losses",
    "high_score_tokens": "attsvm.optimality",
    "iter_locally_optimal": "attsvm.enumeration",
    "joint": "attsvm.joint",
    "joint_path": "attsvm.joint",
    "joint_svm": "attsvm.joint",
    "low_score_tokens": "attsvm.optimality",
    "smoothness_constant": "attsvm.training",
    "support_indices": "attsvm.optimality",
}


def __getattr__(name: str) -> Any:
    return load(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "AttentionProblem",
    "Certificate",
    "ConcaveHead",
    "ConvergenceWarning",
    "InfeasibleError",
    "LinearHead",
    "Loss",
    "Monitor",
    "NoSolutionError",
    "ProblemBatch",
    "ReluHead",
    "Report",
    "Run",
    "SelectedSets",
    "Selection",
    "Solution",
    "SolutionBatch",
    "Status",
    "TrainOptions",
    "TrainedHead",
    "att_svm",
    "attention",
    "attraction",
    "compare",
    "correlation_loss",
    "decompose",
    "diagnose",
    "edit",
    "exponential",
    "finite_part",
    "gen_svm",
    "is_locally_optimal",
    "load_problem",
    "locally_optimal_selections",
    "logistic",
    "next_token",
    "probe",
    "random_problem",
    "regularization_path",
    "satt_svm",
    "save_problem",
    "selection_graph",
    "separating_cone",
    "soft_path",
    "structured_problem",
    "sweep",
    "train",
    "verify",
    "write_report",
]
