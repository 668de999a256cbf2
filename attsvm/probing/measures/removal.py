"""What a head is worth: the model's output without it, with it as softmax-1, and the order in which heads can go."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.dynamics.specialization import PruningPath
from attsvm.probing.capture import attention_modules, eager, run_model
from attsvm.probing.data import LayerData
from attsvm.probing.projections import OutputMap

__all__ = ["HeadRemover", "output_of"]

Float64 = npt.NDArray[np.float64]
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
    >>> from attsvm.probing.capture import capture
    >>> from attsvm.probing.measures.removal import HeadRemover
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch...>
    >>> module, x = torch.nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(3, 5, 8)
    >>> remover = HeadRemover(module, [x], capture(module, [x]))
    >>> remover.change([(0, 0)]).shape, bool((remover.change([]) == 0).all())
    ((3,), True)
    """

    def __init__(self, model: nn.Module, batches: Sequence[Any], layers: Sequence[LayerData]) -> None:
        self.model, self.batches, self.layers = model, list(batches), list(layers)
        found = attention_modules(model)
        self._modules = {layer.layer: found[layer.module][0] for layer in layers}
        self._outputs = {layer.layer: found[layer.module][1].output for layer in layers}
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

    def change(self, heads: Sequence[Place]) -> Float64:
        """Relative change of the output without these heads, shape (n,)."""
        return self._run(heads, None)

    def softmax_one(self, head: Place) -> Float64:
        """Relative change of the output if this head used softmax-1, ``e^l / (1 + sum e^l)``, shape (n,)."""
        return self._run([head], softmax_one_factors(self.layers[head[0]], head[1]))

    def _run(self, heads: Sequence[Place], factors: Float64 | None) -> Float64:
        by_layer: dict[int, list[int]] = {}
        for layer, head in heads:
            by_layer.setdefault(layer, []).append(head)
        changes, start = [], 0
        with torch.no_grad(), eager(self.model), self._weakened(by_layer) as keep:
            for batch, before in zip(self.batches, self._before, strict=True):
                keep(None if factors is None else factors[start : start + len(before)])
                after = self._answer(batch)
                changes.append(_relative(after, before, batch))
                start += len(before)
        return np.concatenate(changes)

    @contextmanager
    def _weakened(self, by_layer: dict[int, list[int]]) -> Iterator[Callable[[Float64 | None], None]]:
        """While open, the given heads of the given layers are scaled (by 0 without factors)."""
        state: dict[str, Any] = {"factors": None, "count": {}}
        hooks = []

        def keep(factors: Float64 | None) -> None:
            state["factors"], state["count"] = factors, {}

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if state.get("inside"):
                return None
            place = state["count"].get(module, 0)
            state["count"][module] = place + 1
            layer = self._calls.get((id(module), place))
            if layer is None or layer not in by_layer:
                return None
            state["inside"] = True
            try:
                without = self._without(module, layer, by_layer[layer], args, kwargs)
            finally:
                state["inside"] = False
            full = output[0] if isinstance(output, (tuple, list)) else output
            mixed = without
            if state["factors"] is not None:  # the output is linear in what a head adds
                factor = torch.as_tensor(state["factors"], dtype=full.dtype, device=full.device)[..., None]
                factor = factor.transpose(0, 1) if _time_first(module) else factor
                mixed = without + factor[:, : full.shape[1]] * (full - without)
            return (mixed, *output[1:]) if isinstance(output, tuple) else mixed

        for module in {self._modules[layer] for layer in by_layer}:
            hooks.append(module.register_forward_hook(hook, with_kwargs=True))
        try:
            yield keep
        finally:
            for handle in hooks:
                handle.remove()

    def _without(self, module: nn.Module, layer: int, heads: list[int], args: Any, kwargs: Any) -> Tensor:
        """What the module gives without some heads; where its output map stands outside, its own output block is 0."""
        output = self._outputs[layer]
        if output is None:
            raise ValueError(f"the output map of layer {layer} was not found: its heads cannot be removed")
        inside = any(parameter is output.weight for parameter in module.parameters())
        if not inside:  # BERT: heads are still side by side in the module's output
            result = module(*args, **kwargs)
            full: Tensor = (result[0] if isinstance(result, (tuple, list)) else result).clone()
            width = full.shape[-1] // output.heads
            for head in heads:
                full[..., head * width : (head + 1) * width] = 0.0
            return full
        with _zeroed(output, heads):
            result = module(*args, **kwargs)
        return result[0] if isinstance(result, (tuple, list)) else result

    def pruning_path(
        self, importance: dict[Place, float], *, steps: int | None = None, progress: Callable[[int, int], object] | None = None
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


def softmax_one_factors(layer: LayerData, head: int) -> Float64:
    """What softmax-1 multiplies a head's output by: ``Z / (1 + Z)`` with ``Z = sum_t e^{l_t}``, shape (n, Tq)."""
    logits = layer[head].logits
    top = np.maximum(logits.max(axis=-1), 0.0)
    with np.errstate(divide="ignore"):
        log_z = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    return np.asarray(1.0 / (1.0 + np.exp(-log_z)))


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


def _relative(after: Tensor, before: Tensor, batch: Any) -> Float64:
    """``|y' - y| / |y|`` per sequence, without padding."""
    mask = _real_tokens(batch, before)
    difference, size = after.double() - before.double(), before.double()
    if mask is not None:
        difference, size = difference * mask, size * mask
    axes = tuple(range(1, before.ndim))
    ratio = difference.square().sum(axes).sqrt() / size.square().sum(axes).sqrt().clamp_min(1e-300)
    out: Float64 = ratio.cpu().numpy()
    return out


def _real_tokens(batch: Any, output: Tensor) -> Tensor | None:
    for name in ("decoder_attention_mask", "attention_mask"):
        mask = batch.get(name) if hasattr(batch, "get") else None
        if isinstance(mask, Tensor) and mask.ndim == 2 and mask.shape == output.shape[:2]:
            return mask.to(output.device)[(..., *(None,) * (output.ndim - 2))].double()
    return None
