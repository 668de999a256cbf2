"""Many heads on the same tokens: every executor gives the same rows, and a run that ended early goes on."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sweep_tasks import two_workers

import attsvm
from attsvm.sweeps import many_heads
from attsvm.sweeps.many_heads import solve_heads


@pytest.fixture(scope="module")
def model():
    problem, selection = attsvm.structured_problem(n=2, T=6, d=16, causal=True, seed=0)
    allowed = problem.allowed
    rng = np.random.default_rng(0)
    drawn = [np.where(allowed, rng.random(allowed.shape), -1.0).argmax(-1) for _ in range(3)]
    return problem, [selection, *drawn]


@pytest.fixture(scope="module")
def known(model):
    """What single calls give."""
    problem, selections = model
    return [attsvm.satt_svm(problem, chosen, C=10.0) for chosen in selections]


def agree(sweep, known, folder):
    rows = list(sweep.rows())
    assert [str(row["status"]) for row in rows] == [str(one.status) for one in known]
    np.testing.assert_allclose([row["norm"] for row in rows], [one.norm for one in known], rtol=1e-7)
    for row, one in zip(rows, known, strict=True):
        W = np.load(str(row["W"]))
        np.testing.assert_allclose(W, one.W, atol=1e-6 * np.abs(one.W).max())
    assert len(list(folder.glob("tokens-*.npy"))) == 1  # written once, whatever the number of heads


def test_a_crash_in_this_process_and_resume(model, known, tmp_path, monkeypatch):
    problem, selections = model
    calls = []
    real = many_heads.att_svm

    def counted(*args, **options):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **options)

    monkeypatch.setattr(many_heads, "att_svm", counted)
    with pytest.raises(KeyboardInterrupt):
        solve_heads(problem, selections, tmp_path, workers=0, C=10.0)
    found = solve_heads(problem, selections, tmp_path, workers=0, C=10.0)
    assert len(calls) == 3 + 2  # two heads were in the store when the third one was interrupted
    agree(found, known, tmp_path)
    solve_heads(problem, selections, tmp_path, workers=0, C=10.0)
    assert len(calls) == 5


@pytest.mark.timeout(120)
def test_processes_and_what_another_run_left(model, known, tmp_path):
    problem, selections = model
    solve_heads(problem, selections[:2], tmp_path, workers=0, C=10.0)
    done = []
    found = solve_heads(problem, selections, tmp_path, workers=2, C=10.0, progress=lambda now, all_: done.append(now))
    agree(found, known, tmp_path)
    assert done and done[-1] == 4


def test_any_executor(model, known, tmp_path):
    problem, selections = model
    with ThreadPoolExecutor(2) as pool:
        agree(solve_heads(problem, selections, tmp_path, pool, C=10.0), known, tmp_path)


@pytest.mark.timeout(120)
@pytest.mark.filterwarnings("ignore")  # the killed worker is reported by many threads
def test_a_dask_client_whose_worker_dies(model, known, tmp_path):
    import os
    import signal

    problem, selections = model
    with two_workers() as client:
        solve_heads(problem, selections[:1], tmp_path, client, C=10.0)
        pids = list(client.run(os.getpid).values())
        os.kill(pids[0], signal.SIGKILL)
        found = solve_heads(problem, selections, tmp_path, client, C=10.0)
        assert pids[0] not in client.run(os.getpid).values()
    agree(found, known, tmp_path)


def test_bad_input(model, tmp_path):
    problem, selections = model
    with pytest.raises(ValueError, match="selections must hold at least one head"):
        solve_heads(problem, [], tmp_path)
    with pytest.raises(TypeError, match="C must be a plain number or string to reach workers, got list"):
        solve_heads(problem, selections, tmp_path, C=[1.0])
    with pytest.raises(ValueError, match="takes one problem that all heads share, got a batch"):
        solve_heads(attsvm.random_problem(2, 3, 4, batch=2), [[0, 0]], tmp_path)
