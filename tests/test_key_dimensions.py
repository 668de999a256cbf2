"""Key dimensions: factors that keep selections, what excludes rank 1, and the nearest scores of a rank."""

from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from scipy.optimize import linprog

import attsvm
from attsvm.key_dimensions import METHODS, kq_svd, proved_lead, rank_one_conflict


def small_head(seed=0, d_head=4, d=7, n=6, T=5):
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(d_head, d)), rng.normal(size=(d_head, d)), *rng.normal(size=(2, d_head))
    head = attsvm.TrainedHead.from_weights(*weights)
    return head, head.problem(rng.normal(size=(n, T, d)))


def scores(problem, W):
    return np.einsum("ntd,de,nke->nkt", problem.X, W, problem.Z)


@pytest.mark.parametrize("of", ["W", "keys"])
def test_a_head_of_fewer_dimensions_selects_the_same_tokens(of):
    head, problem = small_head()
    found = attsvm.key_dimension(head, problem, of=of, held_out=problem, ranks=[2], starts=2)
    assert found.head.key_map.shape == (found.rank, 8) and found.least <= found.rank <= found.certified_rank
    assert (scores(problem, found.W).argmax(-1) == scores(problem, head.W).argmax(-1)).all()
    assert (scores(problem, found.W).argmax(-1) == found.selection).all()
    assert 0 < found.lead == proved_lead(problem, found.head.key_map, found.head.query_map, found.selection)
    assert found.certificate.gap < 1e-9 and found.resolution < 1e-5
    for row in found.rows:
        assert (row.kept, row.attention_error) == (row.kept_held_out, row.attention_error_held_out)
    assert {row.method for row in found.rows} == set(METHODS)
    assert found.row(found.certified_rank, "margin").kept == 1.0


def test_the_proved_lead_is_below_the_exact_one():
    """Exact rational arithmetic on the factors as they are stored."""
    rng = np.random.default_rng(3)
    X, Z = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 3))
    problem = attsvm.AttentionProblem(X, Z=Z)
    K, Q = rng.normal(size=(2, 4)), rng.normal(size=(2, 3))
    chosen = attsvm.attention.likeliest(problem, K.T @ Q)
    exact = []
    for x, z, a in zip(X, Z, chosen, strict=True):
        query = [sum(Fraction(q) * Fraction(v) for q, v in zip(row, z, strict=True)) for row in Q]
        score = [
            sum(sum(Fraction(k) * Fraction(v) for k, v in zip(row, t, strict=True)) * b
                for row, b in zip(K, query, strict=True))
            for t in x
        ]  # fmt: skip
        exact += [score[a] - score[t] for t in range(3) if t != a]
    found = proved_lead(problem, K, Q, chosen)
    assert Fraction(found) <= min(exact) and float(min(exact)) - found < 1e-12
    # A difference below the roundings is not proved.
    near = attsvm.AttentionProblem([[[1.0, 1.0], [1.0, 1.0 + 2.0**-52]]], Z=[[1.0]])
    assert proved_lead(near, [[0.0, 1.0]], [[1.0]], [1]) < 0


def one_dimension_suffices(X, chosen, allowed):
    """Whether some line and some signs of the queries make the selections: a linear program per pattern of signs."""
    for signs in product((1.0, -1.0), repeat=len(chosen)):
        rows = [
            -s * (X[a] - X[t])
            for s, a, seen in zip(signs, chosen, allowed, strict=True)
            for t in np.flatnonzero(seen)
            if t != a
        ]
        if not rows or linprog(np.zeros(X.shape[1]), rows, -np.ones(len(rows)), bounds=(None, None)).success:
            return True
    return False


def test_an_odd_cycle_excludes_rank_one():
    """On free tokens and full view exactly three different selections; under a mask never where a line exists."""
    rng = np.random.default_rng(0)
    X, excluded = np.eye(4), 0
    for _ in range(12):
        chosen = rng.integers(0, 4, size=4)
        problem = attsvm.AttentionProblem(X[None], Z=rng.normal(size=(1, 4, 4)))
        conflict = rank_one_conflict(problem, chosen[None])
        assert bool(conflict) == (len(set(chosen)) > 2) == (not one_dimension_suffices(X, chosen, problem.allowed[0]))
        allowed = rng.random((4, 4)) < 0.7
        allowed[np.arange(4), chosen] = True
        masked = attsvm.AttentionProblem(X[None], Z=problem.Z, mask=allowed[None])
        found = rank_one_conflict(masked, chosen[None])
        assert not (found and one_dimension_suffices(X, chosen, allowed))
        assert len(found) % 2 == (1 if found else 0)
        excluded += bool(found)
        for (_, k), (_, other) in zip(found, found[1:] + found[:1], strict=True):  # the cycle as it is told
            assert chosen[k] != chosen[other] and allowed[k, chosen[other]] and allowed[other, chosen[k]]
    assert 0 < excluded < 12


def test_a_planted_rank_is_found():
    rng = np.random.default_rng(1)
    problem = attsvm.AttentionProblem(rng.normal(size=(20, 6, 5)), Z=rng.normal(size=(20, 5)))
    for rank in (1, 2):
        W = rng.normal(size=(5, rank)) @ rng.normal(size=(rank, 5))
        found = attsvm.key_dimension(W, problem, ranks=[rank])
        assert found.rank == rank and found.least == 1
    assert found.row(2, "kq_svd").kept == found.row(2, "svd").kept == 1.0


@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 3, 6)])
def test_kq_svd_is_the_nearest_score_matrix(shape):
    """The truncated decomposition of all scores; with fewer tokens than dimensions, too."""
    n, T, d = shape
    rng = np.random.default_rng(4)
    X, Z, W = rng.normal(size=(n, T, d)), rng.normal(size=(n, 2, d)), rng.normal(size=(d, d))
    problem = attsvm.AttentionProblem(X, Z=Z)
    whole = X.reshape(-1, d) @ W @ Z.reshape(-1, d).T
    U, s, Vt = np.linalg.svd(whole)
    K, Q = kq_svd(problem, W, 2)
    assert K.shape == Q.shape == (2, d)
    np.testing.assert_allclose(X.reshape(-1, d) @ K.T @ Q @ Z.reshape(-1, d).T, (U[:, :2] * s[:2]) @ Vt[:2], atol=1e-12)


def test_tokens_that_nobody_sees_do_not_count():
    rng = np.random.default_rng(5)
    X, Z, W = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 2, 3)), rng.normal(size=(3, 3))
    mask = np.ones((4, 2, 5), dtype=bool)
    mask[:, :, 4] = False
    first = kq_svd(attsvm.AttentionProblem(X, Z=Z, mask=mask), W, 2)
    again = kq_svd(attsvm.AttentionProblem(X[:, :4], Z=Z), W, 2)
    np.testing.assert_allclose(first[0].T @ first[1], again[0].T @ again[1], atol=1e-12)


def test_the_identity_has_no_truncation_and_the_table_is_data():
    rng = np.random.default_rng(6)
    problem = attsvm.AttentionProblem(rng.normal(size=(8, 4, 3)), Z=rng.normal(size=(8, 2, 3)))
    found = attsvm.key_dimension(np.eye(3), problem, ranks=[1, 2])
    assert {row.method for row in found.rows if row.rank < 3} == set(METHODS) - {"svd"}
    assert len(found.to_frame()) == len(found.table.rows) == len(found.rows)
    assert "KQ-SVD" in found._repr_html_() and "both proved" in str(found.table)
    assert np.isnan(found.rows[0].kept_held_out) and repr(found).startswith(f"KeyDimension({found.rank} suffice")
    assert found.own_norm >= found.solution.norm * (1 - 1e-9)
    with pytest.raises(ValueError, match=r"no row of rank 1 and method 'svd'; its ranks are \[1, 2"):
        found.row(1, "svd")


def test_what_is_wrong_is_named():
    head, problem = small_head()
    tied = attsvm.AttentionProblem([[[1.0, 0.0], [1.0, 0.0]]], Z=[[1.0, 0.0]])
    batch = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    alone = attsvm.AttentionProblem([[[1.0], [2.0]]], Z=[[1.0]], mask=[[True, False]])
    for call, message in (
        (lambda: attsvm.key_dimension(np.eye(3), problem), r"head must have a W of shape \(8, 8\), .*got \(3, 3\)"),
        (lambda: attsvm.key_dimension(head.W, problem, of="keys"), 'of="keys" needs a TrainedHead'),
        (lambda: attsvm.key_dimension(head, problem, of="queries"), "of must be"),
        (lambda: attsvm.key_dimension(head, problem, ranks=[0]), r"ranks must hold integers >= 1, got \[0\]"),
        (lambda: attsvm.key_dimension(head, problem, ranks=[]), "ranks must hold integers >= 1"),
        (lambda: attsvm.key_dimension(head, problem, starts=0), "starts"),
        (lambda: attsvm.key_dimension(head, problem, held_out=tied), r"held_out must have .*\(8, 8\), got \(2, 2\)"),
        (lambda: attsvm.key_dimension(np.eye(4), batch), "problem must be one problem; index the batch"),
        (lambda: attsvm.key_dimension([[np.nan]], alone), "head"),
        (lambda: attsvm.key_dimension([[1.0]], alone), "sees two tokens"),
        (lambda: proved_lead(problem, np.eye(3), np.eye(3), []), r"K and Q must have shapes \(r, 8\) and \(r, 8\)"),
        (lambda: rank_one_conflict(problem, [0]), r"selection must have shape \(6, 5\)"),
        (lambda: kq_svd(problem, head.W, 0), "rank"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(attsvm.InfeasibleError):
        attsvm.key_dimension(np.eye(2), tied)
    with pytest.raises(TypeError, match="problem must be an AttentionProblem"):
        attsvm.key_dimension(head, problem.X)
