"""Derivatives of solutions in tokens, queries, offsets and priors, against differences of certified solves."""

import dataclasses

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, DegenerateError

NORMS = ["frobenius", "nuclear", "spectral", "l1", "linf", "l3"]
# Differences of polyhedral norms are exact within a basis; others need a longer step than solves scatter.
STEP = {"l1": 1e-6, "linf": 1e-6, "frobenius": 1e-5, "nuclear": 1e-5, "spectral": 1e-4, "l3": 1e-4}


def inputs(problem, rng):
    """Random offset and prior, and a direction for each input."""
    values = {
        "X": problem.X,
        "Z": problem.Z,
        "offset": 0.1 * rng.normal(size=(*problem.query_shape, problem.T)),
        "prior": 0.1 * rng.normal(size=(problem.dx, problem.dz)),
    }
    return values, {name: rng.normal(size=value.shape) for name, value in values.items()}


def solved(problem, selection, values, **options):
    moved = AttentionProblem(values["X"], problem.Y, values["Z"], mask=problem.mask)
    return attsvm.att_svm(moved, selection, offset=values["offset"], prior=values["prior"], **options)


def along(gradients, directions):
    return sum(float((getattr(gradients, name) * d).sum()) for name, d in directions.items())


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("C", [None, 20.0])
@pytest.mark.parametrize("kind", ["cross", "sequence", "masked"])
def test_the_multipliers_give_the_derivative_of_the_optimal_value(norm, C, kind):
    rng = np.random.default_rng(3)
    d = 8 if kind == "sequence" else 4
    n = 2 if kind == "sequence" else 3
    problem = attsvm.random_problem(n=n, T=4, d=d, seed=4, kind="sequence" if kind == "sequence" else "cross")
    if kind == "masked":
        problem = dataclasses.replace(problem, mask=np.arange(4) < np.array([[4], [2], [3]]))
    selection = problem.optimal_tokens()
    values, directions = inputs(problem, rng)
    h = STEP[norm]
    one = solved(problem, selection, values, norm=norm, C=C)
    at = {
        s: solved(problem, selection, {k: v + s * h * directions[k] for k, v in values.items()}, norm=norm, C=C)
        for s in (1, -1)
    }
    sens = one.sensitivity()
    assert all(sens.differentiable.values())
    expected = (at[1].objective - at[-1].objective) / (2 * h)
    # Values are certified to 1e-8 (mostly far better), which differences divide by h.
    assert along(sens.gradients, directions) == pytest.approx(expected, rel=2e-4, abs=2e-4)
    assert (sens.of, sens.value) == ("norm" if C is None else "objective", pytest.approx(one.objective, rel=1e-9))
    if C is None:
        margin = (at[1].margin - at[-1].margin) / (2 * h)
        assert along(sens.margin, directions) == pytest.approx(margin, rel=2e-4, abs=2e-4)
    else:
        assert sens.margin is None
    if kind == "masked":
        assert not sens.gradients.X[~problem.mask].any()
        assert not sens.gradients.offset[~problem.mask].any()


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("formulation", ["att", "gen", "finite"])
def test_the_derivative_of_w_to_a_millionth_of_certified_solves(norm, formulation):
    rng = np.random.default_rng(0)
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=1)
    sets, chances = [[0, 1], [2], [3]], np.full((3, 4), 0.25) + 0.1 * np.eye(3, 4)
    values, directions = inputs(problem, rng)

    def solve(values):
        moved = AttentionProblem(values["X"], problem.Y, values["Z"])
        options = {"norm": norm, "offset": values["offset"], "prior": values["prior"], "tolerance": 1e-10}
        if formulation == "att":
            return attsvm.att_svm(moved, [0, 1, 2], **options)
        if formulation == "gen":
            return attsvm.gen_svm(moved, sets, **options)
        return attsvm.finite_part(moved, chances, sets, **options)

    def moved_by(h):
        return solve({k: v + h * directions[k] for k, v in values.items()}).W

    derivative, h = solve(values).derivative(), 1e-4
    difference = (8 * (moved_by(h) - moved_by(-h)) - (moved_by(2 * h) - moved_by(-2 * h))) / (12 * h)
    forward = derivative.jvp(**directions)
    np.testing.assert_allclose(forward, difference, atol=1e-6 * np.abs(difference).max())
    G = rng.normal(size=forward.shape)
    assert along(derivative.vjp(G), directions) == pytest.approx((G * forward).sum(), rel=1e-10)


def test_queries_that_are_tokens_count_twice():
    X = np.random.default_rng(0).normal(size=(3, 4, 5))
    direction = np.random.default_rng(1).normal(size=X.shape)
    for build, tokens in ((AttentionProblem.self_attention, 0), (AttentionProblem.sequences, range(4))):
        big = X if tokens == 0 else np.concatenate([X, 0.3 * X[..., ::-1], 0.1 * X**2], axis=-1)
        step = direction if tokens == 0 else np.concatenate([direction] * 3, axis=-1)
        one = attsvm.satt_svm(build(big), np.zeros((3, 4), int) if tokens else np.ones(3, int), norm="frobenius")
        chosen = one.selection.indices
        up, down = (attsvm.satt_svm(build(big + h * step), chosen).norm for h in (1e-6, -1e-6))
        both = one.sensitivity(query_tokens=tokens)
        assert (both.gradients.X * step).sum() == pytest.approx((up - down) / 2e-6, rel=1e-5)
        apart = one.sensitivity()
        assert (apart.gradients.X * step).sum() != pytest.approx((up - down) / 2e-6, rel=1e-2)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [(1, "Z differs"), (4, r"must lie in \[0, 4\)"), ([0, 0], "must have shape"), (0.5, "query_tokens")],
)
def test_query_tokens_that_the_queries_are_not(tokens, message):
    sol = attsvm.att_svm(AttentionProblem.self_attention(np.random.default_rng(0).normal(size=(3, 4, 5))), [1, 2, 3])
    with pytest.raises(ValueError, match=message):
        sol.sensitivity(query_tokens=tokens)


def test_a_batch_gives_what_its_problems_give_alone():
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=4, seed=2)
    sols = attsvm.att_svm(batch, norm="nuclear")
    sens, G = sols.sensitivity(), np.random.default_rng(0).normal(size=(4, 5, 5))
    found = sols.derivative().vjp(G)
    for b, one in enumerate(sols):
        alone = one.sensitivity()
        np.testing.assert_allclose(sens[b].gradients.X, alone.gradients.X, atol=1e-12)
        np.testing.assert_allclose(sens[b].margin.prior, alone.margin.prior, atol=1e-12)
        assert sens[b].differentiable == alone.differentiable
        np.testing.assert_array_equal(sens.ranking[b], alone.ranking)
        np.testing.assert_allclose(found.Z[b], one.derivative().vjp(G[b]).Z, atol=1e-8)


def test_the_tokens_that_matter_most():
    # W = 1 / 2 is held by token 1 alone: moving x_1 or x_0 by 1 changes the norm by lam W z = 1 / 4.
    problem = AttentionProblem(np.array([[[3.0], [1.0], [0.5]]]), Z=[[1.0]])
    sens = attsvm.att_svm(problem, [0]).sensitivity()
    assert [(e.token, e.size, e.selected) for e in sens.top()] == [(0, 0.25, True), (1, 0.25, False)]
    assert sens.ranking.tolist() == [[0, 0], [0, 1], [0, 2]]
    np.testing.assert_allclose(sens.gradients.X[0, :, 0], [-0.25, 0.25, 0.0])
    np.testing.assert_allclose(sens.margin.X[0, :, 0], [1.0, -1.0, 0.0])  # the margin is the distance 3 - 1
    np.testing.assert_allclose(sens.gradients.Z, [[-0.5]])
    np.testing.assert_allclose(sens.gradients.offset, [[-0.5, 0.5, 0.0]])
    np.testing.assert_allclose(sens.gradients.prior, [[-1.0]])


def test_problems_without_a_solution():
    twins = AttentionProblem([[[1.0], [1.0]]], Z=[[1.0]])
    with pytest.raises(attsvm.InfeasibleError):
        attsvm.att_svm(twins, [0]).sensitivity()
    with pytest.raises(attsvm.InfeasibleError):
        attsvm.att_svm(twins, [0]).derivative()
    pair = AttentionProblem(np.array([[[[1.0], [1.0]]], [[[2.0], [1.0]]]]), Z=np.ones((2, 1, 1)))
    sens = attsvm.att_svm(pair, [[0], [0]]).sensitivity()
    assert np.isnan(sens.gradients.X[0]).all()
    np.testing.assert_allclose(sens.gradients.X[1, 0, :, 0], [-1.0, 1.0])


def test_kinks_are_said():
    equal = AttentionProblem([[[2.0], [1.0], [1.0]]], Z=[[1.0]])
    sol = attsvm.att_svm(equal, [0])
    assert not any(sol.sensitivity().differentiable.values())
    with pytest.raises(DegenerateError, match=r"the row of query \(0,\) and token [12]"):
        sol.derivative()
    batch = AttentionProblem(np.array([[[[2.0], [0.0], [1.0]]], [[[2.0], [1.0], [1.0]]]]), Z=np.ones((2, 1, 1)))
    with pytest.raises(DegenerateError, match="problem 1 of the batch: "):
        attsvm.att_svm(batch, [[0], [0]]).derivative()


def test_a_limited_rank_has_no_derivative():
    problem = attsvm.random_problem(n=4, T=4, d=4, seed=0)
    sol = attsvm.att_svm(problem, norm="nuclear", rank=1, starts=1, seed=0)
    assert sol.status == "local"
    for call in (sol.sensitivity, sol.derivative):
        with pytest.raises(ValueError, match="rank="):
            call()


def test_soft_margins_with_w_zero():
    # C is so small that W = 0: no token matters, whatever the multipliers; offsets and the prior do.
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    sol = attsvm.att_svm(problem, norm="nuclear", C=1e-3)
    assert not sol.W.any()
    sens = sol.sensitivity()
    assert sens.differentiable == {"X": True, "Z": True, "offset": False, "prior": False}
    assert not sens.gradients.X.any()
    derivative = sol.derivative()
    assert not derivative.vjp(np.ones((5, 5)), inputs=("X", "Z")).X.any()
    with pytest.raises(DegenerateError):
        derivative.vjp(np.ones((5, 5)))


def test_shapes_that_do_not_fit_are_refused():
    derivative = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0)).derivative()
    with pytest.raises(ValueError, match="G must have shape"):
        derivative.vjp(np.ones((5, 4)))
    with pytest.raises(ValueError, match="G must"):
        derivative.vjp(np.full((5, 5), np.nan))
    with pytest.raises(ValueError, match="Z must have shape"):
        derivative.jvp(Z=np.ones((3, 4)))
    sens = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0)).sensitivity()
    with pytest.raises(ValueError, match="count must be"):
        sens.top(0)
    with pytest.raises(TypeError, match="only the sensitivity of a batch"):
        sens[0]
    with pytest.raises(ValueError, match="index the sensitivity of the batch"):
        attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=0)).sensitivity().top()


def test_rows_that_share_their_tokens_give_the_same():
    problem = attsvm.random_problem(n=2, T=5, d=12, kind="sequence", seed=0)
    sol = attsvm.satt_svm(problem)
    from attsvm.selection_rows import selection_rows
    from attsvm.sensitivity import Derivative
    from attsvm.solvers import solve

    rows = selection_rows(problem, sol.selection, shared=True)
    G = np.random.default_rng(0).normal(size=sol.W.shape)
    shared = Derivative(problem, rows, solve(rows.margin_problem)).vjp(G)
    np.testing.assert_allclose(shared.X, sol.derivative().vjp(G).X, atol=1e-9)
