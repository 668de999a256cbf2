"""The generated text, the WikiText reader and the small language model."""

import itertools
import re

import numpy as np
import pytest
import torch

import attsvm.dynamics.localization as loc
from attsvm.validation import models


@pytest.fixture(scope="module")
def corpus():
    return models.synthetic_corpus(6000, 80, seed=1)


def test_generated_text_needs_attention(corpus):
    text = np.concatenate([corpus.train, corpus.valid])
    assert text.min() == 0
    assert text.max() < 80
    # After the marker stands one of the document's two names; a chain of words alone knows 16 of them.
    names = {}
    document = []
    for word, following in itertools.pairwise(text):
        if word == 0:
            assert len(set(document)) <= 2
            document = []
        if word == 1:
            assert following >= 64
            document.append(int(following))
            names[int(following)] = names.get(int(following), 0) + 1
    assert len(names) == 16
    again = models.synthetic_corpus(6000, 80, seed=1)
    np.testing.assert_array_equal(again.train, corpus.train)
    assert not np.array_equal(models.synthetic_corpus(6000, 80, seed=2).train, corpus.train)


def test_wikitext_files(tmp_path):
    (tmp_path / "train.txt").write_text(" the cat sat \n\n the <unk> dog \n")
    (tmp_path / "valid.txt").write_text("the bird\n")
    corpus = models.read_wikitext(tmp_path, vocabulary=3)
    assert corpus.vocabulary == 3
    assert corpus.train.tolist() == [2, 0, 0, 1, 2, 0, 0, 1]  # the, then rare words, <eos>
    assert corpus.valid.tolist() == [2, 0, 1]
    with pytest.raises(ValueError, match=re.escape("path must be a folder with wiki.train.tokens")):
        models.read_wikitext(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="vocabulary must be an integer >= 3, got 2"):
        models.read_wikitext(tmp_path, vocabulary=2)


def test_the_model_is_causal():
    torch.manual_seed(0)
    model = models.LanguageModel(50, d=16, T=6, layers=2)
    tokens = torch.randint(50, (3, 6))
    changed = tokens.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 50
    torch.testing.assert_close(model(tokens)[:, :4], model(changed)[:, :4])
    assert not torch.allclose(model(tokens)[:, 4], model(changed)[:, 4])
    assert len(list(loc.qk_weights(model))) == 2


def test_records_are_what_they_say(corpus):
    before = torch.random.get_rng_state()
    run = models.train_language_model(corpus, d=16, T=8, steps=30, record_every=20, seed=3)
    torch.testing.assert_close(torch.random.get_rng_state(), before)
    assert run.steps.tolist() == [0, 20, 30]
    assert run.propagation.shape == (3, 8)
    assert ((run.propagation >= 0) & (run.propagation <= 1)).all()
    assert run.perplexity[-1] < run.perplexity[0]
    assert (run.entropy <= run.largest_entropy + 1e-6).all()
    again = models.train_language_model(corpus, d=16, T=8, steps=30, record_every=20, seed=3)
    np.testing.assert_array_equal(run.perplexity, again.perplexity)
    # The first record against definitions: the same initial weights.
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = models.LanguageModel(80, 16, 8)
    layer = next(iter(loc.qk_weights(model)))
    matrix = (layer.W_q[0].mT @ layer.W_k[0]).detach().double()
    assert run.trace[0] == pytest.approx(matrix.trace().item(), rel=1e-4)
    assert run.scale[0] == pytest.approx((matrix.T @ matrix).trace().item(), rel=1e-4)
    starts = np.arange(0, len(corpus.valid) - 8, 8)[:128]
    tokens = torch.tensor(np.stack([corpus.valid[s : s + 8] for s in starts]))
    X = model.embed(tokens).detach().double().numpy()
    pair = tuple(w[0].detach().double().numpy() for w in (layer.W_q, layer.W_k))
    assert run.entropy[0] == pytest.approx(loc.attention_entropy(X, pair, causal=True).mean(), rel=1e-4)
    signals = loc.linear_softmax(loc.token_logits(X, pair))
    np.testing.assert_allclose(run.propagation[0], ((signals >= 0) & (signals <= 1)).mean(axis=0), atol=0.02)


def test_the_regularizer_moves_trace_and_scale(corpus):
    settings = {"d": 16, "T": 8, "steps": 80, "record_every": 80, "lr": 1e-2}
    free = models.train_language_model(corpus, **settings)
    held = models.train_language_model(corpus, 100.0, 1.0, **settings)
    assert abs(held.trace[-1] - 1) < 0.1
    assert held.scale[-1] < 0.5 * free.scale[-1]
    assert held.entropy[-1] > free.entropy[-1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.synthetic_corpus(1000, 10), "vocabulary must be an integer >= 50, got 10"),
        (lambda: models.synthetic_corpus(10, 100), "tokens must be an integer >= 100, got 10"),
        (lambda: models.train_language_model(models.synthetic_corpus(100, 50), T=32), "more than T = 32 words"),
        (
            lambda: models.train_language_model(models.synthetic_corpus(1000, 50), T=8, steps=0),
            "steps must be an integer >= 1, got 0",
        ),
        (lambda: models.train_language_model(models.synthetic_corpus(1000, 50), T=1), "T must be an integer >= 2, got"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()
