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
from attsvm.solvers import Certificate, ConvergenceWarning, DegenerateError, InfeasibleError, NoSolutionError, Status
from attsvm.svm import att_svm, finite_part, gen_svm, satt_svm, verify

try:
    __version__ = _version("attsvm")
except _NotInstalled:  # a source tree that was never installed
    __version__ = "0+unknown"

# Loaded at first use: `import attsvm` must load neither torch nor networkx. A name that is a module of attsvm is the
# module itself. Every name is public, that is in `__all__`; classes of results that only annotations name, as
# `attsvm.paths.SoftPath`, are at home in their modules.
_LAZY = {
    "Monitor": "attsvm.probing",
    "ProblemFileError": "attsvm.files",
    "Run": "attsvm.training",
    "TrainOptions": "attsvm.training",
    "TrainedHead": "attsvm.trained_head",
    "attraction": "attsvm.theory",
    "capture": "attsvm.probing",
    "cone_init": "attsvm.training",
    "cvxpy_model": "attsvm.cvxpy_models",
    "decompose": "attsvm.paths",
    "diagnose": "attsvm.theory",
    "dynamics": "attsvm.dynamics",
    "edit": "attsvm.editing",
    "export": "attsvm.export",
    "get_loss": "attsvm.losses",
    "high_score_tokens": "attsvm.optimality",
    "iter_locally_optimal": "attsvm.enumeration",
    "joint": "attsvm.joint",
    "key_dimension": "attsvm.key_dimensions",
    "load_patch": "attsvm.patching",
    "load_problem": "attsvm.files",
    "locally_optimal_selections": "attsvm.enumeration",
    "low_score_tokens": "attsvm.optimality",
    "multiclass": "attsvm.multiclass",
    "multiclass_svm": "attsvm.multiclass",
    "next_token": "attsvm.next_token",
    "patch": "attsvm.patching",
    "probe": "attsvm.probing",
    "regularization_path": "attsvm.paths",
    "save_problem": "attsvm.files",
    "selection_graph": "attsvm.enumeration",
    "sklearn": "attsvm.sklearn",
    "smoothness_constant": "attsvm.training",
    "soft_path": "attsvm.paths",
    "support_indices": "attsvm.optimality",
    "sweep": "attsvm.sweeps",
    "torch": "attsvm.torch",
    "train": "attsvm.training",
    "write_report": "attsvm.reports",
}

if TYPE_CHECKING:  # the same names for type checkers; with a __getattr__ they would accept any other name, too
    from attsvm import dynamics, export, joint, multiclass, next_token, sklearn, torch
    from attsvm.cvxpy_models import cvxpy_model
    from attsvm.editing import edit
    from attsvm.enumeration import iter_locally_optimal, locally_optimal_selections, selection_graph
    from attsvm.files import ProblemFileError, load_problem, save_problem
    from attsvm.key_dimensions import key_dimension
    from attsvm.losses import get_loss
    from attsvm.multiclass import multiclass_svm
    from attsvm.optimality import high_score_tokens, low_score_tokens, support_indices
    from attsvm.patching import load_patch, patch
    from attsvm.paths import decompose, regularization_path, soft_path
    from attsvm.probing import Monitor, capture, probe
    from attsvm.reports import write_report
    from attsvm.sweeps import sweep
    from attsvm.theory import attraction, diagnose
    from attsvm.trained_head import TrainedHead
    from attsvm.training import Run, TrainOptions, cone_init, smoothness_constant, train
else:

    def __getattr__(name: str) -> object:
        return _load(__name__, _LAZY, name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


__all__ = [
    "AttentionProblem",
    "Certificate",
    "ConcaveHead",
    "ConvergenceWarning",
    "DegenerateError",
    "InfeasibleError",
    "LinearHead",
    "Loss",
    "Monitor",
    "NoSolutionError",
    "ProblemBatch",
    "ProblemFileError",
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
    "capture",
    "compare",
    "cone_init",
    "correlation_loss",
    "cvxpy_model",
    "decompose",
    "diagnose",
    "dynamics",
    "edit",
    "exponential",
    "export",
    "finite_part",
    "gen_svm",
    "get_loss",
    "high_score_tokens",
    "is_locally_optimal",
    "iter_locally_optimal",
    "joint",
    "key_dimension",
    "load_patch",
    "load_problem",
    "locally_optimal_selections",
    "logistic",
    "low_score_tokens",
    "multiclass",
    "multiclass_svm",
    "next_token",
    "patch",
    "probe",
    "random_problem",
    "regularization_path",
    "satt_svm",
    "save_problem",
    "selection_graph",
    "separating_cone",
    "sklearn",
    "smoothness_constant",
    "soft_path",
    "structured_problem",
    "support_indices",
    "sweep",
    "torch",
    "train",
    "verify",
    "write_report",
]
