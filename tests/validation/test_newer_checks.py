import numpy as np
import pytest

from attsvm.validation.ledger import Verdict
from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.slips import SLIPS

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["newer"])}
OPEN = {"joint-conditions", "step-rates"}


def test_open_rows_say_why_and_no_abstract_is_refuted():
    assert {name for name, claim in CLAIMS.items() if claim.verdict is Verdict.OPEN} == OPEN
    assert set(SLIPS["newer"]) == set(CLAIMS) - OPEN
    assert not any(claim.verdict.refuted for claim in CLAIMS.values())  # docs/wrong.md is about the five papers


@pytest.mark.parametrize("name", sorted(SLIPS["newer"]))
def test_the_check_supports_the_verdict_and_rejects_a_wrong_formula(name):
    claim = CLAIMS[name]
    trials = 1 if name.startswith(("joint", "mirror", "graph", "step")) else 4  # those that train
    found = audit(claim, trials=trials)
    assert found.agrees, found.printed
    for slip in SLIPS["newer"][name] if isinstance(SLIPS["newer"][name], list) else [SLIPS["newer"][name]]:
        wrong = claim.measure(slip, np.random.default_rng(1), trials)
        assert not wrong.holds, wrong
