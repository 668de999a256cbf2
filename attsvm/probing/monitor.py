"""When a head goes wrong while it trains: what is watched, and the words for it.

Where a monitor writes: JSON lines, SQLite, TensorBoard.

A monitor inside the training loops of others: transformers' Trainer and Lightning.

Attention watched while a model trains: a few scalars per head every so many steps, written down, with alarms.
"""

from __future__ import annotations

import inspect
import json
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from attsvm._lazy import installed, needs
from attsvm.probing.model_hooks import Call, Recomputed, attention_modules, read_call, recompute
from attsvm.probing.model_weights import Projections
from attsvm.records import plain
from attsvm.user_input import require_count

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from transformers import TrainerCallback


@dataclass(frozen=True)
class Alarm:
    """One crossing of a threshold.

    Attributes
    ----------
    step, layer, head : int
    kind : {"entropy collapse", "saturation", "exploding logit", "new sink"}
    value : float
        The measure that crossed.
    """

    step: int
    layer: int
    head: int
    kind: str
    value: float

    def __str__(self) -> str:
        return f"step {self.step}: {self.kind} in layer {self.layer}, head {self.head} ({self.value:.3g})"


@dataclass(frozen=True)
class AlarmRules:
    """Thresholds; an alarm is raised when a head crosses one, not while it stays beyond.

    Attributes
    ----------
    entropy_share : float
        Entropy collapse: entropy over its largest value falls below this.
    saturation : float
        Share of queries whose gradient is rounding noise in the training dtype exceeds this.
    max_logit : float
        Exploding logit: the largest one exceeds this.
    sink : float
        New sink: attention on the first token exceeds this.

    Examples
    --------
    >>> from attsvm.probing.monitor import AlarmRules
    >>> rules = AlarmRules()
    >>> calm, wild = {"max_logit": 5.0, "sink_share_first": 0.1}, {"max_logit": 500.0, "sink_share_first": 0.1}
    >>> [str(alarm) for alarm in rules.crossings(7, 0, 3, calm, wild)]
    ['step 7: exploding logit in layer 0, head 3 (500)']
    >>> list(rules.crossings(8, 0, 3, wild, wild))
    []
    """

    entropy_share: float = 0.02
    saturation: float = 0.5
    max_logit: float = 100.0
    sink: float = 0.5

    def crossings(
        self, step: int, layer: int, head: int, before: Mapping[str, float] | None, now: Mapping[str, float]
    ) -> Iterator[Alarm]:
        """Alarms of one head between two measurements; the first measurement raises those it finds."""
        watched = (
            ("entropy collapse", "entropy_share", -self.entropy_share, -1.0),
            ("saturation", "noise", self.saturation, 1.0),
            ("exploding logit", "max_logit", self.max_logit, 1.0),
            ("new sink", "sink_share_first", self.sink, 1.0),
        )
        for kind, name, limit, sign in watched:
            if name not in now or not sign * now[name] > limit:
                continue
            if before is None or name not in before or not sign * before[name] > limit:
                yield Alarm(step, layer, head, kind, now[name])


Scalars = dict[str, float]


class Writer(Protocol):
    """Takes what was measured at a step."""

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Scalars of every (layer, head), and alarms."""

    def close(self) -> None:
        """End."""


class JsonlWriter:
    r"""One line of JSON per measurement.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     writer = JsonlWriter(Path(folder) / "a.jsonl")
    ...     writer.write(5, {(0, 1): {"entropy": 2.0}}, [])
    ...     writer.close()
    ...     (Path(folder) / "a.jsonl").read_text()
    '{"step": 5, "heads": [{"layer": 0, "head": 1, "entropy": 2.0}], "alarms": []}\n'
    """

    def __init__(self, path: str | Path) -> None:
        self._file = Path(path).open("a", encoding="utf-8")  # noqa: SIM115 - open while training runs

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Append a line, at once."""
        rows = [{"layer": layer, "head": head, **values} for (layer, head), values in heads.items()]
        self._file.write(json.dumps(plain({"step": step, "heads": rows, "alarms": list(alarms)})) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class SqliteWriter:
    """Tables ``scalars`` (step, layer, head, name, value) and ``alarms`` (step, layer, head, kind, value).

    Examples
    --------
    >>> writer = SqliteWriter(":memory:")
    >>> writer.write(5, {(0, 1): {"entropy": 2.0}}, [])
    >>> writer.connection.execute("SELECT * FROM scalars").fetchall()
    [(5, 0, 1, 'entropy', 2.0)]
    """

    def __init__(self, path: str | Path) -> None:
        try:
            self.connection = sqlite3.connect(str(path))
            for table, name in (("scalars", "name"), ("alarms", "kind")):
                self.connection.execute(
                    f"CREATE TABLE IF NOT EXISTS {table} (step INTEGER, layer INTEGER, head INTEGER, {name} TEXT, "
                    "value REAL)"
                )
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path} cannot be used as a database of scalars ({error})") from error

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Add rows in one transaction."""
        rows = [(step, *place, name, value) for place, values in heads.items() for name, value in values.items()]
        told = [(alarm.step, alarm.layer, alarm.head, alarm.kind, alarm.value) for alarm in alarms]
        with self.connection:
            self.connection.executemany("INSERT INTO scalars VALUES (?, ?, ?, ?, ?)", rows)
            self.connection.executemany("INSERT INTO alarms VALUES (?, ?, ?, ?, ?)", told)

    def close(self) -> None:
        """Close the file."""
        self.connection.close()


class TensorBoardWriter:
    """Scalars ``attention/LAYER.HEAD/NAME`` and alarms as text, in a folder that TensorBoard reads."""

    def __init__(self, folder: str | Path) -> None:
        with needs("TensorBoardWriter"):
            from torch.utils.tensorboard import SummaryWriter
        make: Any = SummaryWriter
        self._writer: Any = make(str(folder))

    def write(self, step: int, heads: dict[tuple[int, int], Scalars], alarms: Sequence[Alarm]) -> None:
        """Add scalars and texts."""
        for (layer, head), values in heads.items():
            for name, value in values.items():
                self._writer.add_scalar(f"attention/{layer}.{head}/{name}", value, step)
        for alarm in alarms:
            self._writer.add_text("attention/alarms", str(alarm), step)

    def close(self) -> None:
        """Flush and close."""
        self._writer.close()


def trainer_callback(monitor: Monitor) -> TrainerCallback:
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


def lightning_callback(monitor: Monitor) -> Callback:
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
            require_count(name, value)
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

    def trainer_callback(self) -> TrainerCallback:
        """A ``transformers.TrainerCallback`` that calls `step` after every optimizer step and closes at the end."""
        return trainer_callback(self)

    def lightning_callback(self) -> Callback:
        """A Lightning callback that calls `step` after every training batch and closes at the end."""
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
    >>> from attsvm.probing.model_hooks import Recomputed
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
