"""The ledger of the paper on conditioning: verdicts follow from the checks, and every check rejects a wrong formula."""

import numpy as np
import pytest

from attsvm.dynamics.conditioning import block_factors, block_jacobian
from attsvm.softmax import softmax
from attsvm.validation.ledger.conditioning._common import jacobian
from attsvm.validation.ledger.run import all_claims, audit

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["conditioning"])}

# A plausible slip for every check.
WRONG = {
    "E5-6": lambda z: np.diag(z) - np.outer(z, z) / 2,
    "L1.1-2": lambda z: np.diag(z) - 1.01 * np.outer(z, z),
    "L1.3": lambda z: (z[1:], np.full(len(z) - 1, z[-1])),
    "L1+": lambda z: (z[0], z[0] * 1.0001, z[-1] / 4, z[-1]),
    "P1-hyp": lambda n: n - 1,
    "P1-kap": lambda a, mu, L: (L / mu * (a.max() / a.min()), np.inf),
    "P1-ord": lambda a, mu, L: (mu / L * (np.sort(a)[-1] / np.sort(a)[0]) ** 2, np.inf),
    "P1-fix": lambda a, mu, L: (0.0, (a.max() / a.min()) ** 0.5),
    "P1-rate": lambda kappa: np.sqrt(1 - 1 / kappa),
    "J3-k": lambda a: np.log(a.max() / a.min()),
    "E8-9": lambda problem, p: problem.gradient(p) * 1.001,
    "E10": lambda p, eta, F, g: p + 0.5 * eta * F.T @ g,
    "L2": lambda m, N, s, excess: m * N**2 * s**2 * excess * 2,
    "Rk1": lambda F: np.linalg.svd(F, compute_uv=False)[-1],
    "E22": lambda m, L, N, C, sW, v, e: 0.45 * np.sqrt(2 * L * e) * C**2 * sW * v,
    "E25": 0.26,
    "E26": lambda now, then, m, L: np.sqrt(2 * m * now) * 0.9,
    "E28": 0.49,
    "L4-L'": lambda C, sW, L, v, excess, m: sW**2 * C**5 * v,
    "L4-mu": lambda c, L: c * L**2,
    "L4-gam": lambda C, sW, v, N, r: 3 * C * sW * r * C**2 * sW * v / N**2 * 1e-3,
    "E32": lambda L: 1.5 / L,
    "T1ii": lambda alpha, distance: distance >= 1e-3,
    "L5a": lambda N, n, d: d >= N,
    "Lim": lambda K, p: 0.5 * np.linalg.norm(K, 2) * np.linalg.norm(p),
    "E12": lambda J, K: J @ K @ K.T,
    "P1-lin": lambda J, H, eta: np.eye(len(J)) - eta * J @ H,
    "L3-13": lambda f: 1 / (1 + (f.sizes.max() - 1) * np.exp(f.spread.min())),
    "L3-14": lambda f: 1 / (1 + (f.sizes.min() + 1) * np.exp(f.gap.max())),
    "L3-sharp": lambda f: np.exp(-f.gap.max()) / (f.sizes.max() + 6),
    "Rk5": lambda gap, spread: spread > 0.5,
    "E36": lambda scores, step: softmax(scores + step),
    "E38": lambda i, j: (j + 1) % 3,
    "E40": lambda x, f, Df: jacobian(x) @ Df - np.outer(x, f) + np.diag(f),
    "E43": lambda problem, p: block_jacobian(problem, p).T,
    "E44": lambda problem, p: (block_factors(problem, p)[0], 2 * block_factors(problem, p)[1]),
    "E-Hp": lambda problem, p: problem.rows(p).T @ problem.rows(p) / len(problem.X),
    "L6": ("tight", 50.0),
    "L7": ("tight", 1e-4),
    "T2-tight": ("tight", 1e6),
    "T2": lambda size, delta: size * delta,
    "Rk7": lambda s: s <= 2,
    "C1-step": lambda eta, low, N: 1 - 2 * eta * low / N,
    "C1-16": lambda kappa, t: (1 - 1 / kappa) ** t,
    "J3-rho": lambda p, m, b: np.full(3, 0.5),
    "Abs": (0.9, 1.1),
    "X1": 9.0,
    "X7": 7.0,
}
OF_THE_PRINTED_FORM = {
    "L4-Cp",
    "T1i",
    "T2-ex",
}  # these checks take the name of a form; the printed one is the wrong one


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_verdict_follows_from_the_check(name):
    found = audit(CLAIMS[name])
    assert found.agrees, (str(found.printed), str(found.corrected))


@pytest.mark.parametrize("name", sorted(WRONG))
def test_check_rejects_a_wrong_formula(name):
    claim = CLAIMS[name]
    assert not claim.measure(WRONG[name], np.random.default_rng(1), claim.trials).holds


def test_every_check_has_a_planted_error():
    checked = {name for name, claim in CLAIMS.items() if claim.measure is not None}
    assert checked == set(WRONG) | OF_THE_PRINTED_FORM
    for name in OF_THE_PRINTED_FORM:
        assert CLAIMS[name].printed == "printed" and CLAIMS[name].corrected == "corrected"
