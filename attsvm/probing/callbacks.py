"""A monitor inside the training loops of others: transformers' Trainer and Lightning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from attsvm._lazy import installed, needs

if TYPE_CHECKING:
    from attsvm.probing.monitor import Monitor

__all__ = ["lightning_callback", "trainer_callback"]


def trainer_callback(monitor: Monitor) -> Any:
    """What ``transformers.Trainer(callbacks=[...])`` takes."""
    with needs("trainer_callback"):
        from transformers import TrainerCallback
    base: Any = TrainerCallback

    class AttentionCallback(base):  # type: ignore[misc]
        """Calls the monitor after every optimizer step."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            monitor.close()

    return AttentionCallback()


def lightning_callback(monitor: Monitor) -> Any:
    """What ``lightning.Trainer(callbacks=[...])`` takes."""
    older = not installed("lightning") and installed("pytorch_lightning")
    with needs("lightning_callback"):
        base: Any = import_module("pytorch_lightning.callbacks" if older else "lightning.pytorch.callbacks").Callback

    class AttentionCallback(base):  # type: ignore[misc]
        """Calls the monitor after every training batch."""

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.step()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.close()

    return AttentionCallback()
