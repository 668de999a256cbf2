"""Training attention in torch: log-domain gradients, any device, batched over problems."""

from attsvm._lazy import needs

with needs("attsvm.training"):
    from attsvm.training.log_gradient import smoothness_constant
    from attsvm.training.loop import cone_init, train
    from attsvm.training.options import TrainOptions, snapshot_steps
    from attsvm.training.run_result import History, Run, RunStatus

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
