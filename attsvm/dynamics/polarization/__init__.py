"""How gradient flow polarizes attention: the value-softmax model, its invariants and bounds, sinks and flips.

The flows are NumPy and SciPy; plain gradient descent (`descent`) and the attention functions of Table 1 (`attention`)
are torch and are loaded at first use.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import attach
from attsvm.dynamics.polarization.attention_metrics import sink_score, sparsity_score
from attsvm.dynamics.polarization.flow_margins import (
    entropy_margin,
    explicit_ratio_margin,
    identity_drift,
    invariant_drift,
    logit_gap_margin,
    loss_decay_margin,
    mean_margin,
    measure_asymptotics,
    order_margin,
    polarization_margin,
    potential,
    potential_rate,
    projection_margin,
    ratio_margin,
    repulsion_margin,
    score_constants,
)
from attsvm.dynamics.polarization.full_flow import full_flow, regression_limit, row_flow, tied_flow
from attsvm.dynamics.polarization.full_flow import full_rates as full_rates
from attsvm.dynamics.polarization.full_flow import tangent_kernel as tangent_kernel

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.polarization.softmax_flow import Flow as Flow
from attsvm.dynamics.polarization.softmax_flow import aligned_flow, gap_flow
from attsvm.dynamics.polarization.softmax_flow import orbit_rates as orbit_rates
from attsvm.dynamics.polarization.value_losses import KLLoss, LogisticLoss, Normalization, SquareLoss
from attsvm.dynamics.polarization.value_losses import aligned_rate as aligned_rate
from attsvm.dynamics.polarization.value_losses import get_normalization as get_normalization

# Loaded at first use: these need torch.
_LAZY = {
    "ATTENTION_KINDS": "value_descent",
    "AttentionKind": "value_descent",
    "descend": "value_descent",
    "descend_tied": "value_descent",
}

__all__ = [
    "ATTENTION_KINDS",
    "KLLoss",
    "LogisticLoss",
    "Normalization",
    "SquareLoss",
    "aligned_flow",
    "descend",
    "descend_tied",
    "entropy_margin",
    "explicit_ratio_margin",
    "full_flow",
    "gap_flow",
    "identity_drift",
    "invariant_drift",
    "logit_gap_margin",
    "loss_decay_margin",
    "mean_margin",
    "measure_asymptotics",
    "order_margin",
    "polarization_margin",
    "potential",
    "potential_rate",
    "projection_margin",
    "ratio_margin",
    "regression_limit",
    "repulsion_margin",
    "row_flow",
    "score_constants",
    "sink_score",
    "sparsity_score",
    "tied_flow",
]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.dynamics.polarization.value_descent import ATTENTION_KINDS, descend, descend_tied
    from attsvm.dynamics.polarization.value_descent import AttentionKind as AttentionKind
else:
    __getattr__, __dir__ = attach(__name__, _LAZY, __all__)
