import re
import tomllib
from pathlib import Path

from attsvm.validation.figures.figure_registry import LEDGER, PAPERS, all_figures
from attsvm.validation.ledger.audit import all_claims
from attsvm.validation.ledger.ledger_pages import (
    LINKS,
    claims_markdown,
    coverage_markdown,
    covers,
    readings_markdown,
    wrong_markdown,
)

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_what_the_ledger_writes():
    claims = all_claims()
    assert (DOCS / "claims.md").read_text() == claims_markdown(claims) + "\n", (
        "attsvm claims --markdown > docs/claims.md"
    )
    assert (DOCS / "wrong.md").read_text() == wrong_markdown(claims) + "\n", "attsvm claims --wrong > docs/wrong.md"
    assert (DOCS / "second_reading.md").read_text() == readings_markdown(claims) + "\n", (
        "attsvm claims --readings > docs/second_reading.md"
    )
    assert (DOCS / "coverage.md").read_text() == coverage_markdown(claims) + "\n", (
        "attsvm claims --coverage > docs/coverage.md"
    )


def test_every_paper_has_claims_and_every_claim_its_own_id():
    ids = [claim.id for claim in all_claims()]
    assert len(ids) == len(set(ids))
    assert {claim.paper for claim in all_claims()} == set(LEDGER)


def test_table_cells_stay_on_their_line():
    for line in (DOCS / "claims.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| id"):
            assert line.replace(r"\|", "").count("|") == 8, line


def test_rows_that_the_theory_page_names_exist():
    named = set(re.findall(r"`(svm:[\w-]+)`", (DOCS / "theory.md").read_text()))
    assert len(named) > 15
    assert named <= {claim.id for claim in all_claims(["svm"])}


def test_every_numbered_item_of_the_papers_is_accounted_for():
    numbered = tomllib.loads(Path(__file__).with_name("items.toml").read_text(encoding="utf-8"))
    assert set(numbered) == set(PAPERS) and set(LINKS) == set(LEDGER)
    listed = [(paper, item) for paper, items in numbered.items() for item in items]
    assert len(listed) == 171 and sorted(listed) == sorted((cover.paper, cover.item) for cover in covers())
    known = {claim.id for claim in all_claims()}
    drawn = {paper: {name for f in all_figures(paper) for name in (f.name, *f.aliases)} for paper in PAPERS}
    for cover in covers():
        assert cover.rows or cover.figure or cover.why, cover
        assert {f"{cover.paper}:{row}" for row in cover.rows} <= known, cover
        assert cover.figure in {"", *drawn[cover.paper]}, cover


def test_all_95_accusations_of_the_first_reading_are_decided():
    decided = [claim for claim in all_claims() if claim.reading.before]
    assert len(decided) == 95
    for claim in decided:
        assert claim.reading.why and claim.reading.quote, claim.id
        assert claim.reading.hypotheses or claim.verdict.value == "imprecise" or claim.reading.same_as, claim.id


def test_every_refuted_statement_says_what_it_changes_and_counts_once():
    ids = {claim.id: claim for claim in all_claims()}
    for claim in ids.values():
        reading = claim.reading
        assert not claim.verdict.refuted or reading.weight, claim.id
        for name in (*reading.related, *([reading.same_as] if reading.same_as else [])):
            assert name in ids, (claim.id, name)
        if reading.same_as:
            assert not ids[reading.same_as].reading.same_as, f"{claim.id} counts with a row that counts elsewhere"
