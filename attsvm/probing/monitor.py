"""Attention watched while a model trains: a few scalars per head every so many steps, written down, with alarms."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from attsvm.probing.alarms import Alarm, AlarmRules
from attsvm.probing.hooks import attention_modules
from attsvm.probing.projections import Projections
from attsvm.probing.recompute import Call, Recomputed, read_call, recompute
from attsvm.probing.writers import JsonlWriter, SqliteWriter, TensorBoardWriter, Writer

__all__ = ["Monitor", "head_scalars"]

Place = tuple[int, int]


class Monitor:
    """Call `step` once per training step; every so many steps the attention of that step is measured.

    Hooks look at what attention modules are called with in the training's own forward pass, of a few sequences: the
    model is never run again, and between measurements a hook only sees that it has nothing to do.

    Parameters
    ----------
    model : torch.nn.Module
    every : int
        Steps between two measurements; the first step is measured too.
    sequences : int
        Of the batch, from its beginning.
    jsonl, sqlite, tensorboard : str or Path, optional
        Files (a folder for TensorBoard) to write to.
    rules : AlarmRules
    on_alarm : callable, optional
        Called with each `Alarm`; by default they are only written down and kept in `alarms`.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    >>> with attsvm.Monitor(model, every=2) as monitor:
    ...     for _ in range(4):
    ...         _ = model(torch.randn(3, 5, 16))
    ...         _ = monitor.step()
    >>> [step for step, _ in monitor.history], len(monitor.history[0][1])
    ([0, 2], 8)
    """

    def __init__(
        self,
        model: nn.Module,
        every: int = 100,
        *,
        sequences: int = 4,
        jsonl: str | Path | None = None,
        sqlite: str | Path | None = None,
        tensorboard: str | Path | None = None,
        rules: AlarmRules | None = None,
        on_alarm: Callable[[Alarm], object] | None = None,
    ) -> None:
        for name, value in (("every", every), ("sequences", sequences)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be an integer >= 1, got {value!r}")
        found = attention_modules(model)
        self.every, self.sequences = every, sequences
        self.rules = AlarmRules() if rules is None else rules
        self.history: list[tuple[int, dict[Place, dict[str, float]]]] = []
        self.alarms: list[Alarm] = []
        self._on_alarm = on_alarm
        self._count = 0
        self._armed = True
        self._calls: list[dict[Place, dict[str, float]]] = []
        self._layers = 0
        self._model = model
        self._running = False
        self._maps = {module: maps for module, maps in found.values()}
        self._writers: list[Writer] = []
        if jsonl is not None:
            self._writers.append(JsonlWriter(jsonl))
        if sqlite is not None:
            self._writers.append(SqliteWriter(sqlite))
        if tensorboard is not None:
            self._writers.append(TensorBoardWriter(tensorboard))
        self._hooks = [
            model.register_forward_pre_hook(self._begin),
            *(module.register_forward_pre_hook(self._look, with_kwargs=True) for module in self._maps),
            model.register_forward_hook(self._end, always_call=True),
        ]

    def _begin(self, module: nn.Module, args: Any) -> None:
        """A forward pass starts; of several in one step the last one counts."""
        self._running, self._calls, self._layers = True, [], 0
        if self._armed:  # parameters may have been replaced since
            self._maps = {inner: maps for inner, maps in attention_modules(self._model).values()}

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        """What runs later (checkpointing repeats layers in the backward pass) is no new layer."""
        self._running = False

    def _look(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not (self._armed and self._running):
            return
        bound = inspect.signature(module.forward).bind_partial(*args, **kwargs).arguments
        given = {**bound, **bound.pop("kwargs", {})}
        maps = self._maps[module]
        with torch.no_grad():
            few = _first_sequences(module, maps, given, self.sequences)
            call = _with_causal_mask(module, few, read_call(module, maps, few))
            scalars = head_scalars(recompute(maps, call))
        layer = self._layers
        self._layers += 1
        heads = {name: values.tolist() for name, values in scalars.items()}
        self._calls.append({
            (layer, h): {name: heads[name][h] for name in heads} for h in range(maps.heads)
        })  # fmt: skip

    def __repr__(self) -> str:
        return f"Monitor(every={self.every}, {len(self.history)} measurements, {len(self.alarms)} alarms)"

    def step(self) -> dict[Place, dict[str, float]] | None:
        """End of a training step; the scalars of every (layer, head) if this step was measured."""
        step, self._count = self._count, self._count + 1
        found = None
        if self._armed and self._calls:
            found = {place: values for call in self._calls for place, values in call.items()}
            before = self.history[-1][1] if self.history else {}
            raised = [
                alarm
                for (layer, head), values in found.items()
                for alarm in self.rules.crossings(step, layer, head, before.get((layer, head)), values)
            ]
            self.history.append((step, found))
            self.alarms += raised
            for writer in self._writers:
                writer.write(step, found, raised)
            for alarm in raised if self._on_alarm is not None else ():
                assert self._on_alarm is not None
                self._on_alarm(alarm)
        self._calls, self._layers = [], 0
        self._armed = self._count % self.every == 0
        return found

    def close(self) -> None:
        """Remove the hooks and close what is written to."""
        for hook in self._hooks:
            hook.remove()
        for writer in self._writers:
            writer.close()
        self._hooks, self._writers = [], []

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def trainer_callback(self) -> Any:
        """A ``transformers.TrainerCallback`` that calls `step` after every optimizer step and closes at the end."""
        from attsvm.probing.callbacks import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """A Lightning callback that calls `step` after every training batch and closes at the end."""
        from attsvm.probing.callbacks import lightning_callback

        return lightning_callback(self)


def _cut(name: str, value: Any, *, size: int, count: int, heads: int, time_first: bool) -> Any:
    """An argument for ``count`` of ``size`` sequences, whatever its axes are."""
    if isinstance(value, tuple):
        return tuple(_cut(name, part, size=size, count=count, heads=heads, time_first=time_first) for part in value)
    if not isinstance(value, Tensor) or not value.ndim:
        return value
    if time_first and name in ("query", "key", "value"):
        return value[:, :count]
    if name in ("alibi", "attn_mask") and value.ndim == 3 and len(value) == size * heads:
        return value[: count * heads]
    return value[:count] if len(value) == size and value.ndim > 1 else value


def _first_sequences(module: nn.Module, maps: Projections, given: Mapping[str, Any], count: int) -> dict[str, Any]:
    """The arguments for the first sequences of the batch."""
    time_first = isinstance(module, nn.MultiheadAttention) and not module.batch_first
    states = given.get("hidden_states", given.get("query", given.get("x")))
    if not isinstance(states, Tensor) or states.ndim != 3:
        return dict(given)
    cut = partial(_cut, size=states.shape[1 if time_first else 0], count=count, heads=maps.heads, time_first=time_first)
    few = {name: cut(name, value) for name, value in given.items()}
    if given.get("key") is given.get("query") and "query" in given:
        few["key"] = few["query"]
    return few


def _with_causal_mask(module: nn.Module, given: Mapping[str, Any], call: Call) -> Call:
    """Fused kernels are told to be causal instead of being given a mask: make it."""
    causal = bool(given.get("is_causal", getattr(module, "is_causal", False)))
    if call.bias is not None or not causal or call.cross:
        return call
    T = call.queries.shape[1]
    hidden = torch.ones(T, T, dtype=torch.bool, device=call.queries.device).triu(1)
    return replace(call, bias=torch.zeros(1, 1, T, T, device=call.queries.device).masked_fill(hidden, -torch.inf))


def head_scalars(again: Recomputed) -> dict[str, Tensor]:
    """Entropy, its share of the largest, sparsity, sink, largest logit and rounding noise, each of shape (H,).

    Examples
    --------
    >>> import torch
    >>> from attsvm.probing.monitor import head_scalars
    >>> from attsvm.probing.recompute import Recomputed
    >>> logits = torch.zeros(1, 2, 3, 3)
    >>> flat = Recomputed(logits, logits, None, torch.ones(1, 3, 3, dtype=torch.bool), None, logits, logits.softmax(-1))
    >>> found = head_scalars(flat)
    >>> found["entropy_share"].tolist(), round(found["sink_share_first"][0].item(), 4)
    ([1.0, 1.0], 0.3333)
    """
    logits, dtype = again.logits.float(), again.q.dtype
    allowed = again.allowed.unsqueeze(1)  # (B, 1, Tq, Tk)
    seen = allowed.sum(-1)  # (B, 1, Tq)
    valid = seen > 1
    if logits.shape[-1] == logits.shape[-2]:
        valid = valid & again.allowed.any(dim=1).unsqueeze(1)
    total = valid.sum((0, 2)).clamp_min(1)

    def mean(values: Tensor) -> Tensor:
        return torch.where(valid, values, 0.0).sum((0, 2)) / total

    logs = logits.log_softmax(-1)
    attention = logs.exp()
    entropy = -(attention * logs.masked_fill(allowed.logical_not(), 0.0)).sum(-1)
    top = attention.amax(-1)
    rest = (attention.sum(-1) - top).clamp_min(0.0)
    first = allowed.float().argmax(-1, keepdim=True).expand(*attention.shape[:3], 1)
    elsewhere = valid & (torch.arange(logits.shape[2], device=logits.device) > 0)
    on_first = torch.where(elsewhere, attention.gather(-1, first).squeeze(-1), 0.0)
    peak = torch.where(allowed & valid.unsqueeze(-1), logits, -torch.inf).amax((0, 2, 3))
    return {
        "entropy": mean(entropy),
        "entropy_share": mean(entropy / seen.clamp_min(2).log()),
        "sparsity": mean(top),
        "sink_share_first": on_first.sum((0, 2)) / elsewhere.sum((0, 2)).clamp_min(1),
        "max_logit": peak,
        "noise": mean((rest < torch.finfo(dtype).eps / 2).float()),
    }
