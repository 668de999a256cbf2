"""How softmax conditions gradient descent: the prompt model, its curvature, and what makes it small.

Formulas follow "Softmax-induced ill-conditioning in transformer models" in their corrected forms; where a printed form
differs, ``form="printed"`` evaluates it.
"""

from attsvm.dynamics.conditioning.curvature import (
    Curvature,
    block_factors,
    block_jacobian,
    curvature,
    joint_curvature,
)
from attsvm.dynamics.conditioning.data import StudentTeacher, structured_teacher, student_teacher
from attsvm.dynamics.conditioning.kappa import KappaReport, dominant_token, kappa_report
from attsvm.dynamics.conditioning.loss import ScalarLoss, curved_loss, squared_loss
from attsvm.dynamics.conditioning.model import PromptProblem
from attsvm.dynamics.conditioning.optimizers import OPTIMIZERS, Descent, descend
from attsvm.dynamics.conditioning.separation import (
    Separation,
    attention_bounds,
    leakage,
    sampled_leakage,
    separation,
    signal_subspace,
    unimportant_covariance,
    value_margins,
)
from attsvm.dynamics.conditioning.theorem1 import (
    JACOBIAN_LIPSCHITZ,
    ConvergenceConstants,
    GuaranteeCheck,
    check_guarantee,
    convergence_constants,
)
from attsvm.dynamics.conditioning.theorem2 import ConditionBound, LocalRate, condition_lower_bound, local_rate

__all__ = [
    "JACOBIAN_LIPSCHITZ",
    "OPTIMIZERS",
    "ConditionBound",
    "ConvergenceConstants",
    "Curvature",
    "Descent",
    "GuaranteeCheck",
    "KappaReport",
    "LocalRate",
    "PromptProblem",
    "ScalarLoss",
    "Separation",
    "StudentTeacher",
    "attention_bounds",
    "block_factors",
    "block_jacobian",
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
    "sampled_leakage",
    "separation",
    "signal_subspace",
    "squared_loss",
    "structured_teacher",
    "student_teacher",
    "unimportant_covariance",
    "value_margins",
]
