"""The probe: capture, measure, compare with baselines, collect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.probing.data import LayerData
from attsvm.probing.measures.cheap import add_interval, cheap_measures
from attsvm.probing.measures.context import Context
from attsvm.probing.measures.redundancy import redundancy
from attsvm.probing.measures.svm import DEFAULT_BUDGET, SvmBudget
from attsvm.probing.svm_runs import estimate, svm_columns
from attsvm.probing.table import ProbeTable
from attsvm.records import versions

__all__ = ["probe"]

Progress = Callable[[str, int, int], object]


def _budget(svm: SvmBudget | bool | None) -> SvmBudget | None:
    if svm is None or isinstance(svm, bool | np.bool_):
        return DEFAULT_BUDGET if svm else None
    if not isinstance(svm, SvmBudget):
        raise ValueError(f"svm must be an SvmBudget, True or False, got {type(svm).__name__}")
    return svm


def _check(counts: dict[str, int]) -> None:
    for label, value in counts.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f"{label} must be an integer >= 0, got {value!r}")


def probe(
    model: Any,
    inputs: Any = None,
    *,
    tokenizer: Any = None,
    svm: SvmBudget | bool | None = None,
    removal: int = 4,
    pruning: int = 12,
    baselines: int = 8,
    show: int = 3,
    batch_size: int = 8,
    max_length: int = 128,
    tolerance: float = 1e-5,
    store: str | Path = ":memory:",
    workers: int | None = 0,
    executor: object = None,
    seed: int = 0,
    name: str | None = None,
    progress: Progress | None = None,
) -> ProbeTable:
    """Measure every attention head of a trained model by all five theories.

    Hidden states are captured by hooks while the model runs on the inputs; attention is recomputed from them and must
    equal the model's own. Theorems here are about one layer trained to saturation: read a number about a deep model
    beside its baselines (``*_random``: a random W of the same spectrum; ``*_shuffled``: tokens dealt out again).

    Parameters
    ----------
    model : torch.nn.Module, LayerData or sequence of LayerData
        A model of transformers, any module with `torch.nn.MultiheadAttention`, or layers from `heads_from_arrays` (no
        torch needed).
    inputs : optional
        Texts (with ``tokenizer``), encodings, tensors, or a list of batches of them.
    tokenizer : callable, optional
    svm : SvmBudget or bool, optional
        Solve the SVMs of every head, which takes minutes where all else takes seconds: True, or an SvmBudget that says
        on which sample and how accurately. They are left out by default.
    removal : int
        Sequences on which heads are removed one by one (two runs of the model per head); 0 leaves it out.
    pruning : int
        Heads to remove greedily, one after the other, on the same sequences; about two runs of the model for each.
    baselines : int
        Sequences on which baselines are measured.
    show : int
        Sequences whose attention the page shows.
    batch_size, max_length : int
        How texts are cut.
    tolerance : float
        Largest difference allowed between recomputed and the model's own attention.
    store : str or Path
        SQLite file of finished SVM solves: a second call resumes.
    workers : int, optional
        Processes of the SVM solves (None: one per core); 0 computes here.
    executor : optional
        In place of them, as for `attsvm.sweep` (a dask client, for example).
    seed : int
    name : str, optional
        What the page calls the model.
    progress : callable, optional
        Called with a label, the parts done and their number. Before the SVMs the label says about how long they take,
        from one small solve.

    Returns
    -------
    ProbeTable

    Raises
    ------
    ProbeError
        For what cannot be read, by name, and where recomputed attention is not the model's own.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    >>> table = attsvm.probe(torch.nn.TransformerEncoder(layer, 2), torch.randn(4, 6, 16))
    >>> len(table), table.about["error"] < 1e-5
    (8, True)
    """
    svm = _budget(svm)
    _check({"removal": removal, "pruning": pruning, "baselines": baselines, "show": show})
    say: Progress = progress or (lambda label, done, total: None)
    remover: Any = None
    ids: npt.NDArray[np.int64] | None = None
    texts: list[list[str]] | None = None
    layers = _given_layers(model)
    if layers is None:
        if inputs is None:
            raise ValueError("inputs are missing: texts with tokenizer=, an encoding, or a tensor")
        layers, ids, texts, remover = _captured(
            model, inputs, tokenizer, batch_size, max_length, tolerance, removal, say
        )
    elif inputs is not None:
        raise ValueError("inputs go with a model; layers from arrays have their own")
    records, details = _cheap(layers, ids, baselines, seed, say)
    pruned: dict[str, Any] = {}
    if remover is not None and remover.possible:
        pruned = _removals(remover, records, pruning, say)
    if svm is not None:
        say(f"solving SVMs, {estimate(layers, svm, workers=workers, seed=seed)}", 0, len(records))
        columns, extra = svm_columns(
            layers, svm, seed=seed, store=store, workers=workers, executor=executor,
            progress=lambda done, total: say("solving SVMs", done, total),
        )  # fmt: skip
        for record, detail, column, more in zip(records, details, columns, extra, strict=True):
            record |= column
            detail |= more
    about = {
        "model": name or type(model).__name__, "sequences": len(layers[0].q), "seed": seed,
        "tokens": int(sum(Context(layers[0]).lengths)), "layers": len(layers),
        "error": max((layer.error for layer in layers if np.isfinite(layer.error)), default=None),
        "removal": removal if remover is not None else 0, "baselines": baselines,
        "svm": None if svm is None else svm.record(), "versions": versions("torch", "transformers"),
    }  # fmt: skip
    sentences = _sentences(layers, texts, show)
    return ProbeTable(tuple(records), about, tuple(details), tuple(sentences), pruned)


def _given_layers(model: Any) -> list[LayerData] | None:
    if isinstance(model, LayerData):
        return [model]
    if isinstance(model, (list, tuple)) and model and all(isinstance(layer, LayerData) for layer in model):
        return list(model)
    return None


def _captured(
    model: Any,
    inputs: Any,
    tokenizer: Any,
    batch_size: int,
    max_length: int,
    tolerance: float,
    removal: int,
    say: Progress,
) -> tuple[list[LayerData], Any, Any, Any]:
    with needs("probing a model (heads_from_arrays does without)"):
        from attsvm.probing.hooks import capture
        from attsvm.probing.inputs import read_inputs
        from attsvm.probing.measures.removal import HeadRemover

    device = getattr(model, "device", None)
    read = read_inputs(inputs, tokenizer, batch_size=batch_size, max_length=max_length, device=device)
    layers = capture(
        model, read.batches, tolerance=tolerance, progress=lambda done, total: say("running the model", done, total)
    )
    remover = None
    if removal:
        few = read.first(removal)
        remover = HeadRemover(model, few, capture(model, few, tolerance=tolerance))
    return layers, read.ids, read.tokens, remover


def _cheap(
    layers: Sequence[LayerData], ids: Any, baselines: int, seed: int, say: Progress
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    records, details = [], []
    total = sum(layer.heads for layer in layers)
    for layer in layers:
        own = ids if ids is not None and layer.attends == "self" and ids.shape[1] == layer.tokens.shape[1] else None
        context = Context(layer, own)
        for head in layer:
            record, detail = cheap_measures(head, context, baselines=baselines, seed=seed)
            records.append(record)
            details.append(detail)
            say("measuring heads", len(records), total)
    found = redundancy(layers, seed=seed)
    for index, record in enumerate(records):
        value, shuffled, other = found.nearest(index)
        record["redundancy"], record["redundancy_shuffled"] = value, shuffled
        record["redundant_with"] = None if other is None else f"{other[0]}.{other[1]}"
    return records, details


def _removals(remover: Any, records: list[dict[str, Any]], pruning: int, say: Progress) -> dict[str, Any]:
    importance = {}
    for done, record in enumerate(records):
        place = (record["layer"], record["head"])
        change = remover.change([place])
        add_interval(record, "importance", change)
        add_interval(record, "softmax_one", remover.softmax_one(place))
        importance[place] = float(np.mean(change))
        say("removing heads", done + 1, len(records))
    if not pruning:
        return {}
    order, path = remover.pruning_path(
        importance, steps=pruning, progress=lambda done, total: say("pruning", done, total)
    )
    rank = {place: k + 1 for k, place in enumerate(order)}
    for record in records:
        record["pruned_at"] = rank.get((record["layer"], record["head"]))
    return {"order": [list(place) for place in order], "change": list(path.losses)}


def _sentences(layers: Sequence[LayerData], texts: list[list[str]] | None, show: int) -> list[dict[str, Any]]:
    """Tokens and attention, in bytes, of the shortest sequences with more than a few tokens."""
    lengths = Context(layers[0]).lengths
    order = sorted(range(len(lengths)), key=lambda i: (lengths[i] < 4, lengths[i]))[:show]
    out = []
    for i in order:
        maps = []
        for layer in layers:
            keys, queries = np.flatnonzero(Context(layer).keys[i])[:64], np.flatnonzero(layer.valid[i])[:64]
            for head in layer:
                part = np.exp(head.log_attention[i][np.ix_(queries, keys)])
                maps.append({"shape": list(part.shape), "bytes": _bytes(part)})
        count = maps[0]["shape"][1]
        words = texts[i][:count] if texts is not None and i < len(texts) else [str(t) for t in range(count)]
        out.append({"index": int(i), "tokens": words, "attention": maps})
    return out


def _bytes(part: npt.NDArray[np.float64]) -> str:
    """Weights as bytes 0..255 in base64: a hundredth is enough for a picture."""
    import base64

    return base64.b64encode(np.rint(255 * part).astype(np.uint8).tobytes()).decode()
