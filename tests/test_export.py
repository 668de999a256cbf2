"""Scores that leave the library score the same elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.export import factor, save_factors, to_onnx, to_torch
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
