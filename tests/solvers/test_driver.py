"""The driver that every iteration shares: budget, patience, the best point, numbers that are none."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers.driver import BatchDriver, Driver

measures = st.lists(st.one_of(st.floats(0, 10), st.just(math.nan), st.just(math.inf)), max_size=30)


@given(measures=measures)
def test_the_best_offer_is_kept(measures):
    driver = Driver(100)
    for place, measure in enumerate(measures):
        before = driver.measure
        assert driver.offer(measure, place) == (measure < before)
    finite = [m for m in measures if m < math.inf]
    assert driver.measure == min(finite, default=math.inf)
    # The first of equal offers stays: a later one is no improvement.
    assert driver.best == (measures.index(min(finite)) if finite else None)


@given(measures=measures, patience=st.integers(0, 5))
def test_patience_counts_offers_since_the_last_improvement(measures, patience):
    driver, best, waited = Driver(100, patience), math.inf, 0
    for measure in measures:
        driver.offer(measure, None)
        waited = 0 if measure < best else waited + 1
        best = min(best, measure) if measure < best else best
        assert driver.waited == waited
        assert driver.stalled == (waited > patience)
    impatient = Driver(100)
    for measure in measures:
        impatient.offer(measure, None)
    assert not impatient.stalled  # without patience nothing stalls


@given(budget=st.integers(0, 20), wanted=st.integers(0, 30))
def test_no_step_beyond_the_budget(budget, wanted):
    driver = Driver(budget)
    taken = [driver.advance() for _ in range(wanted)]
    assert sum(taken) == driver.steps == min(budget, wanted)
    assert taken == sorted(taken, reverse=True)
    assert driver.left == budget - driver.steps
    assert driver.seconds >= 0


def test_several_steps_at_once_may_overrun_by_what_was_asked():
    driver = Driver(5)
    assert driver.advance(3) and driver.advance(3)
    assert (driver.steps, driver.left) == (6, -1)
    assert not driver.advance()
    assert driver.steps == 6


def test_problems_that_advance_together_keep_what_each_would_keep_alone() -> None:
    """The same offers, NaN among them, to one driver for all and to one for each."""
    rng = np.random.default_rng(0)
    offers = rng.normal(size=(12, 5))
    offers[rng.random(offers.shape) < 0.3] = np.nan
    lengths = np.array([12, 3, 7, 1, 12])
    together = BatchDriver(12, np.zeros((5, 2)))
    alone: list[Driver[float]] = [Driver(12) for _ in range(5)]
    for k, row in enumerate(offers, start=1):
        assert together.advance()
        together.offer(row[together.index], np.stack([row, -row], axis=1)[together.index])
        for i in together.index.tolist():
            assert alone[i].advance()
            alone[i].offer(float(row[i]), float(row[i]))
            assert together.waited(2)[together.index == i].item() == (alone[i].waited >= 2)
        together.leave(lengths[together.index] <= k)
    assert not together.advance()
    assert together.steps.tolist() == lengths.tolist() == [driver.steps for driver in alone]
    for i, driver in enumerate(alone):
        assert together.measure[i] == driver.measure
        assert together.best[0][i].tolist() == ([0.0, 0.0] if driver.best is None else [driver.best, -driver.best])


def test_a_batch_ends_with_its_budget_or_with_its_last_problem() -> None:
    driver = BatchDriver(2, np.zeros(3))
    assert driver.advance() and driver.advance() and not driver.advance()
    assert driver.steps.tolist() == [2, 2, 2]
    driver = BatchDriver(9, np.zeros(3))
    assert driver.advance()
    driver.offer(np.zeros(1), np.ones(1), of=np.array([1]))
    assert driver.best[0].tolist() == [0.0, 1.0, 0.0]
    assert not driver.leave(np.zeros(3, dtype=bool))
    assert driver.leave(np.ones(3, dtype=bool)) and not driver.advance()
