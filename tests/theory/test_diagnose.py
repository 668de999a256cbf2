import json
import re
from itertools import product

import numpy as np
import pytest

import attsvm
from attsvm import AttentionProblem, ConcaveHead, LinearHead, Loss, ReluHead
from attsvm.enumeration import count_selections, locally_optimal_selections, solve_every_selection
from attsvm.reports.verdicts import diagnosis_verdict
from attsvm.selection_rows import selection_rows
from attsvm.theory import Diagnosis, diagnose
from attsvm.theory.assumptions import check_head, check_loss, gradient_at_zero
from attsvm.theory.support_assumptions import (
    check_all_support,
    check_optimal_support,
    every_token_supports_bound,
    interpolating_multipliers,
    misses_optimal_support,
)

CUBIC = Loss("cubic", lambda u: -(u**3), lambda u: -3 * u**2, lambda u: -6 * u)


def infeasible_problem():
    """Theorem 3 under B.2 needs feasibility: two sequences ask one number to be both >= 1 and <= -1."""
    return AttentionProblem([[[1.0], [0.0]]] * 2, [1, 1], [[1.0], [-1.0]], LinearHead([1.0]))


def tied_problem():
    """Theorem 4 needs unique optimal tokens: C holds, yet descent leaves the SVM direction of the first of two."""
    X = [[[2.0, 1.0], [0.0, 1.0], [0.0, 0.0]]]
    return AttentionProblem(X, [1], [[1.0, 0.0]], LinearHead([0.0, 1.0]))


def empty_support_problem():
    """Lemma 5 fails: token 0 of sequence 1 has margin 3, and its only competitor scores more."""
    return AttentionProblem([[[1.0], [0.0]], [[3.0], [0.0]]], [1, -1], [[1.0], [1.0]], LinearHead([1.0]))


def wide_problem(seed=0):
    return attsvm.random_problem(n=2, T=3, d=40, seed=seed)


# -- Assumption A ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["logistic", "exponential", "correlation"])
def test_A_holds_for_the_three_losses_with_their_constants(name):
    problem = wide_problem()
    check = diagnose(problem, loss=name)["A"]
    assert check.verdict == "holds"
    assert (check.values["M0"], check.values["M1"]) == tuple(problem.loss_constants(name))
    u = np.linspace(*check.values["interval"], 1001)
    slopes = attsvm.get_loss(name).derivative(u)
    assert slopes.max() <= check.values["largest slope"] < 0


@pytest.mark.parametrize(("low", "high"), [(-1.0, 1.0), (-0.3, 2.1), (0.0, 1.0)])
def test_A_fails_for_a_decreasing_loss_that_is_flat_somewhere(low, high):
    check = check_loss(CUBIC, low, high)
    assert check.verdict == "fails"
    assert check.values["at"] == pytest.approx(0.0, abs=1e-6)  # the flat point; its slope is quadratic in it
    assert "l' < 0" in check.detail


def test_A_of_custom_losses_on_an_interval():
    assert check_loss(CUBIC, 0.5, 2.0).verdict == "holds"  # flat at 0 only
    steep = Loss("steep", lambda u: np.exp(-20 * u), lambda u: -20 * np.exp(-20 * u), lambda u: 400 * np.exp(-20 * u))
    assert check_loss(steep, -2.0, 2.0).verdict == "holds"  # slopes over 35 orders of magnitude, all negative
    rising = Loss("rising", lambda u: (u - 1) ** 2, lambda u: 2 * (u - 1), lambda u: 2 + 0 * u)
    assert check_loss(rising, 0.0, 2.0).verdict == "fails"
    assert check_loss(rising, 0.0, 0.9).verdict == "holds"
    wrong = Loss("wrong", lambda u: -u, lambda u: -2.0 + 0 * u, lambda u: 0 * u)
    assert "not that of its values" in check_loss(wrong, 0.0, 1.0).detail
    pole = Loss("pole", lambda u: np.where(u == 0, np.nan, -u), lambda u: -1.0 + 0 * u, lambda u: 0 * u)
    assert "not finite" in check_loss(pole, -1.0, 1.0).detail


def test_without_A_nothing_is_predicted():
    # l = -u^3 on scores 1 and -1: grad L(0) = 0 although Att-SVM is feasible and B.1 and B.2 hold.
    problem = AttentionProblem([[[1.0], [-1.0]]], [1], [[1.0]], LinearHead([1.0]))
    diagnosis = diagnose(problem, loss=CUBIC)
    assert diagnosis.applies == ()
    assert {diagnosis[name].verdict for name in ("B.1", "B.2", "feasible")} == {"holds"}
    assert diagnosis["C"].values["gradient"] == 0.0
    assert diagnosis.prediction["W"].startswith("Nothing")
    assert "Theorem 3" in diagnose(problem).applies


# -- scores and feasibility -------------------------------------------------------------------------


def test_ties_are_reported_and_block_the_global_theorems():
    diagnosis = diagnose(tied_problem())
    assert diagnosis["unique optimal tokens"].verdict == "fails"
    assert diagnosis["unique optimal tokens"].values["ties"] == {"[0]": [0, 1]}
    # iota is 0.15 for the logistic loss: C says nothing about ties.
    assert diagnosis["C"].verdict == "holds"
    assert diagnosis["C"].values["iota"] == pytest.approx(0.15, abs=0.01)
    assert not {"Theorem 2", "Theorem 3", "Theorem 4", "Conjecture 5.2"} & set(diagnosis.applies)
    assert "tied" in diagnosis.prediction["W"]


def test_ties_up_to_rounding_count_as_ties():
    X = np.array([[[0.1 + 0.2, 0.0], [0.3, 1.0], [0.0, 0.5]]])
    problem = AttentionProblem(X, [1], [[1.0, 0.0]], LinearHead([1.0, 0.0]))
    assert diagnose(problem)["unique optimal tokens"].verdict == "fails"


def test_infeasible_selection_has_a_proof_and_blocks_theorem_3():
    diagnosis = diagnose(infeasible_problem())
    assert diagnosis["B.2"].verdict == "holds"
    assert diagnosis["feasible"].verdict == "fails"
    assert diagnosis["feasible"].values["conflict"] == [[0], [1]]
    assert diagnosis["B.1"].verdict == "fails"
    assert diagnosis["Theorem 1 size"].verdict == "fails"
    assert diagnosis["support sets"].verdict == "not applicable"
    assert "Theorem 3" not in diagnosis.applies
    assert "infeasible" in diagnosis.prediction["W"]


def test_duplicates_of_a_selected_token_are_infeasible_not_an_error():
    X = np.array([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    problem = AttentionProblem(X, [1], [[1.0, 1.0]], LinearHead([1.0, 0.0]))
    diagnosis = diagnose(problem)
    assert diagnosis["feasible"].verdict == "fails"
    assert "duplicate" in diagnosis["feasible"].detail
    assert diagnosis["D"].values["infeasible"] == 2


def test_size_guarantee_counts_queries_and_allowed_tokens():
    assert diagnose(attsvm.random_problem(n=3, T=4, d=3))["Theorem 1 size"].verdict == "holds"
    assert diagnose(attsvm.random_problem(n=3, T=5, d=3))["Theorem 1 size"].verdict == "fails"
    assert diagnose(attsvm.random_problem(n=4, T=4, d=3))["Theorem 1 size"].verdict == "fails"
    causal = attsvm.random_problem(n=1, T=4, d=3, kind="sequence", causal=True)
    assert diagnose(causal)["Theorem 1 size"].verdict == "holds"  # the first query sees one token, so three count


# -- Assumption B -----------------------------------------------------------------------------------


def test_exact_B1_agrees_with_the_solved_margins_on_random_problems():
    found = []
    for seed in range(60):
        problem = attsvm.random_problem(n=3, T=3, d=(4, 8, 20)[seed % 3], seed=seed)
        solution = attsvm.att_svm(problem)
        exact, proxy = check_all_support(solution)
        margins = solution.rows.margin_problem.margins(solution.W)
        # Certified margins are exact to about 1e-8; a token that does not support is 1e-4 away on random data.
        assert bool(exact) == bool((np.abs(margins - 1) <= 1e-5).all()), seed
        assert bool(proxy) == (margins.mean() < 1.1), seed
        assert not (exact and not proxy)
        found.append(bool(exact))
    assert 10 <= sum(found) <= 50  # both cases occur often


def test_B1_with_a_singular_gram_matrix():
    # The third token is the middle of the segment to the second one's mirror image: four rows, three dimensions.
    e = np.eye(2)
    X = np.array([[[0.0, 0.0], -e[0], -e[1], [-0.5, -0.5]]])
    dependent = AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0]))
    multipliers, residual = interpolating_multipliers(selection_rows(dependent, [0]))
    assert residual <= 1e-12  # W = (1, 1) gives every token margin 1
    assert multipliers.min() >= 0
    assert diagnose(dependent)["B.1"].verdict == "holds"
    X[0, 3] = [-2.0, -2.0]  # margin 4 at the same W: dependent rows that no interpolation satisfies
    assert diagnose(AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0])))["B.1"].verdict == "fails"


@pytest.mark.parametrize("excess", [1.8e-6, 1e-9, 2.0**-52])
def test_B1_fails_for_margins_just_beyond_1(excess):
    # Rows (1, 0) and (1 + e, 0): W = (1, 0), margins 1 and 1 + e.
    X = np.array([[[0.0, 0.0], [-1.0, 0.0], [-(1.0 + excess), 0.0]]])
    check = diagnose(AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0])))["B.1"]
    assert check.verdict == "fails"
    assert check.values["support"] == 1
    X[0, 2, 0] = -1.0  # the same row twice: both on the margin, although each alone can be spared
    check = diagnose(AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0])))["B.1"]
    assert check.verdict == "holds"
    assert "exact arithmetic" in check.detail


def test_B1_is_unknown_where_nothing_settles_it(monkeypatch):
    from attsvm.theory import support_assumptions

    monkeypatch.setattr(support_assumptions, "solve_exactly", lambda *arguments: None)
    X = np.array([[[0.0, 0.0], [-1.0, 0.0], [-(1.0 + 1e-9), 0.0]]])
    check = diagnose(AttentionProblem(X, [1], [[1.0]], LinearHead([1.0, 1.0])))["B.1"]
    assert check.verdict == "unknown"
    assert "of the margin (undecided)" in check.detail


def test_B1_does_not_depend_on_the_scale_of_tokens():
    base = wide_problem()
    for factor in (1e-5, 1e5):
        scaled = AttentionProblem(base.X * factor, base.Y, base.Z, base.head)
        assert diagnose(scaled)["B.1"].verdict == "holds"


def test_B2_planted():
    X = np.random.default_rng(0).standard_normal((3, 4, 6))
    X[:, :, 0] = [2.0, 1.0, 1.0, 1.0]
    equal = AttentionProblem(X, [1, 1, 1], np.eye(3, 6), LinearHead(np.eye(6)[0]))
    diagnosis = diagnose(equal)
    assert diagnosis["B.2"].verdict == "holds"
    assert "Theorem 3" in diagnosis.applies
    flat = diagnose(AttentionProblem(X, [1, 1, 1], np.eye(3, 6), LinearHead(np.zeros(6))))
    assert flat["B.2"].verdict == "fails"  # all scores are equal: no token leads
    X[2, 3, 0] = 0.5
    assert diagnose(AttentionProblem(X, [1, 1, 1], np.eye(3, 6), LinearHead(np.eye(6)[0])))["B.2"].verdict == "fails"


# -- Assumption C -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["linear", "concave", "relu", "queries", "causal"])
@pytest.mark.parametrize("loss", ["logistic", "exponential"])
def test_C_is_what_the_first_step_of_training_does(kind, loss):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=2)
    if kind == "concave":
        problem = AttentionProblem(problem.X, problem.Y, problem.Z, ConcaveHead(problem.head.v, lam=0.3))
    elif kind == "relu":
        V = np.random.default_rng(0).standard_normal((5, 4))
        problem = AttentionProblem(problem.X, problem.Y, problem.Z, ReluHead(V))
    elif kind == "queries":
        problem = attsvm.random_problem(n=2, T=4, d=5, queries=2, seed=2)
    elif kind == "causal":
        problem = attsvm.random_problem(n=2, T=3, d=5, kind="sequence", causal=True, seed=2)
    gradient = gradient_at_zero(problem, attsvm.get_loss(loss))
    run = attsvm.train(problem, steps=1, init="zero", loss=loss, optimizer="gd", lr=1.0)
    np.testing.assert_allclose(run.W, -gradient, rtol=0, atol=1e-14 * max(1.0, np.abs(gradient).max()))
    check = diagnose(problem, loss=loss)["C"]
    margins = selection_rows(problem).margin_problem.margins(run.W)
    assert check.values["iota"] == pytest.approx(margins.min(), rel=1e-9)
    assert bool(check) == bool(margins.min() > 0)


def test_C_holds_for_most_wide_problems_and_fails_for_most_narrow_ones():
    wide = [diagnose(attsvm.random_problem(n=3, T=3, d=60, seed=s))["C"].verdict for s in range(8)]
    narrow = [diagnose(attsvm.random_problem(n=4, T=4, d=3, seed=s))["C"].verdict for s in range(8)]
    assert wide.count("holds") >= 6
    assert narrow.count("fails") >= 5


# -- Assumption D -----------------------------------------------------------------------------------


def brute_force_D(problem, norm="frobenius"):
    """Definition by definition, one solve per selection."""
    best = problem.optimal_tokens().indices
    local = []
    holds = True
    for alpha in product(range(problem.T), repeat=problem.n):
        solution = attsvm.att_svm(problem, list(alpha), norm=norm)
        if not solution.status.has_solution:
            continue
        if attsvm.is_locally_optimal(problem, list(alpha), norm=norm, solution=solution):
            local.append(alpha)
        missed = [i for i in range(problem.n) if alpha[i] != best[i]]
        if missed and not any(solution.support[i, best[i]] for i in missed):
            holds = False
    return holds, local


@pytest.mark.parametrize(("norm", "sizes"), [("frobenius", (2, 4, 12)), ("nuclear", (4, 12))])
def test_D_and_the_locally_optimal_selections_equal_brute_force(norm, sizes):
    verdicts = []
    for d in sizes:
        for seed in range(4):
            problem = attsvm.random_problem(n=2, T=3, d=d, seed=seed)
            check = diagnose(problem, norm=norm)["D"]
            holds, local = brute_force_D(problem, norm)
            assert bool(check) == holds
            table = solve_every_selection(problem, norm=norm)
            assert [tuple(a) for a in table.indices[table.locally_optimal]] == local
            assert check.values["locally optimal"] == len(local)
            if check:
                assert len(local) == 1
            verdicts.append(check.verdict)
    assert set(verdicts) == {"holds", "fails"}


def test_the_list_of_local_optima_is_that_of_the_enumeration():
    for seed, d in ((0, 3), (1, 5), (2, 9)):
        problem = attsvm.random_problem(n=4, T=4, d=d, seed=seed)
        table = solve_every_selection(problem)
        listed = {item.tokens for item in locally_optimal_selections(problem)}
        assert {tuple(a) for a in table.indices[table.locally_optimal].tolist()} == listed


def test_D_beyond_the_limit_is_proved_refuted_or_unknown():
    wide = attsvm.random_problem(n=4, T=4, d=200, seed=0)
    proved = diagnose(wide, exact_limit=10)["D"]
    assert proved.verdict == "holds"
    assert proved.values["bound"] <= 1
    assert diagnose(wide)["D"].verdict == "holds"  # the same, exactly
    narrow = attsvm.random_problem(n=4, T=4, d=4, seed=0)
    refuted = diagnose(narrow, exact_limit=10)["D"]
    assert refuted.verdict == "fails"
    table = solve_every_selection(narrow)
    wrong = table.indices[misses_optimal_support(table, narrow.optimal_tokens())]
    assert refuted.values["example"] in wrong.tolist()
    middle = attsvm.random_problem(n=4, T=4, d=40, seed=2)
    assert diagnose(middle, exact_limit=10)["D"].verdict == "unknown"
    assert diagnose(middle)["D"].verdict == "holds"


def test_the_sufficient_condition_is_sound():
    proved = 0
    for seed in range(12):
        problem = attsvm.random_problem(n=3, T=3, d=(20, 40, 80)[seed % 3], seed=seed)
        if every_token_supports_bound(problem) <= 1:
            proved += 1
            table = solve_every_selection(problem)
            others = np.arange(3) != table.indices[..., None]
            assert (table.support == others).all()
    assert proved >= 4
    assert every_token_supports_bound(attsvm.random_problem(n=2, T=5, d=3)) == np.inf  # dependent differences


def test_D_is_a_verdict_about_feasible_selections():
    problem = infeasible_problem()
    check = check_optimal_support(problem, problem.optimal_tokens())
    # (0, 0) and (1, 1) conflict; (0, 1) and (1, 0) are feasible and the missed optimal token is the only other one.
    assert check.values["infeasible"] == 2
    assert check.verdict == "holds"
    assert "No selection is locally optimal" in diagnose(problem).prediction["W"]
    base = attsvm.random_problem(n=2, T=3, d=4)
    zero = AttentionProblem(base.X, base.Y, base.Z * [[0.0], [1.0]], base.head)  # a query of 0 selects nothing
    assert diagnose(zero)["D"].verdict == "not applicable"


# -- Assumption E -----------------------------------------------------------------------------------


def sampled_violation(problem, alpha, seed=0, samples=4000):
    """Largest ``Y h(mixture) - gamma_alpha`` over random mixtures of the selected and lower-score tokens."""
    rng = np.random.default_rng(seed)
    low = attsvm.low_score_tokens(problem, alpha)
    worst = -np.inf
    for i in range(problem.n):
        tokens = [alpha.indices[i], *np.flatnonzero(low[i])]
        weights = rng.dirichlet(np.ones(len(tokens)), samples) * rng.uniform(0, 1, (samples, 1)) ** 3
        weights[:, 0] += 1 - weights.sum(axis=1)
        values = problem.Y[i] * problem.head(weights @ problem.X[i, tokens])
        worst = max(worst, float((values - problem.scores()[i, alpha.indices[i]]).max()))
    return worst


def test_E_holds_for_linear_heads_and_convex_scores():
    linear = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    check = diagnose(linear)["E"]
    scores = np.sort(linear.scores(), axis=1)
    assert check.values["c"] == pytest.approx((scores[:, -1] - scores[:, -2]).min())
    V = np.random.default_rng(0).standard_normal((5, 6))
    assert diagnose(AttentionProblem(linear.X, [1, 1, 1], linear.Z, ReluHead(V)))["E"].verdict == "holds"
    minus = AttentionProblem(linear.X, [-1, -1, -1], linear.Z, ConcaveHead(linear.head.v, lam=2.0))
    assert diagnose(minus)["E"].verdict == "holds"


@pytest.mark.parametrize("kind", ["concave", "relu"])
def test_E_of_concave_scores_is_decided_exactly(kind):
    verdicts = []
    for seed in range(12):
        base = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
        rng = np.random.default_rng(seed)
        if kind == "concave":
            problem = AttentionProblem(base.X, [1, 1, 1], base.Z, ConcaveHead(base.head.v, lam=(0.05, 0.5)[seed % 2]))
        else:
            # Far out in the positive quadrant every unit stays active, so that the head is linear on the tokens.
            V = np.abs(rng.standard_normal((4, 5))) if seed % 2 else rng.standard_normal((4, 5))
            problem = AttentionProblem(base.X + 3.0 * (seed % 2), [-1, -1, -1], base.Z, ReluHead(V))
        alpha = problem.optimal_tokens()
        check = check_head(problem, alpha)
        excess = sampled_violation(problem, alpha, seed)
        if check:
            assert excess <= 1e-12  # rounding of scores of size 1
        elif check.values["gain"] > 0:
            i, t = check.values["query"][0], check.values["token"]
            x = problem.X[i, alpha.indices[i]]
            mixed = x + check.values["weight"] * (problem.X[i, t] - x)
            gain = problem.Y[i] * (problem.head(mixed) - problem.head(x))
            assert gain == pytest.approx(check.values["gain"], rel=1e-6, abs=1e-14)  # rounding of the scores
            assert gain > 0
        else:
            assert abs(check.values["c"]) <= 1e-12  # flat to first order
        verdicts.append(check.verdict)
    assert set(verdicts) == {"holds", "fails"}


def test_E_of_any_callable_is_sampled():
    base = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    curved = AttentionProblem(base.X, [1, 1], base.Z, lambda x: np.asarray(x)[..., 0] - 5 * np.square(x).sum(-1))
    check = diagnose(curved)["E"]
    assert check.verdict == "fails"
    assert sum(check.values["mixture"].values()) == pytest.approx(1.0)
    bowl = AttentionProblem(base.X, [1, 1], base.Z, lambda x: np.square(x - 0.3).sum(-1))
    diagnosis = diagnose(bowl)
    assert diagnosis["E"].verdict == "unknown"
    assert diagnosis["Theorem 7"].verdict == "unknown"
    assert diagnosis["Theorem 3"].verdict == "does not apply"
    assert diagnose(bowl).to_dict() == diagnosis.to_dict()  # the same seed, the same mixtures


def test_E_at_a_kink_is_sampled():
    # V^T x = 0 at the selected token, whose score 0 is the best of the negative ones.
    X = [[[0.0, 0.0], [1.0, 0.0], [0.5, 1.0]]]
    problem = AttentionProblem(X, [-1], [[1.0, 0.0]], ReluHead(np.eye(2)))
    check = check_head(problem, problem.optimal_tokens())
    assert check.verdict == "unknown"
    assert check.values["c"] >= 1.0 - 1e-9  # every mixture costs at least its share of token 1


# -- local statements ---------------------------------------------------------------------------------


def test_empty_support_set_blocks_theorem_7():
    problem = empty_support_problem()
    diagnosis = diagnose(problem, [0, 0])
    assert diagnosis["locally optimal"].verdict == "holds"
    assert diagnosis["support sets"].verdict == "fails"
    assert "Theorem 5" in diagnosis.applies
    assert "Theorem 7" not in diagnosis.applies
    assert "empty" in diagnosis.prediction["W"]
    assert attsvm.separating_cone(problem, [0, 0]).value(attsvm.att_svm(problem, [0, 0]).W) == -np.inf
    assert diagnose(problem, [0, 1])["support sets"].verdict == "not applicable"  # infeasible: W >= 1 and W <= -1/3


def test_theorem_7_hypotheses_put_the_solution_into_its_cone():
    for seed in range(4):
        problem = attsvm.random_problem(n=2, T=4, d=3, seed=seed)
        for alpha in product(range(4), repeat=2):
            diagnosis = diagnose(problem, list(alpha), exact_limit=0)
            if "Theorem 7" in diagnosis.applies:
                W = attsvm.att_svm(problem, list(alpha)).W
                assert attsvm.separating_cone(problem, list(alpha)).value(W) > 0


def test_a_selection_that_is_not_locally_optimal_is_named():
    problem = attsvm.random_problem(n=3, T=4, d=20, seed=0)
    worst = problem.scores().argmin(axis=1)
    diagnosis = diagnose(problem, worst)
    assert diagnosis["locally optimal"].verdict == "fails"
    assert diagnosis["selection feasible"].verdict == "holds"
    assert "not predicted to keep" in diagnosis.prediction["W"]
    assert "Theorem 5" not in diagnosis.applies


# -- the whole ----------------------------------------------------------------------------------------


def test_a_wide_problem_satisfies_everything_and_gd_does_as_predicted():
    problem = wide_problem()
    diagnosis = diagnose(problem)
    assert diagnosis.applies == ("Theorem 2", "Theorem 3", "Theorem 4", "Theorem 5", "Theorem 7", "Conjecture 5.2")
    assert "Conjecture 5.2" in diagnosis.prediction["W"]
    assert f"{attsvm.att_svm(problem).margin:.4g}" in diagnosis.prediction["W"]
    report = attsvm.compare(attsvm.train(problem, steps=1000))
    assert report.convergence == "Global"


def test_nuclear_supports_leave_statements_about_W_aside():
    diagnosis = diagnose(wide_problem(), norm="nuclear")
    assert diagnosis["Theorem 5"].verdict == "does not apply"
    assert diagnosis["Conjecture 5.2"].verdict == "does not apply"
    assert diagnosis["selection feasible"].values["norm"] >= diagnosis["feasible"].values["norm"]


@pytest.mark.parametrize("kind", ["queries", "causal", "ragged"])
def test_queries_and_masks(kind):
    if kind == "queries":
        problem = attsvm.random_problem(n=2, T=3, d=8, queries=2, seed=0)
    elif kind == "causal":
        problem = attsvm.random_problem(n=1, T=4, d=8, kind="sequence", causal=True, seed=0)
    else:
        rng = np.random.default_rng(0)
        tokens = [rng.standard_normal((t, 5)) for t in (4, 1, 3)]
        problem = AttentionProblem.from_ragged(tokens, rng.standard_normal((3, 5)), [1, -1, 1], LinearHead(np.ones(5)))
    diagnosis = diagnose(problem)
    expected = {"queries": 81, "causal": 24, "ragged": 12}[kind]
    assert diagnosis["D"].values["selections"] == count_selections(problem) == expected
    assert diagnosis["feasible"].verdict == "holds"
    for name in ("B.2", "C", "E", "locally optimal", "support sets"):
        assert diagnosis[name].verdict in ("holds", "fails")
    # K queries enter the loss like K sequences with the same tokens.
    flat = AttentionProblem(
        np.repeat(problem.X, problem.K, axis=0), problem.Y.reshape(-1), problem.Z.reshape(-1, problem.dz),
        problem.head, problem.allowed.reshape(-1, problem.T),
    )  # fmt: skip
    same = diagnose(flat)
    assert same.applies == diagnosis.applies
    assert same["C"].values["mu"] == pytest.approx(diagnosis["C"].values["mu"], rel=1e-9)
    assert "K=" in str(diagnosis) or not problem.multi_query


def test_print_and_json():
    diagnosis = diagnose(attsvm.random_problem(n=3, T=4, d=5, seed=0), [0, 0, 0])
    text = str(diagnosis)
    for check in (*diagnosis.checks, *diagnosis.theorems):
        assert check.name in text
    assert "does not apply" in text
    assert max(map(len, text.splitlines())) <= 120
    data = json.loads(json.dumps(diagnosis.to_dict(), allow_nan=False))
    assert data["selection"] == [0, 0, 0]
    assert {check["verdict"] for check in data["checks"]} <= {"holds", "fails", "unknown", "not applicable"}
    assert isinstance(diagnosis, Diagnosis)
    with pytest.raises(KeyError, match="no check is named 'Z'"):
        diagnosis["Z"]


def relu_problem():
    base = attsvm.random_problem(n=4, T=5, d=4, seed=0)
    return AttentionProblem(base.X, base.Y, base.Z, attsvm.ReluHead(np.random.default_rng(0).standard_normal((4, 4))))


def test_without_a_theorem_nothing_is_predicted_in_any_sentence():
    diagnosis = diagnose(relu_problem())
    assert diagnosis.applies == ()
    assert diagnosis_verdict(diagnosis) == "No theorem applies to these data, so nothing is predicted."
    for text in diagnosis.prediction.values():
        assert text.startswith("Nothing is predicted")
        assert "start decides" not in text and "converges to it" not in text
    assert diagnosis["D"].values["locally optimal"] == 5
    assert "no theorem says that W converges to one of them" in diagnosis.prediction["W"]


def test_theorems_apply_or_do_not_wherever_they_are_shown():
    """A theorem does not fail: its hypotheses do. Tables, notebooks, JSON and attributes use the same words."""
    diagnosis = diagnose(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    assert diagnosis["Theorem 3"].verdict == "does not apply" and not diagnosis["Theorem 3"]
    assert diagnosis["Theorem 5"].verdict == "applies" and diagnosis["Theorem 5"]
    said = {check["name"]: check["verdict"] for check in diagnosis.to_dict()["theorems"]}
    notebook = dict(re.findall(r'<th scope="row">([^<]*)</th><td>([^:<]*)', diagnosis._repr_html_()))
    printed = dict(re.findall(r"│ (Theorem \d|Conjecture 5.2) +│ ([a-z ]*?) +│", str(diagnosis)))
    assert {name: notebook[name] for name in said} == printed == said
    assert set(said.values()) == {"applies", "does not apply"}
    assert "Theorem 3 does not apply" in diagnosis.prediction["W"]


def test_the_first_sentence_agrees_with_the_rest_where_only_other_selections_attract():
    """The optimal tokens are infeasible and the selection is not locally optimal, but six others are."""
    diagnosis = diagnose(attsvm.random_problem(n=4, T=3, d=2, seed=2), [0, 0, 0, 0])
    assert diagnosis.applies == () and diagnosis["D"].values["locally optimal"] == 6
    said = "No theorem applies to this selection; Theorem 5 applies near the 6 that are locally optimal."
    assert diagnosis_verdict(diagnosis) == diagnosis_verdict(diagnosis.to_dict()) == said
    assert "6; started near one of them, W converges to it (Theorem 5)" in diagnosis.prediction["W"]
    nuclear = diagnose(diagnosis.problem, [0, 0, 0, 0], norm="nuclear")
    assert "(Theorem 5)" not in nuclear.prediction["W"] and "Theorem 5" not in diagnosis_verdict(nuclear)


def test_bad_arguments():
    problem = attsvm.random_problem(n=2, T=3, d=4)
    with pytest.raises(ValueError, match="one problem"):
        diagnose(attsvm.random_problem(n=2, T=3, d=4, batch=2))
    with pytest.raises(ValueError, match="norm must be 'frobenius'"):
        diagnose(problem, norm="l1")
    with pytest.raises(ValueError, match="exact_limit"):
        diagnose(problem, exact_limit=-1)
    with pytest.raises(ValueError, match="loss must be one of"):
        diagnose(problem, loss="hinge")
    with pytest.raises(ValueError, match="prediction head"):
        diagnose(AttentionProblem(problem.X, problem.Y, problem.Z))
    with pytest.raises(ValueError, match="out of range"):
        diagnose(problem, [0, 9])
    with pytest.raises(ValueError, match="more than the limit of 3"):
        solve_every_selection(problem, limit=3)
    with pytest.raises(ValueError, match="one problem at a time"):
        solve_every_selection(attsvm.random_problem(n=2, T=3, d=4, batch=2))


def test_the_bound_of_two_queries_is_the_largest_over_all_pairs_of_tokens():
    problem = attsvm.random_problem(n=2, T=4, d=30, seed=2)
    rows = [[np.stack([x[t] - x[s] for s in range(4) if s != t]) for t in range(4)] for x in problem.X]
    sums, norms = [], []
    for i, j, t, u in product((0, 1), (0, 1), range(4), range(4)):
        if i == j:
            continue
        own, other = rows[i][t], rows[j][u]
        alone, beside = (
            np.linalg.solve(r @ r.T * (z @ z), np.ones(3)) for r, z in ((own, problem.Z[i]), (other, problem.Z[j]))
        )
        coupling = own @ other.T * (problem.Z[i] @ problem.Z[j])
        M = np.linalg.solve(own @ own.T * (problem.Z[i] @ problem.Z[i]), coupling) * beside / alone[:, None]
        sums.append(np.abs(M.sum(axis=1)).max())
        norms.append(np.abs(M).sum(axis=1).max())
    assert every_token_supports_bound(problem) == pytest.approx(max(sums) + max(norms), rel=1e-10)


def test_rows_beyond_the_entries_of_W_need_no_multipliers():
    check = diagnose(attsvm.random_problem(n=8, T=6, d=4, seed=0))["B.1"]  # 40 rows, 16 entries: G is singular
    assert check.verdict == "fails" and "smallest multiplier" not in check.values


def test_selections_that_are_solved_show_progress(capsys):
    diagnose(attsvm.random_problem(n=2, T=3, d=5, seed=0), progress=True)
    assert capsys.readouterr().err.splitlines()[-1].endswith("solving selections: 9 of 9")
