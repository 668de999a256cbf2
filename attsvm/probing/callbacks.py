"""A monitor inside the training loops of others: transformers' Trainer and Lightning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attsvm.probing.monitor import Monitor

__all__ = ["lightning_callback", "trainer_callback"]


def trainer_callback(monitor: Monitor) -> Any:
    """What ``transformers.Trainer(callbacks=[...])`` takes."""
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise ImportError("trainer_callback needs transformers: pip install 'attsvm[probe]'") from error
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
    for name in ("lightning.pytorch.callbacks", "pytorch_lightning.callbacks"):
        try:
            base: Any = import_module(name).Callback
            break
        except ImportError:
            continue
    else:
        raise ImportError("lightning_callback needs lightning: pip install lightning")

    class AttentionCallback(base):  # type: ignore[misc]
        """Calls the monitor after every training batch."""

        def on_train_batch_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.step()

        def on_train_end(self, *args: Any, **kwargs: Any) -> None:
            monitor.close()

    return AttentionCallback()
