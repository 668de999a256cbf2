"""The public surface: small, listed on the API pages, each name documented."""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import attsvm
from attsvm.validation.matrix_calls import public_functions

DOCS = Path(__file__).parents[1] / "docs"
SIBLINGS = ("conditioning", "localization", "polarization", "specialization")


def test_about_seventy_names():
    assert len(attsvm.__all__) <= 70


def test_dir_lists_every_public_name_and_nothing_else():
    """What is listed can be had; what can be had without a leading underscore is listed, or is a module."""
    listed = set(dir(attsvm))
    assert listed == {*attsvm.__all__, "__version__"}
    assert set(attsvm._LAZY) <= set(attsvm.__all__)
    for name in listed:
        assert getattr(attsvm, name) is not None
    others = {name for name in vars(attsvm) if not name.startswith("_")} - {*listed, "TYPE_CHECKING"}
    assert {name for name in others if not inspect.ismodule(getattr(attsvm, name))} == set()


def test_modules_are_there_at_first_use():
    """In a process of its own: here something else may have imported them already."""
    code = (
        "import attsvm, sys\n"
        "assert not {'torch', 'sklearn', 'cvxpy', 'matplotlib', 'networkx'} & set(sys.modules)\n"
        "print(attsvm.dynamics.polarization.sink_score.__name__, attsvm.export.factor.__name__, "
        "attsvm.sklearn.AttentionSelector.__name__, attsvm.joint.joint_svm.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["sink_score", "factor", "AttentionSelector", "joint_svm"]


def test_no_getattr_is_seen_by_a_type_checker():
    """mypy takes a module's ``__getattr__`` as leave to use any name; `make types` tries some wrong ones."""
    seen = []
    for path in sorted(Path(attsvm.__file__).parent.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = (
                [node] if isinstance(node, ast.FunctionDef) else ast.walk(node) if isinstance(node, ast.Assign) else []
            )
            seen += [str(path) for n in names if "__getattr__" in (getattr(n, "name", ""), getattr(n, "id", ""))]
    assert [path for path in seen if "validation" not in path] == []


def test_a_type_checker_knows_every_name_that_is_loaded_at_first_use():
    tree = ast.parse(Path(attsvm.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    assert {alias.name for node in block.body for alias in node.names} == set(attsvm._LAZY)


def listed(page):
    """Objects that a page of the reference lists, by full name; ``attsvm.softmax.*`` lists what `softmax` offers."""
    names = re.findall(r"^   (attsvm\.[\w.]+\w)(\.\*)?$", page.read_text(encoding="utf-8"), re.MULTILINE)
    modules = [importlib.import_module(name) for name, star in names if star]
    whole = {f"{module.__name__}.{name}": getattr(module, name) for module in modules for name in module.__all__}
    single = [name.rpartition(".") for name, star in names if not star]
    return whole | {f"{home}.{name}": getattr(importlib.import_module(home), name) for home, _, name in single}


def _is_method(thing):
    return inspect.isfunction(thing) and "." in thing.__qualname__


def test_the_reference_lists_every_public_name_once():
    """By identity: what two names stand for is described under one of them."""
    pages = {path.stem: listed(path) for path in sorted((DOCS / "api").glob("*.md"))}
    entries = [(name, id(thing)) for page in pages.values() for name, thing in page.items()]
    names, things = zip(*entries, strict=True)
    assert {name for name in names if names.count(name) > 1} == set()
    twice = {name for name, thing in entries if things.count(thing) > 1}
    assert twice == {
        "attsvm.AttentionProblem",
        "attsvm.ProblemBatch",
    }  # a batch is the same class but for type checkers
    public = {f"attsvm.{name}": getattr(attsvm, name) for name in attsvm.__all__}
    functions = {
        name: thing
        for name, thing in {**public, **public_functions()}.items()
        if not inspect.ismodule(thing) and not _is_method(thing)  # methods are described with their class
    }
    assert {name for name, thing in functions.items() if id(thing) not in things} == set()
    modules = [name for name, thing in public.items() if inspect.ismodule(thing)]
    assert [name for name in modules if not any(other.startswith(f"{name}.") for other in names)] == []


def test_the_reference_has_every_page_in_one_group():
    groups = re.findall(r"^   (\w+)$", (DOCS / "api.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(groups) == sorted(path.stem for path in (DOCS / "api").glob("*.md"))


@pytest.mark.parametrize("name", SIBLINGS)
def test_the_page_of_each_sibling_model_lists_all_it_offers(name):
    package = importlib.import_module(f"attsvm.dynamics.{name}")
    assert f"   attsvm.dynamics.{name}.*\n" in (DOCS / "api" / f"dynamics_{name}.md").read_text(encoding="utf-8")
    assert len(package.__all__) <= 40
    for public in package.__all__:
        assert getattr(package, public).__doc__, public


def load(name):
    """A module of the guide's folder, which is no package."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_of_other_projects_exist_in_the_installed_versions():
    for _, names in load("inventories").PROJECTS.values():
        for name, (kind, _) in names.items():
            if kind != "std:term":
                home, _, attribute = name.rpartition(".")
                assert hasattr(importlib.import_module(home), attribute), name


def test_an_inventory_is_a_header_and_compressed_lines(tmp_path):
    mapping = load("inventories").write_inventories(tmp_path)
    address, path = mapping["numpy"]
    *header, body = Path(path).read_bytes().split(b"\n", 4)
    assert address.startswith("https://") and header[0] == b"# Sphinx inventory version 2"
    line = "numpy.ndarray py:class 1 reference/generated/numpy.ndarray.html#numpy.ndarray -"
    assert line in zlib.decompress(body).decode().splitlines()


def test_prose_after_the_parameters_is_not_read_as_parameters():
    """A section of a docstring ends at a heading: text between Parameters and the next heading would be parameters."""
    bad = []
    for path in sorted(Path(attsvm.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                bad += [f"{path.name}: {node.name}: {line}" for line in _stray(text)]
    assert bad == []
    said = "Do.\n\nParameters\n----------\nx : float\n    It.\n\nA batch has one more axis: (B, n).\n"
    assert list(_stray(said)) == ["A batch has one more axis: (B, n)."]


def _stray(text):
    lines, inside = text.splitlines(), False
    for here, below in zip(lines, [*lines[1:], ""], strict=True):
        if set(below) == {"-"} and len(below) == len(here):
            inside = here in ("Parameters", "Attributes")
        elif inside and here and not here.startswith((" ", "-")) and not re.match(r"[*\w, ]+( : |$)", here):
            yield here


SMALL = attsvm.random_problem(n=2, T=3, d=4, seed=0)
WRONG = {
    "att_svm": lambda: attsvm.att_svm(SMALL.X),
    "gen_svm": lambda: attsvm.gen_svm(SMALL.X, [[0], [1]]),
    "satt_svm": lambda: attsvm.satt_svm(SMALL.X),
    "finite_part": lambda: attsvm.finite_part(SMALL.X, SMALL.Y, [[0], [1]]),
    "verify": lambda: attsvm.verify(SMALL.X, SMALL.X),
    "train": lambda: attsvm.train(SMALL.X),
    "diagnose": lambda: attsvm.diagnose(SMALL.X),
    "attraction": lambda: attsvm.attraction(SMALL.X),
    "regularization_path": lambda: attsvm.regularization_path(SMALL.X, [1.0]),
    "decompose": lambda: attsvm.decompose(SMALL.X, SMALL.X),
    "is_locally_optimal": lambda: attsvm.is_locally_optimal(SMALL.X),
    "separating_cone": lambda: attsvm.separating_cone(SMALL.X),
    "low_score_tokens": lambda: attsvm.low_score_tokens(SMALL.X),
    "high_score_tokens": lambda: attsvm.high_score_tokens(SMALL.X),
    "locally_optimal_selections": lambda: attsvm.locally_optimal_selections(SMALL.X),
    "selection_graph": lambda: attsvm.selection_graph(SMALL.X),
    "save_problem": lambda: attsvm.save_problem(SMALL.X, "a.npz"),
    "write_report": lambda: attsvm.write_report(SMALL.X, "a.html"),
    "smoothness_constant": lambda: attsvm.smoothness_constant(SMALL.X),
    "logits": lambda: attsvm.attention.logits(SMALL.X, SMALL.X),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_array_is_no_problem(name):
    with pytest.raises(TypeError, match="problem must be an AttentionProblem, got ndarray"):
        WRONG[name]()


def test_what_stands_in_the_place_of_another_thing_is_named():
    run, solution = attsvm.train(SMALL, steps=2), attsvm.att_svm(SMALL)
    for call, message in (
        (lambda: attsvm.compare(SMALL, run), "compare takes a Run first, as train returns it, got AttentionProblem"),
        (lambda: attsvm.compare(run, SMALL), "compare takes Solution objects after the run, got AttentionProblem"),
        (lambda: attsvm.compare(solution, run), "compare takes a Run first, as train returns it, got Solution"),
        (lambda: attsvm.save_problem("problem.npz", solution), "problem must be an AttentionProblem, got str"),
        (lambda: attsvm.diagnose(None), "problem must be an AttentionProblem, got NoneType"),
        (lambda: attsvm.train(solution), "problem must be an AttentionProblem, got Solution"),
        (lambda: attsvm.train(SMALL, loss=3), "loss must be .* or a Loss, got int"),
        (lambda: attsvm.train(SMALL, options=3), "options must be a TrainOptions, got int"),
        (lambda: attsvm.support_indices(run), "solution must be a Solution, got Run"),
        (lambda: attsvm.is_locally_optimal(SMALL, solution=run), "solution= must be a Solution .*, got Run"),
        (lambda: attsvm.regularization_path(SMALL, [1.0], solution=run), "solution must be a Solution, got Run"),
        (lambda: attsvm.att_svm(SMALL, warm_start=run), "warm_start must be a Solution or a SolutionBatch, got Run"),
    ):
        with pytest.raises(TypeError, match=message):
            call()
