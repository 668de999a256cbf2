import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCK = re.compile(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", re.DOTALL)


def blocks():
    for path in sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")]):
        for number, match in enumerate(BLOCK.finditer(path.read_text())):
            yield pytest.param(match[1], match[2], id=f"{path.name}:{number}")


@pytest.mark.parametrize(("code", "output"), list(blocks()))
def test_code_blocks_run_and_print_what_they_say(code, output):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    if output is not None:
        assert result.stdout == output


def test_readme_names_the_two_commands_and_its_links_exist():
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
    for target in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (ROOT / target).exists(), target


@pytest.mark.parametrize("script", sorted((ROOT / "docs" / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(script, tmp_path):
    picture = tmp_path / "picture.png"
    environment = {"MPLBACKEND": "Agg", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    result = subprocess.run(
        [sys.executable, str(script), str(picture)], capture_output=True, text=True, timeout=120, env=environment
    )
    assert result.returncode == 0, result.stderr
    assert picture.stat().st_size > 10_000
