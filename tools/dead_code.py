"""Names that nothing uses: ``python tools/dead_code.py`` runs vulture over attsvm, solvers and validation.

What a test alone calls is not used, nor what stands in an ``__all__`` or is re-exported: only those of `attsvm` itself
and the pages in docs/api are the public interface. The sibling models (`attsvm.dynamics`) are used by figures,
the ledger, the probe and the examples of the documentation; a case of `validation/matrix_calls` is no use.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
FOLDERS = ("attsvm", "solvers", "validation")
CASES = ROOT / "validation" / "matrix_calls"
DECORATORS = ["@app.*", "@application.*", "@case", "@overload"]  # what they take is called under another name
NAMES = [
    *("__getattr__", "__dir__", "__class_getitem__", "_repr_html_", "_value_"),  # read by Python and notebooks
    *("on_*", "terminal", "tb", "intermediate_result", "solver_cache", "eps_*", "*_processor", "pre_tokenizer"),
    *("argtypes", "restype", "n_features_in_", "n_iter_", "get_metadata_routing", "required"),  # by libraries
    *("FIGURE*", "CHECKS_*", "_solved_as", "memory_limit"),  # found by their prefix; for type checkers alone
    # Facts that results state for their reader.
    *("cone_value", "gamma_least_squares", "largest_stable_step", "clock_constant", "top_constant", "convex_bound"),
    *("kkt_residual", "interior_iterations", "warm_started", "face_dimension", "licence", "smoothness"),
    # Methods of public classes that the documentation names in its text.
    *("to_frame", "to_csv", "to_parquet", "to_json", "to_html", "write_adapter", "*_callback", "partial_fit"),
    *("predict_proba", "solve_heads", "document_map"),
    "as_markdown",  # writes the table of docs/studies/growth.md
]  # fmt: skip


def targets(node: ast.stmt) -> list[str]:
    """Names that a plain assignment sets."""
    return [item.id for item in node.targets if isinstance(item, ast.Name)] if isinstance(node, ast.Assign) else []


def source(path: Path) -> str:
    """A file without ``__all__`` and without what a package re-exports; lines keep their numbers."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        exported = isinstance(node, ast.ImportFrom) and path.name == "__init__.py"
        if exported or set(targets(node)) & {"__all__", "_LAZY"}:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or node.lineno) - node.lineno + 1)
    return "\n".join(lines)


def exports(path: Path) -> list[str]:
    """Names in the ``__all__`` and the table of late imports of a module."""
    tables = [
        node for node in ast.parse(path.read_text(encoding="utf-8")).body if set(targets(node)) & {"__all__", "_LAZY"}
    ]
    return [name for node in tables if isinstance(node, ast.Assign) for name in ast.literal_eval(node.value)]


def public() -> list[str]:
    """The documented interface, but for the sibling models."""
    pages = [path for path in (ROOT / "docs" / "api").glob("*.md") if not path.stem.startswith("dynamics_")]
    reference = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    names = re.findall(r"^   attsvm[\w.]*\.(\w+)$", reference, re.MULTILINE)
    for module in ["attsvm", *re.findall(r"^   (attsvm[\w.]+)\.\*$", reference, re.MULTILINE)]:
        path = ROOT / module.replace(".", "/")
        names += exports(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))
    return names


def members(tree: ast.AST) -> list[str]:
    """Members of the enumerations: they are found by their value."""
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    enums = [node for node in classes if any("Enum" in ast.unparse(base) for base in node.bases)]
    return [name for node in enums for part in node.body for name in targets(part)]


def main() -> int:
    """Print what is not used; 1 if there is something."""
    files = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    texts = [path.read_text(encoding="utf-8") for path in files]
    enums = [name for text in texts for name in members(ast.parse(text))]
    late = [name for text in texts for name in re.findall(r'"[^"\s]*:(\w+)"', text)]  # "module:function"
    late += [path.stem.replace("method", "solve", 1) for path in files if path.stem.startswith("method_")]
    finder = Vulture(ignore_names=[*NAMES, *public(), *enums, *late], ignore_decorators=DECORATORS)
    for path in files:
        if CASES not in path.parents:
            finder.scan(source(path), path)
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            finder.scan(block, page)
    for path in [*(ROOT / "docs").rglob("*.py"), *(ROOT / "tools").glob("*.py")]:
        finder.scan(path.read_text(encoding="utf-8"), path)
    by_cases = set(re.findall(r"\w+", "".join(path.read_text(encoding="utf-8") for path in CASES.glob("*.py"))))
    found = [
        item
        for item in finder.get_unused_code()
        if item.filename.is_relative_to(ROOT) and item.filename.relative_to(ROOT).parts[0] in FOLDERS
        if item.typ != "import" and not ("validation" in item.filename.parts and item.name in by_cases)
    ]
    for item in found:
        print(f"{item.filename.relative_to(ROOT)}:{item.first_lineno}: nothing uses the {item.typ} {item.name!r}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
