"""How attention heads specialize: the single-location model, its order parameters, and what each activation can do.

One token of a sequence carries a random combination of hidden spikes; attention with H heads has to find it. The
model in dimension D (`SingleLocation`, `MultiHeadAttention`, `train_sgd`) reduces at large D to a loss in the order
parameters of the heads (`reduced_loss`, `gradient_flow`), whose saddle and time scales are known in closed form
(`quadratic_constants`, `escape_modes`); `bayes_risk` says what is possible at all. Paper: "Specialization of softmax
attention heads" (arXiv 2603.03993); equation numbers are its.
"""

from attsvm.dynamics.specialization.activations import (
    ACTIVATIONS,
    MultiHeadAttention,
    bayes_estimate,
    bayes_risk,
    initial_heads,
)

# Not part of the surface, at home in their modules; the ledger of claims reads them here.
from attsvm.dynamics.specialization.activations import head_weights as head_weights
from attsvm.dynamics.specialization.activations import position_posterior as position_posterior
from attsvm.dynamics.specialization.head_flow import antipodal_share as antipodal_share
from attsvm.dynamics.specialization.head_flow import (
    bayes_softmax_parameters,
    descend,
    gradient_flow,
    quadrature,
    softmax_floor,
    train_heads,
)
from attsvm.dynamics.specialization.head_flow import opposite_heads as opposite_heads
from attsvm.dynamics.specialization.head_sgd import greedy_pruning, projected_sgd, train_sgd
from attsvm.dynamics.specialization.head_sgd import random_overlaps as random_overlaps
from attsvm.dynamics.specialization.reduced_loss import (
    OrderParameters,
    initial_order_parameters,
    reduced_gradient,
    reduced_loss,
)
from attsvm.dynamics.specialization.reduced_loss import Overlaps as Overlaps
from attsvm.dynamics.specialization.reduced_loss import ReducedGradient as ReducedGradient
from attsvm.dynamics.specialization.reduced_loss import order_parameters as order_parameters
from attsvm.dynamics.specialization.spiked_data import (
    DiscretePrior,
    GaussianPrior,
    SamplerPrior,
    SingleLocation,
    draw_samples,
    draw_spikes,
    flipping_spike,
    gaussian_spikes,
    one_hot_spikes,
)
from attsvm.dynamics.specialization.spiked_data import Prior as Prior
from attsvm.dynamics.specialization.spiked_data import Samples as Samples
from attsvm.dynamics.specialization.spiked_data import transformed as transformed
from attsvm.dynamics.specialization.unspecialized import LogFit as LogFit
from attsvm.dynamics.specialization.unspecialized import balanced_amplitude as balanced_amplitude
from attsvm.dynamics.specialization.unspecialized import (
    crossing_time,
    escape_modes,
    hessian_near,
    hierarchy_constants,
    initial_gradient,
    log_fit,
    measured_escape,
    quadratic_constants,
    specialization_time,
    unspecialized_hessian,
    unspecialized_point,
)
from attsvm.dynamics.specialization.unspecialized import head_split as head_split
from attsvm.dynamics.specialization.unspecialized import threshold_gradient as threshold_gradient

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
