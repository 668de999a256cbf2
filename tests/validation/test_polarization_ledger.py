import re

import numpy as np
import pytest

from attsvm.validation.ledger import Verdict
from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.slips import SLIPS

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["polarization"])}
OPEN = {"C53", "C54", "C55", "C57"}  # training of minutes, or checkpoints that are not here
SMALL = {"C50": 1, "C51": 1, "C32": 1, "C33": 1, "C22": 3, "C23": 2, "C24": 3, "C25": 2, "C28": 10, "C30": 4, "C40": 3,
         "C41": 3, "C42": 3, "C43": 3, "C45": 2, "C46": 4, "C49": 5}  # fmt: skip


def test_every_row_is_there_and_refutations_say_what_is_right():
    assert sorted(CLAIMS) == [f"C{k:02d}" for k in range(1, 59)]
    assert {name for name, claim in CLAIMS.items() if claim.verdict is Verdict.OPEN} == OPEN
    assert set(SLIPS["polarization"]) == set(CLAIMS) - OPEN
    assert all(CLAIMS[name].reason for name in OPEN)
    for claim in CLAIMS.values():
        if claim.verdict.refuted:
            assert claim.correction
            assert claim.evidence


@pytest.mark.parametrize("name", sorted(SLIPS["polarization"]))
def test_the_check_supports_the_verdict_and_rejects_a_wrong_formula(name):
    claim = CLAIMS[name]
    trials = min(claim.trials, SMALL.get(name, 9))
    found = audit(claim, trials=trials)
    assert found.agrees, (found.printed, found.corrected)
    for slip in (
        SLIPS["polarization"][name] if isinstance(SLIPS["polarization"][name], list) else [SLIPS["polarization"][name]]
    ):
        wrong = claim.measure(slip, np.random.default_rng(1), trials)
        assert not wrong.holds, wrong


def test_evidence_is_plain_text():
    for claim in CLAIMS.values():
        assert not re.search(r"[<>]{2,}|\bTODO\b", claim.statement + claim.correction + claim.evidence)
