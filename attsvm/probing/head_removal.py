"""What a head is worth: the model's output without it, with it as softmax-1, and the order in which heads can go."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from attsvm.dynamics.specialization.head_sgd import PruningPath
from attsvm.probing.cheap_measures import softmax_one_factors
from attsvm.probing.head_data import LayerData
from attsvm.probing.model_hooks import attention_modules, eager, run_model
from attsvm.probing.model_weights import OutputMap
from attsvm.solvers.arrays import FloatArray

Place = tuple[int, int]


def output_of(result: Any) -> Tensor:
    """What a model answers: its logits, else its last hidden states, else its first tensor."""
    for name in ("logits", "last_hidden_state"):
        value = getattr(result, name, None)
        if isinstance(value, Tensor):
            return value
    first = result[0] if isinstance(result, (tuple, list)) else result
    if not isinstance(first, Tensor):
        raise ValueError(f"the model's output is a {type(result).__name__} without logits or hidden states")
    return first


class HeadRemover:
    """Runs a model with heads removed and compares its output with the one it had.

    A head is removed by zeroing its block of the output map, in the calls of its layer (a map that several layers
    share is removed in one of them only); the change is ``|y' - y| / |y|`` per sequence, over real tokens.

    Parameters
    ----------
    model : nn.Module
    batches : sequence
        Few: the model runs once per head.
    layers : sequence of LayerData
        Of these batches, in the same order.

    Examples
    --------
    >>> import torch
    >>> from attsvm.probing.model_hooks import capture_layers
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    >>> remover = HeadRemover(module, [x], capture_layers(module, [x]))
    >>> remover.change([(0, 0)]).shape, bool((remover.change([]) == 0).all())
    ((3,), True)
    """

    def __init__(self, model: nn.Module, batches: Sequence[Any], layers: Sequence[LayerData]) -> None:
        self.model, self.batches, self.layers = model, list(batches), list(layers)
        found = attention_modules(model)
        self._modules = {layer.layer: found[layer.module][0] for layer in layers}
        self._outputs = {layer.layer: found[layer.module][1].output for layer in layers}
        self._by_layer = {layer.layer: layer for layer in layers}
        counts: dict[int, int] = {}
        self._calls: dict[tuple[int, int], int] = {}  # (module, how often it was called before) -> layer
        for layer in layers:
            module = id(self._modules[layer.layer])
            self._calls[module, counts.get(module, 0)] = layer.layer
            counts[module] = counts.get(module, 0) + 1
        with torch.no_grad(), eager(model):
            self._before = [self._answer(batch) for batch in self.batches]

    def _answer(self, batch: Any) -> Tensor:
        """The model's output, sequences first."""
        found = output_of(run_model(self.model, batch))
        return found.transpose(0, 1) if all(map(_time_first, self._modules.values())) else found

    @property
    def possible(self) -> bool:
        """Whether the output maps of all layers were found."""
        return all(output is not None for output in self._outputs.values())

    def change(self, heads: Sequence[Place]) -> FloatArray:
        """Relative change of the output without these heads, shape (n,)."""
        return self._run(heads, None)

    def softmax_one(self, head: Place) -> FloatArray:
        """Relative change of the output if this head used softmax-1, ``e^l / (1 + sum e^l)``, shape (n,)."""
        return self._run([head], softmax_one_factors(self._by_layer[head[0]][head[1]]))

    def _run(self, heads: Sequence[Place], factors: FloatArray | None) -> FloatArray:
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        changes, start = [], 0
        with torch.no_grad(), eager(self.model):
            for batch, before in zip(self.batches, self._before, strict=True):
                part = None if factors is None else factors[start : start + len(before)]
                with ExitStack() as hooks:
                    self._weaken(hooks, by_layer, part)
                    after = self._answer(batch)
                changes.append(_relative(after, before, batch))
                start += len(before)
        return np.concatenate(changes)

    def _weaken(self, hooks: ExitStack, by_layer: dict[int, list[int]], factors: FloatArray | None) -> None:
        """Until the hooks go, scale the given heads of the given layers (by 0 without factors)."""
        for module in {self._modules[layer] for layer in by_layer}:
            wanted = {
                place: by_layer[layer]
                for (key, place), layer in self._calls.items()
                if key == id(module) and layer in by_layer
            }
            output = next(self._outputs[layer] for layer in by_layer if self._modules[layer] is module)
            if output is None:
                raise ValueError(
                    f"the output map of {type(module).__name__} was not found: its heads cannot be removed"
                )
            if output.module is not None:
                scale = _input_scaler(wanted, output.heads, factors)
                hooks.callback(output.module.register_forward_pre_hook(scale).remove)
            else:
                assert isinstance(module, nn.MultiheadAttention)
                mix = _output_mixer(wanted, output, factors)
                hooks.callback(module.register_forward_hook(mix, with_kwargs=True).remove)

    def pruning_path(
        self,
        importance: dict[Place, float],
        *,
        steps: int | None = None,
        progress: Callable[[int, int], object] | None = None,
    ) -> tuple[tuple[Place, ...], PruningPath]:
        """Remove heads one after the other, the one whose removal changes the output least first.

        Greedy with lazy updates: the head with the smallest known change is measured again together with what is
        already gone, and goes if it is still the smallest. Where changes only grow this is the greedy order; otherwise
        a head that became cheaper may wait longer than in the full search, which would run the model H^2 / 2 times.

        Parameters
        ----------
        importance : dict
            Change by each head alone, from `change`.
        steps : int, optional
            Heads to remove, all but one by default.
        progress : callable, optional
        """
        heap = [(value, place) for place, value in importance.items()]
        heapq.heapify(heap)
        gone: list[Place] = []
        losses = [0.0]
        wanted = min(len(heap) - 1, len(heap) if steps is None else steps)
        while len(gone) < wanted:
            _, place = heapq.heappop(heap)
            value = float(np.mean(self.change([*gone, place])))
            rise = value - losses[-1]
            while heap and rise > heap[0][0] and heap[0][0] >= 0:  # a cheaper one may exist
                stale, other = heapq.heappop(heap)
                tried = float(np.mean(self.change([*gone, other]))) - losses[-1]
                if tried < rise:
                    heapq.heappush(heap, (rise, place))
                    place, rise = other, tried
                else:
                    heapq.heappush(heap, (max(tried, stale), other))
                    break
            gone.append(place)
            losses.append(losses[-1] + rise)
            if progress is not None:
                progress(len(gone), wanted)
        order = {place: k for k, place in enumerate(importance)}
        return tuple(gone), PruningPath(tuple(order[place] for place in gone), tuple(losses))


def _input_scaler(wanted: dict[int, list[int]], heads: int, factors: FloatArray | None) -> Callable[..., Any]:
    """A hook in front of the output map, which is called with the heads side by side."""
    count = [0]

    def scale(module: nn.Module, args: tuple[Any, ...]) -> Any:
        place, count[0] = count[0], count[0] + 1
        if place not in wanted:
            return None
        states = args[0].clone()
        width = states.shape[-1] // heads
        factor: Any = 0.0
        if factors is not None:
            factor = torch.as_tensor(factors, dtype=states.dtype, device=states.device)[:, : states.shape[1], None]
        for head in wanted[place]:
            states[..., head * width : (head + 1) * width] *= factor
        return (states, *args[1:])

    return scale


def _output_mixer(wanted: dict[int, list[int]], output: OutputMap, factors: FloatArray | None) -> Callable[..., Any]:
    """A hook behind torch's own attention, which is linear in what each head adds."""
    state = {"count": 0, "inside": 0}

    def mix(module: nn.MultiheadAttention, args: Any, kwargs: Any, result: Any) -> Any:
        if state["inside"]:
            return None
        place, state["count"] = state["count"], state["count"] + 1
        if place not in wanted:
            return None
        state["inside"] = 1
        try:
            with _zeroed(output, wanted[place]):
                without = module(*args, **kwargs)[0]
        finally:
            state["inside"] = 0
        if factors is None:
            return (without, *result[1:])
        factor = torch.as_tensor(factors, dtype=without.dtype, device=without.device)[..., None]
        factor = factor.transpose(0, 1) if _time_first(module) else factor
        return (without + factor * (result[0] - without), *result[1:])

    return mix


def _time_first(module: nn.Module) -> bool:
    return isinstance(module, nn.MultiheadAttention) and not module.batch_first


@contextmanager
def _zeroed(output: OutputMap, heads: list[int]) -> Iterator[None]:
    saved = [output.block(head).clone() for head in heads]
    try:
        for head in heads:
            output.block(head).zero_()
        yield
    finally:
        for head, block in zip(heads, saved, strict=True):
            output.block(head).copy_(block)


def _relative(after: Tensor, before: Tensor, batch: Any) -> FloatArray:
    """``|y' - y| / |y|`` per sequence, without padding."""
    mask = _real_tokens(batch, before)
    difference, size = after.double() - before.double(), before.double()
    if mask is not None:
        difference, size = difference * mask, size * mask
    axes = tuple(range(1, before.ndim))
    ratio = difference.square().sum(axes).sqrt() / size.square().sum(axes).sqrt().clamp_min(1e-300)
    out: FloatArray = ratio.cpu().numpy()
    return out


def _real_tokens(batch: Any, output: Tensor) -> Tensor | None:
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = batch.get(name) if hasattr(batch, "get") else None
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == output.shape[:2]:
            return mask.to(output.device)[(..., *(None,) * (output.ndim - 2))].double()
    return None
