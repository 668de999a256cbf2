import itertools
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy.optimize import brentq

import attsvm
from attsvm import AttentionProblem, InfeasibleError, LinearHead, ReluHead
from attsvm.losses import LOSSES, exponential, get_loss, logistic
from attsvm.paths.ball_search import LogExcess
from attsvm.paths.regularization import PathStatus, regularization_path

RADII = [5.0, 20.0, 80.0, 320.0]


def plain_loss(problem, W, loss):
    Z = problem.Z if problem.multi_query else problem.Z[:, None]
    logits = np.einsum("itd,de,ike->ikt", problem.X, W, Z)
    allowed = problem.allowed.reshape(logits.shape)
    logits = np.where(allowed, logits, -np.inf)
    s = np.exp(logits - logits.max(axis=-1, keepdims=True))
    s /= s.sum(axis=-1, keepdims=True)
    scores = np.where(allowed, problem.scores().reshape(logits.shape), 0.0)
    return get_loss(loss)((s * scores).sum(axis=-1)).sum() / problem.n


def selection_loss(problem, selection, loss):
    scores = np.take_along_axis(problem.scores(), selection[..., None], axis=-1)
    return get_loss(loss)(scores).sum() / problem.n


def correlation(A, B):
    return (A * B).sum() / (np.linalg.norm(A) * np.linalg.norm(B))


def causal_problem():
    """K queries, the first of which sees one token only."""
    return attsvm.random_problem(n=2, T=4, d=5, kind="sequence", causal=True, seed=0)


# -- the objective ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("size", [0.5, 5.0])
def test_log_excess_is_the_logarithm_of_the_excess(loss, size, rng):
    for problem in (attsvm.random_problem(n=3, T=4, d=5, seed=1), causal_problem()):
        chosen = problem.optimal_tokens()
        W = size * rng.standard_normal((5, 5))
        value, _ = LogExcess(problem, chosen, get_loss(loss))(W)
        plain = plain_loss(problem, W, loss) - selection_loss(problem, chosen.indices, loss)
        # The plain difference of two losses of size 1 keeps about 13 digits at these sizes.
        assert value == pytest.approx(np.log(plain), abs=1e-11)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_log_excess_is_exact_where_the_loss_has_saturated(loss):
    """Against 400-digit arithmetic: the excess is e^-300 and smaller, far below the epsilon of the loss."""
    problem = attsvm.random_problem(n=2, T=3, d=3, seed=4)
    chosen = problem.optimal_tokens()
    W = 600 * attsvm.att_svm(problem).direction
    value, _ = LogExcess(problem, chosen, get_loss(loss))(W)
    assert value < -200
    logits = np.einsum("itd,de,ie->it", problem.X, W, problem.Z)
    with localcontext() as context:
        context.prec = 400
        exact = Decimal(0)
        for i, a in enumerate(chosen.indices):
            weights = [(Decimal(float(h)) - Decimal(float(logits[i, a]))).exp() for h in logits[i]]
            scores = [Decimal(float(g)) for g in problem.scores()[i]]
            mixed = sum(w * g for w, g in zip(weights, scores, strict=True)) / sum(weights)
            losses = {
                "logistic": lambda u: (1 + (-u).exp()).ln(),
                "exponential": lambda u: (-u).exp(),
                "correlation": lambda u: -u,
            }
            exact += losses[loss](mixed) - losses[loss](scores[a])
        exact = float((exact / problem.n).ln())
    # Logits of size 600 are rounded to 1e-13, here and there alike; a few of them add up.
    assert value == pytest.approx(exact, abs=2e-12)


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("size", [1.0, 400.0])
def test_gradient_of_the_log_excess_by_differences(loss, size, rng):
    for problem in (attsvm.random_problem(n=3, T=4, d=5, seed=1), causal_problem()):
        objective = LogExcess(problem, problem.optimal_tokens(), get_loss(loss))
        W = rng.standard_normal((5, 5))
        W *= size / np.linalg.norm(W)
        _, G = objective(W)
        step = 1e-4
        for _ in range(4):
            E = rng.standard_normal(W.shape)
            numeric = (objective(W + step * E)[0] - objective(W - step * E)[0]) / (2 * step)
            # Central differences: rounding 1e-13 / 1e-4, curvature terms 1e-8.
            assert numeric == pytest.approx((G * E).sum(), abs=1e-6)


def test_scores_of_any_size_do_not_overflow():
    X = np.array([[[2000.0, 0.0], [-2000.0, 0.0]]])
    problem = AttentionProblem(X, [1], [[0.0, 1.0]], LinearHead([1.0, 0.0]))
    value, gradient = LogExcess(problem, problem.optimal_tokens(), logistic)(np.zeros((2, 2)))
    # Half of each token gives u = 0: l(0) - l(2000) = log 2.
    assert value == pytest.approx(np.log(np.log(2.0)), abs=1e-12)
    assert np.isfinite(gradient).all()


def test_no_excess_where_the_selection_is_beaten():
    problem = AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], LinearHead([1.0]))
    value, gradient = LogExcess(problem, attsvm.Selection([1]), exponential)(np.zeros((1, 1)))
    assert np.isnan(value) and not gradient.any()


# -- Theorem 2 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", sorted(LOSSES))
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_path_of_W_tends_to_the_frobenius_svm(seed, loss, rng):
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
    path = regularization_path(problem, RADII, loss=loss)
    assert path.status == (PathStatus.BOUNDARY,) * 4
    assert not path.is_local and path.on_boundary.all() and np.isinf(path.cone_value).all()
    np.testing.assert_allclose(np.linalg.norm(path.W, axis=(1, 2)), RADII, rtol=1e-12)
    assert path.distance[0] > 0.04  # at R = 5 the direction is another one
    assert path.distance[-1] < 3e-4  # measured: 5e-5 to 1.9e-4
    assert (np.diff(path.distance) < 0).all()
    # L-BFGS in float64 reaches 1e-7 and better; 1e-6 leaves room for other versions of it.
    assert path.stationarity.max() < 1e-6
    objective = LogExcess(problem, path.selection, get_loss(loss))
    for R, W, value in zip(RADII, path.W, path.log_excess, strict=True):
        rivals = [path.predicted.direction, *rng.standard_normal((20, 4, 4))]
        assert all(objective(R * D / np.linalg.norm(D))[0] >= value - 1e-9 for D in rivals)
        assert plain_loss(problem, W, loss) == pytest.approx(
            selection_loss(problem, path.selection.indices, loss) + np.exp(value), abs=1e-12
        )
    np.testing.assert_allclose(path.loss[0], plain_loss(problem, path.W[0], loss), rtol=1e-12)


@pytest.mark.parametrize(("seed", "loss"), [(0, "logistic"), (1, "exponential"), (2, "correlation")])
def test_the_path_of_KQ_tends_to_the_nuclear_svm(seed, loss):
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=seed)
    path = regularization_path(problem, RADII, "KQ", loss=loss)
    assert path.status == (PathStatus.BOUNDARY,) * 4
    np.testing.assert_allclose(path.W, path.K @ path.Q.transpose(0, 2, 1), atol=1e-12 * RADII[-1])
    squares = np.square(path.K).sum(axis=(1, 2)) + np.square(path.Q).sum(axis=(1, 2))
    np.testing.assert_allclose(squares, 2 * path.radii, rtol=1e-12)
    # Balanced factors waste nothing of the budget: the nuclear norm is the radius.
    np.testing.assert_allclose(np.linalg.norm(path.W, "nuc", axis=(1, 2)) / RADII, 1.0, atol=1e-6)
    assert path.distance[-1] < 6e-4  # measured: 2e-5 to 4.2e-4
    assert path.distance[-1] < path.distance[-2] < path.distance[-3]
    assert 1 - correlation(path.W[-1], attsvm.att_svm(problem).W) > 0.03  # measured: 0.055 to 0.157
    # First-order optimality over the nuclear ball: |G|_op R = -<G, W> (no rank is missing from the factors).
    objective = LogExcess(problem, path.selection, get_loss(loss))
    for R, W in zip(RADII, path.W, strict=True):
        _, G = objective(W)
        assert -(G * W).sum() == pytest.approx(np.linalg.norm(G, 2) * R, rel=1e-5)
    # The nuclear ball lies inside the Frobenius ball.
    wider = regularization_path(problem, RADII, loss=loss)
    assert (wider.log_excess <= path.log_excess + 1e-9).all()


def test_a_single_large_radius_needs_no_path_before_it():
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    for parameterization, bound in (("W", 1e-6), ("KQ", 1e-5)):  # measured: 2.8e-7 and 2.1e-6
        path = regularization_path(problem, [1e4], parameterization)
        assert path.status == (PathStatus.BOUNDARY,)
        assert path.distance[0] < bound


def test_the_seed_decides_the_path():
    problem = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    first, again = (regularization_path(problem, [3.0, 30.0], "KQ", seed=7) for _ in range(2))
    np.testing.assert_array_equal(first.W, again.W)
    # Other starts, the same minimizer (to the accuracy that a stationarity of 1e-6 gives).
    other = regularization_path(problem, [3.0, 30.0], "KQ", seed=8)
    np.testing.assert_allclose(other.log_excess, first.log_excess, atol=1e-9)


def test_masks_and_several_queries():
    problem = causal_problem()
    path = regularization_path(problem, [20.0, 320.0])
    assert path.status == (PathStatus.BOUNDARY,) * 2
    assert path.predicted.formulation == "SAtt-SVM"
    assert path.distance[-1] < 3e-4 < path.distance[0]  # measured at d = 12: 3.8e-5; here 1e-4
    unmasked = attsvm.satt_svm(attsvm.random_problem(n=2, T=4, d=5, kind="sequence", seed=0))
    assert not unmasked.status.has_solution or 1 - correlation(path.W[-1], unmasked.W) > 0.01


def test_ragged_masks_and_rectangular_weights():
    tall = attsvm.random_problem(n=3, T=4, d=6, dz=3, queries=2, seed=0)
    for parameterization in ("W", "KQ"):
        path = regularization_path(tall, [1000.0], parameterization)
        assert path.W.shape == (1, 6, 3) and path.distance[0] < 2e-4  # measured: 8e-5 and 7e-6
    drawn = attsvm.random_problem(n=4, T=5, d=6, seed=3)
    ragged = AttentionProblem.from_ragged(
        [drawn.X[i, :length] for i, length in enumerate((5, 4, 3, 2))], drawn.Z, drawn.Y, drawn.head
    )
    path = regularization_path(ragged, [320.0])
    assert path.status == (PathStatus.BOUNDARY,) and path.distance[0] < 3e-4


def test_few_columns_bound_the_rank():
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=0)
    free = regularization_path(problem, [320.0], "KQ")
    for m, same in ((1, False), (2, True), (6, True)):  # the nuclear solution has rank 2
        path = regularization_path(problem, [320.0], "KQ", m=m)
        assert path.K.shape == (1, 4, m) and np.linalg.matrix_rank(path.W[0]) <= m
        assert path.distance[0] < 6e-4
        # Equal minima to rounding in one case; a rank-one W has 1.8 % less margin, so 1.8 % less of 117.
        assert bool(abs(path.log_excess[0] - free.log_excess[0]) < 1e-6) is same


def test_float32_tokens():
    double = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    single = AttentionProblem(double.X.astype(np.float32), double.Y, double.Z.astype(np.float32), double.head)
    path = regularization_path(single, [100.0])
    assert path.W.dtype == np.float64
    # The data are off by 6e-8, and scores computed in float32 by about as much.
    np.testing.assert_allclose(path.W, regularization_path(double, [100.0]).W, atol=1e-3)


# -- Theorem 7 ----------------------------------------------------------------------------------------

# Locally optimal selections that are not optimal, with support tokens wherever there are tokens of higher score.
LOCAL = [
    ("W", dict(n=1, T=4, d=2, seed=3), [3]),
    ("W", dict(n=2, T=4, d=3, seed=6), [3, 2]),
    ("W", dict(n=2, T=4, d=3, seed=10), [2, 0]),
    ("W", dict(n=3, T=4, d=4, seed=2), [0, 1, 3]),
    ("KQ", dict(n=2, T=4, d=3, seed=6), [2, 0]),
    ("KQ", dict(n=2, T=4, d=3, seed=6), [3, 2]),
]


@pytest.mark.parametrize(("parameterization", "sizes", "selection"), LOCAL)
def test_local_paths_tend_to_the_local_svm(parameterization, sizes, selection):
    problem = attsvm.random_problem(**sizes)
    norm = "frobenius" if parameterization == "W" else "nuclear"
    solution = attsvm.att_svm(problem, selection, norm=norm)
    assert attsvm.is_locally_optimal(problem, selection, norm=norm, solution=solution)
    radii = np.array([200.0, 600.0, 2000.0])
    path = regularization_path(problem, radii, parameterization, selection=selection, solution=solution)
    assert path.is_local and path.predicted is solution
    assert path.status == (PathStatus.BOUNDARY,) * 3
    assert (path.cone_value > 0.01).all()  # inside the cone, away from its wall: the constraint is inactive
    relative = np.linalg.norm(path.W / radii[:, None, None] - solution.direction, axis=(1, 2))
    relative /= np.linalg.norm(solution.direction)
    assert relative[-1] < 6e-3  # measured: 1e-12 to 3.9e-3
    # Distances fall as 1/R (measured times R: at most 8), unless they are those of the solver already.
    assert (relative * radii < 12).all()
    assert relative[1] < 0.45 * relative[0] or relative[1] < 1e-5
    # The minimum is local: the optimal tokens have a lower loss.
    assert regularization_path(problem, [200.0], parameterization).loss[0] < path.loss[0]


def test_a_selection_without_support_has_no_local_path():
    # Lemma 5 fails here: sequence 1 has a token of higher score but no support token, and the cone is empty.
    problem = AttentionProblem([[[1.0], [0.0]], [[3.0], [0.0]]], [1, -1], [[1.0], [1.0]], LinearHead([1.0]))
    assert attsvm.is_locally_optimal(problem, [0, 0])
    path = regularization_path(problem, [10.0, 100.0], selection=[0, 0])
    assert path.status == (PathStatus.NO_START,) * 2
    assert np.isnan(path.W).all() and np.isnan(path.log_excess).all() and not path.on_boundary.any()


def test_a_selection_that_is_not_locally_optimal_is_left_through_the_wall():
    left = 0
    for seed in range(6):
        problem = attsvm.random_problem(n=2, T=4, d=4, seed=seed)
        for selection in itertools.islice(itertools.product(range(4), repeat=2), 0, 16, 5):
            solution = attsvm.att_svm(problem, selection)
            if attsvm.is_locally_optimal(problem, selection, solution=solution):
                continue
            path = regularization_path(problem, [300.0], selection=selection, solution=solution)
            # Nothing is stationary next to the SVM direction: it is outside the cone, or the search leaves.
            assert path.status[0] in (PathStatus.NO_START, PathStatus.WALL) or path.distance[0] > 1e-2
            left += 1
    assert left >= 10


def test_an_infeasible_selection_has_no_local_path():
    problem = AttentionProblem([[[1.0], [0.0]], [[1.0], [0.0]]], [1, 1], [[1.0], [-1.0]], LinearHead([1.0]))
    with pytest.raises(InfeasibleError, match="sequences 0, 1"):
        regularization_path(problem, [10.0], selection=[1, 1])


# -- finite minima ------------------------------------------------------------------------------------


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_an_infeasible_problem_may_have_an_interior_minimizer(parameterization):
    # Logits w and -w, score gaps 1 and 2: f(s) = l(s) + l(2 - 2 s) with s = sigmoid(w) is least where f'(s) = 0.
    X = [[[1.0], [0.0]], [[2.0], [0.0]]]
    problem = AttentionProblem(X, [1, 1], [[1.0], [-0.5]], LinearHead([1.0]))
    s = brentq(lambda s: logistic.derivative(s) - 2 * logistic.derivative(2 - 2 * s), 0.01, 0.99, xtol=1e-14)
    w = np.log(s / (1 - s))
    radii = [0.5 * abs(w), 2 * abs(w), 100.0]
    path = regularization_path(problem, radii, parameterization)
    assert path.predicted.status == "infeasible" and np.isnan(path.distance).all()
    assert path.status == (PathStatus.BOUNDARY, PathStatus.INTERIOR, PathStatus.INTERIOR)
    assert path.on_boundary.tolist() == [True, False, False]
    assert path.W[0].item() == pytest.approx(np.sign(w) * radii[0], rel=1e-9)
    np.testing.assert_allclose(path.W[1:, 0, 0], w, atol=1e-6)  # a minimum is flat: half of the 16 digits
    assert "interior" in repr(path) and "finite minimum" in path.status[1].advice


def test_larger_balls_hold_better_points_in_infeasible_problems():
    problem = attsvm.random_problem(n=5, T=5, d=2, seed=4)
    paths = {p: regularization_path(problem, [2.0, 10.0, 50.0, 200.0], p, starts=16) for p in ("W", "KQ")}
    for path in paths.values():
        assert path.predicted.status == "infeasible"
        assert (np.diff(path.log_excess) <= 1e-9).all()
    assert (paths["W"].log_excess <= paths["KQ"].log_excess + 1e-6).all()


def test_too_few_iterations_are_reported():
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
    path = regularization_path(problem, [300.0], max_iterations=1)
    assert path.status == (PathStatus.INACCURATE,) and path.stationarity[0] > 1e-5


# -- bad input ----------------------------------------------------------------------------------------


def test_bad_input():
    problem = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    with pytest.raises(ValueError, match="index the batch first"):
        regularization_path(attsvm.random_problem(n=2, T=3, d=3, batch=2), [1.0])
    relu = AttentionProblem(problem.X, problem.Y, problem.Z, ReluHead(np.eye(3)))
    with pytest.raises(ValueError, match="need a LinearHead, got ReluHead"):
        regularization_path(relu, [1.0])
    for radii in ([], [[1.0]], 1.0):
        with pytest.raises(ValueError, match=r"radii must have shape \(S,\)"):
            regularization_path(problem, radii)
    for radii in ([0.0, 1.0], [2.0, 1.0], [1.0, 1.0]):
        with pytest.raises(ValueError, match="positive and increasing"):
            regularization_path(problem, radii)
    with pytest.raises(ValueError, match=r"radii\[1\] is inf"):
        regularization_path(problem, [1.0, np.inf])
    with pytest.raises(ValueError, match="parameterization must be 'W' or 'KQ'"):
        regularization_path(problem, [1.0], "QK")
    for arguments in (("W", 2), ("KQ", 0)):
        with pytest.raises(ValueError, match="m is the inner dimension"):
            regularization_path(problem, [1.0], arguments[0], m=arguments[1])
    with pytest.raises(ValueError, match="starts must be an integer >= 1"):
        regularization_path(problem, [1.0], starts=0)
    with pytest.raises(ValueError, match="loss must be one of"):
        regularization_path(problem, [1.0], loss="hinge")
    with pytest.raises(ValueError, match="nuclear Att-SVM of the same selection"):
        regularization_path(problem, [1.0], "KQ", solution=attsvm.att_svm(problem))
    flat = AttentionProblem(problem.X, problem.Y, problem.Z, LinearHead(np.zeros(3)))
    with pytest.raises(ValueError, match="the loss does not depend on W"):
        regularization_path(flat, [1.0])


def test_a_path_without_a_predicted_direction_says_what_is_known_and_why_not_more():
    problem = attsvm.random_problem(n=30, T=10, d=4, seed=0)  # 270 rows in 16 dimensions
    path = regularization_path(problem, [1.0, 4.0], max_iterations=50)
    assert np.isnan(path.distance).all() and str(path.predicted.status) == "infeasible"
    assert "infeasible" in path.why_no_distance and path.why_no_distance in path._repr_html_()
    assert f"loss {path.loss[0]:.4g}..{path.loss[1]:.4g}" in repr(path) and "nan" not in repr(path)
    rough = regularization_path(problem, [1.0, 4.0], max_iterations=1, starts=1)
    short = rough.stationarity[[status is PathStatus.INACCURATE for status in rough.status]]
    assert len(short) and f"{len(short)} of 2 radii inaccurate" in repr(rough) and f"{short.max():.0e}" in repr(rough)
    feasible = regularization_path(attsvm.random_problem(n=3, T=4, d=4, seed=0), [5, 80])
    assert feasible.why_no_distance == "" and "distance" in repr(feasible)
