"""Claims that rounding once got wrong, with exact rationals as the judge."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import attsvm
from attsvm.exact_tokens import exact_selection_rows
from attsvm.solvers import Certificate, MarginProblem, certify, solve
from attsvm.solvers.exact import nuclear_enclosure
from attsvm.solvers.exact.measures import EXACT_ENTRIES, exact_rows_of
from attsvm.solvers.unit import scaled_to_range
from attsvm.validation.fuzz_families import draw_group, stack_cases
from attsvm.validation.fuzz_judge import Judge

# Problems at the edge of float64: an inaccurate answer is one of the outcomes that are judged here.
pytestmark = pytest.mark.filterwarnings("ignore::attsvm.ConvergenceWarning")


def exact_violation(problem, selection, W):
    missed = exact_selection_rows(problem, selection)[0].violation(W)
    return Fraction(int(missed.p), int(missed.q))


def batch_of(problem):
    return attsvm.AttentionProblem(np.stack([problem.X] * 2), None, np.stack([problem.Z] * 2))


# -- infeasible ------------------------------------------------------------------------------------


@pytest.mark.parametrize("S", [1e9, 1e12, 1e15])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "linf"])
def test_a_thin_cone_is_not_called_infeasible(S, norm):
    problem = attsvm.AttentionProblem([[[0.0, 0.0], [-S, 0.0], [S, -1.0]]], None, [[1.0]])
    assert exact_violation(problem, [0], [[1 / S], [2.0]]) < Fraction(1, 10**15)  # 1 / S is rounded, 2 margins of 1
    alone, together = (
        attsvm.att_svm(problem, [0], norm=norm),
        attsvm.att_svm(batch_of(problem), [[0], [0]], norm=norm),
    )
    for solution in (alone, *together):
        assert solution.status != "infeasible" and solution.certificate.farkas is None
        if norm == "frobenius" or (norm == "nuclear" and S < 1e15):
            assert solution.status == "optimal"
            assert exact_violation(problem, [0], solution.W) <= Fraction(solution.result.tolerance)
            assert solution.norm == pytest.approx(2.0, rel=2e-7)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "linf"])
def test_two_nearly_opposite_rows_are_feasible(norm):
    d = 1e-9
    rows = MarginProblem([[1.0, d], [-1.0, d]], [[1.0]], [0, 0])
    batch = solve(MarginProblem.stack([rows, rows]), norm)
    for solution in (solve(rows, norm), batch[0], batch[1]):
        assert solution.status != "infeasible"
        if norm != "linf":
            assert solution.status == "optimal" and solution.norm == pytest.approx(1e9, rel=1e-7)


def test_a_conflict_names_every_row_that_takes_part():
    # The multiplier of the large row is 1e-14 of the other, and the other alone is easy.
    rows = MarginProblem([[1.0], [-1e14]], [[1.0]], [0, 0])
    for solution in (solve(rows), solve(rows, "nuclear"), solve(MarginProblem.stack([rows, rows]))[1]):
        assert solution.status == "infeasible" and solution.certificate.farkas.rows.tolist() == [0, 1]


# -- optimal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [107, 1414])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_optimal_means_that_the_exact_violation_is_within_the_tolerance(seed, norm):
    r = np.random.default_rng(seed)
    X = r.normal(size=(3, 2, 2)) * 10.0 ** r.uniform(-6, 6, (3, 2, 1))
    problem = attsvm.AttentionProblem(X, None, X[:, 0])
    together = attsvm.att_svm(batch_of(problem), np.zeros((2, 3), dtype=int), norm=norm)
    for solution in (attsvm.att_svm(problem, [0, 0, 0], norm=norm), *together):
        assert solution.status.has_solution
        violation = exact_violation(problem, [0, 0, 0], solution.W)
        assert violation <= Fraction(solution.certificate.primal_violation + solution.certificate.primal_error)
        assert (solution.status == "optimal") == (solution.certificate.proved <= solution.result.tolerance)
        assert solution.status != "optimal" or violation <= Fraction(solution.result.tolerance)


def test_float32_tokens_are_subtracted_in_float64():
    rng = np.random.default_rng(3)
    X = (1.0 + 1e-4 * rng.standard_normal((3, 4, 6))).astype(np.float32)
    problem = attsvm.AttentionProblem(X, None, rng.standard_normal((3, 6)).astype(np.float32))
    for norm in ("frobenius", "nuclear"):
        solution = attsvm.att_svm(problem, [0, 0, 0], norm=norm)
        assert solution.status == "optimal"
        assert exact_violation(problem, [0, 0, 0], solution.W) <= Fraction(solution.result.tolerance)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_one_tolerance_alone_and_in_a_batch(norm):
    problem = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    alone, together = attsvm.att_svm(problem, norm=norm), attsvm.att_svm(problem.repeat(2), norm=norm)
    assert alone.result.tolerance == together.result.tolerance == together[1].result.tolerance


@pytest.mark.parametrize("scale", [1e-165, 1e160])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "linf"])
def test_scales_whose_squares_leave_the_range(scale, norm):
    rng = np.random.default_rng(0)
    X, Z = rng.normal(size=(2, 3, 4)), rng.normal(size=(2, 4))
    plain = attsvm.att_svm(attsvm.AttentionProblem(X, None, Z), [0, 0], norm=norm)
    scaled = attsvm.AttentionProblem(X * scale, None, Z)
    for solution in (attsvm.att_svm(scaled, [0, 0], norm=norm), attsvm.att_svm(batch_of(scaled), [[0, 0]] * 2)[1]):
        assert solution.status == "optimal"
    solution = attsvm.att_svm(scaled, [0, 0], norm=norm)
    assert solution.norm * scale == pytest.approx(plain.norm, rel=1e-6)
    if norm == "nuclear":
        ours, other = solution.certificate.rank_certificate, plain.certificate.rank_certificate
        assert ours.rank == other.rank and ours.resolution * scale < 1e-6 * plain.norm
        said = solution.result.uniqueness
        assert said.verdict == plain.result.uniqueness.verdict == "unique" and 0 < said.radius * scale < 1e-3
    if norm != "linf":
        assert solution.certificate.exact().status == "optimal"


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("tiny", [1e-130, 1e-200, 1e-300])
def test_rows_too_different_for_one_scale_end(norm, tiny):
    rows = MarginProblem([[1.0, 0.0], [0.0, tiny]], [[1.0]], [0, 0])
    assert scaled_to_range(rows)[0].row_norms.shape == (2,)
    solution = solve(rows, norm)
    assert solution.status != "infeasible"
    if solution.status == "optimal":
        assert solution.norm == pytest.approx(1 / tiny)
    assert scaled_to_range(MarginProblem([[1e300], [1e-300]], [[1e-300]], [0, 0]))[1] == 0  # nothing is lost


def test_contradicting_equalities_end_alike_in_both_norms():
    rows = MarginProblem([[1.0], [1.0]], [[1.0]], [0, 0], [1.0, 1.0 + 1e-9], [True, True])
    found = {solve(rows, norm).status for norm in ("frobenius", "nuclear")}
    found |= {solve(MarginProblem.stack([rows, rows]), norm)[0].status for norm in ("frobenius", "nuclear")}
    assert found == {"infeasible"}


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_the_certificate_belongs_to_the_matrix_that_is_returned(norm):
    """What exact arithmetic puts in place of a solution comes with its own measures."""
    families = ("near duplicates", "mixed scales")
    for case in (draw_group(family, seed, 1)[0] for seed in range(900, 920) for family in families):
        solution = attsvm.att_svm(case.problem, case.selection, norm=norm)
        if solution.status.has_solution:
            claimed = solution.certificate.primal_violation + solution.certificate.primal_error
            assert exact_violation(case.problem, case.selection, solution.W) <= Fraction(claimed)
            assert solution.certificate._source.W is solution.result.W


# -- rank and uniqueness ---------------------------------------------------------------------------


def unequal_pair():
    X = np.zeros((2, 2, 2))
    X[0, 0], X[1, 0] = [1.0, 0.0], [0.0, 1e7]
    return attsvm.AttentionProblem(X, [1.0, 1.0], np.eye(2), attsvm.LinearHead([1.0, 1.0]))


def test_a_rank_is_certified_at_a_resolution():
    solution = attsvm.att_svm(unequal_pair(), [0, 0], norm="nuclear")
    claim = solution.certificate.rank_certificate
    # W = diag(1, 1e-7) is optimal, and so is every [[1, t], [t, 1e-7]] with t^2 <= 1e-7.
    for t in (0.0, 3.1e-4):
        singular = np.linalg.svd([[1.0, t], [t, 1e-7]], compute_uv=False)
        assert singular[claim.rank :].sum() <= claim.resolution * (1 + 1e-9)
    said = solution.result.uniqueness
    assert said.verdict != "unique" or said.radius >= np.sqrt(2) * 3.1e-4


def test_the_dual_is_divided_by_its_largest_singular_value():
    found = certify(MarginProblem(np.eye(2), np.eye(2), [0, 1]), np.eye(2), [0.9, 0.9], "nuclear")
    assert found.rank == 2 and found.gap < 1e-15


@given(seed=st.integers(0, 10**6), share=st.floats(0.0, 1.0))
def test_nothing_lies_outside_the_certified_rank_beyond_the_resolution(seed, share):
    """On segments between two problems ranks change, and strict complementarity fails nearby."""
    first, second = (attsvm.random_problem(n=3, T=3, d=4, seed=s) for s in (seed, seed + 1))
    X, Z = (share * u + (1 - share) * v for u, v in ((first.X, second.X), (first.Z, second.Z)))
    problem = attsvm.AttentionProblem(X, None, Z)
    solution = attsvm.att_svm(problem, [0, 0, 0], norm="nuclear")
    if solution.status != "optimal":
        return
    claim = solution.certificate.rank_certificate
    proved = nuclear_enclosure(exact_selection_rows(problem, [0, 0, 0])[0], solution.W, solution.result.multipliers)
    assert proved.singular_values[0][claim.rank :].sum() <= claim.resolution * (1 + 1e-9)
    # What exact arithmetic proves of every solution is not more than the resolution allows.
    assert proved.tails[claim.rank] <= claim.resolution * (1 + 1e-6)


def test_a_rank_limit_below_the_numerical_rank_finds_the_global_optimum():
    solution = attsvm.att_svm(unequal_pair(), [0, 0], norm="nuclear", rank=1)
    assert solution.status == "optimal" and solution.result.extras.rank_limit.is_global
    assert exact_violation(unequal_pair(), [0, 0], solution.W) <= Fraction(solution.result.tolerance)
    assert np.linalg.matrix_rank(solution.W, tol=1e-12) == 1


def test_a_rank_limit_does_not_ignore_small_right_hand_sides():
    # W11 >= 1, W22 >= 5e-9 and W12 = 0 leave nothing of rank 1.
    rows = MarginProblem(
        [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], np.eye(2), [0, 1, 1], [1.0, 5e-9, 0.0], [False, False, True]
    )
    solution = solve(rows, "nuclear", rank=1)
    assert solution.status != "optimal" and not solution.extras.rank_limit.is_global


# -- exact certificates on demand ------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_solution_proves_itself_again(norm):
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0, batch=3)
    batch = attsvm.att_svm(problem, norm=norm)
    for solution in (attsvm.att_svm(problem[1], norm=norm), batch[1], batch.result[1]):
        proved = solution.certificate.exact()
        assert proved.status == "optimal" and proved.farkas is None
        assert proved.norm[0] <= solution.norm * (1 + 1e-12) and proved.norm[1] >= solution.certificate.lower_bound
        assert proved.norm[0] <= proved.norm[1] <= proved.norm[0] * (1 + 1e-6)
        assert proved.violation == exact_violation(problem[1], None, solution.W)
        assert (proved.rank is None) == (norm == "frobenius")
    assert batch.certificate[1].exact().violation == batch[1].certificate.exact().violation
    assert batch[1].certificate.exact(1e-30).status == "inaccurate"
    with pytest.raises(ValueError, match="index the batch first"):
        batch.certificate.exact()


def test_the_upper_end_of_the_norm_is_that_of_a_feasible_matrix():
    rows = MarginProblem([[1.0]], [[1.0]], [0])
    short = certify(rows, [[0.5]], [1.0])  # misses its row, so 0.5 bounds nothing
    proved = short.exact()
    assert proved.violation == Fraction(1, 2) and proved.status == "inaccurate"
    assert proved.norm[0] <= 1.0 <= proved.norm[1] and proved.norm[1] - proved.norm[0] < 1e-15


def test_infeasibility_proves_itself_again():
    problem = attsvm.AttentionProblem([[[0.0, 0.0], [0.1, 0.3], [-0.1, -0.3]]], None, [[1.0, 2.0]])
    rows, _ = exact_selection_rows(problem, [0])
    for solution in (attsvm.att_svm(problem, [0]), attsvm.att_svm(batch_of(problem), [[0], [0]], norm="nuclear")[0]):
        assert solution.status == "infeasible"
        proof = solution.certificate.exact().farkas
        assert rows.check_farkas(list(proof.values), list(proof.rows)) is not None
        assert proof.multipliers.tolist() == [Fraction(1, 2), Fraction(1, 2)]
    equal = attsvm.AttentionProblem([[[0.1, 0.2], [0.1, 0.2]]], None, [[1.0]])
    proved = attsvm.att_svm(equal, [0]).certificate.exact()
    assert proved.status == "infeasible" and str(proved) == "infeasible, by exact multipliers on rows [0]"


def test_exact_says_why_it_cannot():
    large = attsvm.att_svm(attsvm.random_problem(n=10, T=11, d=21, seed=0))
    with pytest.raises(
        ValueError, match=rf"up to {EXACT_ENTRIES} rows times entries of W; this one has 100 rows of 21"
    ):
        large.certificate.exact()
    with pytest.raises(ValueError, match="needs the problem"):
        Certificate.unknown().exact()
    small = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    with pytest.raises(ValueError, match="nothing to prove"):
        attsvm.att_svm(attsvm.AttentionProblem(small.X * 1e160, None, small.Z * 1e160), [0, 0]).certificate.exact()


def test_a_certificate_can_be_written_without_what_it_was_computed_from():
    certificate = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0)).certificate
    assert pickle.loads(pickle.dumps(certificate)).norm == certificate.norm
    assert "_source" not in repr(certificate)


@pytest.mark.parametrize("family", ["near duplicates", "mixed scales", "float32", "ties", "extreme scales"])
def test_exact_certificates_agree_with_the_judge(family):
    group = draw_group(family, 11, 3)
    batch, selections = stack_cases(group)
    for norm in ("frobenius", "nuclear"):
        together = attsvm.att_svm(batch, selections, norm=norm)
        for case in group:
            solution = attsvm.att_svm(case.problem, case.selection, norm=norm)
            judge = Judge(case)
            for one in (solution, together[case.member]):
                assert list(judge.against(one)) == []
                if one.status in ("optimal", "infeasible"):
                    assert one.certificate.exact(one.result.tolerance).status == one.status
            assert list(judge.against_pair(solution, together[case.member])) == []
            rows = exact_rows_of(solution.rows.margin_problem)
            W = np.ones(rows.shape)
            assert rows.margins(W) == judge.rows.margins(W)  # the rounding of differences is carried along
