"""How gradient flow polarizes attention: the value-softmax model, its invariants and bounds, sinks and flips.

The flows are NumPy and SciPy; plain gradient descent (`descent`) and the attention functions of Table 1 (`attention`)
are torch and are loaded at first use.
"""

from typing import Any

from attsvm._lazy import load
from attsvm.dynamics.polarization.asymptotics import (
    Asymptotics,
    local_exponents,
    measure_asymptotics,
    score_constants,
)
from attsvm.dynamics.polarization.flow import Flow, aligned_flow, orbit_rates
from attsvm.dynamics.polarization.full import FullFlow, full_flow, full_rates, tangent_kernel
from attsvm.dynamics.polarization.gap import GapFlow, gap_flow
from attsvm.dynamics.polarization.integrate import FlowError
from attsvm.dynamics.polarization.invariants import (
    decrease_margin,
    elementwise_drift,
    identity_drift,
    invariant_drift,
    potential,
    potential_rate,
    two_token_drift,
    two_token_winner,
)
from attsvm.dynamics.polarization.limits import RegressionLimit, regression_limit
from attsvm.dynamics.polarization.losses import (
    ALIGNED_LOSSES,
    KLLoss,
    LogisticLoss,
    SquareLoss,
    VectorLoss,
    aligned_loss,
    aligned_rate,
    log_aligned_rate,
)
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
from attsvm.dynamics.polarization.metrics import (
    attention_entropy,
    sink_heads,
    sink_score,
    sparsity_score,
    uniform_sparsity,
)
from attsvm.dynamics.polarization.normalizations import NORMALIZATIONS, Normalization, get_normalization
from attsvm.dynamics.polarization.variants import RowFlow, TiedFlow, row_flow, tied_flow, tied_rates

# Loaded at first use: these need torch.
_LAZY = {
    "ATTENTION_KINDS": "attention",
    "AttentionKind": "attention",
    "Descent": "descent",
    "attention_weights": "attention",
    "descend": "descent",
    "descend_tied": "descent",
}


def __getattr__(name: str) -> Any:
    return load(__name__, {key: f"{__name__}.{module}" for key, module in _LAZY.items()}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "ALIGNED_LOSSES",
    "ATTENTION_KINDS",
    "NORMALIZATIONS",
    "Asymptotics",
    "AttentionKind",
    "Descent",
    "Flow",
    "FlowError",
    "FullFlow",
    "GapFlow",
    "KLLoss",
    "LogisticLoss",
    "Normalization",
    "RegressionLimit",
    "RowFlow",
    "SquareLoss",
    "TiedFlow",
    "VectorLoss",
    "aligned_flow",
    "aligned_loss",
    "aligned_rate",
    "attention_entropy",
    "attention_weights",
    "decrease_margin",
    "descend",
    "descend_tied",
    "elementwise_drift",
    "entropy_margin",
    "explicit_ratio_margin",
    "full_flow",
    "full_rates",
    "gap_flow",
    "get_normalization",
    "identity_drift",
    "invariant_drift",
    "local_exponents",
    "log_aligned_rate",
    "logit_gap_margin",
    "loss_decay_margin",
    "mean_margin",
    "measure_asymptotics",
    "orbit_rates",
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
    "sink_heads",
    "sink_score",
    "sparsity_score",
    "tangent_kernel",
    "tied_flow",
    "tied_rates",
    "two_token_drift",
    "two_token_winner",
    "uniform_sparsity",
]
