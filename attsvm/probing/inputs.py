"""What a model is probed on: texts, encodings, tensors; as batches, with token numbers and token texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Inputs", "read_inputs"]


@dataclass(frozen=True, eq=False)
class Inputs:
    """Batches for a model.

    Attributes
    ----------
    batches : list
        Each what the model is called with.
    ids : ndarray of int, shape (n, T), or None
        Token numbers, -1 behind the end.
    tokens : list of list of str, or None
        Their texts.
    """

    batches: list[Any]
    ids: npt.NDArray[np.int64] | None
    tokens: list[list[str]] | None

    def first(self, sequences: int) -> list[Any]:
        """Batches that hold about the first so many sequences; at least one batch."""
        taken: list[Any] = []
        count = 0
        for batch in self.batches:
            if taken and count >= sequences:
                break
            size = _size(batch)
            part = batch if size is None or count + size <= sequences else _cut(batch, sequences - count)
            taken.append(part)
            count += size or 0
        return taken


def _size(batch: Any) -> int | None:
    if hasattr(batch, "keys"):
        sizes = {len(batch[name]) for name in batch.keys() if hasattr(batch[name], "shape") and batch[name].ndim}  # noqa: SIM118
        return sizes.pop() if len(sizes) == 1 else None
    return None


def _cut(batch: Any, size: int) -> Any:
    return {name: batch[name][:size] if hasattr(batch[name], "shape") else batch[name] for name in batch.keys()}  # noqa: SIM118


def read_inputs(
    inputs: Any, tokenizer: Any = None, *, batch_size: int = 8, max_length: int = 128, device: Any = None
) -> Inputs:
    """Inputs of `attsvm.probe` in one form.

    Parameters
    ----------
    inputs : str, list of str, mapping of tensors, tensor, tuple, or list of those
        Texts need a tokenizer. A list holds batches, unless it holds texts.
    tokenizer : callable, optional
        Of transformers.
    batch_size, max_length : int
        How texts are cut; padding goes behind.
    device : optional
        Where texts go.

    Examples
    --------
    >>> import torch
    >>> from attsvm.probing.inputs import read_inputs
    >>> read_inputs({"input_ids": torch.tensor([[5, 6, 7]])}).ids
    array([[5, 6, 7]])
    """
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(text, str) for text in inputs):
        if tokenizer is None:
            raise ValueError("inputs are texts: give tokenizer=, or encode them first")
        batches = _encoded([text for text in inputs if text.strip()], tokenizer, batch_size, max_length, device)
    elif isinstance(inputs, list):
        batches = inputs
    else:
        batches = [inputs]
    if not batches:
        raise ValueError("inputs must hold at least one sequence")
    ids = _ids(batches)
    return Inputs(batches, ids, None if ids is None or tokenizer is None else _texts(ids, tokenizer))


def _encoded(texts: Sequence[str], tokenizer: Any, batch_size: int, max_length: int, device: Any) -> list[Any]:
    if not texts:
        raise ValueError("inputs must hold at least one text that is not empty")
    if getattr(tokenizer, "pad_token", "") is None:  # decoders often have none; the mask hides it
        tokenizer.pad_token = tokenizer.eos_token
    batches = []
    for start in range(0, len(texts), batch_size):
        found = tokenizer(
            list(texts[start : start + batch_size]), return_tensors="pt", padding=True, truncation=True,
            max_length=max_length,
        )  # fmt: skip
        batches.append({name: value.to(device) for name, value in found.items()})
    return batches


def _ids(batches: Sequence[Any]) -> npt.NDArray[np.int64] | None:
    parts = []
    for batch in batches:
        if not (isinstance(batch, Mapping) or hasattr(batch, "keys")) or "input_ids" not in batch:
            return None
        ids = np.asarray(batch["input_ids"].cpu().numpy(), dtype=np.int64)
        if "attention_mask" in batch:
            ids = np.where(batch["attention_mask"].cpu().numpy().astype(bool), ids, -1)
        parts.append(ids)
    out = np.full((sum(map(len, parts)), max(part.shape[1] for part in parts)), -1, dtype=np.int64)
    start = 0
    for part in parts:
        out[start : start + len(part), : part.shape[1]] = part
        start += len(part)
    return out


def _texts(ids: npt.NDArray[np.int64], tokenizer: Any) -> list[list[str]]:
    return [[str(t) for t in tokenizer.convert_ids_to_tokens([int(k) for k in row if k >= 0])] for row in ids]
