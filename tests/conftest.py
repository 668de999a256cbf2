from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from attsvm.solvers import NORMS, SOLVERS

# Machines are noisy and solves take milliseconds to seconds: examples are few, seeded and not timed.
settings.register_profile(
    "attsvm", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attsvm")


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers (solvers, norms) is gone after it: the tables belong to the process, not to a test."""
    before = dict(SOLVERS), dict(NORMS)
    yield
    for table, old in zip((SOLVERS, NORMS), before, strict=True):
        table.clear()
        table.update(old)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)
