"""Whether the tests notice a wrong operator: random mutations of the code, each given to the tests of its module.

    .venv/bin/python tools/mutation_check.py [--root FOLDER] [--count 60] [--first 0] [--seed 0] [--seconds 60]

A copy of the tree is changed, never the tree itself. One mutation turns one comparison around, exchanges one arithmetic
operator or one ``and``/``or``, drops one ``not``, or changes one number; the four kinds are drawn equally often. The
tests of a module are its own examples, the files of tests that import it, and the tests of its folder, in this order,
until one fails or the time is over ("not ended": nothing had failed by then, which counts as not caught). Printed are
each mutation with its verdict, and the share that was caught with its 95 % interval, by kind. A survivor is a hole in
the tests, or a mutation that changes no answer (a tolerance, a limit, a fast path).
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import pytest

# What carries the claims: solvers and certificates, rows, local optimality and its proofs, training.
MODULES = ("solvers/**/*.py", "attsvm/training/**/*.py", "attsvm/**/*optimality*.py", "attsvm/*rows*.py",
           "attsvm/support_proof.py", "attsvm/exact_tokens.py")  # fmt: skip
COMPARISONS = {"<": ">=", ">=": "<", ">": "<=", "<=": ">", "==": "!=", "!=": "==", "is not": "is", "is": "is not",
               "not in": "in", "in": "not in"}  # fmt: skip
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "**": "*", "//": "/", "%": "+"}
SIGNS = {
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is",
    ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in", ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/",
    ast.Pow: "**", ast.FloorDiv: "//", ast.Mod: "%", ast.And: "and", ast.Or: "or",
}  # fmt: skip
PACKAGES = ("numpy", "scipy.linalg", "scipy.sparse.linalg", "scipy.optimize", "cvxpy", "torch", "flint")
NO_TEST = "no test: the run itself failed"
ONE_TEST = 60  # seconds: a mutation may never end


@dataclass(frozen=True)
class Mutation:
    """One change of one file.

    Parameters
    ----------
    path : str
        The file, in the tree.
    line : int
    kind : {"comparison", "arithmetic", "boolean", "constant"}
    start, end : int
        The characters that are replaced.
    new : str
    """

    path: str
    line: int
    kind: str
    start: int
    end: int
    new: str

    def describe(self, text: str) -> str:
        """The line, and what becomes of the operator."""
        code = text.splitlines()[self.line - 1].strip()
        old = text[self.start : self.end].strip()
        return f"{self.path}:{self.line} {self.kind} {old!r} -> {self.new.strip()!r} in: {code}"


def _skipped(tree: ast.Module) -> set[ast.AST]:
    """Nodes whose change no test has to notice: annotations, texts of messages, lists of names."""
    roots: list[ast.AST | None] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
            roots += [node.returns, *node.decorator_list, *(argument.annotation for argument in every if argument)]
        elif isinstance(node, ast.AnnAssign):
            roots.append(node.annotation)
        elif isinstance(node, ast.JoinedStr | ast.Raise | ast.Import | ast.ImportFrom):
            roots.append(node)
    return {inner for root in roots if root is not None for inner in ast.walk(root)}


def mutations_of(path: str, text: str) -> list[Mutation]:
    """Every mutation of a file."""
    tree = ast.parse(text)
    skipped = _skipped(tree)
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    lines = text.splitlines()

    def place(line: int, column: int) -> int:  # columns of ast count bytes
        return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

    def begin(node: ast.expr) -> int:
        return place(node.lineno, node.col_offset)

    def finish(node: ast.expr) -> int:
        return place(node.end_lineno or node.lineno, node.end_col_offset or 0)

    found: list[Mutation] = []

    def operator(kind: str, left: ast.expr, right: ast.expr, sign: str, new: str) -> None:
        start, end = finish(left), begin(right)
        between = re.sub(r"#.*", lambda comment: " " * len(comment[0]), text[start:end])
        hit = re.search(r"(?<![*/<>=!])" + re.escape(sign) + r"(?![*/<>=])", between)
        if hit:
            found.append(
                Mutation(path, text.count("\n", 0, start + hit.start()) + 1, kind, start + hit.start(),
                         start + hit.end(), new)
            )  # fmt: skip

    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Compare):
            for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                operator("comparison", left, right, SIGNS[type(op)], COMPARISONS[SIGNS[type(op)]])
        elif isinstance(node, ast.BinOp) and SIGNS.get(type(node.op)) in ARITHMETIC:
            operator("arithmetic", node.left, node.right, SIGNS[type(node.op)], ARITHMETIC[SIGNS[type(node.op)]])
        elif isinstance(node, ast.BoolOp):
            sign = SIGNS[type(node.op)]
            for left, right in zip(node.values, node.values[1:], strict=False):
                operator("boolean", left, right, sign, "or" if sign == "and" else "and")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            found.append(Mutation(path, node.lineno, "boolean", begin(node), begin(node) + len("not "), ""))
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
            value = node.value
            new = (
                str(not value)
                if isinstance(value, bool)
                else repr(value + 1 if isinstance(value, int) else 2 * value or 1.0)
            )
            found.append(Mutation(path, node.lineno, "constant", begin(node), finish(node), new))
    return found


def draw(root: Path, count: int, seed: int) -> list[Mutation]:
    """Mutations of all modules, the kinds equally often and each kind uniform over its places."""
    paths = sorted({path for pattern in MODULES for path in root.glob(pattern) if not path.is_symlink()})
    every: dict[str, list[Mutation]] = {kind: [] for kind in ("comparison", "arithmetic", "boolean", "constant")}
    for path in paths:
        for mutation in mutations_of(str(path.relative_to(root)), path.read_text(encoding="utf-8")):
            every[mutation.kind].append(mutation)
    rng = random.Random(seed)
    kinds = list(every)
    return [rng.choice(every[kinds[i % len(kinds)]]) for i in range(count)]


def tests_of(root: Path, path: str) -> list[str]:
    """Its own examples, the tests that import it (those that name it most often first), the tests of its folder."""
    module = Path(path)
    stem = module.stem
    inside = module.parent.relative_to("attsvm") if module.parts[0] == "attsvm" else module.parent
    dotted = ".".join(("attsvm", *inside.parts, stem))
    word = re.compile(rf"\b{re.escape(dotted)}\b|from {re.escape(dotted.rpartition('.')[0])} import [^\n]*\b{stem}\b")
    counts = Counter({test: len(word.findall(test.read_text())) for test in (root / "tests").rglob("test_*.py")})
    direct = [test for test, hits in counts.most_common() if hits or test.stem == f"test_{stem}"]
    folder = root / "tests" / inside
    while not folder.is_dir():
        folder = folder.parent
    rest = folder.glob("test_*.py") if folder in (root / "tests", root / "tests/solvers") else folder.rglob("test_*.py")
    ordered = list(dict.fromkeys([*direct, *sorted(rest)]))
    package = "attsvm" / module if module.parts[0] != "attsvm" else module
    return [str(package), *(str(test.relative_to(root)) for test in ordered)]


def run_tests(copy: Path, tests: list[str], seconds: float) -> list[str] | None:
    """The first test that fails (nothing where all pass, None where the time was not enough).

    A fork of this process, which has imported what the package needs: to start again takes longer than most tests.
    """
    printed = copy.parent / "printed"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with printed.open("w") as out:
                os.dup2(out.fileno(), 1)
                os.dup2(out.fileno(), 2)
            limit = int(seconds)  # of the processor, not of the clock: a busy machine judges as an idle one does
            resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
            os.chdir(copy)
            os.environ["PYTHONPATH"] = str(copy)
            sys.path.insert(0, str(copy))
            sys.dont_write_bytecode = True
            status = int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-o", f"timeout={ONE_TEST}", *tests]))
            sys.stdout.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # without the parent's endings, which remove the copy
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended < 0:
        return None
    if ended == 0:
        return []
    named = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", printed.read_text(), flags=re.MULTILINE)
    return [named[1]] if named else [NO_TEST]


def judge(copy: Path, mutation: Mutation, seconds: float) -> tuple[str, str]:
    """Whether the tests of the module catch a mutation ("caught", "survived", "not ended", "not judged"), and which.

    A test that fails without the mutation, too, says nothing: the mutation is not judged.
    """
    target = copy / mutation.path
    text = target.read_text(encoding="utf-8")
    target.write_text(text[: mutation.start] + mutation.new + text[mutation.end :], encoding="utf-8")
    try:
        failed = run_tests(copy, tests_of(copy, mutation.path), seconds)
    finally:
        target.write_text(text, encoding="utf-8")
    if not failed:
        return ("not ended" if failed is None else "survived"), ""
    again = failed if "::" in failed[0] else ["--collect-only", *failed]  # a module that no longer imports
    if failed == [NO_TEST] or run_tests(copy, again, seconds):
        return "not judged", failed[0]
    return "caught", failed[0]


def interval(hits: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    z, share = 1.96, hits / count
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return middle - half, middle + half


def main() -> None:
    """Draw, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1], help="the tree (default: this one)")
    parser.add_argument("--count", type=int, default=60, help="mutations")
    parser.add_argument("--first", type=int, default=0, help="mutations of the same draw that were judged before")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=60, help="limit for the tests of one mutation, of the processor"
    )
    parser.add_argument("--total", type=float, default=float("inf"), help="seconds after which no mutation is begun")
    options = parser.parse_args()
    root, started = options.root.resolve(), time.monotonic()
    os.environ["OMP_NUM_THREADS"] = "1"
    for package in PACKAGES:
        with contextlib.suppress(ImportError):
            import_module(package)
    judged: list[tuple[Mutation, str]] = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "tree"
        ignored = shutil.ignore_patterns(
            ".git", ".venv", "__pycache__", ".*_cache", "build", "dist", "validation-results"
        )
        shutil.copytree(root, copy, symlinks=True, ignore=ignored)
        for mutation in draw(copy, options.count, options.seed)[options.first :]:
            if time.monotonic() - started > options.total:
                break
            verdict, test = judge(copy, mutation, options.seconds)
            judged.append((mutation, verdict))
            by = f" (by {test})" if test else ""
            print(f"{verdict:>10}: {mutation.describe((root / mutation.path).read_text())}{by}", flush=True)
    for kind in ("comparison", "arithmetic", "boolean", "constant", None):
        verdicts = [
            verdict for mutation, verdict in judged if kind in (mutation.kind, None) and verdict != "not judged"
        ]
        if verdicts:
            caught = verdicts.count("caught")
            low, high = interval(caught, len(verdicts))
            print(f"{kind or 'all'}: {caught} of {len(verdicts)} caught, {caught / len(verdicts):.0%} "
                  f"(95 %: {low:.0%} to {high:.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
