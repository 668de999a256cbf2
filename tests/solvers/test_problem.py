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
        ({"a": np.ones((0, 2))}, "a must be a non-empty array (m, dx), or one with a leading batch axis, got shape (0, 2)"),
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
    with pytest.raises(ValueError, match=re.escape(message)):
        MarginProblem(**(good | changes))


def test_wrong_shapes_of_arguments_are_named(rng):
    problem = random_rows(rng, 2, 3, 4)
    with pytest.raises(ValueError, match=re.escape("W must have shape (4, 4), got (4, 3)")):
        problem.margins(np.ones((4, 3)))
    with pytest.raises(ValueError, match=re.escape("multipliers must have shape (4,), got (3,)")):
        problem.adjoint(np.ones(3))
