import re
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch

import attsvm
from attsvm import AttentionProblem, LinearHead

X = np.arange(24, dtype=float).reshape(2, 3, 4)
Z = np.ones((2, 4))


def with_entry(array, index, value):
    changed = np.array(array, dtype=float)
    changed[index] = value
    return changed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"X": with_entry(X, (1, 2, 3), np.nan)}, "X must be finite, but X[1, 2, 3] is nan"),
        ({"X": with_entry(X, (0, 0, 0), np.inf)}, "X must be finite, but X[0, 0, 0] is inf"),
        ({"Z": with_entry(Z, (1, 0), np.nan)}, "Z must be finite, but Z[1, 0] is nan"),
        ({"X": X[0]}, "X must have shape (n, T, dx) or (batch, n, T, dx), got (3, 4)"),
        ({"X": X[:, :1]}, "X must hold at least T = 2 tokens per sequence, got T = 1: there is nothing to select from"),
        ({"X": X[:0], "Z": Z[:0]}, "X must hold at least one sequence and one dimension, got shape (0, 3, 4)"),
        ({"X": X.astype(complex)}, "X must hold real numbers, got dtype complex128"),
        ({"X": [[[1.0], [2.0]], [[1.0]]]}, "X must be a rectangular array; use AttentionProblem.from_ragged"),
        ({"Z": Z[:1]}, "Z must have shape (2, dz) or (2, K, dz) to go with X of shape (2, 3, 4), got (1, 4)"),
        ({"Z": np.ones(4)}, "Z must have shape (2, dz) or (2, K, dz) to go with X of shape (2, 3, 4), got (4,)"),
        ({"Y": [1, 0]}, "Y must hold labels +1 or -1, but Y[1] is 0"),
        ({"Y": [1, np.nan]}, "Y must hold labels +1 or -1, but Y[1] is nan"),
        ({"Y": [1, 1, 1]}, "Y must have shape (2,), got (3,)"),
        ({"mask": np.ones((2, 4), bool)}, "mask must have shape (2, 3), got (2, 4)"),
        ({"mask": [[1, 1, 0], [0, 0, 0]]}, "mask must leave at least one token to every query, but [1] has none"),
        (
            {"mask": [[0.5, 1, 1], [1, 1, 1]]},
            "mask must be boolean (True where attention is allowed), got dtype float64",
        ),
        ({"head": LinearHead(np.ones(3))}, "head expects tokens of dimension 3, but X has dx = 4"),
        ({"head": LinearHead(np.ones((5, 4)))}, "head holds a batch of 5, but X has batch None"),
        ({"head": 3.0}, "head must be callable on arrays of tokens (..., dx), got float; attsvm.LinearHead(v) scores"),
        (
            {"head": np.ones(4)},
            "head must be callable on arrays of tokens (..., dx), got ndarray; attsvm.LinearHead(v)",
        ),
    ],
)
def test_bad_input_names_the_argument(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        AttentionProblem(**({"X": X, "Y": [1, -1], "Z": Z} | arguments))


@pytest.mark.parametrize(
    "convert", [np.asarray, lambda a: a.tolist(), lambda a: a.astype(int), lambda a: a.astype(">f8")]
)
def test_lists_and_integers_become_float64(convert):
    problem = AttentionProblem(convert(X), [1, -1], convert(Z), LinearHead(convert(np.ones(4))))
    assert problem.X.dtype == problem.Z.dtype == np.float64
    np.testing.assert_array_equal(problem.scores(), [[6.0, 22.0, 38.0], [-54.0, -70.0, -86.0]])


def test_float32_is_kept_and_solved(rng):
    problem = attsvm.random_problem(n=4, T=4, d=6, seed=1)
    single = AttentionProblem(problem.X.astype(np.float32), problem.Y, problem.Z.astype(np.float32), problem.head)
    assert single.X.dtype == np.float32
    # Data rounded to 6e-8 moves the norm by about as much times the condition of the problem (about 10).
    assert attsvm.att_svm(single).norm == pytest.approx(attsvm.att_svm(problem).norm, rel=1e-5)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "int64"])
def test_torch_tensors_are_read(dtype):
    import torch

    tokens = torch.tensor(X).to(getattr(torch, dtype))
    if tokens.is_floating_point():
        tokens.requires_grad_()
    problem = AttentionProblem(tokens, torch.tensor([1, -1]), torch.tensor(Z), LinearHead(torch.ones(4)))
    assert problem.X.dtype == (np.float64 if dtype in ("float64", "int64") else np.float32)
    np.testing.assert_array_equal(problem.X, X)  # small integers are exact in every dtype


def test_problem_is_frozen_and_arrays_are_read_only():
    problem = AttentionProblem(X, [1, -1], Z)
    with pytest.raises(FrozenInstanceError):
        problem.X = X
    with pytest.raises(ValueError, match="read-only"):
        problem.X[0, 0, 0] = 5.0


def test_padding_may_hold_anything_and_is_stored_as_zero():
    mask = np.array([[True, True, False], [True, True, True]])
    problem = AttentionProblem(with_entry(X, (0, 2), np.nan), [1, -1], Z, LinearHead(np.ones(4)), mask)
    np.testing.assert_array_equal(problem.X[0, 2], 0.0)
    assert problem.scores()[0, 2] == -np.inf
    with pytest.raises(ValueError, match=re.escape("X must be finite, but X[0, 1, 0] is nan")):
        AttentionProblem(with_entry(X, (0, 1, 0), np.nan), [1, -1], Z, mask=mask)


def test_labels_and_masks_per_query():
    queries = np.ones((2, 5, 4))
    problem = AttentionProblem(X, [1, -1], queries, LinearHead(np.ones(4)), np.array([[1, 1, 0], [1, 1, 1]]))
    assert (problem.n, problem.K, problem.T, problem.dx, problem.dz) == (2, 5, 3, 4, 4)
    assert problem.scores().shape == problem.allowed.shape == (2, 5, 3)
    assert problem.Y.shape == (2, 5)
    assert not problem.allowed[0, :, 2].any()
    per_query = AttentionProblem(X, np.ones((2, 5)), queries, mask=np.ones((2, 5, 3), bool))
    assert per_query.allowed.all()


def test_scores_need_a_head_with_the_right_shape():
    with pytest.raises(ValueError, match="scores need a prediction head"):
        AttentionProblem(X, [1, -1], Z).scores()
    with pytest.raises(ValueError, match=re.escape("to numbers of shape (2, 3), got (2, 3, 4)")):
        AttentionProblem(X, [1, -1], Z, head=lambda x: x).scores()
    with pytest.raises(ValueError, match=re.escape("head returned a value that is not finite at (0, 0)")):
        AttentionProblem(X, [1, -1], Z, head=lambda x: np.full(x.shape[:-1], np.nan)).scores()


def test_any_callable_is_a_head():
    problem = AttentionProblem(X, [1, -1], Z, head=lambda x: np.tanh(x).sum(axis=-1))
    np.testing.assert_allclose(problem.scores()[1], -np.tanh(X[1]).sum(axis=-1))


def test_ties_are_reported():
    tokens = np.array([[[1.0, 0.0], [1.0, 5.0], [0.0, 0.0]], [[0.0, 1.0], [2.0, 0.0], [1.0, 0.0]]])
    problem = AttentionProblem(tokens, [1, 1], np.eye(2), LinearHead([1.0, 0.0]))
    selection = problem.optimal_tokens()
    assert selection.indices.tolist() == [0, 1]
    assert not selection.is_unique
    assert selection.ties == {(0,): (0, 1)}
    assert problem.optimal_tokens(tolerance=1.0).ties == {(0,): (0, 1, 2), (1,): (1, 2)}
    with pytest.raises(ValueError, match="tolerance must be a number >= 0, got -1"):
        problem.optimal_tokens(tolerance=-1)


def test_masked_tokens_are_never_optimal():
    problem = attsvm.random_problem(n=3, T=5, d=4, seed=0)
    best = problem.optimal_tokens().indices
    mask = np.arange(5) != best[:, None]
    masked = AttentionProblem(problem.X, problem.Y, problem.Z, problem.head, mask)
    assert (masked.optimal_tokens().indices != best).all()


def test_constructors():
    cross = AttentionProblem.cross_attention(X, Z)
    np.testing.assert_array_equal(cross.Z, Z)
    self_ = AttentionProblem.self_attention(X, query=2)
    np.testing.assert_array_equal(self_.Z, X[:, 2])
    sequence = AttentionProblem.sequences(X, causal=True)
    np.testing.assert_array_equal(sequence.Z, X)
    np.testing.assert_array_equal(sequence.allowed[1], np.tril(np.ones((3, 3), bool)))
    with pytest.raises(ValueError, match=re.escape("query must be a token index in [0, 3), got 3")):
        AttentionProblem.self_attention(X, query=3)
    with pytest.raises(ValueError, match="a causal mask needs one query per token"):
        cross.with_causal_mask()


def test_ragged_sequences_are_padded_and_masked():
    problem = AttentionProblem.from_ragged([X[0], X[1, :2].tolist()], Z, head=LinearHead(np.ones(4)))
    assert problem.X.shape == (2, 3, 4)
    assert problem.mask.tolist() == [[True] * 3, [True, True, False]]
    with pytest.raises(ValueError, match=re.escape("tokens[1] must have shape (T_i, 4), got (2, 3)")):
        AttentionProblem.from_ragged([X[0], np.ones((2, 3))], Z)
    with pytest.raises(ValueError, match="tokens must hold at least one sequence"):
        AttentionProblem.from_ragged([], Z)


def test_batches_index_to_problems():
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=6, seed=0)
    assert batch.batch == 6
    assert len(list(batch)) == 6
    np.testing.assert_allclose(batch[2].scores(), batch.scores()[2], atol=1e-15)  # sums in another order
    np.testing.assert_array_equal(batch[-1].X, batch.X[5])
    with pytest.raises(IndexError, match="problem 6 is out of range for a batch of 6"):
        batch[6]
    with pytest.raises(TypeError, match="only a batch of problems can be indexed"):
        batch[0][0]
    with pytest.raises(TypeError, match="only a batch of problems can be iterated over"):
        iter(batch[0])


def test_loss_constants_use_the_range_of_scores():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    low = problem.scores().min()
    assert problem.loss_constants("exponential").M1 == pytest.approx(np.exp(-low))
    assert problem.loss_constants("logistic").M1 == pytest.approx(1 / (1 + np.exp(low)))


@pytest.mark.parametrize("kind", ["cross", "self", "sequence"])
@pytest.mark.parametrize("batch", [None, 3])
def test_random_problems_lie_on_the_sphere_and_respect_the_gap(kind, batch):
    problem = attsvm.random_problem(n=4, T=5, d=6, batch=batch, seed=7, min_score_gap=0.1, kind=kind)
    for points in (problem.X, problem.Z, problem.head.v):
        np.testing.assert_allclose(np.linalg.norm(points, axis=-1), 1.0, rtol=1e-12)
    ordered = np.sort(problem.scores(), axis=-1)
    assert (ordered[..., -1] - ordered[..., -2]).min() >= 0.1
    assert set(np.unique(problem.Y)) <= {-1.0, 1.0}


def test_random_problems_are_reproducible_and_seeds_differ():
    first, again, other = (attsvm.random_problem(n=2, T=3, d=4, seed=s) for s in (5, 5, 6))
    np.testing.assert_array_equal(first.X, again.X)
    assert not np.array_equal(first.X, other.X)
    rng = np.random.default_rng(5)
    np.testing.assert_array_equal(attsvm.random_problem(n=2, T=3, d=4, seed=rng).X, first.X)
    assert not np.array_equal(attsvm.random_problem(n=2, T=3, d=4, seed=rng).X, first.X)


def test_random_problem_shapes():
    problem = attsvm.random_problem(n=2, T=3, d=4, dz=7, queries=5)
    assert problem.Z.shape == (2, 5, 7)
    assert attsvm.random_problem(n=2, T=3, d=4, kind="sequence", causal=True).mask.shape == (2, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"T": 1}, "T must be an integer >= 2, got 1"),
        ({"d": 2.5}, "d must be an integer >= 1, got 2.5"),
        ({"batch": 0}, "batch must be None or an integer >= 1, got 0"),
        ({"kind": "both"}, "kind must be 'cross', 'self' or 'sequence', got 'both'"),
        ({"distribution": "cube"}, "distribution must be 'sphere' or 'gaussian', got 'cube'"),
        ({"kind": "self", "dz": 3}, "dz and queries apply to kind='cross' only, got kind='self'"),
        ({"causal": True}, "causal=True needs kind='sequence', got kind='cross'"),
        ({"min_score_gap": -1.0}, "min_score_gap must be a number >= 0, got -1.0"),
        ({"min_score_gap": 3.0}, "min_score_gap = 3.0 was not reached by"),
    ],
)
def test_bad_random_problems_are_named(arguments, message, monkeypatch):
    monkeypatch.setattr("attsvm.generate._MAX_REDRAWS", 5)
    with pytest.raises(ValueError, match=re.escape(message)):
        attsvm.random_problem(**({"n": 2, "T": 3, "d": 4} | arguments))


def test_labels_may_be_omitted(rng):
    X, Z, v = rng.standard_normal((3, 4, 5)), rng.standard_normal((3, 5)), rng.standard_normal(5)
    problem = AttentionProblem(X, Z=Z, head=LinearHead(v))
    np.testing.assert_array_equal(problem.Y, np.ones(3))
    np.testing.assert_allclose(problem.scores(), X @ v, rtol=1e-12)
    assert attsvm.att_svm(problem, [0, 1, 2]).status == "optimal"
    assert AttentionProblem(X, Z=rng.standard_normal((3, 2, 5))).Y.shape == (3, 2)
    bare = AttentionProblem(X, Z=Z)
    assert attsvm.att_svm(bare, [0, 1, 2]).status == "optimal"
    assert attsvm.decompose(bare, rng.standard_normal((5, 5))).status == "complete"
    with pytest.raises(ValueError, match="scores need a prediction head"):
        attsvm.att_svm(bare)
    with pytest.raises(TypeError, match="Z is missing: give the queries"):
        AttentionProblem(X)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_a_problem_does_not_change_with_what_was_passed_in(rng, convert):
    given = {
        "X": convert(rng.standard_normal((3, 4, 5))),
        "Y": convert(np.array([1.0, -1.0, 1.0])),
        "Z": convert(rng.standard_normal((3, 5))),
        "mask": convert(np.arange(4) < np.array([[4], [3], [2]])),
    }
    v = convert(rng.standard_normal(5))
    problem = AttentionProblem(head=LinearHead(v), **given)
    before = {name: np.array(getattr(problem, name)) for name in given}
    scores = np.array(problem.scores())
    for array in (given["X"], given["Y"], given["Z"], v):
        array[:] = -array
    given["mask"][:] = True
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(problem, name), value)
        assert not getattr(problem, name).flags.writeable
    np.testing.assert_array_equal(AttentionProblem(**before, head=problem.head).scores(), scores)


def test_read_only_memory_is_shared_and_repeated_memory_stays_repeated(rng):
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    assert np.shares_memory(problem.repeat(1000).X, problem.X)
    assert np.shares_memory(replace(problem, Y=-problem.Y).X, problem.X)
    X = rng.standard_normal((2, 3, 4))
    wide = AttentionProblem(np.broadcast_to(X, (1000, 2, 3, 4)), Z=np.broadcast_to(X[:, 0], (1000, 2, 4)))
    assert wide.X.strides[0] == 0  # one copy of X, not a thousand
    X[:] = 0.0
    assert wide.X.all()
