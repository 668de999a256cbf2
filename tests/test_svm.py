import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import attsvm
from attsvm import AttentionProblem, InfeasibleError, SelectedSets, Selection, Status
from attsvm.selection_rows import selection_rows
from kkt import assert_infeasible

NORMS = ["frobenius", "nuclear"]
# Two solves of the same problem in other coordinates agree as well as their certificates close (1e-7), and
# W, the minimizer of a function that is flat to second order, to about its square root.
SAME_NORM = 1e-6
SAME_W = 1e-3

sizes = st.tuples(st.integers(1, 4), st.integers(2, 5), st.integers(3, 7), st.integers(0, 10_000))


def make(size, **options):
    n, T, d, seed = size
    return attsvm.random_problem(n=n, T=T, d=max(d, T - 1, n), seed=seed, **options)


def orthogonal(d, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


@pytest.mark.parametrize("norm", NORMS)
@given(size=sizes, c=st.sampled_from([1e-3, 0.5, 3.0, 1e3]))
def test_scaling_tokens_scales_w_inversely(norm, size, c):
    problem = make(size)
    W = attsvm.att_svm(problem, norm=norm).W
    scaled = attsvm.att_svm(replace(problem, X=c * problem.X), norm=norm)
    assert scaled.norm * c == pytest.approx(attsvm.att_svm(problem, norm=norm).norm, rel=SAME_NORM)
    if norm == "frobenius":  # unique
        np.testing.assert_allclose(scaled.W * c, W, atol=SAME_W * np.linalg.norm(W))


@pytest.mark.parametrize("norm", NORMS)
@given(size=sizes)
def test_rotating_tokens_and_queries_rotates_w(norm, size):
    problem = make(size)
    U, V = orthogonal(problem.dx, 1), orthogonal(problem.dx, 2)
    head = attsvm.LinearHead(U @ problem.head.v)
    rotated = AttentionProblem(problem.X @ U.T, problem.Y, problem.Z @ V.T, head)
    plain, turned = attsvm.att_svm(problem, norm=norm), attsvm.att_svm(rotated, norm=norm)
    assert turned.norm == pytest.approx(plain.norm, rel=SAME_NORM)
    if norm == "frobenius":
        np.testing.assert_allclose(turned.W, U @ plain.W @ V.T, atol=SAME_W * plain.norm)


@pytest.mark.parametrize("norm", NORMS)
@given(size=sizes)
def test_permuting_sequences_and_tokens_changes_nothing(norm, size):
    problem = make(size)
    rng = np.random.default_rng(size[3])
    order, tokens = rng.permutation(problem.n), rng.permutation(problem.T)
    shuffled = replace(problem, X=problem.X[order][:, tokens], Y=problem.Y[order], Z=problem.Z[order])
    plain, moved = attsvm.att_svm(problem, norm=norm), attsvm.att_svm(shuffled, norm=norm)
    assert moved.norm == pytest.approx(plain.norm, rel=SAME_NORM)
    if norm == "frobenius":
        np.testing.assert_allclose(moved.W, plain.W, atol=SAME_W * plain.norm)
        np.testing.assert_array_equal(moved.support, plain.support[order][:, tokens])


@given(size=sizes)
def test_a_token_far_from_the_margin_changes_nothing(size):
    problem = make(size)
    plain = attsvm.att_svm(problem)
    # x_alpha - x_new = 5 W z / |W z|^2 has margin 5 by construction, and so never binds.
    best = np.take_along_axis(problem.X, plain.selection.indices[:, None, None], axis=1)[:, 0]
    keys = problem.Z @ plain.W.T
    far = best - 5 * keys / np.square(keys).sum(axis=1, keepdims=True)
    more = replace(problem, X=np.concatenate([problem.X, far[:, None]], axis=1), head=None)
    grown = attsvm.att_svm(more, plain.selection)
    np.testing.assert_allclose(grown.token_margins()[:, -1], 5.0, rtol=1e-3)
    np.testing.assert_allclose(grown.W, plain.W, atol=SAME_W * plain.norm)


@pytest.mark.parametrize("norm", NORMS)
@given(size=sizes, self_attention=st.booleans())
def test_lemma_1_rank_and_spans(norm, size, self_attention):
    problem = make(size, kind="self" if self_attention else "cross")
    solution = attsvm.att_svm(problem, norm=norm)
    assert solution.status is Status.OPTIMAL
    assert solution.rank <= min(problem.n, problem.dx)
    R = np.linalg.qr(problem.Z.T)[0]
    assert np.linalg.norm(solution.W @ (np.eye(problem.dx) - R @ R.T)) <= 1e-9 * solution.norm
    if norm == "nuclear":
        assert solution.rank <= solution.certificate.rank <= min(problem.n, problem.dx)


@given(size=sizes)
def test_duality_between_margin_and_multipliers(size):
    solution = attsvm.att_svm(make(size))
    # Frobenius: the dual matrix is the direction itself, and the multipliers sum to the norm.
    dual = solution.rows.margin_problem.adjoint(solution.result.multipliers)
    np.testing.assert_allclose(dual, solution.direction, atol=1e-5)
    assert solution.multipliers.sum() == pytest.approx(solution.norm, rel=1e-6)
    assert (solution.multipliers[~solution.support] <= 1e-5).all()
    assert solution.margin == pytest.approx(1 / np.linalg.norm(solution.W), rel=1e-12)


@pytest.mark.parametrize("kind", ["cross", "self"])
def test_theorem_1_feasible_when_d_is_large_enough(kind, rng):
    for _ in range(20):
        n, T = int(rng.integers(1, 8)), int(rng.integers(2, 9))
        problem = attsvm.random_problem(n=n, T=T, d=max(T - 1, n), seed=rng, kind=kind, distribution="gaussian")
        assert attsvm.att_svm(problem, rng.integers(T, size=n)).status is Status.OPTIMAL


def test_small_dimension_gives_verified_farkas_proofs_that_name_sequences():
    infeasible = 0
    for seed in range(20):
        problem = attsvm.random_problem(n=6, T=6, d=2, seed=seed)
        solution = attsvm.att_svm(problem)
        if solution.status is not Status.INFEASIBLE:
            continue
        infeasible += 1
        assert_infeasible(solution.rows.margin_problem, solution.certificate.farkas.multipliers)
        assert solution.margin == 0.0
        sequences = solution.conflicting_queries.tolist()
        with pytest.raises(InfeasibleError, match=re.escape(", ".join(map(str, sequences)))):
            _ = solution.W
        # The named sequences alone are infeasible already: the proof needs no others.
        part = AttentionProblem(problem.X[sequences], problem.Y[sequences], problem.Z[sequences], problem.head)
        assert attsvm.att_svm(part).status is Status.INFEASIBLE
    assert infeasible >= 10


@pytest.mark.parametrize("norm", NORMS)
@given(size=sizes)
def test_gen_svm_with_one_token_per_set_is_att_svm(norm, size):
    problem = make(size)
    chosen = np.random.default_rng(size[3]).integers(problem.T, size=problem.n)
    general = attsvm.gen_svm(problem, [[t] for t in chosen], norm=norm)
    single = attsvm.att_svm(problem, chosen, norm=norm)
    assert general.norm == pytest.approx(single.norm, rel=SAME_NORM)
    np.testing.assert_array_equal(general.rows.margin_problem.rows.a, single.rows.margin_problem.rows.a)
    assert attsvm.gen_svm(problem, Selection(chosen), norm=norm).norm == pytest.approx(single.norm, rel=SAME_NORM)


def test_gen_svm_equals_the_program_with_every_pair(rng):
    import cvxpy as cp

    problem = attsvm.random_problem(n=3, T=5, d=8, seed=4)
    sets = [[0, 3], [1], [0, 2, 4]]
    W = cp.Variable((8, 8))
    rows = []
    for i, inside in enumerate(sets):
        for t in inside:
            for tau in range(5):
                value = (problem.X[i, t] - problem.X[i, tau]) @ W @ problem.Z[i]
                if tau not in inside:
                    rows.append(value >= 1)
                elif tau != t:
                    rows.append(value == 0)
    pairs = cp.Problem(cp.Minimize(cp.norm(W, "fro")), rows)
    pairs.solve(solver="CLARABEL")
    solution = attsvm.gen_svm(problem, sets)
    assert solution.norm == pytest.approx(pairs.value, rel=1e-6)  # the program above runs at 1e-8
    margins = solution.token_margins()
    np.testing.assert_allclose([margins[0, 3], margins[2, 2], margins[2, 4]], 0.0, atol=1e-8)
    assert not solution.support[0, 3]


def test_satt_svm_with_one_query_is_att_svm():
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    one = AttentionProblem(problem.X, problem.Y[:, None], problem.Z[:, None], problem.head)
    for norm in NORMS:
        sequence = attsvm.satt_svm(one, norm=norm)
        assert sequence.norm == pytest.approx(attsvm.att_svm(problem, norm=norm).norm, rel=1e-9)
        assert sequence.formulation == "SAtt-SVM"
        assert sequence.support.shape == (3, 1, 4)


def test_causal_mask_drops_exactly_the_future_rows():
    problem = attsvm.random_problem(n=2, T=5, d=10, kind="sequence", seed=3)
    selection = np.minimum(problem.optimal_tokens().indices, np.arange(5))  # visible to each query
    full = selection_rows(problem, selection)
    causal = attsvm.satt_svm(problem, selection, causal=True).rows
    k = full.margin_problem.owner % 5
    past = full.token <= k
    np.testing.assert_array_equal(causal.margin_problem.rows.a, full.margin_problem.rows.a[past])
    np.testing.assert_array_equal(causal.margin_problem.owner, full.margin_problem.owner[past])
    np.testing.assert_array_equal(causal.token, full.token[past])
    assert past.sum() == 2 * (0 + 1 + 2 + 3 + 4)
    assert attsvm.satt_svm(problem, selection, causal=True).norm < attsvm.satt_svm(problem, selection).norm


def test_any_mask_drops_exactly_its_rows(rng):
    problem = attsvm.random_problem(n=3, T=5, d=8, queries=2, seed=1)
    mask = rng.random((3, 2, 5)) < 0.7
    mask[..., 0] = True
    masked = replace(problem, mask=mask)
    rows = selection_rows(masked, np.zeros((3, 2), int))
    assert rows.margin_problem.m == mask[..., 1:].sum()
    present = rows.scatter(np.ones(rows.margin_problem.m), fill=0.0).astype(bool)
    np.testing.assert_array_equal(present[..., 1:], mask[..., 1:])


def test_rectangular_w():
    problem = attsvm.random_problem(n=3, T=4, d=6, dz=9, seed=0)
    for norm in (*NORMS, "spectral", "l1"):
        solution = attsvm.att_svm(problem, norm=norm)
        assert solution.status is Status.OPTIMAL
        assert solution.W.shape == (6, 9)


def test_finite_part_reproduces_probabilities(rng):
    problem = attsvm.random_problem(n=3, T=5, d=9, seed=2)
    s = rng.dirichlet(np.ones(5), size=3)
    sets = SelectedSets.from_indices([[0, 1, 4], [2], [1, 3]], T=5)
    solution = attsvm.finite_part(problem, s, sets)
    logits = np.einsum("itd,de,ie->it", problem.X, solution.W, problem.Z)
    for i, inside in enumerate([[0, 1, 4], [2], [1, 3]]):
        p = np.exp(logits[i, inside]) / np.exp(logits[i, inside]).sum()
        np.testing.assert_allclose(p, s[i, inside] / s[i, inside].sum(), rtol=1e-6)
    # Minimum norm: the pseudo-inverse of the equations gives the same W.
    rows = solution.rows.margin_problem
    least = np.linalg.pinv(rows.features()) @ rows.rhs
    np.testing.assert_allclose(solution.W.ravel(), least, atol=1e-5)


def test_equal_probabilities_have_no_finite_part():
    problem = attsvm.random_problem(n=1, T=3, d=4, seed=0)
    solution = attsvm.finite_part(problem, [[0.5, 0.5, 0.0]], [[0, 1]])
    assert solution.norm == pytest.approx(0.0, abs=1e-9)


def test_batches_give_one_solution_per_problem():
    batch = attsvm.random_problem(n=4, T=4, d=3, batch=4, seed=11)
    solutions = attsvm.att_svm(batch)
    assert len(solutions) == 4
    for b, solution in enumerate(solutions):
        alone = attsvm.att_svm(batch[b])
        assert solution.status is alone.status
        assert solutions.norm[b] == pytest.approx(alone.norm, rel=1e-9)
        assert np.isnan(solutions.W[b]).all() == (alone.status is Status.INFEASIBLE)
    assert solutions.support.shape == (4, 4, 4)
    assert attsvm.is_locally_optimal(batch).shape == (4,)


def test_verify_certifies_any_w(rng):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    solution = attsvm.att_svm(problem)
    for certificate in (
        attsvm.verify(problem, solution.W),
        attsvm.verify(problem, solution.W, multipliers=solution.multipliers),
    ):
        assert certificate.worst <= 1e-7
    assert attsvm.verify(problem, 1.1 * solution.W).gap == pytest.approx(0.1 / 1.1, rel=1e-5)
    assert attsvm.verify(problem, rng.standard_normal((5, 5))).worst > 1e-2
    sets = attsvm.gen_svm(problem, [[0, 1], [2], [3]])
    assert attsvm.verify(problem, sets.W, selected_sets=[[0, 1], [2], [3]]).worst <= 1e-7
    hopeless = attsvm.random_problem(n=6, T=6, d=2, seed=0)
    proof = attsvm.verify(hopeless, np.eye(2)).farkas
    assert_infeasible(selection_rows(hopeless).margin_problem, proof.multipliers)


def test_zero_query_is_infeasible_not_an_exception():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    Z = problem.Z.copy()
    Z[1] = 0
    solution = attsvm.att_svm(replace(problem, Z=Z))
    assert solution.status is Status.INFEASIBLE
    assert solution.conflicting_queries.tolist() == [1]


def test_smallest_problem_by_hand():
    # (x_0 - x_1) W z = 2 * W * 3 >= 1, so W = 1/6, and the single multiplier times 6 is 1.
    problem = AttentionProblem([[[1.0], [-1.0]]], [1], [[3.0]], attsvm.LinearHead([1.0]))
    for norm in (*NORMS, "spectral", "l1", "linf", "l3"):
        solution = attsvm.att_svm(problem, norm=norm)
        assert solution.W.item() == pytest.approx(1 / 6, rel=1e-7)
        assert solution.multipliers[0, 1] == pytest.approx(1 / 6, rel=1e-7)
        assert solution.direction.item() == pytest.approx(1.0)


@given(size=sizes)
def test_nuclear_norm_dominates_frobenius(size):
    problem = make(size)
    fro, nuc = (attsvm.att_svm(problem, norm=norm) for norm in NORMS)
    rank = nuc.certificate.rank
    assume(rank is not None)
    # |W|_F <= |W|_* <= sqrt(rank) |W|_F applied to the two minimizers.
    assert fro.norm <= nuc.norm * (1 + SAME_NORM)
    assert nuc.norm <= np.sqrt(fro.rank) * fro.norm * (1 + SAME_NORM)


def test_rank_bound_that_never_binds_is_ignored():
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    free, bounded = attsvm.att_svm(problem, norm="nuclear"), attsvm.att_svm(problem, norm="nuclear", rank=3)
    assert bounded.norm == pytest.approx(free.norm, rel=1e-12)


def test_repr_says_what_happened():
    good = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    assert repr(good).startswith("Solution(Att-SVM, frobenius, optimal, margin=")
    bad = attsvm.att_svm(attsvm.random_problem(n=6, T=6, d=2, seed=0))
    assert repr(bad) == "Solution(Att-SVM, frobenius, infeasible)"
