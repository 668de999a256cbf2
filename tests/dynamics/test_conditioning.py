"""The prompt model: gradients, curvature, separation, theorems and optimizers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attsvm.dynamics.conditioning import (
    OPTIMIZERS,
    PromptProblem,
    block_factors,
    block_jacobian,
    check_guarantee,
    condition_lower_bound,
    convergence_constants,
    curvature,
    curved_loss,
    descend,
    dominant_token,
    joint_curvature,
    kappa_report,
    leakage,
    local_rate,
    sampled_leakage,
    separation,
    signal_subspace,
    squared_loss,
    structured_teacher,
    student_teacher,
    value_margins,
)
from attsvm.dynamics.conditioning.curvature import unimportant_covariance


def random_problem(seed, N=7, n=5, d=4, loss=None, attention="softmax", W=True):
    rng = np.random.default_rng(seed)
    return PromptProblem(
        X=rng.normal(size=(N, n, d)),
        y=rng.normal(size=N),
        v=rng.normal(size=d),
        W=rng.normal(size=(d, d)) if W else None,
        loss=loss or squared_loss(),
        attention=attention,
    )


def torch_loss(problem, extra=0.0):
    torch = pytest.importorskip("torch")
    X, y, v = (torch.tensor(np.array(part)) for part in (problem.X, problem.y, problem.v))
    W = torch.eye(X.shape[2], dtype=X.dtype) if problem.W is None else torch.tensor(np.array(problem.W))

    def loss(p, values=v):
        scores = X @ (W @ p)
        a = torch.softmax(scores, -1) if problem.attention == "softmax" else scores / X.shape[1]
        r = (a * (X @ values)).sum(-1) - y
        return (0.5 * r**2 + extra * torch.log(torch.cosh(r))).mean()

    return loss


class TestModel:
    @pytest.mark.parametrize("attention", ["softmax", "linear"])
    @pytest.mark.parametrize("extra", [0.0, 1.5])
    def test_loss_and_gradient_against_autograd(self, attention, extra):
        torch = pytest.importorskip("torch")
        problem = random_problem(0, loss=curved_loss(extra), attention=attention)
        p = torch.tensor(np.random.default_rng(1).normal(size=4), requires_grad=True)
        value = torch_loss(problem, extra)(p)
        value.backward()
        # rounding of O(1) numbers
        assert problem.loss_at(p.detach()) == pytest.approx(float(value.detach()), rel=1e-13)
        np.testing.assert_allclose(problem.gradient(p.detach()), p.grad.numpy(), rtol=1e-12, atol=1e-14)

    @pytest.mark.parametrize("extra", [0.0, 2.0])
    def test_hessian_at_the_minimum_is_h_p_over_n(self, extra):
        torch = pytest.importorskip("torch")
        problem = random_problem(2, loss=curved_loss(extra))
        p = np.random.default_rng(3).normal(size=4)
        problem = problem.with_labels(problem.predict(p))
        hessian = torch.autograd.functional.hessian(torch_loss(problem, extra), torch.tensor(p)).numpy()
        found = curvature(problem, p)
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian)[::-1] * 7, found.eigenvalues, rtol=1e-9)
        np.testing.assert_allclose(hessian * 7, (found.vectors.T * found.eigenvalues) @ found.vectors, atol=1e-12)

    def test_joint_hessian(self):
        torch = pytest.importorskip("torch")
        problem = random_problem(4, N=12, W=False)
        p = np.random.default_rng(5).normal(size=4)
        problem = problem.with_labels(problem.predict(p))
        loss = torch_loss(problem)
        theta = torch.tensor(np.concatenate([p, problem.v]))
        hessian = torch.autograd.functional.hessian(lambda t: loss(t[:4], t[4:]), theta).numpy()
        found = joint_curvature(problem, p)
        np.testing.assert_allclose(np.linalg.eigvalsh(hessian)[::-1] * 12, found.eigenvalues, rtol=1e-8)
        assert found.condition_number == pytest.approx(np.linalg.cond(hessian), rel=1e-6)

    def test_block_jacobian_has_the_spectrum_of_h_p(self):
        problem = random_problem(6)
        p = np.random.default_rng(7).normal(size=4)
        problem = problem.with_labels(problem.predict(p))
        B, C = block_factors(problem, p)
        big = block_jacobian(problem, p)
        u, keys, a = problem.values, problem.keys, problem.weights(p)
        J = [np.diag(row) - np.outer(row, row) for row in a]
        block = J[1] @ keys[1] @ keys[2].T @ J[2] @ np.outer(u[2], u[2])
        np.testing.assert_allclose(big[5:10, 10:15], block, atol=1e-13)
        eigenvalues = np.linalg.eigvals(big)
        assert np.abs(eigenvalues.imag).max() < 1e-6  # rounding of a nonsymmetric, highly singular matrix
        top = np.sort(eigenvalues.real)[::-1][:4]
        np.testing.assert_allclose(top, curvature(problem, p).eigenvalues, rtol=1e-6)
        np.testing.assert_allclose(C @ B, (C @ B).T, atol=1e-12)

    def test_more_dimensions_than_examples(self):
        problem = random_problem(8, N=3, d=5)
        found = curvature(problem, np.zeros(5))
        assert found.condition_number == np.inf and np.isfinite(found.range_condition_number)
        assert random_problem(8, N=5, d=3).smallest_singular_value(np.zeros(3)) == 0.0
        with pytest.raises(ValueError, match="singular with fewer examples"):
            local_rate(problem, np.zeros(5))

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"X": np.zeros((2, 3))}, r"X must have shape \(N, n, d\), got \(2, 3\)"),
            ({"X": np.zeros((0, 3, 2))}, r"X must have shape \(N, n, d\), got \(0, 3, 2\)"),
            ({"y": [0.0]}, r"y must have shape \(2,\), got \(1,\)"),
            ({"v": [0.0, np.nan]}, r"v\[1\] is nan"),
            ({"W": np.ones((2, 2))}, "W must have full rank 2"),
            ({"attention": "sparse"}, "attention must be"),
        ],
    )
    def test_bad_problems(self, changed, message):
        good = {"X": np.ones((2, 3, 2)), "y": [0.0, 1.0], "v": [1.0, 2.0]}
        with pytest.raises(ValueError, match=message):
            PromptProblem(**{**good, **changed})

    def test_linear_twin_has_no_distribution(self):
        with pytest.raises(ValueError, match="no attention distribution"):
            random_problem(0, attention="linear").log_weights(np.zeros(4))


class TestTeacher:
    @pytest.mark.parametrize("log_ratio", [0.0, 3.0, 60.0])
    def test_exact_sparsity_ratio(self, log_ratio):
        teacher = student_teacher(N=11, n=6, d=5, log_ratio=log_ratio, seed=1)
        assert np.median(teacher.log_ratios()) == pytest.approx(log_ratio, abs=1e-10)
        assert teacher.problem.loss_at(teacher.p_star) == 0.0

    def test_log_ratio_is_linear_in_sigma(self):
        small, large = (student_teacher(sigma_p=s, seed=2).log_ratios() for s in (0.1, 1.0))
        np.testing.assert_allclose(large, 10 * small, rtol=1e-9)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"N": 0}, "N must be an integer >= 1, got 0"),
            ({"sigma_p": 0.0}, "sigma_p must be positive and finite"),
            ({"log_ratio": -1.0}, "log_ratio must be nonnegative"),
            ({"n": 1, "log_ratio": 1.0}, "one token"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            student_teacher(**arguments)

    def test_bad_structure(self):
        with pytest.raises(ValueError, match="important must be between 1 and n - 1"):
            structured_teacher(3, 4, 6, 4, gap=1.0)
        with pytest.raises(ValueError, match="signal must be between"):
            structured_teacher(3, 4, 6, 2, gap=1.0, signal=6)


class TestSeparation:
    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6))
    def test_lemma_3(self, seed):
        rng = np.random.default_rng(seed)
        problem = random_problem(seed, N=3, n=6)
        p = rng.normal(size=4)
        scores = problem.keys @ p
        members = scores >= np.sort(scores, axis=1)[:, [-rng.integers(1, 6)]]
        found = separation(problem, p, members)
        assert (found.gap >= 0).all()

    def test_default_sets_are_half_of_the_largest(self):
        X = np.zeros((1, 3, 1))
        X[0, :, 0] = [0.0, -0.6, -0.8]
        problem = PromptProblem(X=X, y=[0.0], v=[1.0])
        np.testing.assert_array_equal(separation(problem, [1.0]).members, [[True, True, False]])

    def test_leakage_is_a_supremum(self):
        rng = np.random.default_rng(0)
        problem = random_problem(1, N=4, n=9, d=4)
        members = rng.random((4, 9)) < 0.4
        basis = np.linalg.qr(rng.normal(size=(4, 2)))[0]
        exact = leakage(problem, members, basis)
        angles = np.linspace(0, np.pi, 20001)
        x = basis @ np.stack([np.cos(angles), np.sin(angles)])
        for i in range(4):
            ratio = np.linalg.norm(problem.keys[i][members[i]] @ x, axis=0) / np.linalg.norm(
                problem.keys[i][~members[i]] @ x, axis=0
            )
            assert exact[i] == pytest.approx(ratio.max(), rel=1e-6)  # grid of step 1.6e-4, error of second order
        assert (sampled_leakage(problem, members, basis) <= exact * (1 + 1e-12)).all()

    def test_leakage_is_infinite_when_a_direction_is_unseen(self):
        problem = random_problem(2, N=2, n=4, d=4)
        members = np.array([[True, True, True, False]] * 2)
        assert (leakage(problem, members, np.eye(4)[:, :2]) == np.inf).all()
        assert np.isfinite(sampled_leakage(problem, members, np.eye(4)[:, :2])).all()

    def test_margins_and_covariance(self):
        problem = random_problem(3, N=2, n=4)
        p = np.ones(4) / 3
        members = np.array([[True, False, True, False], [False, True, False, False]])
        mean = problem.predict(p)
        deltas = value_margins(problem, p, members)
        assert deltas[0] == pytest.approx(min(abs(problem.values[0][[0, 2]] - mean[0])))
        basis = np.eye(4)[:, 1:]
        expected = sum(
            (problem.keys[i][~members[i]] @ basis).T @ (problem.keys[i][~members[i]] @ basis) for i in (0, 1)
        )
        np.testing.assert_allclose(unimportant_covariance(problem, members, basis), expected / 2)

    def test_signal_subspace(self):
        problem = random_problem(4)
        members = np.arange(5) < np.full((7, 1), 2)
        signal, rest = signal_subspace(problem, members, variance=0.6)
        np.testing.assert_allclose(signal.T @ rest, 0.0, atol=1e-12)
        assert signal.shape[1] + rest.shape[1] == 4
        with pytest.raises(ValueError, match="variance must be between"):
            signal_subspace(problem, members, variance=1.0)

    def test_bad_members_and_basis(self):
        problem = random_problem(5)
        with pytest.raises(ValueError, match=r"members must have shape \(7, 5\)"):
            separation(problem, np.zeros(4), np.ones((2, 5), dtype=bool))
        full = np.ones((7, 5), dtype=bool)
        with pytest.raises(ValueError, match=r"members\[0\] must hold some but not all"):
            separation(problem, np.zeros(4), full)
        full[:, 0] = False
        with pytest.raises(ValueError, match="orthonormal"):
            leakage(problem, full, np.ones((4, 2)))


class TestTheorem1:
    @pytest.mark.parametrize("form", ["corrected", "sharp"])
    def test_guarantee_holds_near_the_solution(self, form):
        checked = 0
        for seed in range(8):
            teacher = student_teacher(N=3, n=3, d=6, sigma_p=0.5, seed=seed)
            rng = np.random.default_rng(seed)
            p0 = teacher.p_star + 1e-8 * rng.normal(size=6)
            for c1 in (1e-4, 1e-6):
                constants = convergence_constants(teacher.problem, p0, c1=c1, form=form)
                if constants.margin > 0:
                    run = check_guarantee(teacher.problem, p0, constants, steps=200)
                    assert run.loss_ratio <= 1 + 1e-6  # losses are 1e-16: their residuals are rounded
                    assert run.travel_ratio <= 1
                    checked += 1
        assert checked >= 4

    def test_sharp_constants_reach_farther(self):
        teacher = student_teacher(N=3, n=3, d=6, sigma_p=0.5, seed=0)
        p0 = teacher.p_star + 1e-7
        corrected, sharp = (convergence_constants(teacher.problem, p0, c1=1e-4, form=f) for f in ("corrected", "sharp"))
        assert sharp.smoothness <= corrected.smoothness / 8 + 1e-12
        assert sharp.drift < corrected.drift

    def test_smoothness_bounds_the_hessian(self):
        torch = pytest.importorskip("torch")
        for seed in range(5):
            teacher = student_teacher(N=4, n=5, d=3, seed=seed)
            p0 = np.random.default_rng(seed).normal(size=3)
            hessian = torch.autograd.functional.hessian(torch_loss(teacher.problem), torch.tensor(p0)).numpy()
            sharp = convergence_constants(teacher.problem, p0, form="sharp").smoothness
            assert np.linalg.norm(hessian, 2) <= sharp

    def test_printed_travel_bound_is_left(self):
        # Orthogonal examples x = +-e_i with a large v: p travels 0.02, the printed C_p is 0.0026.
        N = d = 2
        X = np.stack([np.eye(d)[[i, i]] * np.array([[1.0], [-1.0]]) for i in range(N)])
        p_star = np.full(d, 0.02 / np.sqrt(d))
        problem = PromptProblem(X=X, y=np.zeros(N), v=np.full(d, 200.0 / np.sqrt(d)))
        problem = problem.with_labels(problem.predict(p_star))
        printed = convergence_constants(problem, np.zeros(d), c1=0.9, c2=1.0, form="printed")
        assert printed.margin > 0
        assert check_guarantee(problem, np.zeros(d), printed, steps=3000).travel_ratio > 5
        corrected = convergence_constants(problem, np.zeros(d), c1=0.9, c2=1.0)
        assert corrected.margin < 0 or check_guarantee(problem, np.zeros(d), corrected, steps=100).travel_ratio <= 1

    def test_bad_constants(self):
        teacher = student_teacher(N=2, n=3, d=4)
        with pytest.raises(ValueError, match="c1 must lie in"):
            convergence_constants(teacher.problem, np.zeros(4), c2=1.5)
        with pytest.raises(ValueError, match="form must be"):
            convergence_constants(teacher.problem, np.zeros(4), form="wrong")


class TestTheorem2:
    def test_bounds_hold_on_random_data(self):
        rng = np.random.default_rng(0)
        for seed in range(30):
            extra = float(rng.choice([0.0, 1.0]))
            problem = random_problem(seed, N=25, n=8, d=4, loss=curved_loss(extra))
            p = rng.normal(size=4)
            problem = problem.with_labels(problem.predict(p))
            scores = problem.keys @ p
            members = scores >= np.sort(scores, axis=1)[:, [-3]]
            basis = np.linalg.qr(rng.normal(size=(4, 2)))[0]
            measured = curvature(problem, p)
            for form in ("corrected", "tight"):
                bound = condition_lower_bound(problem, p, members, basis, form=form)
                assert bound.largest_at_least * (1 + 1e-9) <= measured.eigenvalues[0] / problem.loss.m
                assert bound.condition_at_least <= measured.condition_number * (1 + 1e-9)

    def test_growth_with_the_gap_needs_two_important_tokens(self):
        kappas = {}
        for s in (1, 3):
            kappas[s] = []
            for gap in (4.0, 8.0):
                teacher, _, _ = structured_teacher(60, 8, 6, s, gap=gap, seed=1)
                kappas[s].append(curvature(teacher.problem, teacher.p_star).condition_number)
        growth = np.log(kappas[3][1] / kappas[3][0])
        assert growth == pytest.approx(8.0, abs=2.0)  # exp(2 * 4), and the gap is not all that changes
        assert kappas[1][1] / kappas[1][0] < 20

    def test_printed_form_is_n_times_larger(self):
        teacher, members, basis = structured_teacher(50, 8, 6, 3, gap=3.0, leakage=0.1)
        printed, corrected = (
            condition_lower_bound(teacher.problem, teacher.p_star, members, basis, form=form).condition_at_least
            for form in ("printed", "corrected")
        )
        assert printed == pytest.approx(50 * corrected)

    def test_local_rate_needs_the_number_of_examples(self):
        teacher = student_teacher(N=40, n=6, d=5, sigma_p=0.5, seed=3)
        found = local_rate(teacher.problem, teacher.p_star)
        assert found.measured == pytest.approx(found.predicted, abs=1e-5)  # linearization at 1e-6, rounding at 1e-9
        too_long = local_rate(teacher.problem, teacher.p_star, step=1.02 * found.largest_stable_step, steps=2)
        assert too_long.step > found.largest_stable_step

    def test_bad_form(self):
        teacher, members, basis = structured_teacher(5, 8, 6, 3, gap=3.0)
        with pytest.raises(ValueError, match="form must be"):
            condition_lower_bound(teacher.problem, teacher.p_star, members, basis, form="wrong")


class TestKappa:
    def test_dominant_token(self):
        report = kappa_report(log_attention=dominant_token(8, [1e-3, 1e-9, 1e-200]))
        np.testing.assert_allclose(np.exp(report.exact), 64 * (1 - np.array([1e-3, 1e-9, 0])) ** 2, rtol=1e-9)
        assert ((report.lower <= report.exact + 1e-12) & (report.exact <= report.upper + 1e-12)).all()

    def test_bad_arguments(self):
        with pytest.raises(ValueError, match="n must be an integer >= 2"):
            dominant_token(1, 0.5)
        with pytest.raises(ValueError, match="eps must lie"):
            dominant_token(3, 1.0)


class TestDescent:
    @pytest.mark.parametrize("attention", ["softmax", "linear"])
    def test_gradient_descent_is_the_plain_update(self, attention):
        problem = random_problem(0, attention=attention)
        run = descend(problem, np.zeros(4), lr=0.3, steps=5, every=1)
        p = np.zeros(4)
        for _ in range(5):
            p = p - 0.3 * problem.gradient(p)
        np.testing.assert_allclose(run.p, p, atol=1e-13)
        assert run.losses[-1] == pytest.approx(problem.loss_at(p))
        assert len(run.losses) == 6 and run.status == "running"

    @pytest.mark.parametrize("W", [True, False])
    def test_joint_gradient_against_autograd(self, W):
        torch = pytest.importorskip("torch")
        problem = random_problem(1, W=W)
        rng = np.random.default_rng(2)
        p0, v0 = rng.normal(size=4), rng.normal(size=4)
        run = descend(problem, p0, v0, lr=0.1, steps=1)
        p, v = (torch.tensor(x, requires_grad=True) for x in (p0, v0))
        torch_loss(problem)(p, v).backward()
        np.testing.assert_allclose(run.p, p0 - 0.1 * p.grad.numpy(), atol=1e-13)
        np.testing.assert_allclose(run.v, v0 - 0.1 * v.grad.numpy(), atol=1e-13)

    def test_adam_is_torchs(self):
        torch = pytest.importorskip("torch")
        problem = random_problem(3)
        run = descend(problem, np.ones(4), optimizer="adam", lr=0.05, steps=7)
        p = torch.ones(4, dtype=torch.float64, requires_grad=True)
        adam = torch.optim.Adam([p], lr=0.05)
        for _ in range(7):
            adam.zero_grad()
            torch_loss(problem)(p).backward()
            adam.step()
        np.testing.assert_allclose(run.p, p.detach().numpy(), rtol=1e-9)

    @pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
    def test_every_optimizer_reaches_the_teacher_from_nearby(self, optimizer):
        teacher = student_teacher(N=40, n=8, d=4, sigma_p=0.5, seed=4)
        p0 = teacher.p_star + 0.05
        run = descend(teacher.problem, p0, optimizer=optimizer, lr=None, steps=20000, target=1e-12)
        assert run.status == "reached"
        np.testing.assert_allclose(run.p, teacher.p_star, atol=1e-4)  # sqrt of the loss over the curvature
        assert run.first_below(1e-6)[0] <= run.first_below(1e-12)[0]
        assert run.first_below(0.0) is None

    def test_second_order_steps_do_not_feel_the_conditioning(self):
        teacher, _, _ = structured_teacher(60, 8, 6, 3, gap=5.0, seed=0)  # kappa(H_p) is 4e4
        p0 = teacher.p_star + 1e-3 * np.random.default_rng(0).normal(size=6)
        rate = local_rate(teacher.problem, teacher.p_star)
        plain = descend(teacher.problem, p0, lr=rate.step, steps=2000, target=1e-20)
        newton = descend(teacher.problem, p0, optimizer="gauss_newton", lr=1e6, steps=50, target=1e-20, every=1)
        assert newton.status == "reached" and plain.status == "running"

    def test_divergence_is_a_status(self):
        teacher = student_teacher(N=10, n=4, d=3, seed=0)
        p0, v0 = teacher.student(0)
        run = descend(teacher.problem, p0, v0, lr=1e3, steps=2000)
        assert run.status == "diverged"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"optimizer": "sgd"}, r"optimizer must be 'gd', .* or 'adam', got 'sgd'"),
            ({"every": 0}, "every must be an integer >= 1"),
            ({"p0": np.zeros(3)}, r"p0 must have shape \(4,\)"),
            ({"v0": np.zeros(3)}, r"v0 must have shape \(4,\)"),
        ],
    )
    def test_bad_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            descend(random_problem(0), **{"p0": np.zeros(4), **arguments})


def test_losses():
    loss = curved_loss(2.0)
    r = np.linspace(-3, 3, 7)
    h = 1e-5
    np.testing.assert_allclose((loss.value(r + h) - loss.value(r - h)) / (2 * h), loss.slope(r), atol=1e-8)
    np.testing.assert_allclose((loss.slope(r + h) - loss.slope(r - h)) / (2 * h), loss.curvature(r), atol=1e-8)
    assert ((loss.curvature(r) >= loss.m) & (loss.curvature(r) <= loss.L)).all()
    with pytest.raises(ValueError, match="extra must be nonnegative"):
        curved_loss(-1.0)
