"""Scores that leave the library score the same elsewhere."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass

import numpy as np
import pytest

from attsvm.export import (
    embedding_maps,
    factor,
    save_dense,
    save_factors,
    save_linear_adapter,
    save_low_rank,
    save_map,
    save_sentence_transformer,
    to_onnx,
    to_torch,
)
from attsvm.sklearn import AttentionSelector

RNG = np.random.default_rng(0)
W = RNG.normal(size=(5, 2)) @ RNG.normal(size=(2, 7))
X, Z = RNG.normal(size=(4, 6, 5)), RNG.normal(size=(4, 7))
LOGITS = np.einsum("ntd,de,ne->nt", X, W, Z)


def test_torch_module_has_the_factors():
    torch = pytest.importorskip("torch")
    module = to_torch(W, dtype=torch.float64)
    assert module.K.shape == (2, 5) and module.Q.shape == (2, 7)
    with torch.no_grad():
        np.testing.assert_allclose(module(torch.tensor(X), torch.tensor(Z)).numpy(), LOGITS, atol=1e-12)
    best = to_torch(W, rank=1, dtype=torch.float64)
    K, Q = factor(W, 1)
    assert np.linalg.norm(W - K.T @ Q) == pytest.approx(np.linalg.svd(W, compute_uv=False)[1])
    assert best.K.shape == (1, 5)


def test_safetensors_load_into_the_module(tmp_path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    state = load_file(save_factors(W, tmp_path / "w.safetensors"))
    module = to_torch(np.ones((5, 7)) + W)  # other numbers, replaced below
    module = to_torch(W * 3)
    module.load_state_dict(state)
    with torch.no_grad():
        found = module(torch.tensor(X, dtype=torch.float32), torch.tensor(Z, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(found, LOGITS, atol=1e-4)
    with pytest.raises(ValueError, match=r"must end in \.safetensors"):
        save_factors(W, tmp_path / "w.bin")


def test_onnx_scores_the_same(tmp_path):
    pytest.importorskip("onnx")
    from onnx.reference import ReferenceEvaluator

    session = ReferenceEvaluator(str(to_onnx(W, tmp_path / "w.onnx")))
    (found,) = session.run(None, {"tokens": X.astype(np.float32), "queries": Z.astype(np.float32)})
    np.testing.assert_allclose(found, LOGITS, atol=1e-4)


def test_a_selector_exports_what_it_predicts():
    torch = pytest.importorskip("torch")
    tasks = [(x, z[:5]) for x, z in zip(X, Z, strict=True)]
    fitted = AttentionSelector(C=None).fit(tasks, [0, 1, 2, 3])
    with torch.no_grad():
        logits = fitted.to_torch()(torch.tensor(X, dtype=torch.float32), torch.tensor(Z[:, :5], dtype=torch.float32))
    np.testing.assert_array_equal(logits.argmax(-1).numpy(), [0, 1, 2, 3])


@pytest.mark.parametrize(
    ("given", "rank", "message"),
    [
        (np.zeros(3), None, "shape"),
        (np.full((2, 2), np.nan), None, "finite"),
        (np.eye(2), 0, "rank must be None or an integer"),
    ],
)
def test_bad_input_is_named(given, rank, message):
    with pytest.raises(ValueError, match=message):
        factor(given, rank)


# -- maps of embeddings --------------------------------------------------------------------------------
M = np.eye(6) + 0.3 * RNG.normal(size=(6, 2)) @ RNG.normal(size=(2, 6))
E = RNG.normal(size=(4, 6))


@dataclass(frozen=True)
class Maps:
    """What a patch has of its maps."""

    query_map: np.ndarray
    document_map: np.ndarray


def _read_map(path):
    if path.suffix == ".npz":
        return dict(np.load(path))
    from safetensors.numpy import load_file

    return load_file(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".onnx"])
@pytest.mark.parametrize("side", ["query", "document"])
def test_maps_act_on_embeddings_as_the_score_does(tmp_path, suffix, side):
    W = RNG.normal(size=(6, 6))
    for source, expected in (
        (W, W if side == "query" else W.T),  # document^T W query from either side
        (Maps(M, np.eye(6)), M if side == "query" else np.eye(6)),
        (AttentionSelector(C=None).fit([(x[:, :5], z[:5]) for x, z in zip(X, Z, strict=True)], [0, 1, 2, 3]), None),
    ):
        path = save_map(source, tmp_path / f"map{suffix}", side=side, dtype="float64")
        if expected is None:
            expected = source.W_ if side == "query" else source.W_.T
        given = RNG.normal(size=(3, expected.shape[1]))
        if suffix == ".onnx":
            from onnx.reference import ReferenceEvaluator

            (found,) = ReferenceEvaluator(str(path)).run(None, {"embeddings": given})
        else:
            found = given @ _read_map(path)["M"].T
        np.testing.assert_allclose(found, given @ expected.T, atol=1e-12)
    assert _read_map(save_map(M, tmp_path / "small.safetensors"))["M"].dtype == np.float32
    assert _read_map(save_map(M, tmp_path / "plain.npz"))["M"].dtype == np.float64


def test_low_rank_updates(tmp_path):
    for suffix in (".npz", ".safetensors"):
        file = _read_map(save_low_rank(M, tmp_path / f"update{suffix}", dtype="float64"))
        assert file["B"].shape == (6, 2) and file["A"].shape == (2, 6)  # the rank of M - I, not 6
        np.testing.assert_allclose(E + E @ file["A"].T @ file["B"].T, E @ M.T, atol=1e-12)
    prior = RNG.normal(size=(3, 6))
    file = _read_map(save_low_rank(prior + np.outer(E[0, :3], E[1]), tmp_path / "wide.npz", prior=prior))
    np.testing.assert_allclose(file["B"] @ file["A"], np.outer(E[0, :3], E[1]), atol=1e-12)
    one = _read_map(save_low_rank(M, tmp_path / "one.npz", rank=1))
    singular = np.linalg.svd(M - np.eye(6), compute_uv=False)
    assert np.linalg.norm(M - np.eye(6) - one["B"] @ one["A"], 2) == pytest.approx(singular[1])
    same = _read_map(save_low_rank(np.eye(6), tmp_path / "same.npz"))
    assert not (same["B"] @ same["A"]).any()
    with pytest.raises(ValueError, match="prior must be given for a map that is not square"):
        save_low_rank(prior, tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"prior must have shape \(6, 6\)"):
        save_low_rank(M, tmp_path / "x.npz", prior=prior)


def test_llama_index_adapter(tmp_path):
    """LlamaIndex's ``BaseAdapter.load`` builds its layer from the config and loads the state dict strictly."""
    torch = pytest.importorskip("torch")

    class LinearLayer(torch.nn.Module):  # with the arguments and the parameter of LlamaIndex's
        def __init__(self, in_features, out_features, bias=False):
            super().__init__()
            self.linear = torch.nn.Linear(in_features, out_features, bias=bias)
            self.linear.weight.data.copy_(torch.eye(in_features, out_features))

    folder = save_linear_adapter(M, tmp_path / "adapter")
    layer = LinearLayer(**json.loads((folder / "config.json").read_text()))
    layer.load_state_dict(torch.load(folder / "pytorch_model.bin", map_location="cpu", weights_only=True))
    with torch.no_grad():
        found = layer.linear(torch.tensor(E, dtype=torch.float32)).numpy()
    np.testing.assert_allclose(found, E @ M.T, atol=1e-6)
    with pytest.raises(FileExistsError, match="write to a new folder"):
        save_linear_adapter(M, folder)
    with pytest.raises(ValueError, match="must be square"):
        save_linear_adapter(M[:3], tmp_path / "other")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A tiny BERT of random weights as a sentence-transformers model, with a vocabulary of its own."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():  # at their import: of torch and NumPy, in packages that these load
        warnings.simplefilter("ignore")
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Normalize, Transformer
        from sentence_transformers.sentence_transformer.modules import Pooling
        from transformers import BertConfig, BertModel, BertTokenizerFast

    folder = tmp_path_factory.mktemp("bert")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "the", "sat", "on", "mat"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(16), Normalize()], device="cpu")


TEXTS = ["the cat sat", "the dog on the mat", "mat"]


def test_sentence_transformers_load_the_mapped_model(encoder, tmp_path):
    from sentence_transformers import SentenceTransformer

    plain = encoder.encode(TEXTS)
    maps = [np.eye(16) + 0.1 * RNG.normal(size=(16, 16)) for _ in range(2)]
    for k, source in enumerate((maps[0], Maps(maps[0], np.eye(16)), Maps(np.eye(16), maps[1]), Maps(*maps))):
        folder = save_sentence_transformer(source, encoder, tmp_path / str(k))
        again = SentenceTransformer(str(folder), device="cpu")
        query, document = embedding_maps(source)
        queries = plain if query is None else plain @ query.T
        documents = plain if document is None else plain @ document.T
        np.testing.assert_allclose(again.encode_query(TEXTS), queries, atol=1e-6)
        np.testing.assert_allclose(again.encode_document(TEXTS), documents, atol=1e-6)
        scores = again.similarity(again.encode_query(TEXTS), again.encode_document(TEXTS)).numpy()
        np.testing.assert_allclose(scores, queries @ documents.T, atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(TEXTS), plain)  # the model that was given is as before
    # Smaller queries and documents, from a folder.
    encoder.save(str(tmp_path / "base"), create_model_card=False)
    narrow = Maps(maps[0][:4], maps[1][:4])
    again = SentenceTransformer(str(save_sentence_transformer(narrow, tmp_path / "base", tmp_path / "narrow")))
    np.testing.assert_allclose(again.encode_query(TEXTS), plain @ maps[0][:4].T, atol=1e-6)
    with pytest.raises(FileExistsError, match=r"modules\.json exists"):
        save_sentence_transformer(maps[0], encoder, tmp_path / "0")
    with pytest.raises(ValueError, match="the query map takes 6 dimensions, but the model gives 16"):
        save_sentence_transformer(M, encoder, tmp_path / "bad")
    with pytest.raises(ValueError, match="must end in one dimension"):
        save_sentence_transformer(maps[0][:4], encoder, tmp_path / "bad")
    with pytest.raises(ValueError, match="routes queries and documents already"):
        save_sentence_transformer(maps[0], tmp_path / "0", tmp_path / "bad")


def test_a_dense_module_loads_alone(encoder, tmp_path):
    torch = pytest.importorskip("torch")
    from sentence_transformers.base.modules import Dense

    dense = Dense.load(str(save_dense(M[:4], tmp_path / "dense")))
    with torch.no_grad():
        found = dense({"sentence_embedding": torch.tensor(E, dtype=torch.float32)})["sentence_embedding"]
    np.testing.assert_allclose(found.numpy(), E @ M[:4].T, atol=1e-6)
    written = json.loads((tmp_path / "dense" / "config.json").read_text())
    dense.save(str(tmp_path))
    assert written.items() <= json.loads((tmp_path / "config.json").read_text()).items()  # as the library writes it


def test_bad_maps_are_named(tmp_path):
    for call, message in [
        (lambda: save_map(M, tmp_path / "m.txt"), r"path must end in \.npz"),
        (lambda: save_map(M, tmp_path / "m.npz", dtype="int8"), "dtype must be"),
        (lambda: save_map(M, tmp_path / "m.npz", side="both"), "side must be"),
        (lambda: save_map(np.ones(3), tmp_path / "m.npz"), r"W must have shape \(dx, dz\)"),
        (lambda: embedding_maps(Maps(M, M[:3])), "as many rows"),
        (lambda: to_onnx(AttentionSelector(), tmp_path / "m.onnx"), "this AttentionSelector is not fitted"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
    assert not list(tmp_path.iterdir())


def test_a_fitted_selector_is_exported_as_it_is(tmp_path):
    from onnx.reference import ReferenceEvaluator

    fitted = AttentionSelector(C=None).fit([(x, z) for x, z in zip(X, Z, strict=True)], [0, 1, 2, 3])
    session = ReferenceEvaluator(str(to_onnx(fitted, tmp_path / "w.onnx")))
    (found,) = session.run(None, {"tokens": X.astype(np.float32), "queries": Z.astype(np.float32)})
    np.testing.assert_array_equal(found.argmax(axis=1), [0, 1, 2, 3])
