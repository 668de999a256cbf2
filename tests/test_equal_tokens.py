"""Equal tokens are no bad input: a selection that needs to tell them apart is infeasible, and says which they are."""

import re
from dataclasses import replace

import numpy as np
import pytest

import attsvm
from attsvm import InfeasibleError, Status
from attsvm.selection_rows import gen_svm_rows, selection_rows
from kkt import assert_infeasible

NORMS = ["frobenius", "nuclear", "l1"]
SELECT = "X[1] holds the same vector as tokens 2 and 3, so no W can select token 2 over token 3"


@pytest.fixture
def twin():
    """Tokens 2 and 3 of sequence 1 are one vector."""
    problem = attsvm.random_problem(n=2, T=4, d=5, seed=0)
    X = problem.X.copy()
    X[1, 3] = X[1, 2]
    return replace(problem, X=X)


def assert_named(solution, message):
    assert solution.status is Status.INFEASIBLE
    assert solution.margin == 0.0
    with pytest.raises(InfeasibleError, match=re.escape(message)):
        _ = solution.W


@pytest.mark.parametrize("norm", NORMS)
def test_a_selected_token_equal_to_another(twin, norm):
    solution = attsvm.att_svm(twin, [0, 2], norm=norm)
    assert_named(solution, SELECT)
    farkas = solution.certificate.farkas
    assert (farkas.proof, farkas.excluded_norm) == ("zero row", np.inf)
    assert farkas.owners.tolist() == solution.conflicting_queries.tolist() == [1]
    assert solution.rows.token[farkas.rows].tolist() == [3]  # one row: two tokens
    assert_infeasible(selection_rows(twin, [0, 2]).margin_problem, farkas.multipliers)
    assert_named(attsvm.att_svm(twin, [0, 3], norm=norm), "no W can select token 3 over token 2")
    assert attsvm.is_locally_optimal(twin, [0, 2], norm=norm) is False


@pytest.mark.parametrize("norm", NORMS)
def test_harmless_when_another_token_is_selected_or_one_is_hidden(twin, norm):
    # The row of the duplicate just appears twice.
    mask = np.array([[True] * 4, [True, True, True, False]])
    without = attsvm.att_svm(replace(twin, mask=mask), [0, 0], norm=norm)
    assert attsvm.att_svm(twin, [0, 0], norm=norm).norm == pytest.approx(without.norm, rel=1e-6)
    assert attsvm.att_svm(replace(twin, mask=mask), [0, 2], norm=norm).status is Status.OPTIMAL


@pytest.mark.parametrize("norm", NORMS)
def test_sets_of_tokens(twin, norm):
    # Inside one selected set equal tokens are as equal as can be.
    assert attsvm.gen_svm(twin, [[0], [2, 3]], norm=norm).status is Status.OPTIMAL
    for chosen in ([2], [1, 2], [0, 2], [0, 1, 2]):
        solution = attsvm.gen_svm(twin, [[0], chosen], norm=norm)
        assert_named(solution, SELECT)
        assert_infeasible(gen_svm_rows(twin, [[0], chosen]).margin_problem, solution.certificate.farkas.multipliers)


def test_probabilities_of_equal_tokens(twin):
    s = np.array([[0.5, 0.5, 0.0, 0.0], [0.2, 0.3, 0.2, 0.3]])
    for chosen in ([2, 3], [0, 2, 3], [0, 1, 2, 3]):
        solution = attsvm.finite_part(twin, s, [[0, 1], chosen])
        assert_named(
            solution, "X[1] holds the same vector as tokens 2 and 3, so no W can give them different probabilities"
        )
    s[1] = [0.2, 0.2, 0.3, 0.3]
    assert attsvm.finite_part(twin, s, [[0, 1], [0, 2, 3]]).status is Status.OPTIMAL


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_batches_agree_with_their_problems(twin, norm):
    fine = attsvm.random_problem(n=2, T=4, d=5, seed=0)
    stack = {
        name: np.stack([getattr(fine, name), getattr(twin, name), getattr(fine, name)]) for name in ("X", "Y", "Z")
    }
    batch = attsvm.AttentionProblem(**stack, head=fine.head)
    selection = [[0, 2]] * 3
    together = attsvm.att_svm(batch, selection, norm=norm)
    assert together.status.tolist() == ["optimal", "infeasible", "optimal"]
    assert_named(together[1], SELECT)
    assert np.isnan(together.W[1]).all() and np.isinf(together.norm[1]) and together.margin[1] == 0.0
    alone = attsvm.att_svm(fine, [0, 2], norm=norm)
    for i in (0, 2):  # neighbours are not disturbed
        assert together.norm[i] == pytest.approx(alone.norm, rel=1e-8)
    assert attsvm.is_locally_optimal(batch, selection, norm=norm).tolist() == [
        attsvm.is_locally_optimal(batch[i], [0, 2], norm=norm) for i in range(3)
    ]
    members = np.zeros((3, 2, 4), dtype=bool)
    members[:, 0, 0] = members[:, 1, 1] = members[:, 1, 2] = True
    sets = attsvm.gen_svm(batch, members, norm=norm)
    assert sets.status.tolist() == ["optimal", "infeasible", "optimal"]
    assert_named(sets[1], SELECT)


def test_several_queries_and_zero_queries():
    problem = attsvm.random_problem(n=2, T=3, d=6, queries=2, seed=0)
    X = problem.X.copy()
    X[1, 2] = X[1, 0]
    solution = attsvm.satt_svm(replace(problem, X=X), [[0, 1], [0, 1]])
    assert_named(solution, "X[1] holds the same vector as tokens 0 and 2, so no W can select token 0 over token 2")
    Z = problem.Z.copy()
    Z[1, 0] = 0.0
    blind = attsvm.satt_svm(replace(problem, Z=Z), [[0, 1], [0, 1]])
    assert_named(blind, "Z[1, 0] is zero, so all tokens of sequence 1 score the same for every W")
    assert blind.conflicting_queries.tolist() == [2]


def test_nearly_equal_tokens_are_told_apart():
    problem = attsvm.random_problem(n=1, T=3, d=4, seed=0)
    X = problem.X.copy()
    X[0, 2] = X[0, 1] * (1 + 1e-12)
    for norm in ("frobenius", "nuclear"):
        solution = attsvm.att_svm(replace(problem, X=X), [1], norm=norm)
        assert solution.status is not Status.INFEASIBLE
        assert solution.norm > 1e10


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_every_way_to_ask_gives_one_answer(norm):
    """Solve, decide, list, draw, diagnose, and all at once: the same selections are infeasible."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((2, 3, 4))
    X[0, 2] = X[0, 1]
    problem = attsvm.AttentionProblem(X, [1, 1], rng.standard_normal((2, 4)), attsvm.LinearHead(2.0 * X[0, 1]))
    every = list(np.ndindex(3, 3))
    twins = {tokens for tokens in every if tokens[0] in (1, 2)}
    alone = {tokens: attsvm.att_svm(problem, tokens, norm=norm) for tokens in every}
    assert {tokens for tokens, solution in alone.items() if solution.status is Status.INFEASIBLE} == twins
    batch = attsvm.att_svm(problem.repeat(9), every, norm=norm)
    assert {tokens for tokens, status in zip(every, batch.status, strict=True) if status == "infeasible"} == twins
    for tokens in twins:
        with pytest.raises(InfeasibleError, match=re.escape("X[0] holds the same vector as tokens")):
            _ = batch[every.index(tokens)].W
        assert attsvm.is_locally_optimal(problem, tokens, norm=norm) is False
    together = attsvm.is_locally_optimal(problem.repeat(9), every, norm=norm)
    assert {tokens for tokens, local in zip(every, together, strict=True) if local} == {
        tokens for tokens in every if attsvm.is_locally_optimal(problem, tokens, norm=norm)
    }
    listed = attsvm.locally_optimal_selections(problem, norm=norm)
    assert listed.counts.infeasible == len(twins)
    assert not twins & {item.tokens for item in listed}
    graph = attsvm.selection_graph(problem, norm=norm)
    assert {tokens for tokens, node in graph.nodes.items() if not node["feasible"]} == twins
    # The tokens of highest score are the twins: the first of them is selected.
    assert tuple(problem.optimal_tokens().indices) in twins
    diagnosis = attsvm.diagnose(problem)
    assert diagnosis["feasible"].verdict == "fails" and "duplicate" in diagnosis["feasible"].detail
