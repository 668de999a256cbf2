"""Key dimensions of heads that somebody trained: MiniLM, SmolLM2 and rxnmapper, layer by layer, beside random heads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from attsvm.key_dimensions import KeyDimension, key_dimension
from attsvm.probing.cheap_measures import random_spectrum
from attsvm.probing.head_data import HeadData, LayerData
from attsvm.probing.svm_measures import Sample, SvmBudget, draw_sample
from attsvm.records import Table, mean_of, mean_share_of
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, finish, subplots
from attsvm.validation.figures.own.head_studies import REACTIONS
from attsvm.validation.pretrained.installed_models import english_paragraphs, installed_model

# Heads per layer, and every how many-th layer.
MODELS: dict[str, tuple[int, int]] = {"minilm": (4, 1), "rxnmapper": (1, 1), "smollm2": (1, 5)}

_TITLES = {
    "minilm": "MiniLM: maps of the keys",
    "rxnmapper": "rxnmapper: maps of the keys",
    "smollm2": "SmolLM2: maps of the rotated keys",
}


def model_layers(model: str, sequences: int, length: int) -> list[LayerData]:
    """Attention layers of an installed model on text (rxnmapper: on reactions), in the order of their calls."""
    from attsvm.probing.head_data import read_inputs
    from attsvm.probing.model_hooks import capture_layers

    if model != "rxnmapper":
        loaded = installed_model(model)
        inputs = read_inputs(english_paragraphs(sequences), loaded.tokenizer, max_length=length)
        return capture_layers(loaded.model, inputs.batches)
    import torch

    from attsvm.validation.pretrained.atom_mapping import load_reaction_model, package_reactions, tokenize

    network = load_reaction_model()
    words = [tokenize(text).words for text in REACTIONS] + [reaction.words for reaction in package_reactions()]
    words = [line for line in words if len(line) <= length][:sequences]
    ids = torch.zeros((len(words), max(map(len, words))), dtype=torch.long)
    for i, line in enumerate(words):
        ids[i, : len(line)] = torch.tensor([network.vocabulary.get(w, network.vocabulary["[UNK]"]) for w in line])
    real = torch.tensor([[k < len(line) for k in range(ids.shape[1])] for line in words])
    return capture_layers(network.network, [{"input_ids": ids, "attention_mask": real.long()}])


def head_record(head: HeadData, budget: SvmBudget, seed: int) -> dict[str, Any]:
    """Key dimensions of one head on one split of its sequences, as plain numbers.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.probing import SvmBudget, heads_from_arrays
    >>> rng = np.random.default_rng(0)
    >>> known = attsvm.TrainedHead.from_weights(rng.normal(size=(4, 8)), rng.normal(size=(4, 8)))
    >>> layer = heads_from_arrays(rng.normal(size=(6, 5, 8)), [known])
    >>> found = head_record(layer[0], SvmBudget(sequences=3, held_out=3, queries=4), 0)
    >>> found["least"] <= found["rank"] <= found["certified"] <= 4, found["selections_shown_rank"]
    (True, 1.0)
    """
    shown, others = draw_sample(head, budget, seed)
    if others is None:
        raise ValueError(f"{head.name}: sequences must leave some to hold out, got {head.n}")
    begin = time.process_time()
    d = head.q.shape[-1]
    found = _dimension(head, shown, others, [max(1, d // 4), max(1, d // 2)])
    record: dict[str, Any] = {
        "layer": head.layer, "head": head.head, "d_head": d, "queries": int(shown.selection.size),
        "rank": found.rank, "least": found.least, "certified": found.certified_rank, "resolution": found.resolution,
        "gap": float(found.certificate.gap), "seconds": time.process_time() - begin, "lead": found.lead,
    }  # fmt: skip
    places = {"certified": found.certified_rank, "rank": found.rank, "quarter": max(1, d // 4), "half": max(1, d // 2)}
    for place, rank in places.items():
        for method in ("margin", "selections", "attention", "kq_svd"):
            row = found.row(rank, method)
            record[f"{method}_shown_{place}"] = row.kept
            record[f"{method}_kept_{place}"] = row.kept_held_out
            record[f"{method}_error_{place}"] = row.attention_error_held_out
    return record


def _dimension(head: HeadData, shown: Sample, others: Sample, ranks: Sequence[int]) -> KeyDimension:
    if head.offset is not None and np.any(head.offset):
        raise ValueError(f"{head.name}: a position bias is in its logits, which no W expresses")
    if head.space == "tokens":
        assert head.weights is not None
        return key_dimension(
            head.weights, shown.problem, of="keys", held_out=others.problem, ranks=ranks, tolerance=1e-8
        )
    return key_dimension(shown.W, shown.problem, held_out=others.problem, ranks=ranks, tolerance=1e-8)


def dimensions_of_heads(
    trials: int,
    seed: int,
    *,
    model: str,
    split: int,
    sequences: int,
    length: int,
    queries: int,
    layers: int,
    heads: int,
) -> dict[str, Any]:
    """Records of a seeded sample of heads of each layer and, for the first split, of random W of their spectra.

    Parameters
    ----------
    trials, seed : int
        Of the sweep; trials is 1.
    model : str
        One of `MODELS`.
    split : int
        Seed of the division into shown and held-out sequences.
    sequences, length, queries : int
        Sequences in all, their longest length, queries drawn per sequence.
    layers, heads : int
        Most layers, and most heads of each; 0 for all of `MODELS`.
    """
    most, every = MODELS[model]
    budget = SvmBudget(sequences=(sequences + 1) // 2, held_out=sequences // 2, queries=queries)
    rng = np.random.default_rng(seed)
    own, drawn = [], []
    captured = model_layers(model, sequences, length)[::every]
    for layer in captured[: layers or None]:
        for h in sorted(rng.permutation(layer.heads)[: heads or most].tolist()):
            head = layer[h]
            own.append(head_record(head, budget, split))
            if split == 0:
                drawn.append(head_record(random_spectrum(head, split), budget, split))
    return {"own": [own], "random": [drawn]}


def run_key_dimension(context: Context) -> Outcome:
    """Per model a table by layer, and one beside random W of the same spectra."""
    s = context.settings
    sizes = {name: s[name] for name in ("sequences", "length", "queries", "layers", "heads")}
    cells = [{"model": model, "split": k, **sizes} for model in s["models"] for k in range(s["trials"])]
    done = context.sweep(dimensions_of_heads, cells, 1, chunk=1, name="heads", extend=True).columns
    own: dict[str, list[dict[str, Any]]] = {model: [] for model in s["models"]}
    drawn: dict[str, list[dict[str, Any]]] = {model: [] for model in s["models"]}
    for cell, found in zip(cells, done, strict=True):
        own[cell["model"]] += list(found["own"][0])
        drawn[cell["model"]] += list(found["random"][0])
    tables = [_layer_table(model, own[model], s["trials"]) for model in own]
    tables += [_share_table(own), _random_table(own, drawn)]
    return Outcome(tables, _curves(own, drawn), _notes(own, drawn), _refuted(own))


def _curves(own: dict[str, list[dict[str, Any]]], drawn: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "layers": {model: sorted({r["layer"] for r in part}) for model, part in own.items()},
        "own": {model: _by_layer(part, "certified") for model, part in own.items()},
        "suffices": {model: _by_layer(part, "rank") for model, part in own.items()},
        "random": {model: _by_layer(part, "certified") for model, part in drawn.items()},
        "d_head": {model: part[0]["d_head"] for model, part in own.items()},
    }


def _notes(own: dict[str, list[dict[str, Any]]], drawn: dict[str, list[dict[str, Any]]]) -> list[str]:
    worst = max(r["gap"] for part in (*own.values(), *drawn.values()) for r in part)
    queries = ", ".join(f"{model} {int(np.median([r['queries'] for r in part]))}" for model, part in own.items())
    return [
        f"queries shown per head (as many held out): {queries}",
        f"largest relative gap of a nuclear-norm solution: {worst:.1e}",
        "Theory is about one layer trained to saturation. A head of a deep model is none: margins describe its "
        "selections on these texts and predict nothing of its training.",
    ]


def _refuted(own: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Heads whose smaller factors do not keep what they should, by shares that the table measures apart."""
    return [
        f"{model}, layer {r['layer']}, head {r['head']}: factors of rank {r['rank']} keep every selection shown"
        for model, part in own.items()
        for r in part
        if not (r["lead"] > 0 and r["selections_shown_rank"] == 1.0 and r["least"] <= r["rank"])
    ]


def _by_layer(records: list[dict[str, Any]], name: str) -> list[float]:
    layers = sorted({r["layer"] for r in records})
    return [float(np.mean([r[name] for r in records if r["layer"] == layer])) for layer in layers]


def _heads(records: list[dict[str, Any]], name: str) -> list[float]:
    """One value per head, its mean over the splits: heads are the independent units."""
    places = sorted({(r["layer"], r["head"]) for r in records})
    return [float(np.mean([r[name] for r in records if (r["layer"], r["head"]) == place])) for place in places]


def _layer_table(model: str, records: list[dict[str, Any]], splits: int) -> Table:
    rows: list[tuple[Any, ...]] = []
    layers = sorted({r["layer"] for r in records})
    for label, part in [
        *((str(layer), [r for r in records if r["layer"] == layer]) for layer in layers), ("all", records)
    ]:  # fmt: skip
        heads = len({(r["layer"], r["head"]) for r in part})
        rows.append((
            label, heads, f"{min(r['least'] for r in part)}", mean_of(_heads(part, "rank")),
            mean_of(_heads(part, "certified")), max(r["resolution"] for r in part),
            mean_share_of(_heads(part, "kq_svd_shown_certified")),
            *(mean_share_of(_heads(part, f"{method}_kept_certified")) for method in ("margin", "kq_svd")),
            *(mean_share_of(_heads(part, f"{method}_error_certified")) for method in ("margin", "kq_svd")),
            round(float(np.mean([r["seconds"] for r in part])), 1),
        ))  # fmt: skip
    columns = (
        "layer", "heads", "needed", "suffices", "certified rank", "resolution", "shown: KQ-SVD",
        "held out: margin", "KQ-SVD", "error: margin", "KQ-SVD", "CPU s",
    )  # fmt: skip
    d = records[0]["d_head"]
    return Table(f"{_TITLES[model]}, d_head = {d}, {splits} splits; W of the certified rank", columns, rows)


def _share_table(own: dict[str, list[dict[str, Any]]]) -> Table:
    """Held-out selections and attention at a quarter and at half of the dimensions."""
    rows = []
    for model, part in own.items():
        for place in ("quarter", "half"):
            rank = max(1, part[0]["d_head"] // (4 if place == "quarter" else 2))
            for method, label in (("kq_svd", "KQ-SVD"), ("attention", "descent on the attention")):
                kept, error = (mean_share_of(_heads(part, f"{method}_{what}_{place}")) for what in ("kept", "error"))
                rows.append((model, rank, part[0]["d_head"], label, kept, error))
    columns = ("model", "rank", "d_head", "W", "selections kept", "attention error")
    return Table("Held-out queries at a quarter and at half of the key dimensions", columns, rows, align="lrrlrr")


def _random_table(own: dict[str, list[dict[str, Any]]], drawn: dict[str, list[dict[str, Any]]]) -> Table:
    rows = []
    for model, part in own.items():
        for name, label, average in (
            ("rank", "dimensions that suffice", mean_of),
            ("certified", "certified rank", mean_of),
            ("margin_kept_certified", "held out, margin", mean_share_of),
            ("kq_svd_kept_half", "held out, KQ-SVD at half", mean_share_of),
        ):
            first, second = _heads(part, name), _heads(drawn[model], name)
            apart = mean_of(np.array(first) - np.array(second))
            rows.append((model, label, average(first), average(second), apart))
    columns = ("model", "", "head", "random W", "difference")
    return Table("Heads and random W of their spectra, each on its own selections", columns, rows, align="llrrr")


def draw_key_dimension(outcome: Outcome) -> Picture:
    """Dimensions by layer: certified rank, what suffices, and random W."""
    c = outcome.curves
    picture, axes = subplots(1, len(c["layers"]), (3.6 * len(c["layers"]), 3.4), squeeze=False)
    for axis, model in zip(axes[0], c["layers"], strict=True):
        for name, label in (("random", "random W, certified"), ("own", "certified rank"), ("suffices", "suffices")):
            axis.plot(c["layers"][model], c[name][model], marker="o", label=label)
        axis.set(title=f"{model}, d_head = {c['d_head'][model]}", xlabel="layer", ylabel="key dimensions")
        axis.set_ylim(bottom=0)
    return finish(picture, axes[0])


FIGURE_KEY_DIMENSION = Figure(
    paper="own",
    name="key-dimension",
    title="How many key dimensions trained heads need for their selections",
    protocol="""MiniLM (4 heads per layer) and SmolLM2 (one head of every fifth layer, rotated keys) on paragraphs of
        Python's language reference, rxnmapper (one head of each of its 12 calls) on 16 reactions and those of its tests
        of at most so many tokens; heads drawn by the seed. Half of the sequences are shown, half held out, in as many
        splits as trials. Maps of the head's own keys and queries; beside them random W of the same spectra, each on
        its own selections in the first split. Intervals over heads.""",
    full={"trials": 1, "models": list(MODELS), "sequences": 32, "length": 48, "queries": 12, "layers": 0, "heads": 0},
    quick={"trials": 1, "models": ["minilm"], "sequences": 8, "length": 16, "queries": 4, "layers": 2, "heads": 1},
    run=run_key_dimension,
    draw=draw_key_dimension,
)  # fmt: skip
