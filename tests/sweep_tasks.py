"""Functions that worker processes import by name, and the dask cluster that some of them run on."""

import os
import time
from contextlib import contextmanager

import numpy as np


def draws(trials, seed, d, scale=1.0):
    x = scale * np.random.default_rng(seed).normal(size=(trials, d))
    return {"mean": x.mean(axis=1), "vector": x, "positive": (x[:, 0] > 0), "label": [f"d{d}"] * trials}


def slow_draws(trials, seed, d, log=None, seconds=0.05):
    if log is not None:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{seed}\n")
    time.sleep(seconds)
    return draws(trials, seed, d)


def kill_self_once(trials, seed, d, flag):
    """The first worker that comes here kills itself, as a machine that runs out of memory would."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return draws(trials, seed, d)
    os.kill(os.getpid(), 9)
    return {}


def fails_at_three(trials, seed, d):
    if d == 3:
        raise ZeroDivisionError("three is not allowed")
    return draws(trials, seed, d)


def wrong_length(trials, seed, d):
    return {"x": [0.0] * (trials + 1)}


def kill_self_often(trials, seed, d, folder):
    """Each chunk of the first cell kills the first worker that computes it."""
    if d == 2:
        try:
            os.close(os.open(os.path.join(folder, str(seed)), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return draws(trials, seed, d)
        os.kill(os.getpid(), 9)
    return draws(trials, seed, d)


def kill_self_always(trials, seed, d):
    if d == 3:
        os.kill(os.getpid(), 9)
    return draws(trials, seed, d)


@contextmanager
def two_workers():
    """A dask client with two processes, which says nothing when one of them is killed."""
    import dask
    import distributed

    with (
        dask.config.set({"distributed.logging.distributed": "critical"}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
