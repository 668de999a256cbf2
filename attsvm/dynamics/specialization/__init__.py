"""How attention heads specialize: the single-location model, its order parameters, and what each activation can do.

One token of a sequence carries a random combination of hidden spikes; attention with H heads has to find it. The
model in dimension D (`SingleLocation`, `MultiHeadAttention`, `train_sgd`) reduces at large D to a loss in the order
parameters of the heads (`reduced_loss`, `gradient_flow`), whose saddle and time scales are known in closed form
(`quadratic_constants`, `escape_modes`); `bayes_risk` says what is possible at all. Paper: "Specialization of softmax
attention heads" (arXiv 2603.03993); equation numbers are its.
"""

from attsvm.dynamics.specialization.attention import ACTIVATIONS, MultiHeadAttention, initial_heads

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.specialization.attention import head_weights as head_weights
from attsvm.dynamics.specialization.bayes import bayes_estimate, bayes_risk, discretized
from attsvm.dynamics.specialization.bayes import position_posterior as position_posterior
from attsvm.dynamics.specialization.constants import balanced_amplitude as balanced_amplitude
from attsvm.dynamics.specialization.constants import (
    escape_modes,
    initial_gradient,
    quadratic_constants,
    unspecialized_hessian,
)
from attsvm.dynamics.specialization.constants import threshold_gradient as threshold_gradient
from attsvm.dynamics.specialization.data import SingleLocation, draw_spikes
from attsvm.dynamics.specialization.escape import LogFit as LogFit
from attsvm.dynamics.specialization.escape import (
    crossing_time,
    log_fit,
    measured_escape,
    specialization_time,
    unspecialized_point,
)
from attsvm.dynamics.specialization.escape import head_split as head_split
from attsvm.dynamics.specialization.expressivity import antipodal_share as antipodal_share
from attsvm.dynamics.specialization.expressivity import bayes_softmax_parameters, softmax_floor, train_heads
from attsvm.dynamics.specialization.expressivity import opposite_heads as opposite_heads
from attsvm.dynamics.specialization.flow import descend, gradient_flow
from attsvm.dynamics.specialization.hierarchy import hessian_near, hierarchy_constants
from attsvm.dynamics.specialization.order import OrderParameters, initial_order_parameters
from attsvm.dynamics.specialization.order import Overlaps as Overlaps
from attsvm.dynamics.specialization.order import order_parameters as order_parameters
from attsvm.dynamics.specialization.priors import (
    DiscretePrior,
    GaussianPrior,
    SamplerPrior,
    flipping_spike,
    gaussian_spikes,
    one_hot_spikes,
)
from attsvm.dynamics.specialization.priors import Prior as Prior
from attsvm.dynamics.specialization.priors import transformed as transformed
from attsvm.dynamics.specialization.projected import projected_sgd
from attsvm.dynamics.specialization.projected import random_overlaps as random_overlaps
from attsvm.dynamics.specialization.pruning import greedy_pruning
from attsvm.dynamics.specialization.quadrature import quadrature
from attsvm.dynamics.specialization.reduced import ReducedGradient as ReducedGradient
from attsvm.dynamics.specialization.reduced import reduced_gradient, reduced_loss
from attsvm.dynamics.specialization.samples import Samples as Samples
from attsvm.dynamics.specialization.samples import draw_samples
from attsvm.dynamics.specialization.sgd import train_sgd

__all__ = [
    "ACTIVATIONS",
    "DiscretePrior",
    "GaussianPrior",
    "MultiHeadAttention",
    "OrderParameters",
    "SamplerPrior",
    "SingleLocation",
    "bayes_estimate",
    "bayes_risk",
    "bayes_softmax_parameters",
    "crossing_time",
    "descend",
    "discretized",
    "draw_samples",
    "draw_spikes",
    "escape_modes",
    "flipping_spike",
    "gaussian_spikes",
    "gradient_flow",
    "greedy_pruning",
    "hessian_near",
    "hierarchy_constants",
    "initial_gradient",
    "initial_heads",
    "initial_order_parameters",
    "log_fit",
    "measured_escape",
    "one_hot_spikes",
    "projected_sgd",
    "quadratic_constants",
    "quadrature",
    "reduced_gradient",
    "reduced_loss",
    "softmax_floor",
    "specialization_time",
    "train_heads",
    "train_sgd",
    "unspecialized_hessian",
    "unspecialized_point",
]
