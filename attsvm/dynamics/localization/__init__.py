"""When attention localizes: the eigenspectrum of W_QK and which tokens pass a gradient.

Everything but the regularizer runs on NumPy; that one loads torch at first use.
"""

from typing import Any

from attsvm._lazy import load
from attsvm.dynamics.localization.entropy import (
    attention_entropy,
    attention_logits,
    entropy_lower_bound,
    logit_radius,
    spectral_norm,
)
from attsvm.dynamics.localization.gradient import qk_gradient_terms
from attsvm.dynamics.localization.inequalities import (
    Inequality,
    collapse_bound,
    entropy_bound,
    norm_below_scale,
    norm_chain,
    token_diameter,
    trace_above_norm,
    trace_below_inverse,
    trace_below_norm,
    trace_below_scale,
)
from attsvm.dynamics.localization.law import interval_probability, upper_tail
from attsvm.dynamics.localization.moments import SignalMoments, position_coefficients, signal_moments, walk_moment
from attsvm.dynamics.localization.piecewise import linear_softmax, piecewise_softmax, propagates, softmax_expansion
from attsvm.dynamics.localization.profile import (
    finite_window,
    limit_window,
    normal_interval,
    rho,
    rho_limit,
    rho_slope,
    rho_traceless,
    vanishing_rate,
)
from attsvm.dynamics.localization.propagation import (
    Propagation,
    signal_propagation,
    signal_weights,
    simulate_signals,
    token_logits,
)
from attsvm.dynamics.localization.spectrum import QKSpectrum, qk_spectrum, read_qk
from attsvm.dynamics.localization.summary import LocalizationSummary, summarize
from attsvm.dynamics.localization.walks import Covariance, random_walks, read_covariance

_LAZY = {
    "QKWeights": "regularizer",
    "locater": "regularizer",
    "locater_gradients": "regularizer",
    "locater_penalty": "regularizer",
    "qk_scale": "regularizer",
    "qk_trace": "regularizer",
    "qk_weights": "regularizer",
}

__all__ = [
    "Covariance",
    "Inequality",
    "LocalizationSummary",
    "Propagation",
    "QKSpectrum",
    "QKWeights",
    "SignalMoments",
    "attention_entropy",
    "attention_logits",
    "collapse_bound",
    "entropy_bound",
    "entropy_lower_bound",
    "finite_window",
    "interval_probability",
    "limit_window",
    "linear_softmax",
    "locater",
    "locater_gradients",
    "locater_penalty",
    "logit_radius",
    "norm_below_scale",
    "norm_chain",
    "normal_interval",
    "piecewise_softmax",
    "position_coefficients",
    "propagates",
    "qk_gradient_terms",
    "qk_scale",
    "qk_spectrum",
    "qk_trace",
    "qk_weights",
    "random_walks",
    "read_covariance",
    "read_qk",
    "rho",
    "rho_limit",
    "rho_slope",
    "rho_traceless",
    "signal_moments",
    "signal_propagation",
    "signal_weights",
    "simulate_signals",
    "softmax_expansion",
    "spectral_norm",
    "summarize",
    "token_diameter",
    "token_logits",
    "trace_above_norm",
    "trace_below_inverse",
    "trace_below_norm",
    "trace_below_scale",
    "upper_tail",
    "vanishing_rate",
    "walk_moment",
]


def __getattr__(name: str) -> Any:
    return load(__name__, {key: f"{__name__}.{module}" for key, module in _LAZY.items()}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
