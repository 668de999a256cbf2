import json
import os
import sys
from collections.abc import Iterator
from typing import Any

# One thread per process, before any library starts its pool: two workers with two threads each on two cores wait for
# each other at every product of small matrices. Tests of thread limits set their own numbers in processes of their own.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from attsvm.probing import MEASURES
from attsvm.solvers import NORMS, SOLVERS

# Names that are not there, for mypy to refuse: not to be imported.
collect_ignore = ["typed_misuse.py"]

# Machines are noisy and solves take milliseconds to seconds: examples are few, seeded and not timed.
settings.register_profile(
    "attsvm", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("attsvm")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """What a test does to torch's number of threads ends with it: all later ones would train at that number."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else None
    yield
    if torch and torch.get_num_threads() != before:
        torch.set_num_threads(before)


@pytest.fixture
def registries() -> Iterator[None]:
    """What a test registers (solvers, norms, measures) is gone after it: the tables belong to the process."""
    tables: list[dict[str, Any]] = [SOLVERS, NORMS, MEASURES]
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240607)


class Result:
    """What a run of the command left: its exit code, and what it printed."""

    def __init__(self, code, out, err):
        self.code, self.out, self.err = code, out, err

    @property
    def record(self):
        return json.loads(self.out)


@pytest.fixture
def attsvm_command(capsys, monkeypatch, tmp_path):
    """Run the command in a folder of its own, as the shell would, but in this process."""
    from attsvm.cli import app
    from attsvm.cli.command_support import run_app

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_app(app, [str(a) for a in arguments])
        captured = capsys.readouterr()
        return Result(ended.value.code, captured.out, captured.err)

    return run
