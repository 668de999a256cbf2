"""The shape of the code: functions that one can read at a glance, one idea per module."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COMPLEXITY = {"attsvm": 17, "solvers": 15, "validation": 17}  # of a function, at most
LINES = 80  # of a function without its docstring, at most
MODULE = 700  # one concept is one file, up to about this
RUN = 6  # lines of code that stand twice are a function that is missing
NOTHING = {"run", "data", "variants", "library", "common", "full", "utils"}  # names that say nothing
# One more way through a function: what radon and mccabe count, boolean operators and comprehensions included.
_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.While, ast.ExceptHandler, ast.Assert, ast.comprehension, ast.match_case)


def modules():
    return [path for folder in ("attsvm", "solvers", "validation") for path in sorted((ROOT / folder).rglob("*.py"))]


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def complexity(function):
    count = 1
    for node in ast.walk(function):
        count += isinstance(node, _BRANCHES)
        count += len(node.ifs) if isinstance(node, ast.comprehension) else 0
        count += len(node.values) - 1 if isinstance(node, ast.BoolOp) else 0
    return count


def lines(function):
    first = function.body[0]
    docstring = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    return function.end_lineno - function.lineno + 1 - docstring


def test_the_measures():
    text = (
        'def f(a, b):\n    """One\n\n    two."""\n    if a and b:\n        return [x for x in a if x]\n    return b\n'
    )
    (found,) = functions(ast.parse(text))
    assert (complexity(found), lines(found)) == (5, 4)


@pytest.mark.parametrize("folder", list(COMPLEXITY))
def test_functions_can_be_read(folder):
    bad = [
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}: complexity {complexity(function)}, "
        f"{lines(function)} lines"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for function in functions(ast.parse(path.read_text(encoding="utf-8")))
        if complexity(function) > COMPLEXITY[folder] or lines(function) > LINES
    ]
    assert bad == []


def test_one_idea_per_module():
    long = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert {name: count for name, count in long.items() if count > MODULE} == {}


def test_a_name_occurs_once_and_says_what_is_inside():
    names = [path.stem for path in modules() if path.stem not in ("__init__", "__main__")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
    assert {name.strip("_") for name in names} & NOTHING == set()


def test_the_tests_lie_where_the_code_lies():
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    code = [ROOT / "attsvm", ROOT]  # attsvm/probing: tests/probing; solvers, validation, docs: tests/solvers, ...
    assert sorted(str(folder) for folder in folders if not any((home / folder).is_dir() for home in code)) == []


def test_a_file_of_tests_has_a_name_of_its_own_that_says_what_is_tested():
    names = [path.stem for path in (ROOT / "tests").rglob("*.py") if path.stem != "conftest"]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
    nothing = NOTHING | {"all", "both", "parts", "driver", "misc"}
    assert {name.removeprefix("test_") for name in names} & nothing == set()


def body_lines(path):
    """Lines of code with their numbers; without docstrings, imports, `__all__` and headers of functions.

    A header is spelled out wherever it stands, for `help()` and for type checkers.
    """
    text = path.read_text(encoding="utf-8")
    apart = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            apart.update(range(first, node.body[0].lineno))
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        names = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        if constant or names or isinstance(node, ast.Import | ast.ImportFrom):
            apart.update(range(node.lineno, node.end_lineno + 1))
    found = enumerate((line.strip() for line in text.splitlines()), 1)
    return [(k, line) for k, line in found if k not in apart and line and not line.startswith("#")]


def test_no_code_stands_twice():
    places = {}
    for path in modules():
        code = body_lines(path)
        for k in range(len(code) - RUN + 1):
            lines_of = tuple(line for _, line in code[k : k + RUN])
            places.setdefault(lines_of, []).append(f"{path.relative_to(ROOT)}:{code[k][0]}")
    assert len(places) > 10_000
    assert [where for where in places.values() if len(where) > 1] == []
