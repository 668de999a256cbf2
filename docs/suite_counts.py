"""Count what docs/testing.md states about the suite: ``python docs/suite_counts.py`` prints the counts.

The page contains names in double braces. The build of the guide replaces them by these counts, so they are never stale.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("attsvm", "solvers", "validation")


def _sources(folder: Path, *patterns: str) -> list[Path]:
    """Files below a folder, each once: attsvm/solvers and attsvm/validation are links to the other folders."""
    found = [path for pattern in patterns for path in folder.rglob(pattern)]
    return sorted({path.resolve() for path in found if "__pycache__" not in path.parts})


def _lines(paths: list[Path]) -> int:
    """Lines that are not blank."""
    return sum(bool(line.strip()) for path in paths for line in path.read_text(encoding="utf-8").splitlines())


def _tests(paths: list[Path]) -> Iterator[ast.FunctionDef]:
    """Test functions at the top of modules and classes, not those inside strings."""
    for path in paths:
        top = ast.parse(path.read_text(encoding="utf-8")).body
        inside = [node for group in top if isinstance(group, ast.ClassDef) for node in group.body]
        for node in (*top, *inside):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                yield node


def _found(pattern: str, paths: list[Path]) -> int:
    return sum(len(re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)) for path in paths)


def tree_counts(root: Path = ROOT) -> dict[str, int]:
    """Counts by reading files alone.

    Parameters
    ----------
    root : Path
        The source tree.

    Returns
    -------
    dict of str to int
    """
    helpers, tests = _sources(root / "tests", "*.py"), _sources(root / "tests", "test_*.py")
    source = sorted({path for name in FOLDERS for path in _sources(root / name, "*.py", "*.c", "*.h")})
    tried = list(_tests(tests))
    pages = [root / "README.md", *sorted((root / "docs").glob("*.md"))]
    return {
        "test_functions": len(tried),
        "test_files": len(tests),
        "test_lines": _lines(helpers),
        "source_lines": _lines(source),
        "property_tests": sum("given(" in ast.unparse(mark) for test in tried for mark in test.decorator_list),
        "docstring_examples": _found(r"^ *Examples\n *--------$", [path for path in source if path.suffix == ".py"]),
        "page_examples": _found(r"^```python$", pages),
        "gallery_scripts": len(sorted((root / "docs" / "examples").glob("plot_*.py"))),
    }


def library_counts() -> dict[str, int]:
    """Counts that the validation code knows about itself.

    Returns
    -------
    dict of str to int
    """
    from attsvm.validation.figures.figure import all_figures
    from attsvm.validation.figures.own.solver_studies import FIGURE_FUZZ
    from attsvm.validation.fuzz_families import FAMILIES
    from attsvm.validation.ledger.audit import all_claims
    from attsvm.validation.ledger.quotations import TITLES
    from attsvm.validation.ledger.slips import SLIPS
    from attsvm.validation.matrix import combinations
    from attsvm.validation.matrix_calls import public_functions, rows_of

    claims = all_claims()
    slips = [form for paper in SLIPS.values() for form in paper.values()]
    return {
        "public_functions": len(public_functions()),
        "call_combinations": sum(len(rows_of(name, 0)) for name in public_functions()),
        "solver_combinations": len(combinations()),
        "fuzz_families": len(FAMILIES),
        "fuzz_problems": len(FAMILIES) * int(FIGURE_FUZZ.full["trials"]),
        "claims": len(claims),
        "checked_claims": sum(claim.measure is not None for claim in claims),
        "wrong_forms": sum(len(form) if isinstance(form, list) else 1 for form in slips),
        "figures": sum(len(all_figures(paper)) for paper in TITLES),
    }


def counts() -> dict[str, str]:
    """All counts as they are printed, thousands separated by commas.

    Returns
    -------
    dict of str to str
    """
    return {name: f"{count:,}" for name, count in (tree_counts() | library_counts()).items()}


if __name__ == "__main__":
    for name, count in counts().items():
        print(f"{count:>8}  {name}")
