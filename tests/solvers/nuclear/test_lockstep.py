"""The batched nuclear method itself: precision, pieces of a batch, devices."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, solve
from attsvm.solvers.library import library
from kkt import assert_optimal, sphere_rows
from solver_api import HARD

torch = pytest.importorskip("torch")


def test_float32_is_honest() -> None:
    batch = MarginProblem(*sphere_rows(10, 4, 4, 8, seed=14))
    single = solve(batch, "nuclear", dtype="float32")
    double = solve(batch, "nuclear")
    assert single.tolerance == 1e-3
    assert (single.status == "optimal").all()  # at its own tolerance
    assert double.certificate.gap.max() < single.certificate.gap.max() < 1e-3
    for i in range(10):
        assert single.certificate.gap[i] == pytest.approx(single[i].certificate.gap, rel=1e-6, abs=1e-14)
    np.testing.assert_allclose(single.norm, double.norm, rtol=1e-3)


def basic_index(tensor: torch.Tensor, key: object) -> torch.Tensor:
    """``tensor[key]`` for slices, None, integers and an ellipsis, by operators that fake tensors support.

    Plain indexing switches to the tensor's device before it dispatches, which a build without CUDA cannot.
    """
    parts = list(key) if isinstance(key, tuple) else [key]
    taken = sum(part is not None and part is not ... for part in parts)
    if ... in parts:
        where = parts.index(...)
        parts[where : where + 1] = [slice(None)] * (tensor.dim() - taken)
    axis = 0
    for part in parts:
        if part is None:
            tensor = tensor.unsqueeze(axis)
        elif isinstance(part, int):
            tensor = tensor.select(axis, part)
            continue
        else:
            assert isinstance(part, slice)  # a tensor as index would be data-dependent
            first, last, _ = part.indices(tensor.shape[axis])
            tensor = tensor.narrow(axis, first, last - first)
        axis += 1
    return tensor


def test_steps_run_on_another_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """No transfer, no data-dependent branch: the steps run on fake CUDA tensors."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from attsvm.solvers.nuclear import lockstep_steps as lockstep

    monkeypatch.setattr(torch.Tensor, "__getitem__", basic_index)
    with FakeTensorMode():
        make = {"dtype": torch.float64, "device": "cuda"}
        u, v = torch.randn(3, 6, 4, **make), torch.randn(3, 6, 2, **make)
        rhs = torch.ones(3, 6, **make)
        state = lockstep.step(lockstep.start(u, v, rhs, rhs < 0, torch.randn(3, 4, 2, **make), rhs))
        assert {tensor.device.type for tensor in state} == {"cuda"}


def test_a_device_runs_the_nuclear_norm_at_every_size() -> None:
    """What a device can do does not depend on how many problems or rows there are."""
    for size, n, T, d in ((1, 2, 2, 3), (3, 2, 3, 4), (2, 6, 30, 8)):
        batch = MarginProblem(*sphere_rows(size, n, T, d, seed=3))
        for problem in (batch, batch[0]):
            found = solve(problem, "nuclear", device="cpu")
            assert found.solver == "lockstep"
            assert np.all(found.status == "optimal")
            for norm in ("frobenius", "l1"):
                with pytest.raises(
                    ValueError, match=f"device='cpu' runs the norms .'nuclear'. only, got norm '{norm}'"
                ):
                    solve(problem, norm, device="cpu")
            with pytest.raises(ValueError, match="solver 'interior' does not support norm 'nuclear' on a device"):
                solve(problem, "nuclear", "interior", device="cpu")


def test_a_device_tensor_comes_home() -> None:
    a, z, owner = sphere_rows(4, 3, 3, 5, seed=15)
    arrays = MarginProblem(a, z, owner)
    tensors = MarginProblem(torch.tensor(a, requires_grad=True), torch.tensor(z), torch.tensor(owner))
    for norm in ("frobenius", "nuclear"):
        np.testing.assert_array_equal(solve(tensors, norm).W, solve(arrays, norm).W)


def test_bad_options_are_named() -> None:
    batch = MarginProblem(*sphere_rows(2, 2, 3, 4, seed=0))
    for message, options in (
        ("dtype must be 'float64' or 'float32', got 'float16'", {"dtype": "float16"}),
        ("chunk must be at least 1, got 0", {"chunk": 0}),
        ("device must name a torch device such as 'cpu' or 'cuda', got 'gpu0'", {"device": "gpu0"}),
    ):
        with pytest.raises(ValueError, match=message):
            solve(batch, "nuclear", **options)
    with pytest.raises(TypeError, match="solver 'lockstep' takes no option 'starts'"):
        solve(batch, "nuclear", starts=3)


ENTRIES = {entry.name: entry for entry in library(0)}
SHAPES = sorted({entry.problem.shape for entry in ENTRIES.values()})


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_and_compiled_steps_agree_on_the_library(shape: tuple[int, int]) -> None:
    """Both engines on every known problem of a shape at once: equalities, missing rows, proofs of infeasibility."""
    entries = [entry for entry in ENTRIES.values() if entry.problem.shape == shape]
    batch = MarginProblem.stack([entry.problem for entry in entries])
    compiled, in_torch = solve(batch, "nuclear"), solve(batch, "nuclear", device="cpu")
    assert compiled.solver == in_torch.solver == "lockstep"
    for i, entry in enumerate(entries):
        one, other = compiled[i], in_torch[i]
        if entry.tags & HARD:
            continue
        assert one.status is other.status
        assert (one.status is Status.INFEASIBLE) == (not entry.feasible)
        if entry.feasible:
            # Each is proved to 9e-11, or finished by Newton's method.
            assert one.norm == pytest.approx(other.norm, rel=2e-10)
            assert_optimal(entry.problem, other.W, other.multipliers, "nuclear", 1e-8)
