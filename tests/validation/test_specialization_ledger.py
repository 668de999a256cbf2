"""Every claim of the paper on specialization, and for each a wrong formula that its check must reject."""

import numpy as np
import pytest

from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.claim_record import Verdict
from attsvm.validation.ledger.slips import SLIPS

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["specialization"])}


def test_the_ledger_is_complete():
    assert sorted(map(int, CLAIMS)) == list(range(1, 48))
    assert {k for k, claim in CLAIMS.items() if claim.measure is None} == {"38", "39", "46"}
    assert set(SLIPS["specialization"]) == {k for k, claim in CLAIMS.items() if claim.measure is not None}


@pytest.mark.parametrize("name", list(CLAIMS))
def test_verdicts_are_found_again(name):
    claim = CLAIMS[name]
    found = audit(claim)
    assert found.agrees, (str(found.printed), str(found.corrected))
    assert (claim.verdict is Verdict.OPEN) == (found.printed is None)


# Their wrong forms train for five seconds and more each: `attsvm claims --paper specialization --mutate` tries them.
HEAVY = {"26", "27", "35", "36", "37", "40", "41", "43"}


@pytest.mark.parametrize("name", [name for name in SLIPS["specialization"] if name not in HEAVY])
def test_checks_reject_a_wrong_formula(name):
    claim = CLAIMS[name]
    assert claim.measure is not None
    for slip in (
        SLIPS["specialization"][name]
        if isinstance(SLIPS["specialization"][name], list)
        else [SLIPS["specialization"][name]]
    ):
        assert not claim.measure(slip, np.random.default_rng(1), claim.trials).holds
