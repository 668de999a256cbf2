import itertools
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import attsvm
from attsvm.parameterizations import get_parameterization
from attsvm.training import RunStatus, snapshot_steps
from attsvm.training import loop as loop_module
from attsvm.training.log_gradient import scaled_gradient
from attsvm.training.loop import Method, TrainingState, training_step
from attsvm.training.optimizers import get_optimizer
from attsvm.training.tensors import TensorProblem, tensor_problem

OPTIMIZERS = [
    "normalized_gd",
    "gd",
    "adam",
    "spectral",
    "sign",
    "steepest:l1",
    "steepest:l3",
    "mirror:l3",
    "mirror:l1.5",
]


def correlation(A, B):
    return float(np.sum(A * B) / (np.linalg.norm(A) * np.linalg.norm(B)))


def small(**options):
    return attsvm.random_problem(**({"n": 3, "T": 4, "d": 6, "seed": 0} | options))


def test_history_describes_the_run():
    problem = small(queries=2)
    run = attsvm.train(problem, steps=100, snapshots=10)
    h = run.history
    assert h.steps.tolist() == snapshot_steps(100, 10)
    assert h.W.shape == (len(h), 6, 6)
    assert h.selection.shape == (len(h), 3, 2)
    np.testing.assert_array_equal(h.W[-1], run.W)
    np.testing.assert_allclose(h.norm, np.linalg.norm(h.W, axis=(1, 2)), rtol=1e-12)
    logits = np.einsum("itd,de,ike->ikt", problem.X, run.W, problem.Z)
    s = np.exp(logits - logits.max(-1, keepdims=True))
    s /= s.sum(-1, keepdims=True)
    assert h.max_probability[-1] == pytest.approx(s.max(-1).mean(), rel=1e-10)
    assert np.exp(h.log_rest[-1]) == pytest.approx((1 - s.max(-1)).max(), rel=1e-8)
    np.testing.assert_array_equal(run.selection.indices, logits.argmax(-1))
    composed = np.einsum("ikt,itd,d->ik", s, problem.X, problem.head.v)
    assert h.loss[-1] == pytest.approx(np.logaddexp(0, -problem.Y * composed).sum() / 3, rel=1e-10)
    assert run.status is RunStatus.FINISHED
    assert run.steps == 100


def test_normalized_steps_have_length_lr():
    run = attsvm.train(small(), steps=1, lr=0.25, init="zero")
    assert np.linalg.norm(run.W) == pytest.approx(0.25, rel=1e-12)


@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_a_batch_trains_like_its_problems(parameterization):
    batch = small(batch=4)
    together = attsvm.train(batch, parameterization, steps=200)
    for b in range(4):
        given = {name: value[b] for name, value in start_of(batch, parameterization).items()}
        init = given["W"] if parameterization == "W" else (given["K"], given["Q"])
        alone = attsvm.train(batch[b], parameterization, steps=200, init=init)
        np.testing.assert_allclose(together.W[b], alone.W, rtol=1e-9, atol=1e-9)
        np.testing.assert_array_equal(together[b].history.selection, alone.history.selection)


def start_of(batch, parameterization):
    return attsvm.train(batch, parameterization, steps=0).parameters


def test_seeds_and_generators():
    problem = small()
    a, b, c = (attsvm.train(problem, steps=0, seed=s).W for s in (0, 0, 1))
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, c)
    assert np.abs(a).max() <= 6**-0.5
    np.testing.assert_array_equal(attsvm.train(problem, steps=0, seed=np.random.default_rng(0)).W, a)


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "ridge_decay"])
@pytest.mark.parametrize("parameterization", ["W", "KQ"])
def test_every_optimizer_lowers_the_loss(optimizer, parameterization):
    lr = 0.5 if optimizer == "gd" else 0.01 if optimizer == "sign" else 0.05
    run = attsvm.train(small(), parameterization, steps=300, optimizer=optimizer, lr=lr)
    assert run.history.loss[-1] < run.history.loss[0]
    assert np.isfinite(run.W).all()


def test_steepest_directions_have_unit_norm_and_the_largest_inner_product(rng):
    from attsvm.solvers import get_norm

    problem = small()
    W0 = rng.standard_normal((6, 6))
    gradient = scaled_gradient(tensor_problem(problem), torch.tensor(W0)[None], "logistic")
    g = gradient.direction[0].numpy()
    for name, norm in (("spectral", "spectral"), ("sign", "linf"), ("steepest:l1", "l1"), ("steepest:l3", "l3")):
        step = W0 - attsvm.train(problem, steps=1, lr=1.0, init=W0, optimizer=name).W
        assert get_norm(norm)(step) == pytest.approx(1.0, rel=1e-9)
        assert np.sum(step * g) == pytest.approx(get_norm(norm).dual(g), rel=1e-9)


def test_adam_equals_torch_adam_while_gradients_are_large():
    problem = small()
    ours = attsvm.train(problem, steps=50, lr=0.01, optimizer="adam", init="zero", loss="correlation").W
    W = torch.zeros(6, 6, dtype=torch.float64, requires_grad=True)
    rule = torch.optim.Adam([W], lr=0.01, eps=1e-30)
    X, Z, Y, v = (torch.tensor(np.array(a)) for a in (problem.X, problem.Z, problem.Y, problem.head.v))
    for _ in range(50):
        rule.zero_grad()
        s = torch.softmax(torch.einsum("itd,de,ie->it", X, W, Z), dim=-1)
        (-(Y * torch.einsum("it,itd,d->i", s, X, v))).mean().backward()
        rule.step()
    np.testing.assert_allclose(ours, W.detach().numpy(), rtol=1e-7, atol=1e-9)


def test_descent_lemma_with_the_step_of_lemma_4():
    for loss in ("logistic", "exponential", "correlation"):
        problem = small(seed=2)
        L = attsvm.smoothness_constant(problem, loss)
        W = np.zeros((6, 6))
        for _ in range(30):
            run = attsvm.train(problem, steps=1, optimizer="gd", init=W, loss=loss)
            before, after = run.history.loss
            size = np.exp(run.history.log_gradient[0])
            assert after - before <= -(size**2) / (2 * L) * (1 - 1e-9)  # Lemma 9
            W = run.W


def test_norm_diverges_under_assumption_b(rng):
    # B.2: all other tokens have equal scores. With feasibility, |W| grows without bound (Theorem 3).
    problem = small(d=12, seed=5)
    best = problem.optimal_tokens().indices
    scores = {tuple(x): float(t == best[i]) for i, tokens in enumerate(problem.X) for t, x in enumerate(tokens)}
    table = np.array(list(scores)), np.array(list(scores.values()))
    # A linear head with exactly these scores exists because the 12 tokens are independent in dimension 12.
    v = np.linalg.solve(table[0], table[1])
    problem = replace(problem, Y=np.ones(3), head=attsvm.LinearHead(v))
    run = attsvm.train(problem, steps=5000, optimizer="gd", init="zero", lr=20 / attsvm.smoothness_constant(problem))
    growth = run.history.norm[run.history.steps >= 10]
    assert (np.diff(growth) > 0).all()
    assert growth[-1] > 2 * growth[len(growth) // 2]
    assert correlation(run.W, attsvm.att_svm(problem).W) > 0.8


def stacked(problems):
    """Problems of one size as a batch."""
    X, Y, Z, v = (np.stack(parts) for parts in zip(*((p.X, p.Y, p.Z, p.head.v) for p in problems), strict=True))
    return attsvm.AttentionProblem(X, Y, Z, attsvm.LinearHead(v))


def test_theorem_4_global_convergence_from_a_separating_first_step():
    separated = []
    for seed in range(6):
        problem = small(d=20, seed=seed)
        zero = attsvm.train(problem, steps=0, init="zero")
        gradient = attsvm.train(problem, steps=1, lr=1.0, init="zero").W  # minus the unit gradient at 0
        logits = np.einsum("itd,de,ie->it", problem.X, gradient, problem.Z)
        opt = problem.optimal_tokens().indices
        lead = logits[np.arange(3), opt][:, None] - logits
        if not (np.delete(lead.ravel(), np.arange(3) * 4 + opt) > 0).all():
            continue  # Assumption C does not hold for this draw
        assert zero.history.max_probability[0] == pytest.approx(0.25)
        separated.append(problem)
    assert len(separated) >= 3
    runs = attsvm.train(stacked(separated), steps=5000, init="separating", radius=20.0)
    for b, problem in enumerate(separated):
        assert (runs[b].history.selection == problem.optimal_tokens().indices).all()
        assert 1 - correlation(runs.W[b], attsvm.att_svm(problem).W) < 1e-3


def locally_optimal_examples(count):
    """Non-global locally optimal selections whose support sets are all non-empty, as the corrected theorem asks."""
    found = []
    for seed in range(60):
        problem = small(n=2, d=3, seed=seed)
        best = problem.optimal_tokens().indices
        for selection in itertools.product(range(4), repeat=2):
            solution = attsvm.att_svm(problem, list(selection))
            if np.array_equal(selection, best) or not solution.status.has_solution:
                continue
            if not solution.support.any(axis=-1).all():
                continue
            if attsvm.is_locally_optimal(problem, list(selection), solution=solution):
                found.append((problem, solution))
                if len(found) == count:
                    return found
    raise AssertionError("too few locally optimal selections")


def test_theorem_5_iterates_started_in_the_cone_of_a_local_optimum_converge_to_it():
    problems, solutions = zip(*locally_optimal_examples(6), strict=True)
    batch = stacked(problems)
    starts = [attsvm.cone_init(s.W, radius=300 * s.norm, correlation=1 - 1e-5, seed=i) for i, s in enumerate(solutions)]
    # Steps of 5 beside starts of norm 300 |W_mm|. At four seeds: errors of 3e-6 at most, 0.3 of those of the starts.
    run = attsvm.train(batch, steps=1000, init=np.stack(starts), lr=5.0)
    for b, solution in enumerate(solutions):
        assert (run[b].history.selection == solution.selection.indices).all()
        assert 1 - correlation(run.W[b], solution.W) < 1e-5
        assert 1 - correlation(run.W[b], solution.W) < 0.5 * (1 - correlation(starts[b], solution.W))


def test_log_domain_passes_the_floor_of_the_published_arithmetic():
    batch = attsvm.random_problem(n=6, T=8, d=10, batch=20, seed=0)
    errors = {}
    for arithmetic in ("log", "naive"):
        # The path is that of 6000 steps of 0.1. At three seeds: log at most 1.6e-4, naive at least 2.4e-3.
        run = attsvm.train(batch, steps=1200, lr=0.5, arithmetic=arithmetic, snapshots=5)
        W = [attsvm.att_svm(batch[b], run.selection[b]).W for b in range(20)]
        errors[arithmetic] = np.median([1 - correlation(run.W[b], W[b]) for b in range(20)])
    assert errors["log"] < 5e-4
    assert errors["naive"] > 1.5e-3


def test_prompt_model_is_attention_with_a_constant_query(rng):
    X, v = rng.standard_normal((3, 4, 5)), rng.standard_normal(5)
    problem = attsvm.AttentionProblem(X, [1, -1, 1], np.ones((3, 1)), attsvm.LinearHead(v))
    p0 = rng.standard_normal(5)
    run = attsvm.train(problem, "prompt", steps=500, init=p0)
    same = attsvm.train(problem, "W", steps=500, init=p0[:, None])
    np.testing.assert_allclose(run.parameters["p"], same.W[:, 0], rtol=1e-9)
    M = rng.standard_normal((5, 2))
    keyed = attsvm.train(problem, "prompt", steps=50, key_matrix=M, init=np.zeros(2))
    np.testing.assert_allclose(keyed.W[:, 0], M @ keyed.parameters["p"], rtol=1e-12)
    with pytest.raises(ValueError, match="the prompt model has no queries"):
        attsvm.train(small(), "prompt")


def test_stopping_by_norm_is_per_problem():
    batch = small(batch=5)
    run = attsvm.train(batch, steps=500, stop_norm=5.0, init="zero")
    free = attsvm.train(batch, steps=500, init="zero")
    for b in range(5):
        assert run.status[b] is RunStatus.NORM
        assert 5.0 <= np.linalg.norm(run.W[b]) <= 5.1
        assert run.steps[b] < 500
    assert len({int(s) for s in run.steps}) > 1
    assert (np.linalg.norm(free.W, axis=(1, 2)) > 5.1).all()


def test_stopping_by_direction():
    run = attsvm.train(small(), steps=10**5, stop_direction=1e-4, snapshots=30)
    assert run.status is RunStatus.CONVERGED
    assert run.steps < 10**5
    a, b = run.history.W[-2:]
    assert 1 - correlation(a, b) <= 1e-4


def test_stationary_points_are_named():
    problem = small()
    equal = replace(problem, head=attsvm.LinearHead(np.zeros(6)))
    run = attsvm.train(equal, steps=100)
    assert run.status is RunStatus.STATIONARY
    assert run.steps == 0
    assert run.history.log_gradient[-1] == -np.inf
    saddle = attsvm.train(problem, "KQ", steps=100, init=(np.zeros((6, 6)), np.zeros((6, 6))))
    assert saddle.status is RunStatus.STATIONARY


def test_descent_goes_on_beside_a_query_without_gradient():
    # The first query has tied scores; the second alone decides, and its gradient falls to e^-800.
    X = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]
    problem = attsvm.AttentionProblem(X, [1, 1], np.eye(2), attsvm.LinearHead([0.0, 1.0]))
    run = attsvm.train(problem, steps=800, lr=1.0)
    assert run.status is RunStatus.FINISHED
    assert run.steps == 800
    # Every step moves W[1, 1] by lr = 1: nothing else has a gradient.
    assert run.W[1, 1] - run.history.W[0][1, 1] == pytest.approx(800.0, rel=1e-9)
    assert run.history.log_gradient[-1] == pytest.approx(-800.0, abs=3.0)


def test_values_that_are_not_finite_end_the_problem_with_the_last_good_w():
    problem = small()
    run = attsvm.train(problem, steps=200, optimizer="sign", lr=1e308)
    assert run.status is RunStatus.NOT_FINITE
    assert np.isfinite(run.W).all()
    poisoned = replace(problem, head=lambda x: torch.log(x[..., 0]))
    run = attsvm.train(poisoned, steps=10)
    assert run.status is RunStatus.NOT_FINITE
    assert run.steps == 0


def test_masked_and_causal_training_ignores_hidden_tokens():
    problem = small(kind="sequence", causal=True, d=8)
    run = attsvm.train(problem, steps=3000)
    assert (run.history.selection <= np.arange(4)).all()
    solution = attsvm.satt_svm(problem, run.selection)
    assert 1 - correlation(run.W, solution.W) < 0.02
    hidden = replace(problem, mask=None)
    assert correlation(run.W, attsvm.satt_svm(hidden, run.selection).W) < correlation(run.W, solution.W)


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam"}, {"optimizer": "mirror:l3"}, {"parameterization": "KQ"}])
def test_a_killed_run_resumes_bit_for_bit(tmp_path, monkeypatch, options):
    problem, path = small(batch=3), tmp_path / "run.pt"
    settings = {"steps": 300, "snapshots": 20, "seed": 4} | options
    whole = attsvm.train(problem, **settings)
    step = loop_module.training_step

    def dies(data, state, method, k):
        if k == 170:
            raise KeyboardInterrupt
        return step(data, state, method, k)

    monkeypatch.setattr(loop_module, "training_step", dies)
    with pytest.raises(KeyboardInterrupt):
        attsvm.train(problem, checkpoint=path, **settings)
    monkeypatch.setattr(loop_module, "training_step", step)
    resumed = attsvm.train(problem, checkpoint=path, resume=True, **settings)
    np.testing.assert_array_equal(resumed.W, whole.W)
    for name in ("W", "loss", "norm", "log_gradient", "selection", "steps"):
        np.testing.assert_array_equal(getattr(resumed.history, name), getattr(whole.history, name))
    finished = attsvm.train(problem, checkpoint=path, resume=True, **settings)  # nothing left to do
    np.testing.assert_array_equal(finished.W, whole.W)


def test_checkpoints_of_other_runs_are_refused(tmp_path):
    path = tmp_path / "run.pt"
    attsvm.train(small(), steps=20, checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another run"):
        attsvm.train(small(), steps=30, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="belongs to another run"):
        attsvm.train(small(seed=1), steps=20, checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="resume=True needs checkpoint=PATH"):
        attsvm.train(small(), steps=20, resume=True)
    assert not (tmp_path / "run.pt.partial").exists()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("parameterization", ["W", "KQ"])
@pytest.mark.parametrize("arithmetic", ["log", "naive"])
def test_no_step_leaves_the_device(optimizer, parameterization, arithmetic):
    """Fake CUDA tensors refuse .numpy(), .item() and mixing with CPU tensors."""
    with FakeTensorMode():

        def fake(*shape, dtype=torch.float64):
            return torch.empty(*shape, dtype=dtype, device="cuda")

        X, scores = fake(4, 3, 5, 6), fake(4, 3, 2, 5)
        allowed = fake(4, 3, 2, 5, dtype=torch.bool)
        data = TensorProblem(
            X, fake(4, 3, 2, 7), fake(4, 3, 2), allowed, lambda x: (x.sum(-1), scores), scores,
            allowed.logical_not(), fake(4, 3, 2, 1, dtype=torch.bool),
        )  # fmt: skip
        parameters = {"W": fake(4, 6, 7)} if parameterization == "W" else {"K": fake(4, 6, 3), "Q": fake(4, 7, 3)}
        rule = get_optimizer(optimizer)
        form = get_parameterization(parameterization)
        method = Method(form, rule, attsvm.logistic, arithmetic, fake(4), -50.0, 2, 9.0)
        state = TrainingState(parameters, rule.init(parameters), fake(4, dtype=torch.int64), fake(4, dtype=torch.int64))
        for k in (1, 2, 3):
            state = training_step(data, state, method, k)
        for tensor in (*state.parameters.values(), *state.optimizer.values(), state.code):
            assert tensor.device.type == "cuda"
        for name, tensor in state.parameters.items():
            assert tensor.shape == parameters[name].shape


def test_progress_bar_shows_nothing_by_default(capsys):
    attsvm.train(small(), steps=5)
    assert capsys.readouterr().out == ""
    run = attsvm.train(small(), steps=5, progress=True)
    assert run.status is RunStatus.FINISHED


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"parameterization": "V"}, "parameterization must be 'W', 'KQ' or 'prompt', got 'V'"),
        ({"steps": -1}, "steps must be an integer >= 0, got -1"),
        ({"lr": 0.0}, "lr must be None or a positive number, got 0.0"),
        ({"optimizer": "sgd"}, "optimizer must be 'normalized_gd', 'gd', 'flow', 'adam'"),
        ({"optimizer": "mirror:l1"}, "optimizer must be 'normalized_gd', 'gd', 'flow', 'adam'"),
        ({"optimizer": "gd", "parameterization": "KQ"}, "lr must be given for optimizer 'gd' on factors"),
        ({"normalization": "each"}, "normalization must be 'joint' or 'factor', got 'each'"),
        ({"arithmetic": "float128"}, "arithmetic must be 'log' or 'naive', got 'float128'"),
        ({"init": "ones"}, "init must be 'zero', 'uniform', 'separating'"),
        ({"init": np.zeros((5, 6))}, "init must have shape (6, 6), got (5, 6)"),
        ({"init": np.full((6, 6), np.nan)}, "init must be finite"),
        ({"init": "zero", "parameterization": "KQ"}, "init='zero' is a stationary point of (K, Q)"),
        ({"init": np.zeros((6, 6)), "parameterization": "KQ"}, "init for parameterization 'KQ' must be a name or"),
        ({"m": 3}, "m is the inner dimension of parameterization 'KQ' and must be an integer >= 1, got m=3"),
        ({"stop_norm": -1.0}, "stop_norm must be None or a positive number, got -1.0"),
        ({"snapshots": 1}, "snapshots must be an integer >= 2, got 1"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        attsvm.train(small(), **arguments)


@pytest.mark.parametrize("batch", [(), (3,)])
def test_cone_init_keeps_its_radius_for_a_direction_drawn_from_the_same_seed(batch):
    """The first noise is then the direction itself, and nothing but rounding is orthogonal to it."""
    D = np.random.default_rng(0).standard_normal((*batch, 3, 4))
    W = attsvm.cone_init(D, radius=7.0, correlation=0.8)
    size = np.linalg.norm(W, axis=(-2, -1))
    np.testing.assert_allclose(size, 7.0, rtol=1e-12)
    np.testing.assert_allclose((W * D).sum((-2, -1)) / size / np.linalg.norm(D, axis=(-2, -1)), 0.8, rtol=1e-12)
    with pytest.raises(ValueError, match="direction has one entry"):
        attsvm.cone_init([[1.0]], radius=1.0, correlation=0.5)
    np.testing.assert_allclose(attsvm.cone_init([[2.0]], radius=3.0, correlation=1.0), [[3.0]])


def test_a_head_that_still_turns_has_not_converged():
    """From v = 0 the first step moves v alone; W points where it did."""
    run = attsvm.train(small(), steps=50, train_head=True, head_init="zero", stop_direction=1e-9, snapshots=[1, 2, 50])
    assert (str(run.status), run.history.steps[-1]) == ("finished", 50)


def test_the_ridge_acts_alone_where_the_gradient_is_zero():
    """Also in float32, where e^-200 is 0 beside a gradient of scale 1."""
    given = {"steps": 1, "train_head": True, "head_init": "zero", "optimizer": "ridge_decay", "snapshots": 2}
    runs = [attsvm.train(small(), dtype=dtype, **given) for dtype in (torch.float64, torch.float32)]
    for run in runs:
        start = run.history.W[0]
        np.testing.assert_allclose(run.W, start * (1 - 0.1 / np.linalg.norm(start)), rtol=1e-5)


def test_cone_init_and_smoothness_refuse_nonsense():
    with pytest.raises(ValueError, match="radius must be positive and correlation in"):
        attsvm.cone_init(np.eye(3), radius=-1.0)
    with pytest.raises(ValueError, match="Lemma 4's constant is for linear heads"):
        attsvm.smoothness_constant(replace(small(), head=attsvm.ReluHead(np.eye(6))))
    batch = small(batch=3)
    np.testing.assert_allclose(attsvm.smoothness_constant(batch)[1], attsvm.smoothness_constant(batch[1]), rtol=1e-12)
