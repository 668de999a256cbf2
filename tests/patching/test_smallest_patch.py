"""Patches against separate arithmetic: every document by brute force, cvxpy on small cases, rationals for the order."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_retriever import retriever

import attsvm
from attsvm.patching.embedding_index import exact_lead, float32_error


def brute_force(patch, Z, X, failures, golden, margin):
    """Largest amount by which a promise is missed, over all documents; golden ones keep what they have."""
    W, worst = patch.W, 0.0
    for repair, pairs in ((True, failures), (False, golden)):
        for q, doc in pairs:
            others = np.delete(np.arange(len(X)), doc)
            apart = X[doc].astype(float) - X[others].astype(float)
            lead, before = apart @ W @ Z[q], apart @ patch.prior @ Z[q]
            asked = np.full(len(others), margin) if repair else np.minimum(margin, before)
            worst = max(worst, float((asked - lead).max()))
            assert repair or (lead[before > 0] > 0).all()
    return worst


def by_cvxpy(Z, X, failures, golden, margin, norm):
    """Least distance from the identity over the rows of all documents."""
    d = X.shape[1]
    W = cp.Variable((d, d))
    rows = []
    for repair, pairs in ((True, failures), (False, golden)):
        for q, doc in pairs:
            apart = X[doc] - np.delete(X, doc, axis=0)
            before = apart @ Z[q]
            rows.append(apart @ W @ Z[q] >= (margin if repair else np.minimum(margin, before)))
    size = {"frobenius": lambda D: cp.norm(D, "fro"), "nuclear": cp.normNuc}[norm](W - np.eye(d))
    program = cp.Problem(cp.Minimize(size), rows)
    settings = {"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10} if norm == "frobenius" else {}
    program.solve(solver="CLARABEL", **settings)
    return program.status, program.value


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_change_is_the_smallest_over_all_documents(norm, seed):
    Z, X, wrong, right = retriever(seed, documents=40, d=5, queries=14)
    patch = attsvm.patch(Z, X, wrong[:2], right[:6], norm=norm, margin=0.02)
    status, size = by_cvxpy(Z, X, wrong[:2], right[:6], 0.02, norm)
    assert (patch.status, status) == ("optimal", "optimal")
    assert abs(patch.norm / size - 1) < 1e-7  # what both solvers reach
    assert patch.certificate.lower_bound <= size * (1 + 1e-7)
    assert brute_force(patch, Z, X, wrong[:2], right[:6], 0.02) < 1e-9


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_every_document_is_below_by_brute_force(kind):
    Z, X, wrong, right = retriever(2, documents=3000, d=24, queries=90, noise=0.24, kind=kind)
    patch = attsvm.patch(Z, X, wrong[:20], right)
    assert patch.status == "optimal" and len(wrong) >= 20
    assert brute_force(patch, Z, X, wrong[:20], right, patch.margin) < 1e-9
    assert patch.certificate.violation >= 0 and patch.certificate.unproved == 0
    assert {one.query for one in patch.repaired} == {q for q, _ in wrong[:20]}
    answers = (Z.astype(float) @ patch.query_map.T @ X.astype(float).T).argmax(axis=1)
    assert all(answers[q] == doc for q, doc in [*wrong[:20], *right])


def test_the_default_margin_survives_float32():
    Z, X, wrong, right = retriever(3, documents=2000, d=24, queries=80, noise=0.24, kind=np.float32)
    patch = attsvm.patch(Z, X, wrong[:15], right[:30])
    longest = np.linalg.norm(Z.astype(float), axis=1).max() * np.linalg.norm(X.astype(float), axis=1).max()
    assert patch.margin == pytest.approx(4 * float32_error(24) * longest, rel=1e-6)
    scores = (Z @ patch.query_map.T.astype(np.float32)) @ X.T
    assert scores.dtype == np.float32
    assert all(scores[q].argmax() == doc for q, doc in wrong[:15])


@given(st.integers(0, 10_000))
def test_promises_hold_in_rational_arithmetic(seed):
    """Small integers: ties, copies and contradictions are frequent, and every lead is a fraction."""
    rng = np.random.default_rng(seed)
    X, Z = rng.integers(-3, 4, size=(9, 2)).astype(float), rng.integers(-3, 4, size=(4, 2)).astype(float)
    X[~X.any(axis=1)] = 1.0
    Z[~Z.any(axis=1)] = 1.0
    failures = [(q, int(rng.integers(9))) for q in range(2)]
    golden = [(q, int((X @ Z[q]).argmax())) for q in (2, 3)]
    patch = attsvm.patch(Z, X, failures, golden, margin=0.25)
    if patch.status == "infeasible":
        assert by_cvxpy(Z, X, failures, golden, 0.25, "frobenius")[0] in ("infeasible", "infeasible_inaccurate")
        return
    assert patch.status == "optimal"
    W = [[Fraction(v) for v in row] for row in patch.W.tolist()]
    for q, doc in [*failures, *golden]:
        mapped = [sum(W[i][j] * Fraction(Z[q, j]) for j in range(2)) for i in range(2)]
        scores = [sum(Fraction(X[k, i]) * mapped[i] for i in range(2)) for k in range(9)]
        for k in range(9):
            if ((q, doc) in failures and k != doc) or X[doc] @ Z[q] > X[k] @ Z[q]:
                assert scores[doc] > scores[k]


def test_leads_in_integers_are_exact():
    rng = np.random.default_rng(0)
    for _ in range(20):
        a, b, z = rng.normal(size=(3, 3)) * 10.0 ** rng.integers(-20, 20, size=(3, 3))
        W = rng.normal(size=(3, 3)) * 10.0 ** rng.integers(-9, 9, size=(3, 3))
        true = sum(
            (Fraction(a[i]) - Fraction(b[i])) * Fraction(W[i, j]) * Fraction(z[j]) for i in range(3) for j in range(3)
        )
        assert np.sign(exact_lead(a, b, W, z)) == (true > 0) - (true < 0)


@pytest.mark.parametrize("side", ["query", "document", "both"])
def test_maps_of_each_side_give_the_scores_of_W(side):
    Z, X, wrong, right = retriever(4)
    patch = attsvm.patch(Z, X, wrong[:3], right[:10], side=side, margin=0.01)
    scores = (X @ patch.document_map.T) @ (Z @ patch.query_map.T).T
    np.testing.assert_allclose(scores, X @ patch.W @ Z.T, atol=1e-12)
    identity = np.eye(8)
    moved = [not np.array_equal(patch.query_map, identity), not np.array_equal(patch.document_map, identity)]
    assert moved == [side in ("query", "both"), side in ("document", "both")]
    B, A = patch.factors
    np.testing.assert_allclose(B @ A, patch.change, atol=1e-8)
    np.testing.assert_array_equal(patch.change, patch.W - patch.prior)
    if side == "both":  # each map moves about half as far
        assert np.linalg.norm(patch.query_map - identity) < 0.7 * np.linalg.norm(patch.change)


def test_a_prior_of_another_shape():
    Z, X, _, _ = retriever(5)
    prior = np.random.default_rng(1).normal(size=(8, 5))
    Z = Z[:, :5]
    first = (Z @ prior.T @ X.T).argmax(axis=1)
    golden = [(q, int(first[q])) for q in range(10, 30)]
    patch = attsvm.patch(Z, X, [(0, int((first[0] + 1) % 100))], golden, prior=prior)
    assert patch.status == "optimal" and patch.W.shape == (8, 5)
    after = (Z @ patch.query_map.T @ X.T).argmax(axis=1)
    assert [int(after[q]) for q in range(10, 30)] == [doc for _, doc in golden]
    for side in ("document", "both"):
        other = attsvm.patch(Z, X, [(0, int((first[0] + 1) % 100))], golden, prior=prior, side=side)
        scores = (X @ other.document_map.T) @ (Z @ other.query_map.T).T
        np.testing.assert_allclose(scores, X @ other.W @ Z.T, atol=1e-12)


def test_rankings_keep_their_order_and_the_documents_below():
    Z, X, wrong, right = retriever(6)
    order = {q: np.argsort(-(X @ Z[q])).tolist() for q, _ in right}
    golden = [(q, order[q][:4]) for q, _ in right[:6]] + [(right[6][0], order[right[6][0]][2:5])]
    patch = attsvm.patch(Z, X, wrong[:3], golden)
    assert patch.status == "optimal"
    for q, listed in golden[:-1]:
        after = np.argsort(-(X @ patch.W @ Z[q])).tolist()
        assert after[:4] == listed
    q, listed = golden[-1]  # not the top: the two documents above it are free
    scores, before = X @ patch.W @ Z[q], X @ Z[q]
    assert scores[listed[0]] > scores[listed[1]] > scores[listed[2]]
    below = before < before[listed[2]]
    assert (scores[listed[2]] > scores[below]).all()


def test_listed_rivals_alone_must_be_led():
    Z, X, wrong, _ = retriever(7)
    q, doc = wrong[0]
    rivals = [int(k) for k in np.argsort(-(X @ Z[q]))[1:3] if k != doc]
    free = attsvm.patch(Z, X, [(q, doc, rivals)], margin=0.01)
    whole = attsvm.patch(Z, X, [(q, doc)], margin=0.01)
    assert free.status == "optimal" and free.norm <= whole.norm + 1e-12
    scores = X @ free.W @ Z[q]
    assert all(scores[doc] >= scores[k] + 0.01 - 1e-9 for k in rivals)


def test_margins():
    Z, X, wrong, right = retriever(8)
    calibrated = attsvm.patch(Z, X, wrong[:2], right, margin="calibrated")
    scores = Z @ X.T
    leads = [scores[q, doc] - np.delete(scores[q], doc).max() for q, doc in right]
    assert calibrated.margin == pytest.approx(np.quantile(leads, 0.1), rel=1e-9)
    sizes = [attsvm.patch(Z, X, wrong[:2], right, margin=m).norm for m in (1e-4, 0.01, 0.1)]
    assert sizes[0] < sizes[1] < sizes[2]
    assert all(one.lead >= 0.01 - 1e-9 for one in attsvm.patch(Z, X, wrong[:2], right, margin=0.01).repaired)


def test_nothing_to_do_changes_nothing():
    Z, X, _, right = retriever(9)
    patch = attsvm.patch(Z, X, golden=right)
    assert patch.status == "optimal" and not patch.change.any()
    assert patch.rank == 0 and patch.relative_size == 0 and not patch.driving
    assert "certificate" in patch.facts()


def test_files_are_mapped_and_limits_are_kept(tmp_path):
    Z, X, wrong, right = retriever(10, documents=4000, kind=np.float32)
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "z.npy", Z)
    plain = attsvm.patch(Z, X, wrong[:5], right)
    mapped = attsvm.patch(tmp_path / "z.npy", str(tmp_path / "x.npy"), wrong[:5], right, memory_limit=2e5)
    assert isinstance(mapped.data.documents.vectors, np.memmap)
    np.testing.assert_allclose(mapped.W, plain.W, atol=1e-12)
    with pytest.raises(MemoryError, match="memory_limit must be at least"):
        attsvm.patch(Z, X, wrong, right, memory_limit=100)
    short = pytest.warns(attsvm.ConvergenceWarning, match="not proved")
    with short:
        stopped = attsvm.patch(Z, X, wrong[:5], right, max_rounds=1)
    assert stopped.status == "inaccurate" and stopped.unserved


def test_texts_are_embedded_by_functions_and_models():
    vectors = {"apple": [1.0, 0.2], "pear": [0.9, 0.5], "fruit?": [1.0, 0.3]}

    def embed(texts):
        return np.array([vectors[text] for text in texts])

    class Model:
        def encode(self, texts):
            return embed(texts)

    class Paired:
        def encode_query(self, texts):
            return embed(texts)

        def encode_document(self, texts):
            return 2 * embed(texts)

    for encoder, factor in ((embed, 1), (Model(), 1), (Paired(), 2)):
        patch = attsvm.patch(["fruit?"], ["apple", "pear"], [(0, 1)], encoder=encoder)
        assert patch.status == "optimal"
        assert patch.data.documents.longest == pytest.approx(factor * np.hypot(0.9, 0.5))


def test_torch_tensors_are_read():
    torch = pytest.importorskip("torch")
    patch = attsvm.patch(torch.tensor([[0.9, 1.0]]), torch.eye(2), {0: 0})
    assert patch.status == "optimal" and [one.document for one in patch.repaired] == [0]


@pytest.mark.parametrize("norm", ["spectral", "l1"])
def test_other_norms(norm):
    Z, X, wrong, right = retriever(11)
    patch = attsvm.patch(Z, X, wrong[:2], right[:10], norm=norm, margin=0.01)
    assert patch.status == "optimal"
    assert brute_force(patch, Z, X, wrong[:2], right[:10], 0.01) < 1e-8


# -- contradictions ------------------------------------------------------------------------------------


def test_a_contradiction_names_its_demands():
    Z, X, _, right = retriever(12)
    Z = np.vstack([Z, Z[0]])  # the same query twice, with different answers
    patch = attsvm.patch(Z, X, [(0, 3), (40, 4)], right[5:])
    assert patch.status == "infeasible"
    told = {(one.query, one.document, one.rival) for one in patch.conflict}
    assert told == {(0, 3, 4), (40, 4, 3)}
    with pytest.raises(attsvm.InfeasibleError, match="repair 3 above 4 for query 0"):
        _ = patch.W
    assert "contradict each other" in str(patch) and "infeasible" in repr(patch)
    served = attsvm.patch(Z, X, [(0, 3), (40, 4)], right[5:], C=1000.0)
    assert served.status == "optimal" and len(served.repaired) == 1 and len(served.unserved) == 1
    gone, stays = served.unserved[0], served.repaired[0]
    assert f"contradicts {stays.document} first for query {stays.query}, proved by" in gone.reason
    assert gone.query != stays.query and len(served.kept) == len(right[5:])


def test_contradicting_golden_answers_are_never_given_up():
    Z, X, wrong, right = retriever(13, d=4, noise=0.4)
    patch = attsvm.patch(Z, X, wrong, right, C=0.5)
    assert patch.status == "optimal" and 0 < len(patch.repaired) < len(wrong)
    given_up = {one.query for one in patch.unserved}
    served = [(q, doc) for q, doc in wrong if q not in given_up]
    assert brute_force(patch, Z, X, served, right, patch.margin) < 1e-9


def test_larger_C_gives_up_less():
    Z, X, wrong, right = retriever(14, d=6, noise=0.35)
    served = [len(attsvm.patch(Z, X, wrong, right, C=C).repaired) for C in (0.01, 0.3, 100.0)]
    assert served == sorted(served) and served[0] < served[-1]


def test_copies_and_near_copies():
    Z, X, wrong, right = retriever(15)
    q, doc = wrong[0]
    ids = [f"d{k}" for k in range(len(X))] + ["copy"]
    twice = np.vstack([X, X[doc]])
    failures, golden = [(q, f"d{doc}")], [(p, f"d{k}") for p, k in right]
    patch = attsvm.patch(Z, twice, failures, golden, document_ids=ids)
    assert patch.status == "infeasible" and patch.certificate.infeasible_by == "zero row"
    assert f"repair 'd{doc}' above 'copy' for query {q}, which has exactly the same embedding" in patch.conflict_text()
    soft = attsvm.patch(Z, twice, [*failures, (wrong[1][0], f"d{wrong[1][1]}")], golden, document_ids=ids, C=100.0)
    assert [(one.query, one.reason) for one in soft.unserved] == [(q, "document 'copy' has exactly the same embedding")]
    kept = attsvm.patch(Z, np.vstack([X, X[right[0][1]]]), wrong[:1], right)  # a golden answer and its copy stay tied
    assert kept.status == "optimal" and len(kept.kept) == len(right)
    near = np.vstack([X, X[doc] + 1e-6 * np.random.default_rng(0).normal(size=8)])
    large = attsvm.patch(Z, near, wrong[:1], right)
    assert large.status == "optimal" and large.relative_size > 0.5
    assert "near duplicates" in large.facts()["note"] and large.driving[0].rival == len(X)


@pytest.mark.parametrize("seed", [13, 19, 112])
def test_promises_hold_where_w_z_is_short(seed: int) -> None:
    """Scans allow violations relative to |W z|, solvers relative to right-hand sides: 1e-8 of these was too much."""
    rng = np.random.default_rng(seed)
    documents, queries = rng.normal(size=(40, 6)), rng.normal(size=(2, 6))
    prior = np.eye(6) + 0.1 * rng.normal(size=(6, 6))
    failures = [(0, int(rng.integers(40))), (1, int(rng.integers(40)))]
    patch = attsvm.patch(queries, documents, failures, norm="linf", prior=prior, margin=1e-5)
    scores = queries @ patch.W.T @ documents.T
    assert patch.status == "optimal" and [tuple(one) for one in enumerate(scores.argmax(axis=1))] == failures
    assert patch.certificate.gap < 1e-7
