"""The studies of real models: their parts on small data, and the atoms on the package when it is there."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from figure_outcomes import outcome_of

import attsvm
from attsvm.validation.figures.figure import Outcome
from attsvm.validation.figures.own import adapter_study, fit_studies, head_studies, stack_studies
from attsvm.validation.pretrained import patch_peers, retrieval
from attsvm.validation.pretrained.atom_mapping import Tasks, read_reactions, tokenize
from attsvm.validation.pretrained.installed_models import is_installed


def test_reactions_become_tokens_candidates_and_truth():
    reaction = tokenize("[CH3:1][C:2](=[O:3])[OH:4].[nH:9]1cccc1>>[CH3:1][C:2](=[O:3])[O-:4].[Cl-]")
    assert reaction.words[:4] == ("[CLS]", "C", "C", "(") and "[nH]" in reaction.words
    assert [reaction.words[i] for i in reaction.product_atoms] == ["C", "C", "O", "[O-]"]  # chloride has no origin
    assert [reaction.words[reaction.reactant_atoms[k]] for k in reaction.origin] == ["C", "C", "O", "O"]
    with pytest.raises(ValueError, match="one >>"):
        tokenize("CCO")


def test_equivalent_atoms_have_equal_ranks():
    pytest.importorskip("rdkit")
    ranks = tokenize("[CH3:1][CH:2]([CH3:3])[OH:4].[K+].[K+]>>[CH3:1][CH:2]([CH3:3])[O-:4]").ranks
    assert ranks[0] == ranks[2] and ranks[0] != ranks[1] and ranks[4] == ranks[5]


def test_a_file_of_reactions(tmp_path):
    path = tmp_path / "r.csv"
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["rxn_Smiles"])
        for text in (
            "[CH3:1][OH:2]>>[CH3:1][O-:2]",
            "[CH3:1][Xx:2]>>[CH3:1]",
            "CC>>CC",
            "[CH3:1][OH:2]>>[CH3:1][O-:2]",
        ):
            table.writerow([text])
    known = {"[CLS]", "[SEP]", "C", "O", "[O-]", ">>"}
    assert len(read_reactions(path, 10, 50, known)) == 1  # unknown, unmapped and repeated ones are left out
    with pytest.raises(ValueError, match="no mapped reaction of at most 3 known tokens"):
        read_reactions(path, 10, 3, known)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="column rxn_Smiles"):
        read_reactions(path, 10, 50, known)


def test_edits_are_confirmed_on_a_few():
    outcome = outcome_of(head_studies.FIGURE_EDITS, trials=6)
    assert not outcome.refuted and [row[1] for row in outcome.tables[0].rows] == [1] * 6


def test_retrieval_has_a_row_per_way_and_a_picture(monkeypatch):
    rng = np.random.default_rng(0)

    def fake(texts, longest):
        n = len(texts) // 2
        queries = rng.normal(size=(n, 12))
        both = np.concatenate([queries, queries + 0.8 * rng.normal(size=(n, 12))])
        return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)

    pairs = [(f"m{i % 9}", f"q{i}", f"d{i}") for i in range(45)]
    monkeypatch.setattr(fit_studies, "embed", fake)
    monkeypatch.setattr(fit_studies, "docstring_pairs", lambda limit: pairs)
    outcome = outcome_of(fit_studies.FIGURE_RETRIEVAL, steps=3, negatives=3)
    labels = [row[0] for row in outcome.tables[0].rows]
    assert labels[0] == "cosine" and len(labels) == 10
    found = outcome.curves["found"]
    assert all(len(entry["recall"]) == 2 for entry in found.values())
    assert max(found["hard margin from nothing"]["gap"]) < 1e-6
    picture = fit_studies.draw_retrieval(outcome)
    assert len(picture.axes[0].lines) == 2 * (len(labels) - 1) + 1


def test_patches_repair_and_keep_and_the_judge_counts_by_hand(monkeypatch):
    rng = np.random.default_rng(0)

    def fake(texts, longest):
        n = len(texts) // 2
        queries = rng.normal(size=(n, 16))
        both = np.concatenate([queries, queries + 1.1 * rng.normal(size=(n, 16))])
        return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)

    pairs = [("m", f"q{i}", f"d{i}") for i in range(90)]
    monkeypatch.setattr(adapter_study, "embed", fake)
    monkeypatch.setattr(adapter_study, "docstring_pairs", lambda limit: pairs)
    outcome = outcome_of(adapter_study.FIGURE_PATCH, new=20, failures=4, golden=12, steps=3, hidden=4)
    assert not outcome.refuted
    found = outcome.curves["found"]
    assert [row[0] for row in outcome.tables[0].rows] == list(found)
    assert found["attsvm.patch, Frobenius"]["repaired"] == [4, 4] and found["attsvm.patch, Frobenius"]["broken"] == [
        0,
        0,
    ]
    assert found["no change"]["repaired"] == [0, 0] and found["no change"]["lost"] == [0, 0]
    assert len(adapter_study.draw_patch(outcome).axes) == 3


def test_the_judge_of_maps_counts_what_changed():
    """Four queries of which one is wrong; the map swaps two coordinates, which changes the answers of two."""
    documents = np.eye(4)
    queries = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 1.0, 0.5]])
    shown = patch_peers.Corrections(queries, documents, np.array([3]), np.array([0]))
    drawn = patch_peers.Drawn(shown, np.array([1, 2]), queries[:2], documents[:2])
    swap = np.eye(4)[[0, 1, 3, 2]]
    counted = patch_peers.judged(drawn, lambda q: q @ swap.T)
    assert counted == {"repaired": 1.0, "broken": 0.0, "lost": 1.0, "won": 0.0, "new": 1.0}
    with pytest.raises(ValueError, match="too few for 9 failures"):
        patch_peers.drawn_corrections(queries, documents, failures=9, golden=1, new=0, seed=0)


def test_the_program_with_fixed_rivals_is_the_least_change_for_them():
    import cvxpy as cp

    rng = np.random.default_rng(2)
    documents = rng.normal(size=(30, 5))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    queries = documents + 0.4 * rng.normal(size=(30, 5))
    drawn = patch_peers.drawn_corrections(queries, documents, failures=2, golden=6, new=0, seed=0)
    shown = drawn.corrections
    way = patch_peers.peers(adapter_study.FIGURE_PATCH.full | {"rivals": 3})["one program, rivals fixed"]
    mapped, size = way(shown, 0)
    queries, documents = shown.queries, shown.documents  # in the order of the draw
    M = cp.Variable((5, 5))
    rows = []
    for place, q in enumerate(shown.shown):
        scores = documents @ queries[q]
        rivals = [r for r in np.argsort(-scores) if r != q][:3]
        lead = scores[q] - scores[rivals[0]]
        asked = 0.01 if place < 2 else min(0.01, lead)
        rows += [(documents[q] - documents[r]) @ M @ queries[q] >= asked for r in rivals]
    cp.Problem(cp.Minimize(cp.sum_squares(M - np.eye(5))), rows).solve(solver="CLARABEL")
    assert mapped(np.eye(5)).T == pytest.approx(M.value, abs=1e-5)
    assert size == pytest.approx(np.linalg.norm(M.value - np.eye(5)) / np.sqrt(5), abs=1e-5)


def test_peers_learn_what_a_few_directions_say():
    """Queries and documents agree in two directions; everything else is noise, and larger."""
    rng = np.random.default_rng(0)
    queries = rng.normal(size=(120, 8))
    documents = np.where(np.arange(8) < 2, queries, 3.0 * rng.normal(size=(120, 8)))
    others = documents[rng.permutation(120)]
    problem = attsvm.AttentionProblem(np.stack([documents, others], axis=1), Z=queries)
    y = np.zeros(120, dtype=np.int64)
    weights = retrieval.linear_svc_pairs(problem, y, 1.0, dimensions=8, scale=1.0)
    scored = {"pairs": attsvm.attention.logits(problem, weights)}
    for method in ("ITML", "LSML"):
        scored[method] = retrieval.metric_learning(problem, y, method, dimensions=8, seed=0)(problem)
    near = -np.linalg.norm(problem.X - queries[:, None], axis=-1)
    plain = max(np.mean(s.argmax(axis=1) == 0) for s in (near, attsvm.attention.logits(problem, np.eye(8))))
    for name in ("pairs", "ITML"):
        assert np.mean(scored[name].argmax(axis=1) == 0) > plain + 0.05, name
    assert np.isfinite(scored["LSML"]).all()  # it hardly leaves its prior here


def test_row_sizes_are_those_of_the_demands():
    """By hand: the norm of every row (x_right - x_t) z', of the maps for an edit of K or Q."""
    rng = np.random.default_rng(1)
    X, Z = rng.normal(size=(2, 4, 5)), rng.normal(size=(2, 3, 5))
    mask = np.ones((2, 3, 4), dtype=bool)
    mask[:, :, 3] = False
    wanted = np.array([[0, 1, -1], [2, -1, -1]])
    head = attsvm.TrainedHead(rng.normal(size=(2, 5)), rng.normal(size=(2, 5)), 0.7)
    tasks = Tasks(attsvm.AttentionProblem(X, Z=Z, mask=mask), wanted, np.full((2, 4), -1))
    asked = [(0, 0, 0), (0, 1, 1), (1, 0, 2)]
    rows = [(X[i, a] - X[i, t], Z[i, k]) for i, k, a in asked for t in range(3) if t != a]
    sizes = {
        "W": [np.linalg.norm(np.outer(x, z)) for x, z in rows],
        "K": [np.linalg.norm(0.7 * np.outer(x, head.query_map @ z)) for x, z in rows],
        "Q": [np.linalg.norm(0.7 * np.outer(head.key_map @ x, z)) for x, z in rows],
    }
    for of, by_hand in sizes.items():
        assert tasks.row_size(head, of) == pytest.approx(np.median(by_hand), rel=1e-12)


def test_tasks_are_kept_in_a_file(tmp_path):
    X, Z = np.ones((1, 2, 3)), np.ones((1, 1, 3))
    tasks = Tasks(attsvm.AttentionProblem(X, Z=Z, mask=np.ones((1, 1, 2), bool)), np.array([[1]]), np.array([[0, 1]]))
    tasks.write(tmp_path / "t.npz")
    again = Tasks.read(tmp_path / "t.npz")
    assert again.wanted.tolist() == [[1]] and again.ranks.tolist() == [[0, 1]] and (again.problem.X == X).all()


def test_a_study_says_what_is_missing():
    with pytest.raises(ValueError, match="atoms has no setting 'colour'"):
        from attsvm.validation.figures.figure import Options

        fit_studies.FIGURE_ATOMS.settings(Options(change={"colour": 1}))


@pytest.mark.skipif(not is_installed("rxnmapper") or not is_installed("transformers"), reason="make models")
def test_the_head_that_maps_atoms():
    """Figures of the docs: 98 of 118, repaired by 9.1 % of the keys, 117 when the whole network runs again."""
    outcome = outcome_of(fit_studies.FIGURE_ATOMS, leave_one_out=[], sizes=[], heads=["K"])
    selected, smallest = outcome.tables
    assert [row[1] for row in selected.rows] == [98, 118, 117]
    assert smallest.rows[0][3] == "9.1 %" and not outcome.refuted
    assert len(fit_studies.draw_atoms(outcome).axes[0].lines) == 1


def test_round_trips_of_a_map_and_the_picture_of_an_edit(tmp_path):
    """On a bag of words as the encoder; with MiniLM the study runs by its command."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    words = ["cat", "dog", "mat"]
    encoder = SentenceTransformer(modules=[BoW(words)], device="cpu")
    M = np.eye(3) + np.outer([0.1, 0.2, 0.0], [1.0, 0.0, -1.0])
    trips = stack_studies.map_round_trips(encoder, M, words, tmp_path)
    assert len(trips) == 9 and max(trips.values()) < stack_studies.NEAR
    edit = {"words": words, "bars": [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]]}
    picture = stack_studies.draw_stacks(Outcome([], {"edits": [edit]}))
    assert [bar.get_height() for bar in picture.axes[0].patches] == [*edit["bars"][0], *edit["bars"][1]]
