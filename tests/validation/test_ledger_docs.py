import re
from pathlib import Path

from attsvm.validation.figures.registry import PAPERS
from attsvm.validation.ledger.run import all_claims
from attsvm.validation.ledger.table import claims_markdown, wrong_markdown

DOCS = Path(__file__).parents[2] / "docs"


def test_the_pages_are_what_the_ledger_writes():
    claims = all_claims()
    assert (DOCS / "claims.md").read_text() == claims_markdown(claims) + "\n", (
        "attsvm claims --markdown > docs/claims.md"
    )
    assert (DOCS / "wrong.md").read_text() == wrong_markdown(claims) + "\n", "attsvm claims --wrong > docs/wrong.md"


def test_every_paper_has_claims_and_every_claim_its_own_id():
    ids = [claim.id for claim in all_claims()]
    assert len(ids) == len(set(ids))
    assert {claim.paper for claim in all_claims()} == set(PAPERS)


def test_table_cells_stay_on_their_line():
    for line in (DOCS / "claims.md").read_text().splitlines():
        if line.startswith("| ") and not line.startswith("| id"):
            assert line.replace(r"\|", "").count("|") == 7, line


def test_rows_that_the_theory_page_names_exist():
    named = set(re.findall(r"`(svm:[\w-]+)`", (DOCS / "theory.md").read_text()))
    assert len(named) > 15
    assert named <= {claim.id for claim in all_claims(["svm"])}
