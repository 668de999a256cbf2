"""How attention heads specialize: the single-location model, its order parameters, and what each activation can do.

One token of a sequence carries a random combination of hidden spikes; attention with H heads has to find it. The
model in dimension D (`SingleLocation`, `MultiHeadAttention`, `train_sgd`) reduces at large D to a loss in the order
parameters of the heads (`reduced_loss`, `gradient_flow`), whose saddle and time scales are known in closed form
(`quadratic_constants`, `escape_modes`); `bayes_risk` says what is possible at all. Paper: "Specialization of softmax
attention heads" (arXiv 2603.03993); equation numbers are its.
"""

from attsvm.dynamics.specialization.attention import ACTIVATIONS, MultiHeadAttention, head_weights, initial_heads
from attsvm.dynamics.specialization.bayes import Estimate, bayes_estimate, bayes_risk, discretized, position_posterior
from attsvm.dynamics.specialization.constants import (
    EscapeMode,
    QuadraticConstants,
    balanced_amplitude,
    escape_modes,
    initial_gradient,
    quadratic_constants,
    threshold_gradient,
    unspecialized_hessian,
)
from attsvm.dynamics.specialization.data import Sequences, SingleLocation, draw_spikes
from attsvm.dynamics.specialization.escape import (
    LogFit,
    crossing_time,
    curvature_m,
    head_split,
    log_fit,
    measured_escape,
    specialization_time,
    unspecialized_point,
)
from attsvm.dynamics.specialization.expressivity import (
    TrainedHeads,
    antipodal_share,
    bayes_softmax_parameters,
    opposite_heads,
    softmax_floor,
    train_heads,
)
from attsvm.dynamics.specialization.flow import Trajectory, descend, gradient_flow
from attsvm.dynamics.specialization.hierarchy import (
    HierarchyConstants,
    hessian_near,
    hierarchy_constants,
    one_hot_cumulant,
)
from attsvm.dynamics.specialization.order import OrderParameters, Overlaps, initial_order_parameters, order_parameters
from attsvm.dynamics.specialization.priors import (
    DiscretePrior,
    GaussianPrior,
    Prior,
    SamplerPrior,
    flipping_spike,
    gaussian_spikes,
    one_hot_spikes,
    random_generator,
    transformed,
)
from attsvm.dynamics.specialization.projected import projected_sgd, random_overlaps, wishart
from attsvm.dynamics.specialization.pruning import PruningPath, greedy_pruning
from attsvm.dynamics.specialization.quadrature import quadrature, quadrature_size
from attsvm.dynamics.specialization.reduced import (
    LossEstimate,
    ReducedGradient,
    reduced_gradient,
    reduced_loss,
    score_noise,
)
from attsvm.dynamics.specialization.samples import Samples, draw_samples
from attsvm.dynamics.specialization.sgd import batch_loss, train_sgd

__all__ = [
    "ACTIVATIONS",
    "DiscretePrior",
    "EscapeMode",
    "Estimate",
    "GaussianPrior",
    "HierarchyConstants",
    "LogFit",
    "LossEstimate",
    "MultiHeadAttention",
    "OrderParameters",
    "Overlaps",
    "Prior",
    "PruningPath",
    "QuadraticConstants",
    "ReducedGradient",
    "SamplerPrior",
    "Samples",
    "Sequences",
    "SingleLocation",
    "TrainedHeads",
    "Trajectory",
    "antipodal_share",
    "balanced_amplitude",
    "batch_loss",
    "bayes_estimate",
    "bayes_risk",
    "bayes_softmax_parameters",
    "crossing_time",
    "curvature_m",
    "descend",
    "discretized",
    "draw_samples",
    "draw_spikes",
    "escape_modes",
    "flipping_spike",
    "gaussian_spikes",
    "gradient_flow",
    "greedy_pruning",
    "head_split",
    "head_weights",
    "hessian_near",
    "hierarchy_constants",
    "initial_gradient",
    "initial_heads",
    "initial_order_parameters",
    "log_fit",
    "measured_escape",
    "one_hot_cumulant",
    "one_hot_spikes",
    "opposite_heads",
    "order_parameters",
    "position_posterior",
    "projected_sgd",
    "quadratic_constants",
    "quadrature",
    "quadrature_size",
    "random_generator",
    "random_overlaps",
    "reduced_gradient",
    "reduced_loss",
    "score_noise",
    "softmax_floor",
    "specialization_time",
    "threshold_gradient",
    "train_heads",
    "train_sgd",
    "transformed",
    "unspecialized_hessian",
    "unspecialized_point",
    "wishart",
]
