"""A second kind of rows, tokens shared by all rows of a query, is solved by every solver through the protocol alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pytest

from attsvm.solvers import SOLVERS, MarginProblem, PairRows, Rows, certify, certify_infeasible, find_farkas, solve
from kkt import assert_infeasible, assert_optimal
from solver_api import norms_of


@dataclass(frozen=True, eq=False)
class TokenRows:
    """Rows ``(x_{i, chosen} - x_it) z_i^T`` for t != chosen, of tokens that are stored once; no left factor is kept.

    Differences are never formed: margins subtract logits, the adjoint moves the weights to the tokens.
    """

    tokens: np.ndarray  # (*batch, n, T, d)
    keys: np.ndarray  # (*batch, n, dz)
    chosen: int

    @property
    def batch(self) -> tuple[int, ...]:
        return self.tokens.shape[:-3]

    @property
    def q(self) -> int:
        return self.tokens.shape[-3]

    @property
    def m(self) -> int:
        return self.q * (self.tokens.shape[-2] - 1)

    @property
    def shape(self) -> tuple[int, int]:
        return self.tokens.shape[-1], self.keys.shape[-1]

    @property
    def elements(self) -> int:
        return self.tokens.size

    @property
    def owner(self) -> np.ndarray:
        return np.repeat(np.arange(self.q), self.tokens.shape[-2] - 1)

    @property
    def others(self) -> np.ndarray:
        return np.delete(np.arange(self.tokens.shape[-2]), self.chosen)

    @cached_property
    def row_norms(self) -> np.ndarray:
        squares = (self.tokens**2).sum(-1)
        products = np.einsum("...td,...d->...t", self.tokens, self.tokens[..., self.chosen, :])
        apart = squares + squares[..., self.chosen, None] - 2.0 * products
        sizes = np.sqrt(np.maximum(apart, 0.0)) * np.linalg.norm(self.keys, axis=-1)[..., None]
        return sizes[..., self.others].reshape(*self.batch, self.m)

    @cached_property
    def error_norms(self) -> np.ndarray:
        sizes = np.linalg.norm(self.tokens, axis=-1)
        total = (sizes + sizes[..., [self.chosen]]) * np.linalg.norm(self.keys, axis=-1)[..., None]
        return 2.0 * total[..., self.others].reshape(*self.batch, self.m)

    def margins(self, W) -> np.ndarray:
        logits = np.einsum("...itd,...de,...ie->...it", self.tokens, W, self.keys, optimize=True)
        return (logits[..., [self.chosen]] - logits[..., self.others]).reshape(*self.batch, self.m)

    def adjoint(self, multipliers) -> np.ndarray:
        lam = np.asarray(multipliers).reshape(*self.batch, self.q, -1)
        weights = np.zeros(self.tokens.shape[:-1])
        weights[..., self.others] = -lam
        weights[..., self.chosen] = lam.sum(-1)
        return np.einsum("...it,...itd,...ie->...de", weights, self.tokens, self.keys, optimize=True)

    def gather(self, index) -> PairRows:
        rows = np.arange(self.m)[np.asarray(index)]
        i, t = self.owner[rows], self.others[rows % (self.tokens.shape[-2] - 1)]
        return PairRows(self.tokens[..., i, self.chosen, :] - self.tokens[..., i, t, :], self.keys, i)

    def __getitem__(self, problem: int) -> TokenRows:
        return TokenRows(self.tokens[problem], self.keys[problem], self.chosen)

    def take(self, problems) -> TokenRows:
        return TokenRows(self.tokens[problems], self.keys[problems], self.chosen)


def pair_of_problems(batch: int | None = None, n: int = 4, T: int = 5, d: int = 6, seed: int = 0, **rest):
    """The same problem on token rows and on pair rows."""
    rng = np.random.default_rng(seed)
    lead = () if batch is None else (batch,)
    tokens, keys = rng.standard_normal((*lead, n, T, d)), rng.standard_normal((*lead, n, d))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    rows = TokenRows(tokens, keys, 1)
    pairs = rows.gather(np.arange(rows.m))
    return MarginProblem.from_rows(rows, **rest), MarginProblem.from_rows(pairs, **rest)


def test_it_follows_the_protocol():
    rows: Rows = pair_of_problems()[0].rows
    members = {name for name in vars(Rows) if not name.startswith("_")}
    assert members == {
        "batch", "m", "q", "shape", "elements", "owner", "row_norms", "error_norms", "margins", "adjoint", "gather",
        "take",
    }  # fmt: skip
    assert all(hasattr(rows, name) for name in members)
    assert not hasattr(rows, "a") and not hasattr(rows, "queries")


@pytest.mark.parametrize("batch", [None, 3])
def test_products_are_those_of_the_pairs(rng, batch):
    token, pair = pair_of_problems(batch)
    lead = () if batch is None else (batch,)
    W, lam = rng.standard_normal((*lead, 6, 6)), rng.standard_normal((*lead, 16))
    np.testing.assert_allclose(token.margins(W), pair.margins(W), atol=1e-13)
    np.testing.assert_allclose(token.adjoint(lam), pair.adjoint(lam), atol=1e-13)
    np.testing.assert_allclose(token.row_norms, pair.row_norms, rtol=1e-12)
    np.testing.assert_allclose(token.gram(), pair.gram(), atol=1e-13)
    np.testing.assert_array_equal(token.gather([3, 7]).rows.a, pair.gather([3, 7]).rows.a)
    if batch:
        np.testing.assert_allclose(token[1].margins(W[1]), pair.margins(W)[1], atol=1e-13)
        np.testing.assert_allclose(token.take([2, 0]).margins(W[[2, 0]]), pair.margins(W)[[2, 0]], atol=1e-13)


CASES = [(name, norm) for name in SOLVERS for norm in norms_of(name, ("frobenius", "nuclear", "l1"))]


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize(("solver", "norm"), CASES)
def test_every_solver_solves_them(solver, norm, batch):
    token, pair = pair_of_problems(batch)
    limit = {"rank": 2} if SOLVERS[solver].ranks else {}
    found, expected = solve(token, norm, solver, **limit), solve(pair, norm, solver, **limit)
    np.testing.assert_array_equal(found.status, expected.status)
    assert np.isin(found.status, ["optimal", "local"] if limit else ["optimal"]).all()
    # The same numbers up to the rounding of products: as close as the certificates.
    np.testing.assert_allclose(found.norm, expected.norm, rtol=1e-7)
    if limit:
        return
    for one in [found] if batch is None else [found[i] for i in range(batch)]:
        assert_optimal(one.problem, one.W, one.multipliers, norm, 1e-6)


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize(("solver", "norm"), CASES)
def test_every_solver_proves_conflicts(solver, norm, batch):
    token, _ = pair_of_problems(batch, n=9, T=6, d=2)
    limit = {"rank": 1} if SOLVERS[solver].ranks else {}
    found = solve(token, norm, solver, **limit)
    assert np.all(found.status == "infeasible")
    for one in [found] if batch is None else [found[i] for i in range(batch)]:
        assert_infeasible(one.problem, one.certificate.farkas.multipliers)


def test_equalities_and_right_hand_sides(rng):
    rhs, equality = rng.standard_normal(16), np.arange(16) % 5 == 0
    token, pair = pair_of_problems(rhs=rhs, equality=equality)
    for norm in ("frobenius", "nuclear"):
        found, expected = solve(token, norm), solve(pair, norm)
        assert found.status == expected.status == "optimal"
        assert found.norm == pytest.approx(expected.norm, rel=1e-7)


def test_certificates_and_proofs(monkeypatch):
    token, pair = pair_of_problems()
    solution = solve(pair)
    with monkeypatch.context() as patch:  # a certificate needs products only
        patch.setattr(TokenRows, "gather", lambda *_: pytest.fail("rows were written out"))
        for norm in ("frobenius", "nuclear", "l1"):
            certify(token, solution.W, solution.multipliers, norm)
    one, other = (certify(p, solution.W, solution.multipliers) for p in (token, pair))
    assert one.norm == pytest.approx(other.norm, rel=1e-14)
    assert one.worst <= 1e-12
    token, pair = pair_of_problems(n=9, T=6, d=2)
    proof = find_farkas(token).farkas
    assert certify_infeasible(pair, proof.multipliers) is not None
    stacked = MarginProblem.stack([token, pair])  # written out: all rows of a stack are pairs
    assert np.all(solve(stacked).status == "infeasible")
