import os
import signal
import threading
import time

import numpy as np
import pytest
from sweep_tasks import slow_draws, two_workers

import attsvm

GRID = {"d": [2, 3, 5], "seconds": [0.2]}


def rows(sweep):
    return [{k: np.asarray(v).tolist() for k, v in row.items()} for row in sweep.rows()]


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")  # the killed worker is reported by many threads
def test_dask_gives_the_same_rows_and_survives_a_killed_worker(tmp_path):
    with two_workers() as client:
        pids = list(client.run(os.getpid).values())
        killer = threading.Timer(1.0, os.kill, (pids[0], signal.SIGKILL))
        killer.start()
        started = time.monotonic()
        on_dask = attsvm.sweep(slow_draws, GRID, 12, client, tmp_path / "dask.sqlite", chunk=2)
        assert time.monotonic() - started > 1.0  # the worker died while the sweep ran
        killer.join()
        assert pids[0] not in client.run(os.getpid).values()
    here = attsvm.sweep(slow_draws, GRID, 12, store=":memory:", chunk=2, workers=2)
    assert rows(on_dask) == rows(here)
