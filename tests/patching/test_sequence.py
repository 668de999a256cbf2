"""Patches after patches, files and the page."""

import json
import re
import zipfile

import numpy as np
import pytest
from small_retriever import retriever

import attsvm
from attsvm.files import ProblemFileError


def three_rounds(start="origin"):
    Z, X, wrong, right = retriever(20, documents=400, d=12, queries=60, noise=0.25)
    patch = attsvm.patch(Z, X, wrong[:3], right, name="monday", margin=0.01)
    for k, name in ((3, "tuesday"), (6, "friday")):
        patch = patch.then(wrong[k : k + 3], name=name, start=start)
    return Z, X, wrong[:9], right, patch


def test_three_patches_are_one_patch():
    Z, X, wrong, right, patch = three_rounds()
    one = attsvm.patch(Z, X, wrong, right, margin=0.01)
    np.testing.assert_allclose(patch.W, one.W, atol=1e-9)
    assert [part.name for part in patch.rounds] == ["monday", "tuesday", "friday"]
    assert len(patch.repaired) == 9 and len(patch.kept) == len(right)
    assert [row[1] for row in patch.drift.rows] == [3, 3, 3]


def test_a_change_from_the_previous_map_is_smaller_and_the_whole_one_larger():
    Z, X, wrong, right, patch = three_rounds("previous")
    origin = three_rounds()[-1]
    answers = (X @ patch.W @ Z.T).argmax(axis=0)
    assert all(answers[q] == doc for q, doc in [*wrong, *right])
    assert patch.relative_size > origin.relative_size
    last = np.linalg.norm(patch.W - patch.base)
    assert last <= np.linalg.norm(origin.W - patch.base) + 1e-12 and last == pytest.approx(patch.norm)
    np.testing.assert_array_equal(patch.prior, np.eye(12))


def test_undo_by_name_and_number():
    Z, X, wrong, right, patch = three_rounds()
    expected = attsvm.patch(Z, X, [*wrong[:3], *wrong[6:]], right, margin=0.01)
    for which in ("tuesday", 1, -2):
        np.testing.assert_allclose(patch.undo(which).W, expected.W, atol=1e-9)
    assert [part.name for part in patch.undo("tuesday").rounds] == ["monday", "friday"]
    with pytest.raises(ValueError, match="which must be one of the patches 'monday'"):
        patch.undo("sunday")
    with pytest.raises(ValueError, match="from 0 to 2, got 3"):
        patch.undo(3)
    alone = attsvm.patch(Z, X, wrong[:1])
    with pytest.raises(ValueError, match="only patch that promises something"):
        alone.undo()


def test_earlier_promises_are_kept_and_contradicted_ones_are_named():
    Z, X, wrong, right, _ = three_rounds()
    Z = np.vstack([Z, Z[wrong[0][0]]])  # the same question again, with another answer
    again = attsvm.patch(Z, X, wrong[:3], right, margin=0.01)
    refused = again.then([(60, 300)])
    assert refused.status == "infeasible"
    assert {(one.query, one.round) for one in refused.conflict} == {(wrong[0][0], 0), (60, 1)}
    soft = again.then([(60, 300)], C=1e3)  # what was promised is not given up
    assert soft.status == "optimal" and [one.query for one in soft.unserved] == [60]
    with pytest.raises(ValueError, match=r"was promised the answer .* by an earlier patch"):
        again.then([(wrong[0][0], 300)])


def test_a_file_goes_on_another_day(tmp_path):
    Z, X, wrong, _, patch = three_rounds()
    file = patch.save(tmp_path / "patch.npz")
    first = file.read_bytes()
    again = attsvm.load_patch(file)
    np.testing.assert_array_equal(again.W, patch.W)
    assert again.outcomes == patch.outcomes and again.driving == patch.driving
    assert again.certificate == patch.certificate and again.status is patch.status
    assert again.save(tmp_path / "again.npz").read_bytes() == first
    with pytest.raises(ValueError, match="needs the embeddings"):
        again.then(wrong[:1])
    more = attsvm.patch(Z, X, None, [(0, int((X @ patch.W @ Z[0]).argmax()))], after=again, margin=0.01)
    np.testing.assert_allclose(more.W, patch.W, atol=1e-9)
    with pytest.raises(ValueError, match="prior is that of the first patch"):
        attsvm.patch(Z, X, wrong[:1], after=again, prior=np.eye(12))
    with pytest.raises(ValueError, match="after patches maps of shape"):
        attsvm.patch(Z[:, :4], X[:, :4], wrong[:1], after=again)
    with pytest.raises(ValueError, match=r"path must end in .npz"):
        patch.save(tmp_path / "patch.txt")


def test_a_file_of_a_contradiction_keeps_what_has_no_number(tmp_path):
    refused = attsvm.patch([[1.0, 0.4], [1.0, 0.4]], np.eye(2), [(0, 0), (1, 1)])
    again = attsvm.load_patch(refused.save(tmp_path / "none.npz"))
    assert refused.status == again.status == "infeasible" and refused.certificate.gap == np.inf
    assert repr(again.record()) == repr(refused.record())  # with nan, which is not equal to itself


def damaged(file, **texts):
    """The file with other bytes in some entries, and a checksum that fits."""
    from attsvm.files import MAX_BYTES, Content, checksum, read_npz, write_npz

    content = read_npz(file, MAX_BYTES, lambda *claim: None)
    arrays = {**content.arrays, **texts}
    changed = Content({"schema": "attsvm.patch/1"}, {k: v for k, v in arrays.items() if v is not None})
    changed.texts["sha256"] = checksum(changed)
    write_npz(file, changed)
    return file


def about_of(file, **changes):
    from attsvm.files import MAX_BYTES, read_npz

    about = json.loads(read_npz(file, MAX_BYTES, lambda *claim: None).arrays["about"].tobytes())
    return np.frombuffer(json.dumps({**about, **changes}).encode(), dtype=np.uint8)


def test_damaged_files_are_refused(tmp_path):
    patch = attsvm.patch([[0.9, 1.0]], np.eye(2), [(0, 0)])
    file = tmp_path / "patch.npz"
    for entries in (
        {"prior": np.full((2, 2), np.nan)}, {"W": np.eye(3)}, {"maps": np.zeros((2, 2, 2))}, {"other": np.eye(2)},
        {"prior": None}, {"about": np.frombuffer(b"no json", dtype=np.uint8)},
    ):  # fmt: skip
        with pytest.raises(ProblemFileError, match=str(file)):
            attsvm.load_patch(damaged(patch.save(file), **entries))
    for changes in (
        {"side": "left"}, {"status": "done"}, {"rounds": [{"name": 1}]}, {"outcomes": [[1]]}, {"margin": "wide"},
        {"driving": [["repair", [1], 0, 0, 0.0, 0.0, 0, False]]}, {"certificate": {}},
    ):  # fmt: skip
        patch.save(file)
        with pytest.raises(ProblemFileError, match=str(file)):
            attsvm.load_patch(damaged(file, about=about_of(file, **changes)))
    patch.save(file)
    raw = file.read_bytes()
    file.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ProblemFileError):
        attsvm.load_patch(file)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("W.npy", b"no array")
    with pytest.raises(ProblemFileError):
        attsvm.load_patch(file)
    attsvm.save_problem(attsvm.random_problem(n=2, T=3, d=2, seed=0), file)
    with pytest.raises(ProblemFileError):
        attsvm.load_patch(file)


def test_other_answers_and_held_out_queries_by_brute_force():
    Z, X, wrong, right = retriever(21, documents=500, d=12, queries=80, noise=0.25)
    held = [*wrong[5:], *right[20:]]
    patch = attsvm.patch(Z, X, wrong[:5], right[:20], held_out=held, margin=0.02)
    before, after = Z @ X.T, Z @ patch.W.T @ X.T
    named = {q for q, _ in [*wrong[:5], *right[:20]]}
    expected = {
        (q, int(before[q].argmax()), int(after[q].argmax()))
        for q in range(len(Z))
        if q not in named and before[q].argmax() != after[q].argmax()
    }
    assert {(one.query, one.before, one.after) for one in patch.answer_changes} == expected and expected
    assert [one.lead for one in patch.answer_changes] == sorted(
        (one.lead for one in patch.answer_changes), reverse=True
    )
    for scores, told in ((before, patch.held_out.before), (after, patch.held_out.after)):
        ranks = np.array([1 + np.count_nonzero(scores[q] > scores[q, doc]) for q, doc in held])
        assert told["recall@1"].value == pytest.approx(np.mean(ranks == 1))
        assert told["recall@10"].value == pytest.approx(np.mean(ranks <= 10))
        assert told["MRR"].value == pytest.approx(np.mean(1 / ranks))
    gain = patch.held_out.difference["MRR"]
    assert gain.low <= gain.value <= gain.high


def test_the_page_says_what_happened(tmp_path):
    _, _, _, _, patch = three_rounds()
    page = patch.report(tmp_path / "patch.html").read_text()
    for part in ("9 of 9", "Golden answers", "What drives the change", "tuesday", "Singular values", "held_out="):
        assert part in page
    assert not re.search(r"(src|href)=\"https?:", page)
    refused = attsvm.patch(np.eye(2)[[0, 0]], np.eye(2), [(0, 0), (1, 1)])
    page = refused.report(tmp_path / "no.html").read_text()
    assert "Contradiction" in page and "proved by" in page
    names = {"query_ids": ["q0", "q1"], "document_ids": ["KDE", "GNU"]}
    given_up = attsvm.patch(np.eye(2)[[0, 0]], np.eye(2), [("q0", "KDE"), ("q1", "GNU")], C=10.0, **names)
    page = given_up.report(tmp_path / "given_up.html").read_text()
    assert "This is a heuristic" in page and "Contradicts &#39;KDE&#39; first for query &#39;q0&#39;" in page
    named = attsvm.patch(np.array([[0.9, 1.0]]), np.eye(2), [(0, "<b>")], document_ids=["<b>", "ok"])
    page = named.report(tmp_path / "named.html").read_text()
    assert "<b>" not in page.partition("<script")[0] and "&lt;b&gt;" in page
    assert "Patch" in named._repr_html_() and "<td><b>" not in named._repr_html_()
    loaded = attsvm.load_patch(patch.save(tmp_path / "p.npz"))
    assert "not at hand" in loaded.report(tmp_path / "loaded.html").read_text()
