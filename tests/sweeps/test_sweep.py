import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_tasks import draws, fails_at_three, kill_self_once, slow_draws, wrong_length

import attsvm
from attsvm.sweeps import StoreError
from attsvm.sweeps.store import Store, make_plan

GRID = {"d": [2, 3, 5]}


def rows(sweep):
    return [{k: np.asarray(v).tolist() for k, v in row.items()} for row in sweep.rows()]


def reference(trials=7, chunk=3, seed=0):
    return rows(attsvm.sweep(draws, GRID, trials, store=":memory:", chunk=chunk, seed=seed, workers=0))


def test_rows_do_not_depend_on_the_executor(tmp_path):
    here = reference()
    with ThreadPoolExecutor(3) as threads:
        assert rows(attsvm.sweep(draws, GRID, 7, threads, tmp_path / "a.sqlite", chunk=3)) == here
    assert rows(attsvm.sweep(draws, GRID, 7, store=tmp_path / "b.sqlite", chunk=3, workers=2)) == here
    assert len(here) == 21 and here[0]["label"] == "d2" and len(here[20]["vector"]) == 5


def test_columns_have_one_entry_per_trial_in_order(tmp_path):
    done = attsvm.sweep(draws, GRID, 7, store=tmp_path / "s.sqlite", chunk=3, workers=0)
    assert done.columns[0]["vector"].shape == (7, 2)
    assert done.where(d=5)["mean"].shape == (7,)
    assert (done.computed, done.resumed) == (9, 0)
    with pytest.raises(ValueError, match="names 0 cells"):
        done.where(d=4)


def test_a_second_call_computes_nothing(tmp_path):
    store, log = tmp_path / "s.sqlite", tmp_path / "log"
    grid = [{"d": 2, "log": str(log), "seconds": 0.0}]
    first = attsvm.sweep(slow_draws, grid, 6, store=store, chunk=2, workers=0)
    second = attsvm.sweep(slow_draws, grid, 6, store=store, chunk=2, workers=0)
    assert rows(first) == rows(second)
    assert (second.computed, second.resumed) == (0, 3)
    assert len(log.read_text().split()) == 3


def test_not_a_number_and_infinity_survive_the_store(tmp_path):
    def odd(trials, seed, d):
        return {"x": [float("nan"), float("inf"), 0.1 + 0.2][:trials]}

    for _ in range(2):
        x = attsvm.sweep(odd, {"d": [1]}, 3, store=tmp_path / "s.sqlite", workers=0).columns[0]["x"]
        assert np.isnan(x[0]) and x[1] == np.inf and x[2] == 0.1 + 0.2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trials": 8}, "trials 7, now 8"),
        ({"seed": 1}, "seed 0, now 1"),
        ({"chunk": 4}, "chunk 3, now 4"),
        ({"grid": {"d": [2, 3]}}, "grid of 3 cells, now 2"),
        ({"grid": {"d": [2, 3, 5], "scale": [2.0]}}, "grid of 3 cells, now 3"),
    ],
)
def test_a_store_of_other_parameters_is_refused(tmp_path, change, message):
    arguments = {"grid": GRID, "trials": 7, "chunk": 3, "seed": 0} | {"store": tmp_path / "s.sqlite", "workers": 0}
    attsvm.sweep(draws, **arguments)
    with pytest.raises(StoreError, match=message):
        attsvm.sweep(draws, **(arguments | change))
    assert attsvm.sweep(draws, **(arguments | change), fresh=True).resumed == 0


def test_another_function_or_its_new_version_is_refused(tmp_path):
    def task(trials, seed, d):
        return {"x": [1.0] * trials}

    attsvm.sweep(task, GRID, 2, store=tmp_path / "s.sqlite", workers=0, name="n")
    with pytest.raises(StoreError, match="function"):
        attsvm.sweep(draws, GRID, 2, store=tmp_path / "s.sqlite", workers=0, name="n")

    def task(trials, seed, d):
        return {"x": [2.0] * trials}

    with pytest.raises(StoreError, match="code has changed"):
        attsvm.sweep(task, GRID, 2, store=tmp_path / "s.sqlite", workers=0, name="n")


def test_extending_keeps_what_fits(tmp_path):
    store = tmp_path / "s.sqlite"
    attsvm.sweep(draws, {"d": [2]}, 6, store=store, chunk=3, workers=0)
    more = attsvm.sweep(draws, {"d": [2, 3]}, 9, store=store, chunk=3, workers=0, extend=True)
    assert (more.resumed, more.computed) == (2, 4)
    fresh = attsvm.sweep(draws, {"d": [2, 3]}, 9, store=":memory:", chunk=3, workers=0)
    assert rows(more) == rows(fresh)


@settings(max_examples=30, deadline=None)
@given(st.permutations([2, 3, 5, 7]), st.integers(1, 9), st.integers(1, 4))
def test_a_cells_rows_depend_on_its_content_not_its_place(order, trials, chunk):
    plain = attsvm.sweep(draws, {"d": [2, 3, 5, 7]}, trials, store=":memory:", chunk=chunk, workers=0)
    mixed = attsvm.sweep(draws, {"d": order}, trials, store=":memory:", chunk=chunk, workers=0)
    for d in order:
        assert np.array_equal(plain.where(d=d)["vector"], mixed.where(d=d)["vector"])
    assert len({row["mean"] for row in plain.rows()}) == 4 * trials  # no two trials share their seed


def test_a_killed_worker_is_replaced(tmp_path):
    grid = {"d": [2, 3, 5], "flag": [str(tmp_path / "flag")]}
    done = attsvm.sweep(kill_self_once, grid, 7, store=tmp_path / "s.sqlite", chunk=3, workers=2)
    assert (tmp_path / "flag").exists()
    quiet = attsvm.sweep(kill_self_once, grid, 7, store=":memory:", chunk=3, workers=0)
    assert rows(done) == rows(quiet)


def test_a_failure_names_its_cell_and_keeps_the_rest(tmp_path):
    with pytest.raises(ZeroDivisionError) as caught:
        attsvm.sweep(fails_at_three, GRID, 2, store=tmp_path / "s.sqlite", chunk=1, workers=0)
    assert "cell {'d': 3}" in caught.value.__notes__[0]
    with pytest.raises(ZeroDivisionError):
        attsvm.sweep(fails_at_three, GRID, 2, store=tmp_path / "s.sqlite", chunk=1, workers=2)
    with Store(tmp_path / "s.sqlite") as store:
        kept = store.read(make_plan(fails_at_three, GRID, 2, chunk=1, seed=0))
    assert {(0, 0), (0, 1)} <= set(kept)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"grid": {}, "fn": draws}, None),
        ({"grid": {"d": []}}, "grid has no cells"),
        ({"grid": {"d": "abc"}}, r"grid\['d'\] must be a sequence"),
        ({"grid": [1, 2]}, "grid must map"),
        ({"grid": {"seed": [1]}}, "trials and seed are given"),
        ({"grid": {"d": [np.nan]}}, "a cell must hold numbers"),
        ({"grid": {"d": [2, 2]}}, "holds a cell twice"),
        ({"trials": 0}, "trials must be an integer >= 1"),
        ({"trials": 2.0}, "trials must be an integer"),
        ({"chunk": 0}, "chunk must be"),
        ({"seed": -1}, "seed must be"),
        ({"workers": -1}, "workers must be"),
        ({"fn": 3}, "fn must be callable"),
        ({"fn": wrong_length}, "2 entries per column, got 3 in 'x'"),
        ({"fn": lambda trials, seed, d: [1]}, "must return a dict of columns"),
        ({"fn": lambda trials, seed, d: {"x": [0, 0]}, "workers": 1}, "fn must be a function of a module"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    call = {"fn": draws, "grid": GRID, "trials": 2, "store": ":memory:", "workers": 0} | arguments
    if message is None:  # an empty mapping has one cell without parameters, as an empty product should
        with pytest.raises(TypeError, match="'d'"):
            attsvm.sweep(**call)
        return
    with pytest.raises(ValueError, match=message):
        attsvm.sweep(**call)


def test_files_that_are_no_store_are_refused(tmp_path):
    text = tmp_path / "text.sqlite"
    text.write_text("not a database, but long enough to look at" * 10)
    with pytest.raises(StoreError, match="cannot be used as a store"):
        attsvm.sweep(draws, GRID, 1, store=text, workers=0)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE birds (name TEXT)")
    connection.close()
    with pytest.raises(StoreError, match="something else"):
        attsvm.sweep(draws, GRID, 1, store=other, workers=0)


SCRIPT = """
import sys
from sweep_tasks import slow_draws
import attsvm
if __name__ == "__main__":
    grid = {"d": [2, 3, 5, 8], "log": [sys.argv[2]], "seconds": [0.04]}
    attsvm.sweep(slow_draws, grid, 45, store=sys.argv[1], chunk=3, workers=2)
"""


@pytest.mark.timeout(240)
def test_kill_9_at_ten_moments_loses_and_repeats_nothing(tmp_path):
    script, store = tmp_path / "script.py", tmp_path / "s.sqlite"
    script.write_text(SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent), "OMP_NUM_THREADS": "1"}
    grid = {"d": [2, 3, 5, 8], "log": [str(tmp_path / "log")], "seconds": [0.04]}
    plan = make_plan(slow_draws, grid, 45, chunk=3, seed=0)
    seeds = {(c.cell, c.index): c.seed for c in plan.chunks()}
    moments = random.Random(0)
    repeated, interrupted = set(), 0
    for _ in range(10):
        stored: set[int] = set()
        if store.exists():
            with Store(store) as opened:
                stored = {seeds[key] for key in opened.read(plan)}
        log = tmp_path / "log"
        log.write_text("")
        process = subprocess.Popen([sys.executable, str(script), str(store), str(log)], env=environment)
        started = time.monotonic()
        while not log.read_text() and process.poll() is None and time.monotonic() - started < 30:
            time.sleep(0.01)  # until the first chunk has begun: killing the imports would test nothing
        time.sleep(moments.uniform(0.0, 0.25))
        process.send_signal(signal.SIGKILL)
        interrupted += process.wait() == -signal.SIGKILL
        repeated |= stored & {int(line) for line in log.read_text().split()}
    assert not repeated
    assert interrupted >= 5  # the sweep is long enough to be hit
    final = attsvm.sweep(slow_draws, grid, 45, store=store, chunk=3, workers=2)
    assert final.resumed > 0
    calm = attsvm.sweep(slow_draws, grid, 45, store=":memory:", chunk=3, workers=2)
    assert rows(final) == rows(calm)


def test_workers_end_with_a_killed_parent(tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT.replace("0.04", "0.5").replace("import sys\n", "import os, sys\n"))
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent.parent)}
    log.write_text("")
    process = subprocess.Popen([sys.executable, str(script), str(tmp_path / "s.sqlite"), str(log)], env=environment)
    while not log.read_text():
        time.sleep(0.02)
    children = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(process.pid)], capture_output=True, text=True, check=True
    ).stdout.split()
    assert children
    process.kill()
    process.wait()
    until = time.monotonic() + 10
    while any(Path("/proc", pid).exists() for pid in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not [pid for pid in children if Path("/proc", pid).exists()]
