"""The store when files are damaged, full, or shared, and workers that die more than once."""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
import pytest
from sweep_tasks import draws, kill_self_always, kill_self_often

import attsvm
from attsvm.sweeps import StoreError
from attsvm.sweeps.store import Store, make_plan

GRID = {"d": [2, 3]}


def sweep(store, **changes):
    return attsvm.sweep(draws, **({"grid": GRID, "trials": 6, "chunk": 3, "workers": 0, "store": store} | changes))


def values(done):
    return [{name: np.asarray(column).tolist() for name, column in columns.items()} for columns in done.columns]


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "s.sqlite"
    sweep(file)
    with sqlite3.connect(file) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")  # one file, to be damaged
    connection.close()
    return file


def change(path, statement, *arguments):
    with sqlite3.connect(path) as connection:
        connection.execute(statement, arguments)
    connection.close()


def test_damaged_stores_are_refused_by_name_or_give_the_same_rows(path):
    raw, moments, wanted = path.read_bytes(), random.Random(0), values(sweep(":memory:"))
    refused = 0
    for _ in range(150):
        changed = bytearray(raw)
        for _ in range(3):
            changed[moments.randrange(len(raw))] ^= 1 << moments.randrange(8)
        path.write_bytes(changed)
        try:
            assert values(sweep(path)) == wanted
        except StoreError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
    assert refused > 10


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "UPDATE chunks SET columns = '{\"mean\": [1.0]}' WHERE chunk = 1",
            "chunk 1 .* is not what was stored",
        ),
        ("UPDATE chunks SET columns = replace(columns, '0.', '1.') WHERE chunk = 0", "chunk 0 of cell"),
        ("UPDATE chunks SET columns = 'no json' WHERE chunk = 0", "chunk 0 of cell"),
        ("UPDATE chunks SET columns = x'ff00' WHERE chunk = 0", "chunk 0 of cell|damaged"),
        ("UPDATE sweeps SET signature = '{'", "parameters of a sweep"),
        ("UPDATE sweeps SET signature = '[]'", "parameters of a sweep"),
        ("UPDATE meta SET format = 99", "format 99"),
    ],
)
def test_a_store_changed_by_hand_is_refused_by_name(path, statement, message):
    change(path, statement)
    with pytest.raises(StoreError, match=message) as caught:
        sweep(path)
    assert str(path) in str(caught.value)


def test_a_chunk_cut_by_hand_is_refused_even_without_its_digest(path):
    cell = '{"d": 2}'
    connection = sqlite3.connect(path)
    (text,) = connection.execute("SELECT columns FROM chunks WHERE cell = ? AND chunk = 0", (cell,)).fetchone()
    cut = {name: column[:-1] for name, column in json.loads(text).items()}
    connection.execute(
        "UPDATE chunks SET columns = ?, digest = NULL WHERE cell = ? AND chunk = 0", (json.dumps(cut), cell)
    )
    connection.commit()
    connection.close()
    with pytest.raises(StoreError, match="chunk 0 of cell"):
        sweep(path)
    assert sweep(path, fresh=True).computed == 4


def test_stores_from_before_digests_are_read(path):
    change(path, "ALTER TABLE chunks DROP COLUMN digest")
    change(path, "UPDATE meta SET format = 1")
    again = sweep(path)
    assert again.resumed == 4 and values(again) == values(sweep(":memory:"))


def test_two_sweeps_on_one_store_agree(tmp_path):
    """Both compute the same chunks at the same time: the first to finish one is kept, and neither dies."""
    plan = make_plan(draws, GRID, 6, chunk=3, seed=0)
    with Store(tmp_path / "s.sqlite") as one, Store(tmp_path / "s.sqlite") as two:
        one.claim(plan)
        two.claim(plan)
        chunk = plan.chunks()[0]
        assert one.write(plan, chunk, {"x": [1.0, 2.0, 3.0]}, 0.0) == {"x": [1.0, 2.0, 3.0]}
        assert two.write(plan, chunk, {"x": [7.0, 8.0, 9.0]}, 0.0) == {"x": [1.0, 2.0, 3.0]}
    failures = []

    def work():
        try:
            sweep(tmp_path / "t.sqlite", grid={"d": [2, 3, 4, 5]}, trials=30)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    done = sweep(tmp_path / "t.sqlite", grid={"d": [2, 3, 4, 5]}, trials=30)
    assert (done.resumed, done.computed) == (40, 0)
    assert values(done) == values(sweep(":memory:", grid={"d": [2, 3, 4, 5]}, trials=30))


def test_a_full_disk_is_said_and_what_was_stored_is_kept(tmp_path, monkeypatch):
    path = tmp_path / "s.sqlite"
    opened = Store._open

    def small(self):
        opened(self)
        self._connection.execute("PRAGMA max_page_count = 12")  # SQLite's own "database or disk is full"

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_open", small)
        with pytest.raises(StoreError, match=r"what it holds is kept \(database or disk is full"):
            sweep(path, trials=3000, chunk=60)
    done = sweep(path, trials=3000, chunk=60)
    assert done.resumed > 0
    assert values(done) == values(sweep(":memory:", trials=3000, chunk=60))


@pytest.mark.timeout(120)
def test_workers_that_are_killed_again_and_again_are_replaced(tmp_path):
    folder = tmp_path / "deaths"
    folder.mkdir()
    grid = {"d": [2, 3], "folder": [str(folder)]}
    done = attsvm.sweep(kill_self_often, grid, 6, store=tmp_path / "s.sqlite", chunk=1, workers=1)
    assert len(list(folder.iterdir())) == 6  # one death per trial of one cell: more than any fixed number of restarts
    assert [len(columns["mean"]) for columns in done.columns] == [6, 6]


@pytest.mark.timeout(120)
def test_a_chunk_that_always_kills_its_worker_ends_the_sweep_with_its_name(tmp_path):
    with pytest.raises(BrokenProcessPool, match=r"ended 4 times without finishing a chunk in sweep .*'d': 3.*__main__"):
        attsvm.sweep(kill_self_always, GRID, 1, store=tmp_path / "s.sqlite", chunk=1, workers=1)


SCRIPT = """
import sys
from sweep_tasks import slow_draws
import attsvm
if __name__ == "__main__":
    grid = {"d": [2], "log": [sys.argv[2]], "seconds": [30.0]}
    attsvm.sweep(slow_draws, grid, 4, store=sys.argv[1], chunk=1, workers=2)
"""


@pytest.mark.timeout(120)
def test_ctrl_c_ends_the_workers_at_once_and_they_stay_silent(tmp_path):
    script, log = tmp_path / "script.py", tmp_path / "log"
    script.write_text(SCRIPT)
    log.write_text("")
    environment = os.environ | {
        "PYTHONPATH": f"{Path(__file__).parent.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    }
    process = subprocess.Popen(
        [sys.executable, str(script), str(tmp_path / "s.sqlite"), str(log)],
        env=environment, start_new_session=True, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )  # fmt: skip
    while not log.read_text() and process.poll() is None:
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: everybody in the foreground
    said = process.communicate(timeout=20)[1]  # far less than the chunk of 30 seconds
    assert said.count("Traceback") == 1 and said.strip().endswith("KeyboardInterrupt")
