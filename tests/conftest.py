import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# Machines are noisy and solves take milliseconds to seconds: examples are few, seeded and not timed.
settings.register_profile(
    "attsvm", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attsvm")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)
