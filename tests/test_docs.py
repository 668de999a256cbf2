"""What the documentation shows runs and prints what it says, in this process: imports are paid for once."""

import re
import subprocess
import sys
import warnings
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

from attsvm.solvers import NORMS, SOLVERS

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def blocks():
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for number, match in enumerate(BLOCK.finditer(path.read_text())):
            yield pytest.param(match[1], match[2], id=f"{path.name}:{number}")


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(("code", "output"), list(blocks()))
def test_code_blocks_run_and_print_what_they_say(code, output, monkeypatch):
    if output is not None and "schema attsvm.problem" in output:  # it lists every head that this process knows
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
        assert done.stdout == output, done.stderr
        return
    main = ModuleType("__main__")  # what a reader's file would be
    monkeypatch.setitem(sys.modules, "__main__", main)
    printed = StringIO()
    with warnings.catch_warnings(), redirect_stdout(printed):
        warnings.simplefilter("default")  # a reader's interpreter does not raise them
        exec(compile(code, "<documentation>", "exec"), main.__dict__)
    if output is not None:
        assert printed.getvalue() == output


def test_pages_leave_no_solver_or_norm_behind():  # after the pages, in the order of this file
    assert "hildreth" not in SOLVERS
    assert "weighted" not in NORMS


def test_readme_names_the_two_commands_and_its_links_exist():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
