"""Derivatives of margin problems against differences of solves, and what is said where there are none."""

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, solve, solve_batch
from attsvm.solvers.active_rows import active_rows, dependent_rows
from attsvm.solvers.implicit import ImplicitSystem
from attsvm.solvers.value_kinks import value_kinks

SOFT = [None, ("query", "hinge"), ("row", "hinge"), ("query", "squared_hinge"), ("row", "squared_hinge")]


def drawn(seed, soft=None, equal=0, m=10, dx=4, dz=3):
    """Rows with random right-hand sides around a random prior, and what they are made of."""
    rng = np.random.default_rng(seed)
    data = {
        "a": rng.normal(size=(m, dx)) + 0.5,
        "b": rng.normal(size=(4, dz)) + 0.5,
        "c": 1.0 + 0.2 * rng.random(m),
        "W0": 0.1 * rng.normal(size=(dx, dz)),
    }
    owner = np.sort(rng.integers(4, size=m))

    def problem(data):
        rows = MarginProblem(data["a"], data["b"], owner, data["c"], np.arange(m) < equal)
        rows = rows if soft is None else rows.soft(3.0, *soft)
        return rows.around(data["W0"])

    return rng, data, owner, problem


def refined(solution):
    """W after Newton steps on its support: differences of solves to 1e-8 would be no measure."""
    return ImplicitSystem(solution).D[0] + solution.problem.prior.W


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("soft", SOFT)
@pytest.mark.parametrize("equal", [0, 2])
def test_products_with_the_jacobian_are_differences_of_solves(norm, soft, equal):
    for seed in range(3):
        rng, data, owner, problem = drawn(seed, soft, equal)
        solution = solve(problem(data), norm)
        system = ImplicitSystem(solution)
        assert system.faults == {}
        step = {name: rng.normal(size=value.shape) for name, value in data.items()}
        at = {h: refined(solve(problem({k: v + h * step[k] for k, v in data.items()}), norm)) for h in (1e-5, -1e-5)}
        difference = (at[1e-5] - at[-1e-5]) / 2e-5
        W, b = refined(solution), data["b"][owner]
        dA = step["a"][:, :, None] * b[:, None] + data["a"][:, :, None] * step["b"][owner][:, None]
        F = np.einsum("k,kij->ij", system.multipliers[0], dA)
        sides = step["c"] - np.einsum("kij,ij->k", dA, W) - solution.problem.margins(step["W0"])
        moved = system.jvp(F[None], sides[None])[0] + step["W0"]
        # Truncation is h^2 = 1e-10 of third derivatives; refined solves are accurate to 1e-11, over h = 1e-5.
        np.testing.assert_allclose(moved, difference, atol=3e-5 * np.abs(difference).max())
        G = rng.normal(size=W.shape)
        back = system.vjp(G[None])
        inner = back.weights[0] @ np.einsum("kij,ij->k", dA, back.along[0]) + back.sides[0] @ (
            step["c"] - np.einsum("kij,ij->k", dA, W)
        )
        assert inner + (back.prior[0] * step["W0"]).sum() == pytest.approx((G * moved).sum(), rel=1e-9, abs=1e-9)


def test_a_batch_gives_what_its_problems_give_alone():
    parts = [drawn(seed)[3](drawn(seed)[1]) for seed in range(4)]
    rng = np.random.default_rng(0)
    G = rng.normal(size=(4, 4, 3))
    for norm in ("frobenius", "nuclear"):
        together = ImplicitSystem(solve_batch(MarginProblem.stack(parts), norm)).vjp(G)
        for i, part in enumerate(parts):
            alone = ImplicitSystem(solve(part, norm)).vjp(G[i : i + 1])
            np.testing.assert_allclose(together.sides[i], alone.sides[0], atol=1e-7)
            np.testing.assert_allclose(together.along[i], alone.along[0], atol=1e-7)


@pytest.mark.parametrize(
    ("a", "owner", "reason"),
    [
        # W = (1, 0) satisfies the second row with equality, and its multiplier is 0.
        ([[1.0, 0.0], [1.0, 1.0]], [0, 0], "support is not strict"),
        ([[1.0, 0.0], [1.0, 0.0]], [0, 0], "support is not strict|depends linearly"),
    ],
)
def test_rows_without_a_strict_support_are_named(a, owner, reason):
    faults = ImplicitSystem(solve(MarginProblem(a, [[1.0]], owner))).faults
    assert set(faults) == {0}
    assert any(part in faults[0].reason for part in reason.split("|"))
    assert faults[0].row in (0, 1)


def test_equal_equality_rows_are_dependent():
    rows = MarginProblem([[1.0, 0.0], [1.0, 0.0]], [[1.0]], [0, 0], equality=[True, True])
    assert "depends linearly" in ImplicitSystem(solve(rows)).faults[0].reason


def test_a_rank_that_may_grow_is_named():
    # |W|_* with W11 >= 1 and W22 >= 1: W = [[1, t], [t, 1]] is optimal for every |t| <= 1.
    system = ImplicitSystem(solve(MarginProblem(np.eye(2), np.eye(2), [0, 1]), "nuclear"))
    assert "rank" in system.faults[0].reason or "determine W" in system.faults[0].reason
    assert np.isnan(system.vjp(np.ones((1, 2, 2))).along).all()


def test_norms_without_a_derivative_of_w_are_refused():
    with pytest.raises(ValueError, match="'frobenius' and 'nuclear', got 'spectral'"):
        ImplicitSystem(solve(MarginProblem([[1.0]], [[1.0]], [0]), "spectral"))


def test_dependent_rows_by_hand():
    gram = np.array([np.eye(3), [[1.0, 0.0, 0.6], [0.0, 1.0, 0.8], [0.6, 0.8, 1.0]]])
    assert dependent_rows(gram).tolist() == [-1, 2]
    assert gram[0].tolist() == np.eye(3).tolist()  # not overwritten


def test_a_query_with_slack_fixes_the_sum_of_its_multipliers():
    rows = MarginProblem([[1.0], [-1.0]], [[1.0]], [0, 0]).soft(2.0)
    found = active_rows(solve(rows))
    assert found.bounded.all() and found.support.all() and found.faults == {}
    # W minimizes W^2 / 2 + 2 max(1 - W, 1 + W): it stays at 0 when one right-hand side moves less than the other's.
    assert ImplicitSystem(solve(rows)).vjp(np.ones((1, 1, 1))).sides == pytest.approx(np.array([[0.5, -0.5]]))


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l3"])
def test_equal_rows_share_their_multipliers_in_any_way(norm):
    rng = np.random.default_rng(0)
    a = rng.normal(size=(3, 3)) + 1.0
    assert not value_kinks(solve(MarginProblem(a, np.eye(3)[:1] + 0.1, [0, 0, 0]), norm)).multipliers.any()
    twice = MarginProblem(a[[0, 1, 2, 0]], np.eye(3)[:1] + 0.1, [0, 0, 0, 0])
    found = value_kinks(solve(twice, norm))
    supported = solve(twice, norm).multipliers[[0, 3]].sum() > 1e-6
    assert found.multipliers.tolist() == [supported]


def test_w_that_is_not_unique_is_seen_by_its_factors():
    # max(|w1|, |w2|) with w1 >= 1: w2 is free, and the second entry of the left factor sees it.
    found = value_kinks(solve(MarginProblem([[1.0, 0.0]], [[1.0]], [0]), "linf"))
    assert (found.multipliers.item(), found.left.item(), found.right.item()) == (False, True, False)


def test_a_prior_that_just_satisfies_the_rows_is_a_kink():
    rows = MarginProblem([[1.0]], [[1.0]], [0])
    assert value_kinks(solve(rows.around([[1.0]]))).multipliers.item()
    assert not value_kinks(solve(rows.around([[2.0]]))).multipliers.item()
