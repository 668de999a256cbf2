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

ROOT = Path(__file__).parents[2]
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


def solver_table():
    """The lines of the table in docs/solvers.md: the name without quotes, and the other cells."""
    text = (ROOT / "docs" / "solvers.md").read_text().replace(r"l\<p>", "l<p>")  # or Markdown reads a tag
    lines = text[text.index("| `solver=` |") :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert cells[0][:4] == ["`solver=`", "hard margins", "soft margins", "batch"]
    return {re.match(r'`"([\w:]+)"`', line[0])[1]: line[1:] for line in cells[2:]}


def test_the_table_of_solvers_is_that_of_the_code():
    families = ("frobenius", "nuclear", "spectral", "l1", "linf", "lp")

    def words(able):
        if able is None:
            return "all"
        return ", ".join(family.replace("lp", "l<p>") for family in families if family in able) or "none"

    table = solver_table()
    listed = [name for name in table if name != "auto" and ":" not in name]
    assert listed == list(SOLVERS), "docs/solvers.md lists the solvers in the order of solvers/ladder.py"
    for name in listed:
        spec, (hard, soft, batch, what, *_) = SOLVERS[name], table[name]
        assert (hard, soft, batch) == (words(spec.norms), words(spec.soft_norms), "yes" if spec.batched else "no"), name
        assert len(what) > 20


def test_pages_name_no_solver_that_is_gone():
    text = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
    named = set(re.findall(r'solver="([a-z]\w+)', text)) | set(re.findall(r"attsvm \((\w+)\) \|", text))
    # Names in capitals are those of cvxpy's own solvers.
    assert {"working_set", "nuclear_batch"} <= named
    assert named <= {*SOLVERS, "auto", "hildreth"}  # the last is the example of a new one


def test_readme_names_the_two_commands_and_its_links_exist():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target
