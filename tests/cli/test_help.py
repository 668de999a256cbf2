"""Help fits a screen and its examples run."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

COMMANDS = (
    "demo", "new", "solve", "train", "compare", "enumerate", "diagnose", "report", "probe", "patch",
    "validate", "claims", "bench",
)  # fmt: skip
EXAMPLE = re.compile(r"(?:Example:|^)\s+(attsvm .*)$", re.MULTILINE)


def examples(text):
    return [line for match in EXAMPLE.findall(text) for line in match.split(" && ")]


@pytest.mark.parametrize("command", ["", *COMMANDS])
@pytest.mark.parametrize(("columns", "lines"), [(100, 24), (80, 30)])
def test_help_fits_a_screen_and_shows_an_example(attsvm_command, monkeypatch, command, columns, lines):
    monkeypatch.setenv("COLUMNS", str(columns))
    result = attsvm_command(*command.split(), "--help")
    assert result.code == 0
    shown = result.out.rstrip("\n").splitlines()
    assert len(shown) <= lines
    assert max(map(len, shown)) <= 100
    assert examples(result.out)
    assert "..." not in result.out.replace("ARGS]...", "").replace("figures]...", "").replace("ids]...", "") or command


def test_the_help_names_every_command(attsvm_command):
    shown = attsvm_command("-h").out
    listed = re.findall(r"^  (\w+)  +\S", shown.partition("Commands:")[2], re.MULTILINE)
    assert tuple(listed) == COMMANDS
    for code in (0, 1, 2, 130):
        assert f"{code} " in shown


def test_without_arguments_the_help_is_shown(attsvm_command):
    result = attsvm_command()
    assert result.code == 2
    assert "Commands:" in result.out


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_the_example_runs(attsvm_command, command):
    attsvm_command("new", "-q")
    lines = examples(attsvm_command(*command.split(), "--help").out)
    if command == "":
        lines = [line.replace("attsvm new", "attsvm new --force") for line in lines]  # it is there already
    if command == "validate":
        from attsvm.validation.figures.figure import choose_figures

        lines, (figure,) = lines[:1], lines[1:]  # a figure takes a minute: only look it up
        _, _, name, option = shlex.split(figure)
        assert len(choose_figures([name], False)) == 1
        assert option == "--quick"
    if command == "probe":  # it names a model that only the reader has
        Path("notes.txt").write_text("a line\nanother\n")
        refused = attsvm_command(*shlex.split(lines.pop())[1:])
        assert refused.code == 2 and "path/to/model" in refused.err
    if command == "patch":
        np.save("queries.npy", np.array([[0.9, 1.0], [1.0, 0.1]]))
        np.save("documents.npy", np.eye(2))
        Path("failures.csv").write_text("query,document\n0,0\n")
    for line in lines:
        result = attsvm_command(*shlex.split(line)[1:])
        assert (result.code, "Traceback" in result.err) == (0, False), result.err
        assert result.out
