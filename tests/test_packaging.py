import ast
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import attsvm
from attsvm._lazy import EXTRAS as EXTRA_OF

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_every_package_folder_is_listed():
    mapping = PROJECT["tool"]["setuptools"]["package-dir"]
    found = set()
    for name, folder in mapping.items():
        for init in (ROOT / folder).rglob("__init__.py"):
            inside = init.parent.relative_to(ROOT / folder).parts
            if name == "attsvm" and inside[:1] in (("solvers",), ("validation",)):
                continue  # the links; listed under their own names
            found.add(".".join((name, *inside)))
    assert found == set(PROJECT["tool"]["setuptools"]["packages"])


HEAVY = {"torch", "cvxpy", "jinja2", "matplotlib", "scipy", "rich", "networkx"}


def test_import_loads_no_heavy_package():
    code = f"import attsvm, sys; print([m for m in {sorted(HEAVY)} if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


class Import(NamedTuple):
    """``module`` is what is named; ``at_load`` whether importing the file runs it."""

    module: str
    at_load: bool


def sources() -> dict[str, Path]:
    """Every file of the three parts by module name; a package is named without ``__init__``."""
    found = {}
    for name, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            if name == "attsvm" and parts[0] in ("solvers", "validation"):
                continue  # the links; listed under their own names
            found[".".join((name, *(part for part in parts if part != "__init__")))] = path
    return found


def is_for_types_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports(text: str, module: str, package: bool) -> list[Import]:
    """All imports of a file: inside functions, for types only, relative, or by a string that names a module."""
    found: list[Import] = []

    def visit(node: ast.AST, at_load: bool) -> None:
        if isinstance(node, ast.Import):
            found.extend(Import(alias.name, at_load) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: len(module.split(".")) - node.level + package] if node.level else []
            start = ".".join([*base, *([node.module] if node.module else [])])
            found.append(Import(start, at_load))
            found.extend(Import(f"{start}.{alias.name}", at_load) for alias in node.names)
        elif isinstance(node, ast.Constant):
            match = re.fullmatch(r"(attsvm(\.\w+)+)(:\w+)?", str(node.value))
            found.extend([Import(match[1], False)] if match else [])
        later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for child in ast.iter_child_nodes(node):
            skipped = is_for_types_only(node) and child in node.body
            visit(child, at_load and not later and not skipped)

    visit(ast.parse(text), True)
    return found


def inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


SOURCES = sources()


@cache
def imported_by(name: str) -> list[Import]:
    """Imports of one of our modules."""
    path = SOURCES[name]
    return imports(path.read_text(), name, path.name == "__init__.py")


def test_the_scanner_sees_every_kind_of_import():
    text = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
else:
    import json
class A:
    import scipy.linalg
    def f(self):
        from attsvm import problem
        from . import sibling
        from ..above import thing
TABLE = {"name": "attsvm.validation.bench:run", "text": "see attsvm.validation for more"}
"""
    found = imports(text, "attsvm.part.this", package=False)
    assert {i.module for i in found if i.at_load} == {"typing", "typing.TYPE_CHECKING", "json", "scipy.linalg"}
    assert {i.module for i in found if not i.at_load} == {
        "torch", "attsvm", "attsvm.problem", "attsvm.part", "attsvm.part.sibling", "attsvm.above", "attsvm.above.thing",
        "attsvm.validation.bench",
    }  # fmt: skip
    assert Import("attsvm.part.sibling", True) in imports("from . import sibling", "attsvm.part", package=True)
    assert len(SOURCES) > 200
    assert {"attsvm", "attsvm.solvers.solve", "attsvm.validation.bench.cases", "attsvm.cli.problem_commands"} <= set(
        SOURCES
    )


@pytest.mark.parametrize("module", sorted(SOURCES))
def test_dependencies_point_one_way(module):
    named = {i.module for i in imported_by(module) if inside(i.module, "attsvm")}
    if inside(module, "attsvm.solvers"):
        assert not {name for name in named if not inside(name, "attsvm.solvers")}
    elif not inside(module, "attsvm.validation") and not inside(module, "attsvm.cli"):
        assert not {name for name in named if inside(name, "attsvm.validation")}


def loaded_by(module: str) -> dict[str, list[str]]:
    """Modules of ours that importing one runs, each with the foreign packages that it imports itself at load."""
    todo, seen = [module], {}
    while todo:
        name = todo.pop()
        if name in seen or name not in SOURCES:
            continue
        targets = [i.module for i in imported_by(name) if i.at_load]
        seen[name] = [target.split(".")[0] for target in targets if not inside(target, "attsvm")]
        for target in targets:  # with every package above it
            parts = target.split(".")
            todo.extend(".".join(parts[:length]) for length in range(1, len(parts) + 1))
    return seen


def test_nothing_reachable_from_import_attsvm_is_heavy():
    reached = loaded_by("attsvm")
    assert {"attsvm.svm", "attsvm.solvers.certify.certificate"} <= set(reached)
    assert not {name: HEAVY & set(foreign) for name, foreign in reached.items() if HEAVY & set(foreign)}
    assert not [name for name in reached if inside(name, "attsvm.validation") or inside(name, "attsvm.cli")]


def test_all_names_are_exported_and_documented():
    for name in attsvm.__all__:
        assert getattr(attsvm, name).__doc__, name


def test_every_public_function_has_an_example():
    import inspect

    for name in attsvm.__all__:
        thing = getattr(attsvm, name)
        if inspect.isfunction(thing):
            assert ">>> " in thing.__doc__, name


@pytest.mark.timeout(300)
def test_wheel_holds_every_module_and_works_elsewhere(tmp_path):
    source = tmp_path / "source"
    tracked = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.fail("the wheel is built from a git checkout")
    for name in tracked.stdout.splitlines():
        path = ROOT / name
        if path.is_symlink() or not path.is_file():
            continue
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(path.read_bytes())
    # The source distribution, and the wheel from it: it must hold all that a build reads.
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path), str(source)]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    wheel = next(tmp_path.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    modules = {n for n in names if n.endswith(".py")}
    expected = {f"attsvm/{p.relative_to(ROOT / 'attsvm')}" for p in (ROOT / "attsvm").glob("*.py")}
    expected |= {f"attsvm/solvers/{p.relative_to(ROOT / 'solvers')}" for p in (ROOT / "solvers").rglob("*.py")}
    expected |= {f"attsvm/validation/{p.relative_to(ROOT / 'validation')}" for p in (ROOT / "validation").rglob("*.py")}
    assert expected <= modules
    data = {f"attsvm/templates/{p.name}" for p in (ROOT / "attsvm" / "templates").iterdir()}
    assert {"attsvm/py.typed", "attsvm/validation/ledger/items.toml", *data} <= set(names)
    assert not any(n.startswith("tests") for n in names)
    assert [n for n in names if "_kernels" in n] == ["attsvm/solvers/compiled/_kernels.so"]
    assert re.fullmatch(r"attsvm-[\d.]+-py3-none-(linux|macosx|win)\w+\.whl", wheel.name)  # one file for every Python
    record = next(n for n in names if n.endswith(".dist-info/WHEEL"))
    text = (tmp_path / "site" / record).read_text()
    assert "Root-Is-Purelib: false" in text and f"Tag: {wheel.stem.split('-', 2)[2]}" in text
    code = "import attsvm; s = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4), norm='linf'); "
    code += "print(attsvm.__file__, s.status, s.result.solver)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "site") in result.stdout
    assert result.stdout.split()[1:] == ["optimal", "primal_dual"]


def test_a_script_beside_the_clone_finds_the_package_of_the_default_install(tmp_path):
    """The clone's folder has the package's name: as a namespace package it must not win over what `make` installs."""
    mode = re.search(r"editable_mode=(\w+)", (ROOT / "Makefile").read_text())[1]
    clone, site = tmp_path / "attsvm", tmp_path / "site"
    clone.mkdir()
    for name in ("attsvm", "validation", "tools", "pyproject.toml", "README.md", "LICENSE"):
        (clone / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "solvers", clone / "solvers")  # its library is built in place
    settings = {"editable_mode": mode}
    build = f"from setuptools import build_meta; build_meta.build_editable({str(tmp_path)!r}, {settings})"
    done = subprocess.run([sys.executable, "-c", build], cwd=clone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        archive.extractall(site)
    (tmp_path / "mine.py").write_text("import attsvm\nprint(attsvm.__file__, attsvm.random_problem(n=2, T=3, d=4).n)\n")
    # -S: the environment's own installation of attsvm is left out, its other packages are found.
    start = (
        f"import sys, site, runpy; sys.path[:0] = [{str(tmp_path)!r}]; "
        f"sys.path += {[path for path in sys.path if path.endswith('site-packages')]!r}; "
        f"site.addsitedir({str(site)!r}); runpy.run_path({str(tmp_path / 'mine.py')!r}, run_name='__main__')"
    )
    found = subprocess.run([sys.executable, "-I", "-S", "-c", start], cwd=tmp_path, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split() == [str(clone / "attsvm" / "__init__.py"), "2"]


EXTRAS = PROJECT["project"]["optional-dependencies"]


def name_of(requirement: str) -> str:
    """As indices write it."""
    return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")


def test_all_means_every_extra_that_a_user_runs():
    named = set(re.search(r"\[(.*)\]", EXTRAS["all"][0])[1].split(","))
    assert named == set(EXTRAS) - {"all", "docs", "dev", "lightning"}


def test_a_dependency_stands_once_and_the_version_that_is_tested_meets_its_floor():
    listed = [PROJECT["project"]["dependencies"], *EXTRAS.values()]
    wanted = [one for part in listed for one in part if name_of(one) != "attsvm"]
    names = [name_of(one) for one in wanted]
    assert sorted(names) == sorted(set(names))
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {name_of(line): line.split("==")[1] for line in lines if "==" in line}
    for one, name in zip(wanted, names, strict=True):
        floor = re.fullmatch(r"[\w.-]+>=([\d.]+)", one)[1]
        assert [int(x) for x in re.findall(r"\d+", pinned[name])] >= [int(x) for x in floor.split(".")], one


def test_messages_name_extras_that_exist():
    named = set()
    for path in SOURCES.values():
        for group in re.findall(r"attsvm\[([a-z,]+)\]", path.read_text()):
            named.update(group.split(","))
    assert {"tables", "onnx"} <= named <= set(EXTRAS)


def test_the_demo_installs_no_more_than_it_needs():
    """The rule of the file that `make demo` waits for."""
    rule = re.search(r"^\$\(VENV\)/\.installed: .*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)[1]
    assert re.findall(r"'\.\[(.*)\]'", rule) == ["torch,plot"]


@pytest.mark.parametrize(
    ("browser", "said"),
    [
        ("none", "is NOT run"),
        (sys.executable, sys.executable),
        ("", "`apt-get install chromium` will run (ATTSVM_BROWSER=none"),
    ],
)
def test_what_is_installed_for_the_tests_of_pages_is_said_before(browser, said, tmp_path):
    for name in ("apt-get", "chromium"):  # of a machine that has the first and lacks the second: neither is called
        (tmp_path / name).write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "apt-get").chmod(0o755)
    (tmp_path / "id").write_text("#!/bin/sh\necho 0\n")
    (tmp_path / "id").chmod(0o755)
    told = subprocess.run(
        ["/bin/sh", str(ROOT / "tools" / "get-browser"), "--say"], capture_output=True, text=True, check=True,
        env={"PATH": str(tmp_path), "ATTSVM_BROWSER": browser},
    ).stdout  # fmt: skip
    assert told.startswith("browser: ") and said in told


def test_an_error_names_an_extra_that_brings_the_package():
    published = {
        "sklearn": "scikit-learn", "metric_learn": "metric-learn", "pytorch_lightning": "lightning",
        "sentence_transformers": "sentence-transformers",
    }  # fmt: skip
    for module, extra in EXTRA_OF.items():
        assert published.get(module, module) in {name_of(need) for need in EXTRAS[extra]}, module


def test_every_python_that_is_promised_is_classified():
    promised = [c.rsplit(" ", 1)[1] for c in PROJECT["project"]["classifiers"] if " :: 3." in c]
    assert promised == ["3.11", "3.12", "3.13"] and PROJECT["project"]["requires-python"] == ">=3.11"
