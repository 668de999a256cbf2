"""Every claim of the paper on localization: its check supports the stored verdict and rejects a planted wrong form."""

import re

import numpy as np
import pytest

from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.claim_record import Verdict
from attsvm.validation.ledger.slips import SLIPS

CLAIMS = {claim.id: claim for claim in all_claims(["localization"])}


def test_every_row_has_its_claim():
    numbers = [re.fullmatch(r"localization:(\d+)b?", name)[1] for name in CLAIMS]
    assert sorted(set(map(int, numbers))) == list(range(1, 48))
    assert [name for name, claim in CLAIMS.items() if claim.measure is None] == ["localization:45"]
    assert {f"localization:{key}" for key in SLIPS["localization"]} == {
        n for n, claim in CLAIMS.items() if claim.measure is not None
    }


@pytest.mark.parametrize("name", CLAIMS)
def test_the_check_supports_the_verdict(name):
    found = audit(CLAIMS[name])
    assert found.agrees, f"{found.printed} / {found.corrected}"


@pytest.mark.parametrize("key", SLIPS["localization"])
def test_the_check_rejects_a_wrong_form(key):
    claim = CLAIMS[f"localization:{key}"]
    found = claim.measure(SLIPS["localization"][key], np.random.default_rng(7), claim.trials)
    assert not found.holds, str(found)


def test_verdicts_hold_on_another_seed():
    for claim in CLAIMS.values():
        if claim.verdict is not Verdict.OPEN and claim.id != "localization:40":  # 40 takes longest
            found = audit(claim, seed=11, trials=max(2, claim.trials // 10))
            assert found.corrected is None or found.corrected.holds, claim.id
