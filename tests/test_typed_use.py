"""A user's file calls every public function and uses what it returns; mypy --strict reads it without a cast."""

import ast
import inspect
from pathlib import Path

import attsvm
import typed_use

SOURCE = Path(typed_use.__file__).read_text(encoding="utf-8")


def test_a_users_file_runs(tmp_path):
    """`make types` checks the same file."""
    typed_use.main(tmp_path)


def _name(node):
    return node.attr if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "attsvm" else None


def test_it_uses_every_public_name_and_calls_every_function():
    tree = ast.parse(SOURCE)
    used = {_name(node) for node in ast.walk(tree)} - {None}
    called = {_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)} - {None}
    assert used == set(attsvm.__all__)
    functions = {name for name in attsvm.__all__ if inspect.isfunction(getattr(attsvm, name))}
    assert functions <= called
    # A call whose value is thrown away shows nothing; these write a file and return nothing.
    thrown = {_name(node.value.func) for node in ast.walk(tree) if isinstance(node, ast.Expr) and _is_call(node.value)}
    assert thrown - {None} <= {"save_problem", "write_report"}


def _is_call(node):
    return isinstance(node, ast.Call)


def test_without_a_cast():
    assert not [word for word in ("cast", "Any", "type: ignore") if word in SOURCE.split('"""')[2]]
