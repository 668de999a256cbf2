"""Heads built to do one known thing are recognized by every measure."""

import numpy as np
import pytest

import attsvm
from attsvm.probing import SvmBudget, heads_from_arrays
from attsvm.trained_head import TrainedHead

V, T, N, BETA = 6, 10, 12, 30.0


def planted(seed=0):
    """Hidden states (one-hot token, one-hot place) and heads: sink, own, previous, same token, uniform."""
    rng = np.random.default_rng(seed)
    ids = rng.integers(V, size=(N, T))
    hidden = np.concatenate([np.eye(V)[ids], np.broadcast_to(np.eye(T), (N, T, T))], axis=-1)
    place = np.hstack([np.zeros((T, V)), np.eye(T)])
    before = np.hstack([np.zeros((T, V)), np.eye(T, k=1)])  # query at p asks for p - 1
    same = np.vstack([np.hstack([np.eye(V), np.zeros((V, T))]), place])
    not_me = np.vstack([np.hstack([np.eye(V), np.zeros((V, T))]), -2 * place])
    first = np.zeros((1, V + T))
    first[0, V] = 1.0
    make = TrainedHead.from_weights
    heads = {
        "first token": make(np.zeros((1, V + T)), first, [BETA], [0.0], scale=1.0),
        "own token": make(BETA * place, place, np.zeros(T), np.zeros(T), scale=1.0),
        "previous token": make(BETA * before, place, np.zeros(T), np.zeros(T), scale=1.0),
        "same token": make(BETA * not_me, same, np.zeros(V + T), np.zeros(V + T), scale=1.0),
        "uniform": make(np.zeros((2, V + T)), place[:2], np.zeros(2), np.zeros(2), scale=1.0),
    }
    return hidden, ids, heads


@pytest.fixture(scope="module")
def table():
    hidden, ids, heads = planted()
    from attsvm.probing.cheap_measures import Context, cheap_measures

    layer = heads_from_arrays(hidden, list(heads.values()))
    context = Context(layer, ids)
    return {kind: cheap_measures(layer[k], context)[0] for k, kind in enumerate(heads)}


@pytest.mark.parametrize("kind", ["first token", "own token", "previous token", "same token", "uniform"])
def test_the_kind_is_recognized(table, kind):
    assert table[kind]["kind"] == kind


def test_sink(table):
    sink = table["first token"]
    assert sink["sink_share_first"] > 0.999 and sink["sink_share_any"] > 0.999 and sink["selects_first"] == 1.0
    assert sink["entropy"] < 1e-3 and sink["sparsity"] > 0.999 and sink["effective_rank"] == pytest.approx(1.0)
    assert sink["sink_share_first_shuffled"] < 0.5  # the place was what it looked at
    assert sink["max_logit"] == pytest.approx(BETA)
    for kind in ("own token", "previous token", "uniform"):
        assert table[kind]["sink_share_first"] < 0.25


def test_uniform(table):
    flat = table["uniform"]
    assert flat["entropy_share"] == pytest.approx(1.0) and flat["entropy"] == pytest.approx(np.log(T))
    assert flat["sparsity"] == pytest.approx(1 / T) and flat["log10_kappa"] == pytest.approx(0.0, abs=1e-9)
    assert flat["max_logit"] == 0.0 and flat["noise_bfloat16"] == 0.0
    assert flat["entropy_bound"] == pytest.approx(np.log(T)) and not np.isfinite(flat["delta"])


def test_peaked_heads_lose_their_gradient_in_bfloat16_only(table):
    for kind in ("first token", "own token"):  # the rest of the attention is 9 e^-30 = 8e-13
        assert table[kind]["noise_bfloat16"] == 1.0 and table[kind]["noise_float32"] == 1.0
        assert table[kind]["underflow_float32"] == 0.0
        assert table[kind]["delta"] == pytest.approx(BETA) and table[kind]["gamma"] == 0.0
        assert table[kind]["log10_kappa"] == pytest.approx(1.0, abs=0.01)  # n tokens, all but one alike: kappa is n


def test_margins_are_scale_free():
    hidden, _, heads = planted()
    head = heads["own token"]
    scaled = TrainedHead(head.key_map, 7.0 * head.query_map, 1.0, head.biased)
    layer = heads_from_arrays(hidden, [head, scaled])
    from attsvm.probing.cheap_measures import Context, selection_measures

    one, other = (selection_measures(layer[k], Context(layer)) for k in (0, 1))
    for name in ("margin_min_frobenius", "margin_median_nuclear"):
        assert np.allclose(one[name], other[name])
    assert one["margin_min_frobenius"][0] == pytest.approx(1 / np.sqrt(T))  # beta over beta sqrt(T)
    assert one["margin_min_nuclear"][0] == pytest.approx(1 / T)


def test_the_flip_rate_knows_who_looks_at_one_token(table):
    assert table["first token"]["flip_rate"] > 0.7  # two sequences that begin with the same token give the same output
    assert table["uniform"]["flip_rate"] < 0.2  # one token of ten moves a mean by a tenth


def test_copies_are_redundant():
    hidden, _, heads = planted()
    from attsvm.probing.head_redundancy import redundancy

    layer = heads_from_arrays(hidden, [heads["first token"], heads["own token"], heads["first token"]])
    found = redundancy([layer])
    assert found.nearest(0)[0] == pytest.approx(1.0) and found.nearest(0)[2] == (0, 2)
    assert found.nearest(1)[0] < 0.5


def test_a_max_margin_head_is_its_own_svm():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(10, 6, 8))
    problem = attsvm.AttentionProblem(X, Z=X[:, :2])
    chosen = rng.integers(6, size=(10, 2))
    solved = attsvm.att_svm(problem, chosen)
    U, s, Vt = np.linalg.svd(5.0 * solved.W)
    best = TrainedHead((U * s).T, Vt, 1.0)
    other = TrainedHead.from_weights(*rng.normal(size=(2, 4, 8)))
    mask = np.zeros((10, 6, 6), dtype=bool)
    mask[:, :2] = True  # two queries per sequence
    layers = [heads_from_arrays(X, [head], mask=mask, layer=k) for k, head in enumerate((best, other))]
    budget = SvmBudget(sequences=10, held_out=0, queries=2, nuclear=False, shares=())
    found = attsvm.probe(layers, svm=budget)
    assert np.array_equal(layers[0][0].selected[:, :2], chosen)
    assert found.head(0, 0)["margin_ratio_frobenius"] == pytest.approx(1.0, abs=1e-3)
    assert found.head(0, 0)["correlation_frobenius"] == pytest.approx(1.0, abs=1e-3)
    assert found.head(1, 0)["margin_ratio_frobenius"] < 0.9
    assert found.head(0, 0)["correlation_frobenius_random"] < 0.9  # a random W is no solution of its own selections
