"""The margin problem: what it accepts, how it is cut and stacked."""

from __future__ import annotations

import re

import numpy as np
import pytest

from attsvm.solvers import MarginProblem
from kkt import random_rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"a": np.ones(3)}, "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (3,)"),
        (
            {"a": np.ones((0, 2))},
            "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (0, 2)",
        ),
        ({"a": [[1.0, 2.0], [np.nan, 0.0]]}, "a must be finite, but row 1 holds NaN or infinity"),
        ({"a": [["x", "y"], ["z", "w"]]}, "a must hold real numbers, got dtype <U1"),
        ({"queries": [[np.inf, 1.0]]}, "queries must be finite, but row 0 holds NaN or infinity"),
        ({"owner": [0]}, "owner must be 2 integers, one per row of a, got shape (1,) and dtype int64"),
        ({"owner": [0.0, 0.0]}, "owner must be 2 integers, one per row of a, got shape (2,) and dtype float64"),
        ({"owner": [0, 1]}, "owner must lie in [0, 1), got 0 to 1"),
        ({"rhs": [1.0]}, "rhs must be 2 finite numbers, one per row of a, got shape (1,)"),
        ({"equality": [0, 1]}, "equality must be 2 booleans, one per row of a, got dtype int64"),
    ],
)
def test_bad_rows_are_named(changes, message):
    good = {"a": np.eye(2), "queries": [[1.0, 0.0]], "owner": [0, 0]}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        MarginProblem(**(good | changes))


def test_wrong_shapes_of_arguments_are_named(rng):
    problem = random_rows(rng, 2, 3, 4)
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 4), got (4, 3)")):
        problem.margins(np.ones((4, 3)))
    with pytest.raises(ValueError, match=re.escape("multipliers must have shape (4,), got (3,)")):
        problem.adjoint(np.ones(3))


BAD_BATCHES = {
    "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (2, 3, 1, 1)": {
        "a": np.ones((2, 3, 1, 1))
    },
    "a must hold real numbers": {"a": np.full((2, 3, 1), "x")},
    "queries must be a non-empty array (q, dz), or one with a leading batch axis, got shape (2, 0, 1)": {
        "queries": np.ones((2, 0, 1))
    },
    "a and queries must agree in their batch axis, got shapes (2, 3, 1) and (3, 1, 1)": {"queries": np.ones((3, 1, 1))},
    "a and queries must agree in their batch axis, got shapes (2, 3, 1) and (1, 1)": {"queries": np.ones((1, 1))},
    "owner must be 3 integers, one per row of a, got shape (2,)": {"owner": [0, 0]},
    "owner must be 3 integers, one per row of a, got shape (3,) and dtype float64": {"owner": [0.0, 0.0, 0.0]},
    "owner must lie in [0, 1), got 0 to 4": {"owner": [0, 4, 0]},
    "valid must be 3 booleans, one per row of a, got shape (2, 2)": {"valid": np.ones((2, 2), dtype=bool)},
    "valid must be booleans, got dtype float64": {"valid": np.ones(3)},
    "valid must leave at least one row in every problem, but problem 1 has none": {"valid": [[True] * 3, [False] * 3]},
    "rhs must be 3 finite numbers, one per row of a, got shape (4,)": {"rhs": np.ones(4)},
    "rhs must be 3 finite numbers, one per row of a, got dtype <U1": {"rhs": np.array(["x", "y", "z"])},
    "rhs must be 3 finite numbers, one per row of a, got NaN or infinity": {"rhs": [np.inf, 1.0, 1.0]},
    "equality must be 3 booleans, one per row of a, got dtype float64": {"equality": np.zeros(3)},
    "a must be finite, but row 0 of problem 1 holds NaN or infinity": {
        "a": np.stack([np.ones((3, 1)), np.full((3, 1), np.nan)])
    },
}


@pytest.mark.parametrize("message", BAD_BATCHES)
def test_bad_batches_are_named(message: str) -> None:
    good = {"a": np.ones((2, 3, 1)), "queries": np.ones((2, 1, 1)), "owner": [0, 0, 0]}
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        MarginProblem(**(good | BAD_BATCHES[message]))
