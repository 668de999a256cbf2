"""The commands of the documentation run, and its tables name what there is."""

import re
import shlex
from pathlib import Path

import numpy as np

import attsvm
from attsvm import files as formats

DOCS = Path(__file__).parents[2] / "docs"


def test_every_command_of_the_page_runs(attsvm_command, tmp_path):
    text = (DOCS / "command_line.md").read_text()
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(lines) >= 10
    for line in lines:
        name, *arguments = shlex.split(line, comments=True)
        result = attsvm_command(*arguments)
        assert (name, result.code) == ("attsvm", 0), (line, result.err)
        assert result.err == ""
    row = dict(re.findall(r"^\| `(\w+ --out)`[^|]*\| (.*) \|$", text, re.MULTILINE))
    for command, file in (("solve", "solution"), ("train", "run"), ("enumerate", "optima")):
        with np.load(tmp_path / f"{file}.npz") as found:
            written = set(found.files)
        one, _, more = row[f"{command} --out"].partition("; for a batch also ")
        named = set(re.findall(r"`(\w+)`", one)) - {"final_W"}
        assert written == named
    attsvm_command("new", "batch.npz", "--batch", "2", "-n", "2", "-T", "3", "-d", "3")
    attsvm_command("enumerate", "batch.npz", "-o", "all.npz")
    with np.load(tmp_path / "all.npz") as found:
        assert set(found.files) == named | set(re.findall(r"`(\w+)`", more))


def test_the_tables_are_complete(attsvm_command):
    text = (DOCS / "command_line.md").read_text()
    for code in (0, 1, 2, 70, 130, 141):
        assert re.search(rf"^\| {code} \|", text, re.MULTILINE)
    listed = re.findall(r"^  (\w+)  +\S", attsvm_command("-h").out.partition("Commands:")[2], re.MULTILINE)
    assert listed == re.findall(r"^\| `attsvm (\w+)", text, re.MULTILINE)


def test_the_schema_is_documented():
    text = (DOCS / "files.md").read_text()
    assert formats.SCHEMA in text
    entries = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
    heads = (attsvm.LinearHead, attsvm.ReluHead, attsvm.ConcaveHead)  # others may be defined by other tests
    parameters = {f"head_{name}" for head in heads for name in head.parameters}
    assert parameters <= set(formats.known_arrays())
    assert sorted(entries) == sorted({*formats.TEXTS, *formats.PROBLEM_ARRAYS, *parameters, "selection"})
    for kind in ("none", *(head.kind for head in heads)):
        assert f"`{kind}`" in text
