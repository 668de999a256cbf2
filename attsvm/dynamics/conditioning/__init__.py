"""How softmax conditions gradient descent: the prompt model, its curvature, and what makes it small.

Formulas follow "Softmax-induced ill-conditioning in transformer models" in their corrected forms; where a printed form
differs, ``form="printed"`` evaluates it.
"""

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.conditioning.curvature import block_factors as block_factors
from attsvm.dynamics.conditioning.curvature import block_jacobian as block_jacobian
from attsvm.dynamics.conditioning.curvature import (
    curvature,
    dominant_token,
    joint_curvature,
    kappa_report,
    leakage,
    separation,
    value_margins,
)
from attsvm.dynamics.conditioning.curvature import sampled_leakage as sampled_leakage
from attsvm.dynamics.conditioning.curvature import signal_subspace as signal_subspace
from attsvm.dynamics.conditioning.prompt_descent import OPTIMIZERS, descend
from attsvm.dynamics.conditioning.prompt_model import (
    PromptProblem,
    curved_loss,
    squared_loss,
    structured_teacher,
    student_teacher,
)
from attsvm.dynamics.conditioning.prompt_model import ScalarLoss as ScalarLoss
from attsvm.dynamics.conditioning.prompt_model import StudentTeacher as StudentTeacher
from attsvm.dynamics.conditioning.rates import check_guarantee, condition_lower_bound, convergence_constants, local_rate

__all__ = [
    "OPTIMIZERS",
    "PromptProblem",
    "check_guarantee",
    "condition_lower_bound",
    "convergence_constants",
    "curvature",
    "curved_loss",
    "descend",
    "dominant_token",
    "joint_curvature",
    "kappa_report",
    "leakage",
    "local_rate",
    "separation",
    "squared_loss",
    "structured_teacher",
    "student_teacher",
    "value_margins",
]
