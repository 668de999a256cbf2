"""How softmax conditions gradient descent: the prompt model, its curvature, and what makes it small.

Formulas follow "Softmax-induced ill-conditioning in transformer models" in their corrected forms; where a printed form
differs, ``form="printed"`` evaluates it.
"""

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.conditioning.curvature import block_factors as block_factors
from attsvm.dynamics.conditioning.curvature import block_jacobian as block_jacobian
from attsvm.dynamics.conditioning.curvature import curvature, joint_curvature
from attsvm.dynamics.conditioning.data import StudentTeacher as StudentTeacher
from attsvm.dynamics.conditioning.data import structured_teacher, student_teacher
from attsvm.dynamics.conditioning.kappa import dominant_token, kappa_report
from attsvm.dynamics.conditioning.loss import ScalarLoss as ScalarLoss
from attsvm.dynamics.conditioning.loss import curved_loss, squared_loss
from attsvm.dynamics.conditioning.model import PromptProblem
from attsvm.dynamics.conditioning.optimizers import OPTIMIZERS, descend
from attsvm.dynamics.conditioning.separation import attention_bounds, leakage, separation, value_margins
from attsvm.dynamics.conditioning.separation import sampled_leakage as sampled_leakage
from attsvm.dynamics.conditioning.separation import signal_subspace as signal_subspace
from attsvm.dynamics.conditioning.theorem1 import check_guarantee, convergence_constants
from attsvm.dynamics.conditioning.theorem2 import condition_lower_bound, local_rate

__all__ = [
    "OPTIMIZERS",
    "PromptProblem",
    "attention_bounds",
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
