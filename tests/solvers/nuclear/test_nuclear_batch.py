"""The nuclear method for batches: options, tensors, and the problems with known answers."""

from __future__ import annotations

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, Status, solve
from kkt import assert_optimal, sphere_rows
from margin_problems import library
from solver_api import HARD


def test_tensors_are_read_as_arrays() -> None:
    torch = pytest.importorskip("torch")
    a, z, owner = sphere_rows(4, 3, 3, 5, seed=15)
    arrays = MarginProblem(a, z, owner)
    tensors = MarginProblem(torch.tensor(a, requires_grad=True), torch.tensor(z), torch.tensor(owner))
    for norm in ("frobenius", "nuclear"):
        np.testing.assert_array_equal(solve(tensors, norm).W, solve(arrays, norm).W)


@pytest.mark.parametrize("option", ["device", "dtype", "chunk", "starts"])
def test_unknown_options_are_named(option: str) -> None:
    batch = MarginProblem(*sphere_rows(2, 2, 3, 4, seed=0))
    for problem in (batch, batch[0]):
        with pytest.raises(TypeError, match=f"solver 'nuclear_batch' takes no option '{option}'"):
            solve(problem, "nuclear", "nuclear_batch", **{option: "cpu"})


ENTRIES = {entry.name: entry for entry in library(0)}
SHAPES = sorted({entry.problem.shape for entry in ENTRIES.values()})


@pytest.mark.parametrize("shape", SHAPES)
def test_the_library_in_batches(shape: tuple[int, int]) -> None:
    """Every known problem of a shape at once: equalities, missing rows, proofs of infeasibility."""
    entries = [entry for entry in ENTRIES.values() if entry.problem.shape == shape]
    batch = solve(MarginProblem.stack([entry.problem for entry in entries]), "nuclear")
    assert batch.solver == "nuclear_batch"
    for i, entry in enumerate(entries):
        if entry.tags & HARD:
            continue
        one = batch[i]
        assert (one.status is Status.INFEASIBLE) == (not entry.feasible)
        if entry.feasible:
            assert_optimal(entry.problem, one.W, one.multipliers, "nuclear", 1e-8)
