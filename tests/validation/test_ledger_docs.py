"""The pages on the papers say what the records say, and account for every numbered item."""

import re
import tomllib
from pathlib import Path

from attsvm.validation.figures.figure import LEDGER, PAPERS, all_figures
from attsvm.validation.ledger.audit import all_claims, find_claims
from attsvm.validation.ledger.claim_record import Verdict
from attsvm.validation.ledger.ledger_pages import items_of, ledger_pages

DOCS = Path(__file__).parents[2] / "docs"
NUMBERED = tomllib.loads(Path(__file__).with_name("items.toml").read_text(encoding="utf-8"))


def test_the_pages_are_what_the_ledger_writes():
    pages = ledger_pages(all_claims())
    assert {path.name for path in DOCS.glob("claims*.md")} | {"wrong.md"} == set(pages)
    for name, text in pages.items():
        assert (DOCS / name).read_text(encoding="utf-8") == text, "attsvm claims --pages docs"


def test_every_claim_stands_on_the_page_of_its_paper_with_its_paper_in_its_id():
    pages = ledger_pages(all_claims())
    for claim in all_claims():
        assert f"`{claim.id}`" in pages[f"claims_{claim.paper}.md"], claim.id
    for paper in LEDGER:
        named = set(re.findall(r"`(\w+:[^`\s]+)`", pages[f"claims_{paper}.md"]))
        assert named <= {claim.id for claim in all_claims([paper])}


def test_every_numbered_item_of_the_papers_is_accounted_for_by_sources():
    assert set(NUMBERED) == set(PAPERS) and sum(map(len, NUMBERED.values())) == 171
    for paper, numbered in NUMBERED.items():
        items = {item.name: item for item in items_of(paper)}
        named = {name for claim in all_claims([paper]) for name in claim.items}
        drawn = {name for f in all_figures(paper) for name in (f.name, *f.aliases)}
        assert set(numbered) <= set(items), paper
        assert {claim.items[0] for claim in all_claims([paper])} <= set(items), paper
        for name, item in items.items():
            assert name in named or item.figure or item.why, (paper, name)
            assert item.figure in {"", *drawn}, (paper, name)


def test_no_item_hides_a_correction():
    """What was omitted when the table was written by hand: the pages lead from each item to every claim on it."""
    hidden = {
        "specialization:Lemma III.1": "specialization:19", "specialization:Lemma A.5": "specialization:19",
        "svm:Theorem 8": "svm:thm4-unique", "svm:Lemma 10": "svm:assA-slope", "svm:Lemma 13": "svm:lemma11-interval",
        "conditioning:Proposition 1": "conditioning:E12", "localization:Lemma 4": "localization:6",
    }  # fmt: skip
    pages = ledger_pages(all_claims())
    for item, claim in hidden.items():
        assert claim in {found.id for found in find_claims([item])}
        paper, _, name = item.partition(":")
        section = pages[f"claims_{paper}.md"].split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert f"`{claim}`" in section, item


def test_links_between_the_pages_lead_to_headings():
    pages = ledger_pages(all_claims())
    for page, text in pages.items():
        for target, anchor in re.findall(r"\]\(([\w.]*)#([\w-]+)\)", text):
            heads = re.findall(r"^##+ (.*)$", pages[target or page], re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, (page, anchor)


def test_the_list_of_corrections_is_short_and_complete():
    wrong = ledger_pages(all_claims())["wrong.md"]
    main = [claim for claim in all_claims() if claim.verdict.refuted and not claim.same_as]
    assert len(re.findall(r"\]\(claims_\w+\.md#", wrong)) == len(main)
    assert all(_plain(claim.answer) in _plain(wrong) for claim in main if claim.verdict is not Verdict.TYPO)
    assert len(wrong.split()) < 1500


def _plain(text):
    return text.replace("\\", "")


def test_statements_that_the_theory_page_names_stand_in_the_ledger():
    cells = re.findall(r"^\| (Theorem|Lemma|Definition|Figure)s? ([\d, ]+) \|", (DOCS / "theory.md").read_text(), re.M)
    named = {f"{kind} {number}" for kind, numbers in cells for number in numbers.split(", ")}
    assert len(named) > 12
    assert named <= {item.name for item in items_of("svm")}


def test_every_correction_has_a_place_a_quotation_hypotheses_and_a_proof_and_counts_once():
    claims = {claim.id: claim for claim in all_claims()}
    for claim in claims.values():
        assert not claim.verdict.refuted or (claim.quote and claim.hypotheses and claim.proof and claim.answer), (
            claim.id
        )
        if claim.same_as:
            other = claims[claim.same_as]
            assert claim.verdict.refuted and other.verdict.refuted and not other.same_as, claim.id


def test_the_submission_under_review_is_asked_questions():
    for claim in all_claims(["conditioning"]):
        assert not claim.verdict.refuted or "?" in claim.answer, claim.id
