"""`attsvm.torch`: gradients by torch's own gradcheck, batches, dtypes, and errors."""

import numpy as np
import pytest
import torch

import attsvm
from attsvm import DegenerateError, InfeasibleError

STEP = {"frobenius": 1e-6, "nuclear": 1e-5, "spectral": 1e-4, "l1": 1e-6, "linf": 1e-6, "l3": 1e-4}


def tensors(seed, batch=None, n=2, T=3, d=3):
    problem = attsvm.random_problem(n=n, T=T, d=d, batch=batch, seed=seed)
    X, Z = (torch.tensor(value, requires_grad=True) for value in (problem.X, problem.Z))
    return X, Z, problem.optimal_tokens()


def checked(function, *given, norm):
    # Values are certified to 1e-8 or better, W of the nuclear norm is refined to 1e-12; gradcheck divides by the step.
    return torch.autograd.gradcheck(function, given, eps=STEP[norm], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize("norm", STEP)
@pytest.mark.parametrize("batch", [None, 2])
def test_gradcheck_of_the_margin(norm, batch):
    X, Z, selection = tensors(5, batch)
    assert checked(lambda X, Z: attsvm.torch.margin(X, Z, selection, norm=norm), X, Z, norm=norm)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
@pytest.mark.parametrize("batch", [None, 2])
def test_gradcheck_of_w_with_everything(norm, batch):
    X, Z, selection = tensors(1, batch)
    generator = torch.Generator().manual_seed(0)
    offset = (0.1 * torch.randn(3, dtype=torch.float64, generator=generator)).requires_grad_()
    prior = (0.1 * torch.randn(3, 3, dtype=torch.float64, generator=generator)).requires_grad_()

    def function(X, Z, offset, prior):
        return attsvm.torch.att_svm(X, Z, selection, norm=norm, offset=offset, prior=prior)

    assert checked(function, X, Z, offset, prior, norm=norm)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_gradcheck_of_soft_margins(norm):
    X, Z, selection = tensors(1)
    for loss in ("hinge", "squared_hinge"):
        options = {"norm": norm, "C": 5.0, "loss": loss}
        assert checked(lambda X, Z, o=options: attsvm.torch.margin(X, Z, selection, **o), X, Z, norm="nuclear")
        assert checked(lambda X, Z, o=options: attsvm.torch.objective(X, Z, selection, **o), X, Z, norm="spectral")


def test_values_are_those_of_the_numpy_functions():
    problem = attsvm.random_problem(n=3, T=4, d=5, batch=3, seed=0)
    X, Z, selection = torch.tensor(problem.X), torch.tensor(problem.Z), problem.optimal_tokens()
    sols = attsvm.att_svm(problem)
    np.testing.assert_allclose(attsvm.torch.att_svm(X, Z, torch.tensor(selection.indices)).numpy(), sols.W)
    np.testing.assert_allclose(attsvm.torch.margin(X, Z, selection).numpy(), sols.margin)
    np.testing.assert_allclose(attsvm.torch.objective(X, Z, selection).numpy(), sols.norm)
    soft = attsvm.att_svm(problem, C=0.5, norm="spectral")
    value = attsvm.torch.objective(X, Z, selection, C=0.5, norm="spectral")
    np.testing.assert_allclose(value.numpy(), soft.certificate.primal_value)


def test_queries_that_are_tokens_come_out_of_autograd():
    X = torch.randn(3, 4, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    attsvm.torch.objective(X, X[:, 0], [1, 2, 3]).backward()
    sol = attsvm.att_svm(attsvm.AttentionProblem.self_attention(X.detach().numpy()), [1, 2, 3])
    np.testing.assert_allclose(X.grad.numpy(), sol.sensitivity(query_tokens=0).gradients.X)


def test_the_dtype_of_the_tokens_is_kept():
    X, Z, selection = tensors(0)
    small = X.detach().float().requires_grad_()
    W = attsvm.torch.att_svm(small, Z.detach().float(), selection)
    W.sum().backward()
    assert W.dtype == small.grad.dtype == torch.float32
    wide = attsvm.torch.att_svm(X, Z, selection)
    np.testing.assert_allclose(W.detach().numpy(), wide.detach().numpy(), rtol=1e-4)


def test_masked_tokens_get_no_gradient():
    X, Z, _ = tensors(0, T=4)
    mask = torch.tensor([[True, True, True, False], [True, True, False, False]])
    attsvm.torch.margin(X, Z, [0, 0], mask=mask).backward()
    assert not X.grad[~mask].any() and X.grad[mask].any()


def test_infeasible_problems_are_named():
    X = torch.zeros(3, 1, 2, 1, dtype=torch.float64)
    X[0, 0, 0] = 1.0
    Z = torch.ones(3, 1, 1, dtype=torch.float64)
    with pytest.raises(InfeasibleError, match=r"problems 1, 2 of the batch: .*same vector as tokens 0 and 1"):
        attsvm.torch.margin(X, Z, [[0], [0], [0]])
    with pytest.raises(InfeasibleError, match=r"X.0. holds the same vector"):
        attsvm.torch.att_svm(X[1], Z[1], [0])


def test_degenerate_points_raise_in_backward_unless_accepted():
    X = torch.tensor([[[2.0], [1.0], [1.0]]], dtype=torch.float64, requires_grad=True)
    Z = torch.ones(1, 1, dtype=torch.float64)
    value = attsvm.torch.margin(X, Z, [0])  # the value itself is what it is
    with pytest.raises(DegenerateError, match=r"multipliers are not unique; degenerate='accept'"):
        value.backward()
    attsvm.torch.margin(X, Z, [0], degenerate="accept").backward()
    assert X.grad[0, 0].item() == pytest.approx(1.0)  # of both tokens together: the distance 2 - 1
    assert X.grad[0, 1:].sum().item() == pytest.approx(-1.0)
    with pytest.raises(DegenerateError, match="W has no derivative here"):
        attsvm.torch.att_svm(X, Z, [0]).sum().backward()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"X": [[[1.0], [0.0]]]}, TypeError, "X must be a torch tensor, got list"),
        ({"Z": torch.ones(1, 1, dtype=torch.int64)}, ValueError, "Z must hold floating-point numbers"),
        ({"X": torch.ones(2, 1)}, ValueError, "X must have shape"),
        ({"Z": torch.ones(2, 1)}, ValueError, "Z must have shape"),
        ({"selection": None}, ValueError, "selection must name one token per query"),
        ({"selection": [5]}, ValueError, "selection"),
        ({"nomr": "nuclear"}, TypeError, "did you mean 'norm'"),
        ({"degenerate": "ignore"}, ValueError, "degenerate must be"),
        ({"prior": torch.ones(3, 3)}, ValueError, r"prior must have shape \(1, 1\)"),
        ({"offset": torch.ones(3)}, ValueError, r"offset must have shape \(1, 2\)"),
        ({"C": 1.0, "norm": "l1"}, ValueError, "attsvm.torch.objective has one in every norm"),
        ({"C": -1.0}, ValueError, "C must be"),
    ],
)
def test_bad_input_is_named(change, error, message):
    given = {"X": torch.tensor([[[1.0], [0.0]]]), "Z": torch.ones(1, 1), "selection": [0]} | change
    with pytest.raises(error, match=message):
        attsvm.torch.margin(given.pop("X"), given.pop("Z"), given.pop("selection"), **given)


def test_w_in_other_norms_is_refused():
    X, Z, selection = tensors(0)
    with pytest.raises(ValueError, match="frobenius, nuclear, got norm='l1'"):
        attsvm.torch.att_svm(X, Z, selection, norm="l1")


def test_soft_nuclear_margins_are_solved_as_sharply_as_their_derivative_needs() -> None:
    """At the tolerance of values a multiplier that should be 0 was taken for support: here, and in one of 400 draws."""
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=96)
    options = {"norm": "nuclear", "C": 100.0, "loss": "squared_hinge"}
    X, Z = torch.tensor(problem.X, requires_grad=True), torch.tensor(problem.Z)
    rough = attsvm.torch.att_svm(X, Z, problem.optimal_tokens(), tolerance=1e-7, **options)
    with pytest.raises(DegenerateError, match="solve with a smaller tolerance="):
        rough.square().sum().backward()
    attsvm.torch.att_svm(X, Z, problem.optimal_tokens(), **options).square().sum().backward()
    assert torch.isfinite(X.grad).all()
