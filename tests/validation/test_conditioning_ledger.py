"""The ledger of the paper on conditioning: verdicts follow from the checks, and every check rejects a wrong formula."""

import numpy as np
import pytest

from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.mutate import mutations

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["conditioning"])}
# Instances for wrong forms where fewer than the claim's own number do. One teacher of each width tells the wrong widths
# of X1 apart: at ten seeds their errors are three times the tolerance and more.
FEWER = {"X1": 1}


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_verdict_follows_from_the_check(name):
    found = audit(CLAIMS[name])
    assert found.agrees, (str(found.printed), str(found.corrected))


@pytest.mark.parametrize("name", sorted(CLAIMS.keys() - {"J3-tab"}))
def test_check_rejects_careful_mistakes(name):
    found = mutations(CLAIMS[name], trials=FEWER.get(name), scaled=False)
    assert found, "a check without a planted mistake"
    assert all(m.caught for m in found), [(m.name, m.how) for m in found if not m.caught]


def test_sharper_than_lemma_3():
    """n - s_max may stand for n - s_min in (13): the worst example is the one with most important tokens."""

    def sharper(f):
        s, n = f.sizes, f.members.shape[1]
        return 1 / (1 + (s.max() - 1) * np.exp(f.spread.max()) + (n - s.max()) * np.exp(-f.gap.min()))

    assert CLAIMS["L3-13"].measure(sharper, np.random.default_rng(3), 100).holds
