import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import attsvm

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


def test_import_loads_no_heavy_package():
    code = (
        "import attsvm, sys; print([m for m in ('torch', 'cvxpy', 'matplotlib', 'scipy', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_dependencies_point_one_way():
    for path in (ROOT / "solvers").rglob("*.py"):
        for line in path.read_text().splitlines():
            if line.strip().startswith(("from attsvm", "import attsvm")):
                assert "attsvm.solvers" in line, f"{path}: {line}"
    for path in (ROOT / "attsvm").glob("*.py"):
        assert "attsvm.validation" not in path.read_text(), path


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
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(source)]
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
    assert "attsvm/py.typed" in names
    assert not any(n.startswith("tests") for n in names)
    code = "import attsvm; s = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4)); print(attsvm.__file__, s.status)"
    result = subprocess.run(
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r}); {code}"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert str(tmp_path / "site") in result.stdout
    assert "optimal" in result.stdout
