"""SVM measures of many heads: on processes or a cluster, each head stored as it finishes.

The probe: capture, measure, compare with baselines, collect.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.probing.cheap_measures import Context, add_interval, cheap_measures, random_spectrum
from attsvm.probing.head_data import HeadData, LayerData
from attsvm.probing.head_redundancy import redundancy
from attsvm.probing.head_table import ProbeTable
from attsvm.probing.svm_measures import DEFAULT_BUDGET, Sample, SvmBudget, draw_sample, sample_measures, svm_measures
from attsvm.records import atomic_write, digest, versions
from attsvm.sweeps import sweep
from attsvm.user_input import require_count

_DETAILS = ("support", "curve")

_WHOLE_HEAD = 15.0  # seconds that a head may take, by a first guess, to be timed as a whole

_PARTS = ("fitted", "tested", "random_fitted", "random_tested")


def svm_task(trials: int, seed: int, *, data: str, budget: str) -> dict[str, list[Any]]:
    """The measures of one head from the file of its sample; what a worker runs."""
    with np.load(data, allow_pickle=False) as file:
        samples = {part: _unpack(file, part) for part in _PARTS}
    asked = SvmBudget(**{**json.loads(budget), "shares": tuple(json.loads(budget)["shares"])})
    fitted = samples["fitted"]
    assert fitted is not None
    found = sample_measures(fitted, samples["tested"], asked)
    drawn = samples["random_fitted"]
    if drawn is not None:
        for name, value in sample_measures(drawn, samples["random_tested"], asked, baseline=True).items():
            found[f"{name}_random"] = value
    return {"found": [json.dumps(_plain(found))] * trials}


def estimate(layers: Sequence[LayerData], budget: SvmBudget, *, workers: int | None = 0, seed: int = 0) -> str:
    """About how long `svm_columns` will take, in words, from the solves of one head.

    These are timed on a small sample first. With twice the queries a solve takes two to three times as long, so the
    product is right within a factor of about five; if it says that a head takes some seconds, one head is timed as a
    whole.
    """
    heads = sum(layer.heads for layer in layers)
    small = replace(budget, sequences=min(2, budget.sequences), held_out=min(1, budget.held_out), queries=2, shares=())
    n = len(layers[0].q)
    ratio = min(budget.sequences, n) * budget.queries / (min(small.sequences, n) * small.queries)
    seconds = _seconds_of_head(layers[-1][0], small, seed) * max(1.0, ratio) ** 1.5
    if seconds < _WHOLE_HEAD:
        seconds = _seconds_of_head(layers[-1][0], budget, seed)
    cores = min(heads, (os.cpu_count() or 1) if workers is None else max(1, workers))
    total = seconds * heads / cores
    about = f"{total:.0f} s" if total < 100 else f"{total / 60:.0f} minutes"
    return f"about {about} for {heads} heads in {cores} process{'es' if cores > 1 else ''}"


def _seconds_of_head(head: HeadData, budget: SvmBudget, seed: int) -> float:
    start = time.perf_counter()
    svm_measures(head, budget, seed)
    return time.perf_counter() - start


def _plain(value: Any) -> Any:
    from attsvm.records import plain

    return plain(value)


def _pack(sample: Sample | None, part: str) -> dict[str, Any]:
    if sample is None:
        return {}
    names = ("X", "Z", "mask", "selection", "offset", "W", "places")
    return {f"{part}.{name}": getattr(sample, name) for name in names if getattr(sample, name) is not None}


def _unpack(file: Any, part: str) -> Sample | None:
    if f"{part}.X" not in file:
        return None
    names = ("X", "Z", "mask", "selection", "W", "places")
    return Sample(offset=file.get(f"{part}.offset"), **{name: file[f"{part}.{name}"] for name in names})


def _write(head: HeadData, budget: SvmBudget, seed: int, folder: Path) -> Path:
    """The sample of a head in a file that is named by its content."""
    arrays = dict(zip(_PARTS, (*draw_sample(head, budget, seed), None, None), strict=True))
    if budget.baseline:
        drawn = draw_sample(random_spectrum(head, seed), budget, seed)
        arrays |= dict(zip(_PARTS[2:], drawn, strict=True))
    packed: dict[str, Any] = {}
    for part, sample in arrays.items():
        packed |= _pack(sample, part)
    content = digest(*(part for item in sorted(packed.items()) for part in item), length=16)
    path = folder / f"{head.layer:03d}.{head.head:03d}.{content}.npz"
    if not path.exists():
        with atomic_write(path) as file:
            np.savez(file, **packed)
    return path


def svm_columns(
    layers: Sequence[LayerData],
    budget: SvmBudget,
    *,
    seed: int = 0,
    store: str | Path = ":memory:",
    workers: int | None = 0,
    executor: object = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Columns and details of every head, in order; heads that the store has are not solved again.

    Samples are kept in a folder beside the store, ``STORE.samples``.
    """
    heads = [head for layer in layers for head in layer]
    with ExitStack() as stack:
        if str(store) == ":memory:":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(f"{store}.samples")
            folder.mkdir(parents=True, exist_ok=True)
        cells = [{"data": str(_write(h, budget, seed, folder)), "budget": json.dumps(budget.record())} for h in heads]
        done = sweep(
            svm_task, cells, 1, executor, store, chunk=1, seed=seed, workers=workers, name="probe", extend=True,
            progress=None if progress is None else lambda k, total: (progress(k, total), None)[1],
        )  # fmt: skip
    found = [json.loads(str(columns["found"][0])) for columns in done.columns]
    columns = [{name: value for name, value in one.items() if name not in _DETAILS} for one in found]
    return columns, [{name: one[name] for name in _DETAILS if name in one} for one in found]


Progress = Callable[[str, int, int], object]


def _budget(svm: SvmBudget | bool | None) -> SvmBudget | None:
    if svm is None or isinstance(svm, bool | np.bool_):
        return DEFAULT_BUDGET if svm else None
    if not isinstance(svm, SvmBudget):
        raise ValueError(f"svm must be an SvmBudget, True or False, got {type(svm).__name__}")
    return svm


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
    beside its baselines (``*_random``: a random W of the same spectrum; ``*_shuffled``: randomly permuted tokens).

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
    for label, count in {"removal": removal, "pruning": pruning, "baselines": baselines, "show": show}.items():
        require_count(label, count, least=0)
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
        from attsvm.probing.head_data import read_inputs
        from attsvm.probing.head_removal import HeadRemover
        from attsvm.probing.model_hooks import capture_layers

    device = getattr(model, "device", None)
    read = read_inputs(inputs, tokenizer, batch_size=batch_size, max_length=max_length, device=device)
    layers = capture_layers(
        model, read.batches, tolerance=tolerance, progress=lambda done, total: say("running the model", done, total)
    )
    remover = None
    if removal:
        few = read.first(removal)
        remover = HeadRemover(model, few, capture_layers(model, few, tolerance=tolerance))
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
