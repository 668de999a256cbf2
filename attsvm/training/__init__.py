"""Training attention in torch: log-domain gradients, any device, batched over problems."""

from attsvm.training.balls import PathStatus
from attsvm.training.decompose import Decomposition, DecompositionStatus, decompose
from attsvm.training.init import cone_init
from attsvm.training.loop import snapshot_steps, train
from attsvm.training.paths import RegularizationPath, regularization_path
from attsvm.training.run import History, Run, RunStatus
from attsvm.training.smoothness import smoothness_constant

__all__ = [
    "Decomposition",
    "DecompositionStatus",
    "History",
    "PathStatus",
    "RegularizationPath",
    "Run",
    "RunStatus",
    "cone_init",
    "decompose",
    "regularization_path",
    "smoothness_constant",
    "snapshot_steps",
    "train",
]
