import re

import numpy as np
import pytest

from attsvm.dynamics import polarization as pol
from attsvm.validation.ledger import Verdict
from attsvm.validation.ledger.run import all_claims, audit

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["polarization"])}
OPEN = {"C53", "C54", "C55", "C57"}  # training of minutes, or checkpoints that are not here
SMALL = {"C50": 1, "C51": 1, "C32": 1, "C33": 1, "C22": 3, "C23": 2, "C24": 3, "C25": 2, "C28": 10, "C30": 4, "C40": 3,
         "C41": 3, "C42": 3, "C43": 3, "C45": 2, "C46": 4, "C49": 5}  # fmt: skip

# A wrong formula for each claim that has a check: a check that passes it checks nothing.
PLANTED = {
    "C01": lambda V, a, r: pol.full_rates(V, a, 0.9 * np.asarray(r)),
    "C02": lambda u, s, b, gamma: (gamma * s, gamma * s * (u - s @ u)),  # b forgotten
    "C03": lambda u, s, b, gamma: (gamma * b * s, gamma * s * u),  # not centred
    "C04": lambda u, s, gamma: gamma * (u - s @ u),  # without s_i
    "C05": lambda u, s: s * (u - s @ u),  # J for J^2
    "C06": lambda beta, target: float(np.abs(beta - target).sum()),
    "C07": lambda u, s: u,
    "C08": lambda flow: -pol.order_margin(flow),  # the order reversed
    "C09": lambda flow: pol.repulsion_margin(flow) - 2 * flow.b,  # faster than b s can be
    "C10": lambda flow: -pol.logit_gap_margin(flow),
    "C11": lambda u, a, b: pol.potential_rate(u, a, b + 1),
    "C12": lambda b, t: 1e-3,
    "C13": lambda flow: pol.mean_margin(flow) - np.abs(flow.u).max(),
    "C14": lambda flow: pol.ratio_margin(flow) - 20,  # a bound e^20 times smaller
    "C15": lambda flow: pol.projection_margin(flow) - 3,
    "C16": lambda flow: pol.polarization_margin(flow, form="printed") - 5,
    "C17": lambda b: 2 / b,
    "C18": lambda u: int(np.argmin(u)),
    "C19": lambda p, tau: 1 / (p * tau),  # half of the true remainder
    "C20": lambda p, b, log_t: 1 * b / (p * log_t**2),
    "C21": lambda rng: float(rng.uniform(0.5, 1.5)),
    "C22": lambda: 1.1,
    "C23": lambda u: np.ones(u.size) / np.sqrt(u.size),
    "C24": lambda: True,
    "C25": {"both": True, "a only": True, "V only": True},
    "C26": lambda u, beta: np.outer(beta, u),
    "C27": lambda rng: np.array([6.0, 3.0, 1.0, 0.5, 0.0]),  # starts beyond the target
    "C28": lambda p: (1.0, 2.0),
    "C29": lambda: 0.999999,
    "C30": lambda norm, tau: tau / norm,
    "C31": lambda p: 3.0,
    "C32": lambda plain, bad: bad > plain,
    "C33": lambda steps: bool(steps[-1] == steps.min()),
    "C34": "printed",
    "C35": lambda a: (a**2).sum(axis=-1),
    "C36": lambda p, d: 2.0 / np.sqrt(p),
    "C37": lambda V, a: pol.tangent_kernel(V, a) + 0.1 * np.eye(len(V)),
    "C38": lambda u, a, b, gamma, name: tuple(-gamma * x for x in pol.orbit_rates(u, a, b, name)),
    "C39": lambda kind, a: bool(kind.value(a).sum() < 0),
    "C40": "square",
    "C41": lambda b, a0: -b / float(a0 @ a0),
    "C42": "relu_norm",
    "C43": "relu_norm",
    "C44": 0.2,
    "C45": "sigmoid",
    "C46": lambda u: int(np.argmin(u)),
    "C47": 2.0,
    "C48": lambda V, beta: beta @ V.T + 1.0,
    "C49": lambda a, s: int(np.argmin(s)),
    "C50": ("sigmoid_unnorm", "softmax"),
    "C51": (4, 1),
    "C52": lambda task, samples: samples / 2,
    "C56": True,
}


def test_every_row_is_there_and_refutations_say_what_is_right():
    assert sorted(CLAIMS) == [f"C{k:02d}" for k in range(1, 58)]
    assert {name for name, claim in CLAIMS.items() if claim.verdict is Verdict.OPEN} == OPEN
    assert set(PLANTED) == set(CLAIMS) - OPEN
    assert all(CLAIMS[name].reason for name in OPEN)
    for claim in CLAIMS.values():
        if claim.verdict in (Verdict.FAILS, Verdict.TYPO):
            assert claim.correction
            assert claim.evidence


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_the_check_supports_the_verdict_and_rejects_a_wrong_formula(name):
    claim = CLAIMS[name]
    trials = min(claim.trials, SMALL.get(name, 9))
    found = audit(claim, trials=trials)
    assert found.agrees, (found.printed, found.corrected)
    wrong = claim.measure(PLANTED[name], np.random.default_rng(1), trials)
    assert not wrong.holds, wrong


def test_evidence_is_plain_text():
    for claim in CLAIMS.values():
        assert not re.search(r"[<>]{2,}|\bTODO\b", claim.statement + claim.correction + claim.evidence)
