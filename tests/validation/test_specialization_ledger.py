"""Every claim of the paper on specialization, and for each a wrong formula that its check must reject."""

import numpy as np
import pytest
import torch

import attsvm.dynamics.specialization as sp
from attsvm.validation.ledger.record import Verdict
from attsvm.validation.ledger.run import all_claims, audit

CLAIMS = {claim.id.split(":")[1]: claim for claim in all_claims(["specialization"])}


def from_q(overlaps):
    values, vectors = torch.linalg.eigh(overlaps.q)
    return overlaps.m, (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def doubled(activation, L, H, b):
    c = sp.quadratic_constants(activation, L, H, b=b)
    return 2 * c.c3, c.c4


def without_last_atom(prior, H):
    point = sp.bayes_softmax_parameters(prior)
    return point.keep(range(len(prior.weights) - 1))


def no_threshold(B, F):
    point = sp.opposite_heads(B, F)
    return sp.OrderParameters(point.m, None, 0 * point.b, point.v)


def lopsided(m, r1, r2, b, v):
    point = CLAIMS["8"].printed(m, r1, r2, b, v)
    return sp.OrderParameters(point.m * torch.tensor([[1.0], [2.0], [1.0]]), point.r, point.b, point.v)


def slow(start, samples, activation, times):
    return sp.gradient_flow(start, samples, activation, [t / 2 + 1e-9 * k for k, t in enumerate(times)], step=0.5)


WRONG = {
    "1": from_q,
    "2": lambda rng, n, H, L: np.zeros((n, H, L)),
    "3": lambda start, samples, times: slow(start, samples, "softmax", times),
    "4": slow,
    "5": lambda lr, batch, D: True,
    "6": lambda scores, b, v: CLAIMS["6"].printed(scores, -b, v),
    "7": lambda scores, b: np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
    "8": lopsided,
    "9": lambda prior: prior.covariance[0, 1] == 0 or prior.weights[0] == 0.8,
    "10": lambda activation, L, H: 0.5 * sp.initial_gradient(activation, L, H),
    "11": (-1.0, 1.0, 1.0, 1.0),
    "12": lambda prior: prior.weights[0] == 0.8,
    "13": lambda r: 2 * r,
    "14": lambda c1, r: 2 * c1 * float((r.sum(axis=0) ** 2).sum()),
    "15": lambda L, H, b, v: (0.0, 0.0),
    "16": lambda activation, L, H, variance, b: -sp.unspecialized_hessian(activation, L, H, [[variance]], b=b),
    "17": lambda activation, L, H, variance, b: np.zeros((H, H)),
    "18": doubled,
    "19": lambda prior: 3.0,
    "20": lambda activation, L, H, b, v: 2 * CLAIMS["20"].printed(activation, L, H, b, v),
    "21": lambda c1, r: c1 * float((r.sum(axis=1) ** 2).sum()),
    "22": lambda L, H, variance, other: (1e-9, 0.0, 1e-9),
    "23": lambda L, H, variance: -sp.unspecialized_hessian("softmax", L, H, [[variance]]),
    "24": lambda activation, L, H, variance: CLAIMS["24"].printed(activation, L, H, variance)[::-1],
    "25": lambda D: D**0.25,
    "26": lambda rate: rate > 0.2,
    "27": (30.0, 30.0),
    "28": lambda prior, chi: sp.position_posterior(sp.DiscretePrior(prior.atoms, np.full(3, 1 / 3)), chi),
    "29": lambda squares, D: float(squares.mean()) / D**0.5,
    "30": lambda prior: sp.OrderParameters(torch.tensor(prior.atoms)),
    "31": lambda prior, L: 0.25,
    "32": no_threshold,
    "33": without_last_atom,
    "34": (8, 4, 2),
    "35": lambda nu: 0.0 if nu < 10 else 0.1,
    "36": (40.0, 2.0),
    "37": (2, 0),
    "40": (1.0, 1.0),
    "41": lambda H, F: H - F + 1,
    "42": lambda H, F: H - 1,
    "43": ("bayes", "softmax"),
    "44": lambda n: 0.01 * n**-0.5,
    "45": lambda time, batch, lr: time * batch * lr,
}


def test_the_ledger_is_complete():
    assert list(CLAIMS) == [str(k) for k in range(1, 47)]
    assert {k for k, claim in CLAIMS.items() if claim.measure is None} == {"38", "39", "46"}
    assert set(WRONG) == {k for k, claim in CLAIMS.items() if claim.measure is not None}


@pytest.mark.parametrize("name", list(CLAIMS))
def test_verdicts_are_found_again(name):
    claim = CLAIMS[name]
    found = audit(claim)
    assert found.agrees, (str(found.printed), str(found.corrected))
    assert (claim.verdict is Verdict.OPEN) == (found.printed is None)


@pytest.mark.parametrize("name", list(WRONG))
def test_checks_reject_a_wrong_formula(name):
    claim = CLAIMS[name]
    assert claim.measure is not None
    assert not claim.measure(WRONG[name], np.random.default_rng(1), claim.trials).holds
