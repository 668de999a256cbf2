"""The optimization geometry of softmax attention: max-margin token selection, solved with certificates."""

from importlib.metadata import PackageNotFoundError as _NotInstalled
from importlib.metadata import version as _version
from typing import TYPE_CHECKING

from attsvm import attention
from attsvm._lazy import load as _load
from attsvm.comparison import Report, compare
from attsvm.generate import random_problem, structured_problem
from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.losses import Loss, correlation_loss, exponential, logistic
from attsvm.optimality import is_locally_optimal, separating_cone
from attsvm.problem import AttentionProblem, ProblemBatch
from attsvm.selection import SelectedSets, Selection
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import Certificate, ConvergenceWarning, InfeasibleError, NoSolutionError, Status
from attsvm.svm import att_svm, finite_part, gen_svm, satt_svm, verify

try:
    __version__ = _version("attsvm")
except _NotInstalled:  # a source tree that was never installed
    __version__ = "0+unknown"

# Loaded at first use: `import attsvm` must load neither torch nor networkx. A name that is a module of attsvm is the
# module itself.
_LAZY = {
    "Monitor": "attsvm.probing",
    "Run": "attsvm.training",
    "TrainOptions": "attsvm.training",
    "TrainedHead": "attsvm.trained_head",
    "attraction": "attsvm.theory",
    "decompose": "attsvm.paths",
    "diagnose": "attsvm.theory",
    "dynamics": "attsvm.dynamics",
    "edit": "attsvm.editing",
    "export": "attsvm.export",
    "load_problem": "attsvm.files",
    "locally_optimal_selections": "attsvm.enumeration",
    "next_token": "attsvm.next_token",
    "probe": "attsvm.probing",
    "regularization_path": "attsvm.paths",
    "save_problem": "attsvm.files",
    "selection_graph": "attsvm.enumeration",
    "sklearn": "attsvm.sklearn",
    "soft_path": "attsvm.paths",
    "sweep": "attsvm.sweeps",
    "train": "attsvm.training",
    "write_report": "attsvm.reports",
    # Helpers and classes of results: listed by dir(attsvm), but no part of `from attsvm import *`.
    "Attraction": "attsvm.theory",
    "Decomposition": "attsvm.paths",
    "Diagnosis": "attsvm.theory",
    "Edit": "attsvm.editing",
    "FarkasCertificate": "attsvm.solvers",
    "ProblemFileError": "attsvm.files",
    "RegularizationPath": "attsvm.paths",
    "SeparatingCone": "attsvm.optimality",
    "SoftPath": "attsvm.paths",
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

if TYPE_CHECKING:  # the same names for type checkers; with a __getattr__ they would accept any other name, too
    from attsvm import dynamics, export, next_token, sklearn
    from attsvm import joint as joint
    from attsvm.editing import Edit as Edit
    from attsvm.editing import edit
    from attsvm.enumeration import iter_locally_optimal as iter_locally_optimal
    from attsvm.enumeration import locally_optimal_selections, selection_graph
    from attsvm.files import ProblemFileError as ProblemFileError
    from attsvm.files import load_problem, save_problem
    from attsvm.joint import joint_path as joint_path
    from attsvm.joint import joint_svm as joint_svm
    from attsvm.losses import get_loss as get_loss
    from attsvm.optimality import SeparatingCone as SeparatingCone
    from attsvm.optimality import high_score_tokens as high_score_tokens
    from attsvm.optimality import low_score_tokens as low_score_tokens
    from attsvm.optimality import support_indices as support_indices
    from attsvm.paths import Decomposition as Decomposition
    from attsvm.paths import RegularizationPath as RegularizationPath
    from attsvm.paths import SoftPath as SoftPath
    from attsvm.paths import decompose, regularization_path, soft_path
    from attsvm.probing import Monitor, probe
    from attsvm.reports import write_report
    from attsvm.solvers import FarkasCertificate as FarkasCertificate
    from attsvm.sweeps import sweep
    from attsvm.theory import Attraction as Attraction
    from attsvm.theory import Diagnosis as Diagnosis
    from attsvm.theory import attraction, diagnose
    from attsvm.trained_head import TrainedHead
    from attsvm.training import Run, TrainOptions, train
    from attsvm.training import cone_init as cone_init
    from attsvm.training import smoothness_constant as smoothness_constant
else:

    def __getattr__(name: str) -> object:
        return _load(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAZY, "__version__"})


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
    "dynamics",
    "edit",
    "exponential",
    "export",
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
    "sklearn",
    "soft_path",
    "structured_problem",
    "sweep",
    "train",
    "verify",
    "write_report",
]
