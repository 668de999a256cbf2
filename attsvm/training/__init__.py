"""Training attention in torch: log-domain gradients, any device, batched over problems."""

from attsvm._lazy import needs

with needs("attsvm.training"):
    from attsvm.training.init import cone_init
    from attsvm.training.loop import train
    from attsvm.training.options import TrainOptions, snapshot_steps
    from attsvm.training.run import History, Run, RunStatus
    from attsvm.training.smoothness import smoothness_constant

__all__ = [
    "History",
    "Run",
    "RunStatus",
    "TrainOptions",
    "cone_init",
    "smoothness_constant",
    "snapshot_steps",
    "train",
]
