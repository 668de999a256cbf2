"""The compiled pivoting for least Frobenius norms: optimal by dense arithmetic, and the same as pivoting in NumPy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import attsvm
from attsvm.solvers import MarginProblem, PairRows, Penalty, solve, solve_batch
from attsvm.solvers.compiled.batched_pivoting import Pivoted, pivot_batch, pivot_one, pivot_soft, pivot_soft_batch
from attsvm.solvers.frobenius.pivoting import solve_small_batch
from attsvm.solvers.penalty import LossKind, PenaltyBatch, SlackKind
from attsvm.solvers.unit import UnitProblem
from kkt import assert_optimal, random_rows, sphere_rows

Array = npt.NDArray[np.float64]
# Multipliers of well-posed problems of these sizes; condition numbers of active rows are below 1e3.
ROUNDING = 1e-12


def mixed_batch(seed: int, size: int = 12, m: int = 14, q: int = 4, shape: tuple[int, int] = (5, 6)) -> MarginProblem:
    """Rows of norms around 0.1 to 10 in any order, right-hand sides of both signs, equalities, some rows void."""
    rng = np.random.default_rng(seed)
    a, queries = rng.standard_normal((size, m, shape[0])), rng.standard_normal((size, q, shape[1]))
    a *= 10.0 ** rng.uniform(-1.0, 1.0, (size, m, 1))
    owner = rng.permuted(np.tile(np.arange(m) % q, (size, 1)), axis=1)  # fewer rows of a query than dimensions
    valid = rng.random((size, m)) < 0.8
    valid[:, 0] = True
    return MarginProblem(a, queries, owner, rng.standard_normal((size, m)), rng.random((size, m)) < 0.2, valid)


def pivoted(problem: MarginProblem) -> Pivoted:
    return pivot_batch(problem.pairs(), problem.rhs, problem.equality)


def assert_complementary(problem: MarginProblem, found: Pivoted) -> None:
    """``x >= 0, F F'x >= rhs, x (F F'x - rhs) = 0`` of each problem, W = F'x, from rows that are written out."""
    for i in range(len(problem)):
        rows, rhs, equality = problem[i].features(), problem[i].rhs, problem[i].equality
        valid = slice(None) if problem.valid is None else problem.valid[i]
        x, W = found.multipliers[i][valid], found.W[i].ravel()
        margins, scale = rows @ W, 1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(W)
        assert (x[~equality] >= 0.0).all()
        assert (np.abs(rows.T @ x - W) <= ROUNDING * (1.0 + np.linalg.norm(W))).all()
        assert ((margins - rhs)[~equality] >= -(ROUNDING * scale)[~equality]).all()
        assert (np.abs(margins - rhs)[equality | (x > 0)] <= (ROUNDING * scale)[equality | (x > 0)]).all()


@pytest.mark.parametrize(("n", "T", "d"), [(1, 2, 2), (2, 3, 2), (5, 5, 10), (6, 8, 10), (10, 14, 20)])
def test_rows_of_attention_meet_the_optimality_conditions(n: int, T: int, d: int) -> None:
    batch = MarginProblem(*sphere_rows(8, n, T, d, seed=n))
    found = pivot_batch(batch.pairs())
    assert found.settled.all()
    assert_complementary(batch, found)


@pytest.mark.parametrize("seed", range(6))
def test_equalities_any_sides_any_owners_and_void_rows(seed: int) -> None:
    batch = mixed_batch(seed)
    assert batch.valid is not None and not batch.valid.all() and batch.equality.any() and (batch.rhs < 0).any()
    found = pivoted(batch)
    assert found.settled.all()
    assert_complementary(batch, found)
    assert (found.multipliers[~batch.valid] == 0.0).all()


@pytest.mark.parametrize("seed", range(4))
def test_agrees_with_numpy(seed: int) -> None:
    batch = mixed_batch(seed)
    unit, found = UnitProblem(batch), pivoted(batch)
    other = solve_small_batch(unit.gram, unit.c, unit.equality)
    ours = found.multipliers * batch.row_norms / unit.scale
    np.testing.assert_array_equal(found.settled, other.settled)
    np.testing.assert_array_equal(found.rounds, other.iterations)
    np.testing.assert_allclose(ours, other.x, rtol=0.0, atol=ROUNDING * np.abs(other.x).max())
    np.testing.assert_allclose(found.peaks, np.abs(other.x).max(axis=-1), rtol=ROUNDING)


def test_one_problem_is_a_batch_of_one() -> None:
    batch = mixed_batch(7)
    together = pivoted(batch)
    for i in range(len(batch)):
        one = batch[i]
        lam, settled, rounds = pivot_one(one.pairs(), one.rhs, one.equality)
        assert batch.valid is not None
        np.testing.assert_array_equal(lam, together.multipliers[i][batch.valid[i]])
        assert (settled, rounds) == (together.settled[i], together.rounds[i])


def test_float32_rows_and_queries_that_are_repeated() -> None:
    a, z, owner = sphere_rows(3, 3, 4, 5, seed=0)
    rows = PairRows(a.astype(np.float32), np.broadcast_to(z[:1], z.shape), owner)
    found = pivot_batch(rows)
    assert found.settled.all()
    assert_complementary(MarginProblem.from_rows(rows), found)


def test_threads_change_nothing() -> None:
    """Enough problems for several threads, each of which gives what it gives alone."""
    a, z, owner = sphere_rows(700, 4, 4, 6, seed=1)
    together = pivot_batch(PairRows(a, z, owner))
    for part in (slice(0, 3), slice(350, 353), slice(697, 700)):
        few = pivot_batch(PairRows(a[part], z[part], owner))
        for all_of_them, some in zip(together, few, strict=True):
            np.testing.assert_array_equal(all_of_them[part], some)


@pytest.mark.parametrize("far", [False, True])
def test_a_start_changes_the_rounds_only(far: bool) -> None:
    rows = PairRows(*sphere_rows(20, 5, 5, 10, seed=2))
    plain = pivot_batch(rows)
    known = pivot_batch(rows, start=(plain.multipliers > 0) ^ far)
    assert known.settled.all()
    np.testing.assert_allclose(known.multipliers, plain.multipliers, rtol=0.0, atol=ROUNDING)
    assert far or (known.rounds == 1).all()


def test_ill_conditioned_rows_do_not_cycle() -> None:
    """From random starts exchanges of all misplaced rows at once cycle on some of these: single ones end that."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((500, 30, 30)) * 10.0 ** rng.uniform(-2.0, 0.0, (500, 1, 30))
    rows, rhs = PairRows(a, np.ones((500, 1, 1)), np.zeros(30, dtype=int)), rng.standard_normal((500, 30))
    found = pivot_batch(rows, rhs, start=rng.random((500, 30)) < 0.5)
    assert found.settled.all()
    assert found.rounds.max() > 10
    plain = pivot_batch(rows, rhs)  # from another start; active rows have condition numbers of up to 1e4
    size = np.abs(plain.W).max(axis=(-2, -1), keepdims=True)
    np.testing.assert_allclose(found.W / size, plain.W / size, rtol=0.0, atol=1e-10)


def test_a_limit_leaves_multipliers_that_are_dual_feasible() -> None:
    rows = PairRows(*sphere_rows(20, 6, 8, 10, seed=3))
    nothing = np.zeros((20, rows.m), dtype=bool)
    short = pivot_batch(rows, start=nothing, limit=2)
    assert not short.settled.any()
    assert (short.rounds == 2).all()
    assert (short.multipliers >= 0.0).all()


def test_dependent_rows_stay_unsettled() -> None:
    """The same row twice: its multiplier is a matter of choice."""
    a, z, owner = sphere_rows(4, 3, 3, 6, seed=4)
    a[2, 1] = a[2, 0]
    found = pivot_batch(PairRows(a, z, owner), start=np.ones((4, a.shape[1]), dtype=bool))
    assert found.settled.tolist() == [True, True, False, True]


def test_a_degenerate_row_may_be_on_either_side() -> None:
    """The second row holds with equality where its multiplier is 0."""
    a = np.array([[[1.0, 0.0], [1.0, 1.0]]])
    found = pivot_batch(PairRows(a, np.ones((1, 1, 1)), [0, 0]))
    assert found.settled.all()
    np.testing.assert_allclose(found.W[0].ravel(), [1.0, 0.0], atol=ROUNDING)


def test_zero_rows_count_for_nothing() -> None:
    a = np.array([[[0.0], [2.0]], [[2.0], [1.0]]])
    queries = np.array([[[1.0], [1.0]], [[0.0], [1.0]]])
    found = pivot_batch(PairRows(a, queries, [0, 1]), equality=np.array([[True, False], [True, False]]))
    assert found.settled.all()
    np.testing.assert_array_equal(found.multipliers, [[0.0, 0.25], [0.0, 1.0]])


def contradictory(seed: int) -> MarginProblem:
    """Of three problems the second cannot be satisfied."""
    a, z, owner = sphere_rows(3, 3, 3, 4, seed)
    a[1, 1] = -a[1, 0]
    return MarginProblem(a, z, owner)


@pytest.mark.parametrize("library", [True, False])
def test_statuses_with_and_without_the_library(library: bool, request: pytest.FixtureRequest) -> None:
    if not library:
        request.getfixturevalue("without_library")
    solution = solve_batch(contradictory(5))
    assert [str(status) for status in solution.status] == ["optimal", "infeasible", "optimal"]
    for i in (0, 2):
        assert_optimal(solution.problem[i], solution.W[i], solution.multipliers[i], "frobenius", 1e-12)
    assert [str(solve(solution.problem[i]).status) for i in range(3)] == ["optimal", "infeasible", "optimal"]


@pytest.mark.parametrize("case", ["attention", "mixed", "steep"])
def test_solutions_do_not_depend_on_the_library(case: str, request: pytest.FixtureRequest) -> None:
    if case == "attention":
        batch = MarginProblem(*sphere_rows(6, 6, 8, 10, seed=6))
    elif case == "mixed":
        batch = mixed_batch(6)
    else:  # two nearly cancelling rows: multipliers of 1e4 are refined
        a = np.array([[[1.0, 1e-2], [-1.0, 1e-2]], [[1.0, 0.5], [-1.0, 0.5]]])
        batch = MarginProblem(a, np.ones((2, 1, 1)), [0, 0])
    ours, alone = solve_batch(batch), [solve(batch[i]) for i in range(len(batch))]
    request.getfixturevalue("without_library")
    theirs = solve_batch(batch)
    assert (ours.status == theirs.status).all()
    assert (ours.status == "optimal").all()
    size = np.abs(theirs.W).max(axis=(-2, -1), keepdims=True)
    np.testing.assert_allclose(ours.W / size, theirs.W / size, rtol=0.0, atol=ROUNDING)
    np.testing.assert_allclose(ours.multipliers, theirs.multipliers, rtol=0.0, atol=1e-10)
    for i, one in enumerate(alone):
        np.testing.assert_allclose(one.W / size[i], theirs.W[i] / size[i], rtol=0.0, atol=ROUNDING)


def test_one_problem_without_the_library(without_library: None) -> None:
    problem = random_rows(np.random.default_rng(8), 5, 6, 8, equalities=2)
    solution = solve(problem)
    assert str(solution.status) == "optimal"
    assert_optimal(problem, solution.W, solution.multipliers, "frobenius", 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_ragged_attention_batches_agree_with_their_problems(seed: int) -> None:
    rng = np.random.default_rng(seed)
    plain = attsvm.random_problem(n=4, T=6, d=8, batch=5, seed=seed)
    mask = rng.random((5, 4, 6)) < 0.7
    mask[..., :2] = True
    batch = attsvm.AttentionProblem(plain.X, plain.Y, plain.Z, plain.head, mask)
    together = attsvm.att_svm(batch)
    for i, one in enumerate(batch):
        alone = attsvm.att_svm(one)
        np.testing.assert_allclose(together.W[i], alone.W, rtol=0.0, atol=ROUNDING * np.abs(alone.W).max())
        assert_optimal(alone.rows.margin_problem, together.W[i], alone.result.multipliers, "frobenius", 1e-12)


# -- soft margins -----------------------------------------------------------------------------------------------


def soft_rows(seed: int, size: int, m: int = 18, q: int = 5, d: int = 6) -> MarginProblem:
    """A batch of inequality rows of norms around 0.3 to 3, right-hand sides of both signs, some rows void."""
    rng = np.random.default_rng(seed)
    a = rng.standard_normal((size, m, d)) * 10.0 ** rng.uniform(-0.5, 0.5, (size, m, 1))
    valid = rng.random((size, m)) < 0.9
    valid[:, 0] = True
    owner = rng.permuted(np.tile(np.arange(m) % q, (size, 1)), axis=1)
    return MarginProblem(a, rng.standard_normal((size, q, d)), owner, rng.uniform(-0.5, 2.0, (size, m)), valid=valid)


def assert_soft_optimal(problem: MarginProblem, penalty: Penalty, x: Array, W: Array) -> None:
    """W = F'x with admissible x, and with the slacks xi that x implies: every row holds, complementary, dense sums."""
    rows = problem.features()
    short = problem.rhs - rows @ W.ravel()
    scale = ROUNDING * (1.0 + np.linalg.norm(rows, axis=1) * np.linalg.norm(W)) * 10.0
    group = problem.owner if penalty.slack == "query" else np.arange(problem.m)
    assert (x >= 0.0).all() and (np.abs(rows.T @ x - W.ravel()) <= 10.0 * ROUNDING * (1.0 + np.linalg.norm(W))).all()
    for j in np.unique(group):
        mine = group == j
        load, slack = float(x[mine].sum()), max(0.0, float(short[mine].max()))
        if penalty.loss == "hinge":
            assert load <= penalty.C * (1.0 + ROUNDING)
            assert slack <= scale[mine].max() or load >= penalty.C * (1.0 - 1e-10)
        else:
            assert abs(slack - 0.5 * load / penalty.C) <= scale[mine].max()
        assert (np.abs(short[mine] - slack)[x[mine] > 0] <= scale[mine][x[mine] > 0]).all()


@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
@pytest.mark.parametrize("C", [1e-2, 0.3, 10.0, 1e3])
def test_soft_margins_meet_the_optimality_conditions(slack: SlackKind, loss: LossKind, C: float) -> None:
    problem, penalty = soft_rows(3, 12), Penalty(C, slack, loss)
    lam, W, settled, _ = pivot_soft_batch(problem.pairs(), problem.rhs, penalty)
    assert settled.all()
    for i in range(len(problem)):
        assert problem.valid is not None
        assert_soft_optimal(problem[i], penalty, lam[i][problem.valid[i]], W[i])
        assert not lam[i][~problem.valid[i]].any()


def test_one_soft_problem_is_a_batch_of_one() -> None:
    batch, penalty = soft_rows(4, 3), Penalty(0.5)
    many = pivot_soft_batch(batch.pairs(), batch.rhs, penalty)
    for i in range(3):
        one = pivot_soft(batch.pairs()[i], batch.rhs[i], penalty)
        assert np.array_equal(one[0], many[0][i]) and np.array_equal(one[1], many[1][i]) and one[3] == many[3][i]


@pytest.mark.parametrize("slack", ["query", "row"])
@pytest.mark.parametrize("loss", ["hinge", "squared_hinge"])
def test_views_of_one_set_of_rows_give_what_copies_do(slack: SlackKind, loss: LossKind) -> None:
    one, C = soft_rows(5, 1)[0], np.geomspace(1e-3, 1e3, 25)
    penalty, pair = PenaltyBatch(C, slack, loss), one.pairs()
    views = [np.broadcast_to(x, (len(C), *x.shape)) for x in (pair.a, pair.queries, one.rhs)]
    again = pivot_soft_batch(PairRows.trusted(views[0], views[1], pair.owner), views[2], penalty)
    copies = pivot_soft_batch(PairRows.trusted(views[0].copy(), views[1].copy(), pair.owner), views[2].copy(), penalty)
    assert again[2].all() and copies[2].all()
    assert np.allclose(again[1], copies[1], rtol=0.0, atol=1e-11)  # two orders of the same sums
    for i in range(len(C)):
        single = penalty.of_problem(i)
        assert_soft_optimal(one, single, again[0][i], again[1][i])


def test_soft_rows_that_are_dependent_stay_unsettled_and_the_ladder_goes_on() -> None:
    rng = np.random.default_rng(6)
    a = np.repeat(rng.standard_normal((3, 4)), 2, axis=0)  # every row twice
    problem = MarginProblem(a, np.eye(4)[:3], np.repeat(np.arange(3), 2)).soft(100.0)
    assert not pivot_soft(problem.pairs(), None, Penalty(100.0))[2]
    assert solve(problem).status == "optimal"


def test_soft_equalities_and_zero_rows_are_left_to_the_next_rung() -> None:
    a = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    zero = MarginProblem(a, [[1.0, 2.0]], [0, 0, 0]).soft(1.0)
    equal = MarginProblem(a[:2], [[1.0, 2.0]], [0, 0], equality=[True, False]).soft(1.0)
    for problem in (zero, equal):
        found = solve(problem, solver="active_set")
        assert found.status == "optimal" and found.solver != "active_set"
    both = MarginProblem.stack([zero.soft(None), MarginProblem(a[:2], [[1.0, 2.0]], [0, 0])]).soft(1.0)
    assert (np.asarray(solve(both, solver="active_set").status) == "optimal").all()
