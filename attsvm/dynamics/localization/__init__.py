"""When attention localizes: the eigenspectrum of W_QK and which tokens pass a gradient.

Everything but the regularizer runs on NumPy; that one loads torch at first use.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import attach
from attsvm.dynamics.localization.eigenspectrum import QKSpectrum, qk_spectrum
from attsvm.dynamics.localization.eigenspectrum import random_walks as random_walks
from attsvm.dynamics.localization.entropy_bounds import (
    attention_entropy,
    entropy_bound,
    entropy_lower_bound,
    norm_below_scale,
    trace_above_norm,
    trace_below_norm,
)
from attsvm.dynamics.localization.piecewise_softmax import linear_softmax as linear_softmax
from attsvm.dynamics.localization.piecewise_softmax import piecewise_softmax

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.localization.piecewise_softmax import qk_gradient_terms as qk_gradient_terms
from attsvm.dynamics.localization.piecewise_softmax import softmax_expansion as softmax_expansion
from attsvm.dynamics.localization.propagation import interval_probability as interval_probability
from attsvm.dynamics.localization.propagation import signal_propagation, simulate_signals
from attsvm.dynamics.localization.propagation import signal_weights as signal_weights
from attsvm.dynamics.localization.propagation import token_logits as token_logits
from attsvm.dynamics.localization.propagation_profile import limit_window as limit_window
from attsvm.dynamics.localization.propagation_profile import normal_interval as normal_interval
from attsvm.dynamics.localization.propagation_profile import (
    rho,
    rho_limit,
    rho_slope,
    signal_moments,
    summarize,
)
from attsvm.dynamics.localization.propagation_profile import walk_moment as walk_moment

# Loaded at first use: these need torch.
_LAZY = {
    "locater": "regularizer",
    "locater_penalty": "regularizer",
    "qk_trace": "regularizer",
    "qk_weights": "regularizer",
}

__all__ = [
    "QKSpectrum",
    "attention_entropy",
    "entropy_bound",
    "entropy_lower_bound",
    "locater",
    "locater_penalty",
    "norm_below_scale",
    "piecewise_softmax",
    "qk_spectrum",
    "qk_trace",
    "qk_weights",
    "rho",
    "rho_limit",
    "rho_slope",
    "signal_moments",
    "signal_propagation",
    "simulate_signals",
    "summarize",
    "trace_above_norm",
    "trace_below_norm",
]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.dynamics.localization.regularizer import locater, locater_penalty, qk_trace, qk_weights
else:
    __getattr__, __dir__ = attach(__name__, _LAZY, __all__)
