"""The driver that every iteration shares: budget, patience, the best point, numbers that are none."""

import math

from hypothesis import given
from hypothesis import strategies as st

from attsvm.solvers.deadline import Driver

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
