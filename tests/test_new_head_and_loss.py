"""A new head and a new loss are one class each, a new measure one function; any callable is a head."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import attsvm
from attsvm.heads import CallableHead, Head
from attsvm.probing import MEASURES, heads_from_arrays
from attsvm.probing.measure_catalog import Measure
from attsvm.training.log_gradient import naive_gradient, scaled_gradient
from attsvm.training.tensors import tensor_problem


@dataclass(frozen=True, eq=False)
class SoftplusHead(Head):
    """``h(x) = log(1 + exp(scale v . x)) / scale``: all that a full head needs, in one class."""

    kind: ClassVar[str] = "softplus"
    parameters: ClassVar[Mapping[str, tuple[str, ...]]] = {"v": ("d",), "scale": ()}
    bend: ClassVar[str] = "convex"
    v: object
    scale: float

    def value(self, x):
        return attsvm.logistic.value(-self.scale * self.project("v", x)) / self.scale

    def gradient(self, x):
        return self.lift("v", -attsvm.logistic.derivative(-self.scale * self.project("v", x)))


class ShiftedLogistic(attsvm.Loss):
    """``log(1 + exp(margin - u))``."""

    def __init__(self, margin):
        super().__init__(
            "shifted logistic",
            value=lambda u: attsvm.logistic.value(u - margin),
            derivative=lambda u: attsvm.logistic.derivative(u - margin),
            second=lambda u: attsvm.logistic.second(u - margin),
            curvature_peak=margin,
        )


def with_head(head, **options):
    problem = attsvm.random_problem(**({"n": 3, "T": 4, "d": 6, "seed": 0} | options))
    return replace(problem, head=head)


@pytest.fixture
def softplus(rng):
    return SoftplusHead(rng.standard_normal(6), 2.0)


# -- a new head -------------------------------------------------------------------------------------


def test_a_new_head_scores_solves_and_trains(softplus):
    problem = with_head(softplus)
    expected = problem.Y[:, None] * np.log1p(np.exp(2.0 * problem.X @ softplus.v)) / 2.0
    np.testing.assert_allclose(problem.scores(), expected, rtol=1e-12)
    assert attsvm.att_svm(problem).status == "optimal"
    run = attsvm.train(problem, steps=400)
    assert run.status == "finished"
    assert run.history.loss[-1] < run.history.loss[0]


@pytest.mark.parametrize("batch", [None, 2])
def test_the_gradient_of_a_new_head_is_used_and_right(rng, batch):
    lead = () if batch is None else (batch,)
    head = SoftplusHead(rng.standard_normal((*lead, 6)), 2.0)
    problem = with_head(head, batch=batch, queries=2)

    def plain(x):  # the same head as a callable of tensors, differentiated by autograd
        v = torch.tensor(np.array(head.v))
        v = v if batch is None else v[:, None, None]
        return torch.nn.functional.softplus(2.0 * (x * v).sum(-1)) / 2.0

    W = torch.tensor(rng.standard_normal((batch or 1, 6, 6)))
    found = naive_gradient(tensor_problem(problem), W, "logistic")
    twin = naive_gradient(tensor_problem(replace(problem, head=plain)), W, "logistic")
    torch.testing.assert_close(found.direction, twin.direction, rtol=1e-10, atol=1e-14)


def test_assumption_e_is_decided_for_a_head_that_bends(softplus):
    diagnosis = attsvm.diagnose(with_head(softplus))
    assert diagnosis["E"].verdict in ("holds", "fails")  # sampled heads are "unknown" at best
    assert "SoftplusHead" in diagnosis["linear head"].detail
    convex_only = replace(with_head(softplus), Y=np.ones(3))
    assert attsvm.diagnose(convex_only)["E"].verdict == "holds"  # the vertices decide


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
@pytest.mark.parametrize("batch", [None, 2])
def test_a_new_head_is_saved_and_loaded(tmp_path, rng, ending, batch):
    lead = () if batch is None else (batch,)
    problem = with_head(SoftplusHead(rng.standard_normal((*lead, 6)), 0.5), batch=batch)
    attsvm.save_problem(problem, tmp_path / f"p.{ending}")
    read = attsvm.load_problem(tmp_path / f"p.{ending}")
    assert type(read.head) is SoftplusHead
    assert read.head.scale == 0.5
    np.testing.assert_array_equal(read.scores(), problem.scores())
    if batch:
        np.testing.assert_array_equal(read[1].scores(), problem[1].scores())


def test_a_subclass_without_a_kind_of_its_own_is_not_stored_as_its_parent(tmp_path, rng):
    class Twice(attsvm.LinearHead):
        def value(self, x):
            return 2 * super().value(x)

    problem = with_head(Twice(rng.standard_normal(6)))
    with pytest.raises(attsvm.ProblemFileError, match="a head of type Twice is code and cannot be stored"):
        attsvm.save_problem(problem, tmp_path / "p.npz")


def test_bad_parameters_of_a_new_head_are_named():
    with pytest.raises(ValueError, match=r"v must have shape \(d,\), optionally with a leading batch axis"):
        SoftplusHead(np.ones((2, 2, 2)), 1.0)
    with pytest.raises(ValueError, match="scale must be a finite number, got nan"):
        SoftplusHead([1.0], float("nan"))


# -- a new loss -------------------------------------------------------------------------------------


def test_a_new_loss_trains_diagnoses_and_follows_paths():
    problem, loss = attsvm.random_problem(n=3, T=4, d=6, seed=0), ShiftedLogistic(0.5)
    run = attsvm.train(problem, steps=300, loss=loss)
    s = attsvm.attention.probabilities(problem, run.W)
    assert run.history.loss[-1] == pytest.approx(
        np.log1p(np.exp(0.5 - (s * problem.scores()).sum(-1))).mean(), rel=1e-10
    )
    assert attsvm.diagnose(problem, loss=loss)["A"].verdict == "holds"
    path = attsvm.regularization_path(problem, [5, 40], loss=loss, starts=1)
    assert path.distance[-1] < path.distance[0]
    low, high = problem.scores().min(), problem.scores().max()
    grid = np.linspace(low, high, 100_001)
    exact = np.exp(0.5 - grid) / (1 + np.exp(0.5 - grid))
    assert loss.constants(low, high).M1 == pytest.approx(exact.max(), rel=1e-9)
    run = attsvm.train(problem, steps=20, optimizer="gd", loss=loss)
    assert (np.diff(run.history.loss) <= 0).all()  # Lemma 9 with the constants of this loss


def test_losses_of_the_library_are_objects_for_training(rng):
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    for name in ("logistic", "exponential", "correlation"):
        by_name = attsvm.train(problem, steps=50, loss=name)
        by_object = attsvm.train(problem, steps=50, loss=attsvm.get_loss(name))
        np.testing.assert_array_equal(by_name.W, by_object.W)
    assert attsvm.get_loss("correlation") is attsvm.correlation_loss
    assert not hasattr(attsvm, "correlation")


def test_a_loss_written_for_arrays_or_for_tensors_only_works_everywhere():
    u = np.linspace(-2, 2, 9)
    for maps in (
        attsvm.Loss("arrays", lambda u: np.asarray(np.exp(-np.asarray(u))), *[lambda u: -np.exp(-np.asarray(u))] * 2),
        attsvm.Loss("tensors", lambda u: torch.exp(-u), *[lambda u: -torch.exp(-u)] * 2),
    ):
        np.testing.assert_allclose(maps(u), np.exp(-u), rtol=1e-15)
        tensor = maps.derivative(torch.tensor(u))
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), -np.exp(-u), rtol=1e-15)
    run = attsvm.train(attsvm.random_problem(n=2, T=3, d=4), steps=50, loss=maps)
    same = attsvm.train(attsvm.random_problem(n=2, T=3, d=4), steps=50, loss="exponential")
    np.testing.assert_allclose(run.W, same.W, rtol=1e-9)


def test_two_losses_of_one_name_are_different_runs(tmp_path):
    problem, path = attsvm.random_problem(n=2, T=3, d=4), tmp_path / "run.pt"
    attsvm.train(problem, steps=5, loss=ShiftedLogistic(0.5), checkpoint=path)
    attsvm.train(problem, steps=5, loss=ShiftedLogistic(0.5), checkpoint=path, resume=True)
    with pytest.raises(ValueError, match="belongs to another run"):
        attsvm.train(problem, steps=5, loss=ShiftedLogistic(0.7), checkpoint=path, resume=True)


def test_things_that_are_no_loss_are_named():
    problem = attsvm.random_problem(n=2, T=3, d=4)
    with pytest.raises(TypeError, match=r"loss must be one of .* or a Loss, got ndarray"):
        attsvm.train(problem, loss=np.ones(3))
    with pytest.raises(TypeError, match="derivative of loss 'mine' must be callable, got float"):
        attsvm.Loss("mine", abs, 1.0, abs)


# -- a new measure ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("registries")
def test_a_new_measure_is_a_column_with_interval_baselines_and_sentence(rng, tmp_path):
    def top(head):
        return np.exp(head.log_attention).max(axis=-1).mean(axis=-1)

    MEASURES["top"] = Measure("top", "polarization", "largest weight", "Largest <weight>.", share=True, function=top)
    head = attsvm.TrainedHead.from_weights(rng.normal(size=(3, 6)), rng.normal(size=(3, 6)))
    table = attsvm.probe([heads_from_arrays(rng.normal(size=(4, 5, 6)), [head])], svm=None, removal=0)
    record = table.head(0, 0)
    assert record["top"] == pytest.approx(record["sparsity"], rel=1e-12)  # the same measure of the library
    assert record["top_low"] < record["top"] < record["top_high"] <= 1
    assert record["top_random"] == pytest.approx(record["sparsity_random"], rel=1e-12)
    table.to_html(tmp_path / "page.html")
    assert "largest weight" in (tmp_path / "page.html").read_text(encoding="utf-8")


# -- callables --------------------------------------------------------------------------------------


def for_arrays(x):
    return np.tanh(np.asarray(x)[..., 0]) + np.square(np.asarray(x)[..., 1])


def for_tensors(x):
    return torch.tanh(x[..., 0]) + x[..., 1].square()


def for_both(x):
    return x[..., 0] ** 3 + x[..., 1] ** 2


class WithGradient:
    """A callable of arrays that knows its gradient."""

    def __call__(self, x):
        return for_arrays(x)

    def gradient(self, x):
        x = np.asarray(x)
        slope = np.zeros(x.shape)
        slope[..., 0], slope[..., 1] = 1 - np.tanh(x[..., 0]) ** 2, 2 * x[..., 1]
        return slope


@pytest.mark.parametrize("head", [for_arrays, for_tensors, for_both, WithGradient()])
def test_every_callable_scores_solves_and_diagnoses(head):
    problem = with_head(head)
    assert isinstance(problem.head, CallableHead)
    x = np.asarray(problem.X)
    first = x[..., 0] ** 3 if head is for_both else np.tanh(x[..., 0])
    np.testing.assert_allclose(problem.scores(), problem.Y[:, None] * (first + x[..., 1] ** 2), rtol=1e-12)
    assert attsvm.att_svm(problem).status == "optimal"
    assert attsvm.diagnose(problem)["E"].verdict in ("unknown", "fails")
    assert float(attsvm.attention.risk(problem, np.zeros((6, 6)))) > 0


def test_callables_of_tensors_and_callables_with_a_gradient_train_alike():
    runs = [attsvm.train(with_head(head), steps=100).W for head in (for_tensors, WithGradient())]
    np.testing.assert_allclose(*runs, rtol=1e-9)
    assert attsvm.train(with_head(for_both), steps=10).status == "finished"


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (for_arrays, r"head must map torch tensors .*; for_arrays raised RuntimeError: Can't call numpy\(\)"),
        (lambda x: x.detach()[..., 0], "the value of <lambda> does not depend on its argument by torch operations"),
        (lambda x: x, r"head must map torch tensors .*; got Tensor of shape"),
    ],
)
def test_training_says_what_a_callable_lacks(head, message):
    with pytest.raises(ValueError, match=message):
        attsvm.train(with_head(head), steps=5)


def test_a_module_is_a_head():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1), torch.nn.Flatten(-2))
    problem = with_head(layers.double())
    assert problem.scores().shape == (3, 4)  # its values require grad and are detached
    run = attsvm.train(problem, steps=100)
    assert run.history.loss[-1] < run.history.loss[0]
    gradient = scaled_gradient(tensor_problem(problem), torch.zeros(1, 6, 6).double(), "logistic")
    assert float(gradient.direction.abs().max()) > 0


def test_what_a_callable_maps_is_found_out_once():
    calls = []

    def counted(x):
        calls.append(type(x))
        return torch.tanh(x[..., 0])

    head = CallableHead(counted)
    for _ in range(3):
        head(np.zeros((2, 3)))
    assert calls == [np.ndarray, torch.Tensor, torch.Tensor, torch.Tensor]


def test_mistakes_in_a_callable_are_raised_as_they_are():
    with pytest.raises(IndexError, match="index 9"):
        with_head(lambda x: x[..., 9]).scores()
    with pytest.raises(ValueError, match="head must be callable on arrays of tokens"):
        with_head(3.0)
