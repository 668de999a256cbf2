"""Deadlines: what ends at them, what is said of it, and Ctrl-C inside compiled code."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

from attsvm.solvers import MarginProblem, deadline, solve, solve_batch
from attsvm.solvers.compiled.batched_pivoting import pivot_soft_batch
from attsvm.solvers.deadline import OutOfTime, late, read_time_limit, require_time, seconds_left, watched, within
from attsvm.solvers.frobenius.conflicts import find_conflict
from attsvm.solvers.frobenius.entries import _first_rows, _Steps
from attsvm.solvers.penalty import PenaltyBatch
from attsvm.solvers.unit import UnitProblem


def random_rows(m, d, q, *batch, seed=0):
    rng = np.random.default_rng(seed)
    a, queries = rng.normal(size=(*batch, m, d)) + 0.5, rng.normal(size=(*batch, q, d)) + 0.5
    return MarginProblem(a, queries, np.sort(rng.integers(q, size=m)))


def test_deadlines_nest_and_leave_nothing_behind(monkeypatch):
    time = [0.0]
    monkeypatch.setattr(deadline, "now", lambda: time[0])
    assert seconds_left() == math.inf and not late()
    assert within(5.0, seconds_left) == 5.0
    assert within(5.0, within, 9.0, seconds_left) == 5.0 and within(5.0, within, 2.0, seconds_left) == 2.0
    assert within(5.0, read_time_limit, None) == 5.0 and within(5.0, read_time_limit, 3) == 3.0

    def wait():
        time[0] += 6.0
        assert late()
        require_time()

    with pytest.raises(OutOfTime):
        within(5.0, wait)
    assert seconds_left() == math.inf and not late()


@pytest.mark.parametrize("given", [0, -1.0, True, "1", math.nan])
def test_bad_time_limits(given):
    with pytest.raises(ValueError, match="time_limit must be None or a positive number"):
        solve(random_rows(3, 2, 2), time_limit=given)


def test_the_search_for_a_contradiction_ends_at_the_deadline():
    unit, start = UnitProblem(random_rows(400, 5, 8)), np.zeros((5, 5))  # 16 rows per entry of W
    assert find_conflict(unit, start)[0] is not None
    assert within(1e-9, find_conflict, unit, start) == (None, None)


def test_the_interior_point_method_in_entries_begins_no_factorization_after_the_deadline():
    rng = np.random.default_rng(0)
    a, queries = rng.standard_normal((400, 2)), rng.standard_normal((20, 2))
    a *= np.sign((a @ np.ones(2)) * np.repeat(queries @ [1.0, 3.0], 20))[:, None]
    rows = MarginProblem(a, queries, np.repeat(np.arange(20), 20))
    assert solve(rows, solver="entries").status == "optimal"
    found = solve(rows, solver="entries", time_limit=1e-9)
    assert found.status in ("failed", "inaccurate") and found.iterations == 0
    unit = UnitProblem(rows)
    steps = within(1e-9, _Steps, unit, _first_rows(unit))
    assert not within(1e-9, steps._timed_step) and steps.steps == 0  # within a step, too


def test_a_limited_rank_tries_no_further_start_after_the_deadline():
    problem = MarginProblem([[1.0, 0], [0, -1.0], [1.0, 0], [0, 1.0]], np.eye(2), [0, 0, 1, 1])  # none is feasible
    found = solve(problem, "nuclear", rank=1, time_limit=1e-9)
    assert found.status == "failed"
    limit = found.extras.rank_limit
    assert limit is None or (limit.starts == 1 and "within the time limit; 1 of 8" in limit.message)
    assert solve(problem, "nuclear", rank=1).extras.rank_limit.starts == 8


def test_a_deadline_leaves_soft_margins_of_few_rows_unsettled():
    batch = random_rows(200, 20, 25, 400)
    lam, W, settled, rounds = within(1e-9, pivot_soft_batch, batch.pairs(), None, PenaltyBatch(np.ones(400)))
    assert not settled[-1] and not lam[-1].any() and not W[-1].any() and rounds[-1] == 0


def test_watched_work_is_stopped_and_its_exceptions_arrive():
    flag, ends = threading.Event(), []
    within(0.01, watched, lambda: ends.append(flag.wait(60)), flag.set, 2)
    assert ends == [True, True]

    def fails():
        raise MemoryError("none left")

    with pytest.raises(MemoryError, match="none left"):
        watched(fails, lambda: None)


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("norm", ["frobenius", "nuclear", "spectral", "l1", "linf", "l3"])
@pytest.mark.parametrize("shape", [(20, 5, 4), (300, 8, 20), (900, 8, 60)])
def test_after_the_deadline_every_method_returns_and_claims_no_more_than_it_proves(norm, shape, batch):
    for rows in (random_rows(*shape, *batch), random_rows(*shape, *batch).soft(1.0)):
        found = within(1e-9, solve, rows, norm)
        for one in [found[i] for i in range(3)] if batch else [found]:
            if one.status == "optimal":
                assert one.certificate.proved <= one.tolerance
            elif one.status == "infeasible":
                assert one.certificate.farkas is not None
            else:
                assert one.status in ("inaccurate", "failed")


def test_the_time_is_for_all_problems_of_a_batch(monkeypatch):
    time, taken = [0.0], []
    monkeypatch.setattr(deadline, "now", lambda: time[0])
    module = sys.modules["attsvm.solvers.solve"]
    one_by_one = module._climb

    def counted(*args):
        taken.append(1)
        found = one_by_one(*args)
        time[0] += 1.0
        return found

    monkeypatch.setattr(module, "_climb", counted)
    found = within(3.5, solve_batch, random_rows(6, 3, 3, 20), max_iterations=50)  # a budget of rounds: one by one
    assert len(taken) == 4  # one more is begun at 3.0
    assert (found.status[:4] == "optimal").all() and (found.status[4:] == "failed").all()
    assert (found.certificate.lower_bound[4:] == 0).all()  # nothing is proved of them


def test_a_time_limit_is_taken_with_every_solver_and_stops_the_ladder(monkeypatch):
    for norm in ("frobenius", "nuclear", "spectral", "l1"):
        assert solve(random_rows(6, 3, 3), norm, time_limit=60).status == "optimal"
    assert solve(random_rows(6, 3, 3), "l1", "cvxpy", time_limit=60).status == "optimal"


START = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
import numpy as np
from attsvm.solvers import MarginProblem, solve
rng = np.random.default_rng(0)
def random_rows(m, d, q, *batch):
    a, queries = rng.normal(size=(*batch, m, d)) + 0.5, rng.normal(size=(*batch, q, d)) + 0.5
    return MarginProblem(a, queries, np.sort(rng.integers(q, size=m)))
"""
LONG = {
    "one interior point solve": 'problem, norm = random_rows(1400, 34, 60), "spectral"',
    "a batch of pivoting": 'problem, norm = random_rows(250, 20, 20, 2000), "frobenius"',
}


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to one process")
@pytest.mark.parametrize("work", LONG.values(), ids=LONG)
def test_an_interrupt_inside_compiled_code_is_answered(work):
    code = (
        textwrap.dedent(START)
        + work
        + """
solve(random_rows(5, 3, 2), norm)  # everything is imported
print("ready", flush=True)
try:
    while True:
        solve(problem, norm)
except KeyboardInterrupt:
    print("stopped", flush=True)
"""
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.7)
        process.send_signal(signal.SIGINT)
        # Uninterrupted these calls last ten seconds and more; loaded machines need more than the second that it takes.
        said, errors = process.communicate(timeout=5)
    finally:
        process.kill()
    assert said == "stopped\n" and process.returncode == 0, errors
