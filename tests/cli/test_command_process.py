"""The command as a process of its own; what it does is tested in tests/cli."""

import subprocess
import sys

import attsvm


def run(*arguments):
    command = [sys.executable, "-c", "from attsvm.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_version_and_help():
    assert run("--version").stdout.strip() == f"attsvm {attsvm.__version__}"
    assert "demo" in run("--help").stdout


def test_bad_input_is_one_line_on_stderr():
    result = run("demo", "-T", "1")
    assert result.returncode == 2
    assert result.stderr == "attsvm: T must be an integer >= 2, got 1\n"
    assert result.stdout == ""
    assert run("nonsense").returncode == 2
