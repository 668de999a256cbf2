"""How gradient flow polarizes attention: the value-softmax model, its invariants and bounds, sinks and flips.

The flows are NumPy and SciPy; plain gradient descent (`descent`) and the attention functions of Table 1 (`attention`)
are torch and are loaded at first use.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import attach
from attsvm.dynamics.polarization.asymptotics import measure_asymptotics, score_constants

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.polarization.flow import Flow as Flow
from attsvm.dynamics.polarization.flow import aligned_flow
from attsvm.dynamics.polarization.flow import orbit_rates as orbit_rates
from attsvm.dynamics.polarization.full import full_flow
from attsvm.dynamics.polarization.full import full_rates as full_rates
from attsvm.dynamics.polarization.full import tangent_kernel as tangent_kernel
from attsvm.dynamics.polarization.gap import gap_flow
from attsvm.dynamics.polarization.invariants import (
    elementwise_drift,
    identity_drift,
    invariant_drift,
    potential,
    potential_rate,
    two_token_drift,
)
from attsvm.dynamics.polarization.limits import regression_limit
from attsvm.dynamics.polarization.losses import KLLoss, LogisticLoss, SquareLoss
from attsvm.dynamics.polarization.losses import aligned_rate as aligned_rate
from attsvm.dynamics.polarization.margins import (
    entropy_margin,
    explicit_ratio_margin,
    logit_gap_margin,
    loss_decay_margin,
    mean_margin,
    order_margin,
    polarization_margin,
    projection_margin,
    ratio_margin,
    repulsion_margin,
)
from attsvm.dynamics.polarization.metrics import attention_entropy, sink_score, sparsity_score
from attsvm.dynamics.polarization.normalizations import Normalization
from attsvm.dynamics.polarization.normalizations import get_normalization as get_normalization
from attsvm.dynamics.polarization.variants import row_flow, tied_flow

# Loaded at first use: these need torch.
_LAZY = {
    "ATTENTION_KINDS": "attention",
    "AttentionKind": "attention",
    "descend": "descent",
    "descend_tied": "descent",
}

__all__ = [
    "ATTENTION_KINDS",
    "KLLoss",
    "LogisticLoss",
    "Normalization",
    "SquareLoss",
    "aligned_flow",
    "attention_entropy",
    "descend",
    "descend_tied",
    "elementwise_drift",
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
    "two_token_drift",
]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.dynamics.polarization.attention import ATTENTION_KINDS
    from attsvm.dynamics.polarization.attention import AttentionKind as AttentionKind
    from attsvm.dynamics.polarization.descent import descend, descend_tied
else:
    __getattr__, __dir__ = attach(__name__, _LAZY, __all__)
