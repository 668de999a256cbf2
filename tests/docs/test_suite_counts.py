"""The page on tests names files that exist, and its counts are taken from the tree when the guide is built."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
spec = importlib.util.spec_from_file_location("suite_counts", ROOT / "docs" / "suite_counts.py")
suite_counts = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite_counts)


def test_every_count_of_the_page_is_generated():
    named = set(re.findall(r"\{\{ (\w+) \}\}", PAGE))
    assert PAGE.count("{{") == len(re.findall(r"\{\{ \w+ \}\}", PAGE))
    counts = suite_counts.counts()
    assert named == set(counts)
    assert all(re.fullmatch(r"[1-9]\d{0,2}(,\d{3})*", count) for count in counts.values())


def test_counts_of_the_tree_agree_with_a_count_of_lines_of_text():
    counts = suite_counts.tree_counts()
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    assert counts["test_files"] == len(texts)
    found = sum(len(re.findall(r"^ *def test_\w+\(", text, re.MULTILINE)) for text in texts)
    inside_strings = 3  # tests that tests write into files, at most
    assert 0 <= found - counts["test_functions"] <= inside_strings
    assert counts["property_tests"] == sum(len(re.findall(r"^ *@given\(", text, re.MULTILINE)) for text in texts)
    assert counts["source_lines"] > counts["test_lines"] > 10 * counts["test_functions"]


def test_counts_follow_the_tree(tmp_path):
    for name in ("tests", "attsvm", "solvers", "validation", "docs/examples"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "README.md").write_text("```python\nprint(1)\n```\n")
    (tmp_path / "tests" / "test_one.py").write_text(
        "def test_a():\n    pass\n\n\n@given(x)\ndef test_b(x):\n    pass\n"
    )
    (tmp_path / "attsvm" / "one.py").write_text(
        'def f():\n    """Do.\n\n    Examples\n    --------\n    >>> f()\n    """\n'
    )
    (tmp_path / "solvers" / "two.c").write_text("int f(void);\n")
    (tmp_path / "attsvm" / "solvers").symlink_to("../solvers")
    assert suite_counts.tree_counts(tmp_path) == {
        "test_functions": 2, "test_files": 1, "test_lines": 5, "source_lines": 7, "property_tests": 1,
        "docstring_examples": 1, "page_examples": 1, "gallery_scripts": 0,
    }  # fmt: skip


def test_every_file_that_is_named_exists():
    named = set(re.findall(r"`((?:tests|tools|docs)/[\w/]+\.py)", PAGE))
    assert len(named) >= 15
    for path in named:
        assert (ROOT / path).is_file(), path
