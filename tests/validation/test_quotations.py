"""Quotations against made-up papers; the real ones are not part of the project: `attsvm claims --quotes FOLDER`."""

import pytest

from attsvm.validation.ledger.audit import all_claims
from attsvm.validation.ledger.quotations import TITLES, check_quotations, find_papers, is_printed, prose

PAPER = """
Self-attention Networks Localize When QK-eigenspectrum Con-
centrates

Suppose Assumptions A holds, optimal indices (opti)n
i=1 are unique, and the machine is feasi-

ble. We posit that d \u2273 (T + n) log(T + n) will \ufb01nally suffice, in all cases that we tried.
"""


@pytest.mark.parametrize(
    ("quote", "missing"),
    [
        ("optimal indices (opt_i)_{i=1}^n are unique, and the machine is feasible", ""),
        ("We posit that d >~ (T + n) log(T + n) will finally suffice ... that we tried", ""),
        ("optimal indices are unique", "optimal indices are unique"),  # a formula left out
        ("the machine is always feasible", "the machine is always feasible"),  # a word put in
        ("will suffice, in all cases", "will suffice, in all cases"),  # a word left out
        ("in all cases ... the machine we tried", "the machine we tried"),  # words of two places
    ],
)
def test_a_quotation_is_what_is_printed(quote, missing):
    assert is_printed(quote, prose(PAPER)) == missing


def test_papers_are_known_by_their_titles(tmp_path):
    (tmp_path / "a.txt").write_text(PAPER, encoding="utf-8")
    (tmp_path / "b.txt").write_text("Another paper", encoding="utf-8")
    assert find_papers(tmp_path) == {"localization": tmp_path / "a.txt"}
    assert {claim.paper for claim in all_claims()} - set(TITLES) == {"newer"}  # quoted from abstracts


def test_no_quotation_is_left_out_silently(tmp_path):
    quoted = [claim for claim in all_claims() if claim.quote]
    found = {item.claim: item for item in check_quotations(quoted, tmp_path)}
    assert len(found) == len(quoted) > 90
    assert {item.outcome for item in found.values()} == {"no text", "formula", "not looked for"}
    assert sum(item.outcome == "formula" for item in found.values()) < 20
