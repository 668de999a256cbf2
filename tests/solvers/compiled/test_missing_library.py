"""Without the library, or with a SciPy that it cannot call, the other methods solve every problem, with one warning."""

from __future__ import annotations

import ctypes
import itertools
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attsvm.solvers import NORMS, SOLVERS, MarginProblem, PairRows, Penalty, Status, get_norm, solve
from attsvm.solvers.compiled import batched_pivoting, kernels
from attsvm.solvers.compiled.batched_pivoting import pivot_one
from attsvm.solvers.compiled.descent import DualDescent
from attsvm.solvers.ladder import LADDERS, rungs
from kkt import random_rows, sphere_rows

REFERENCE_ACCURACY = 2e-7  # of conic solvers at their default tolerances, relative
MARGINS = {"hard": {}, "hinge": {"C": 1.0}, "squared": {"C": 1.0, "loss": "squared_hinge"}}


def problem_of(margin: str, batched: bool) -> MarginProblem:
    a, queries, owner = sphere_rows(2, 3, 4, 4, seed=1)
    problem = MarginProblem(a, queries, owner) if batched else MarginProblem(a[0], queries[0], owner)
    return problem.soft(**MARGINS[margin]) if MARGINS[margin] else problem


def solved_with_warnings(problem: MarginProblem, norm: str) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = solve(problem, norm)
    # A first import of cvxpy may compile other packages' docstrings, which warn about their escape sequences.
    return found, [str(one.message) for one in caught if not issubclass(one.category, DeprecationWarning)]


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("margin", MARGINS)
@pytest.mark.parametrize("norm", [*NORMS, "l1", "l1.5", "l3"])
def test_every_norm_is_solved_without_the_library(
    norm: str, margin: str, batched: bool, request: pytest.FixtureRequest
) -> None:
    problem = problem_of(margin, batched)
    known = solve(problem, norm)
    request.getfixturevalue("without_library")
    found, said = solved_with_warnings(problem, norm)
    assert np.all(np.asarray(found.status) == Status.OPTIMAL)
    value = found.norm if margin == "hard" else found.certificate.primal_value
    expected = known.norm if margin == "hard" else known.certificate.primal_value
    np.testing.assert_allclose(value, expected, rtol=REFERENCE_ACCURACY)
    if (norm, margin) == ("frobenius", "hard"):  # the same method in NumPy
        assert not said and found.solver == "active_set"
    elif not SOLVERS[known.solver].compiled and known.solver != "active_set":  # nothing is missing
        assert not said and found.solver == known.solver
    else:
        assert len(said) == 1 and not SOLVERS[found.solver].compiled
        assert said[0].startswith("the compiled solvers of attsvm are missing: they were not built ('pip install'")


def test_rungs_without_the_library_are_not_compiled_and_end_with_the_reference(without_library: None) -> None:
    for norm, margin in itertools.product(("frobenius", "nuclear", "l1"), MARGINS):
        problem = problem_of(margin, batched=False)
        names = LADDERS[get_norm(norm).family](problem)
        others = [name for name in names if not SOLVERS[name].compiled and name != "cvxpy"]
        missing = any(SOLVERS[name].compiled for name in names)
        assert missing or norm == "frobenius"
        found = [spec.name for spec in rungs(problem, get_norm(norm), warn=False)[0]]
        assert found == ([*others, "cvxpy"] if missing else list(names))


def test_a_compiled_method_that_is_named_is_refused_without_the_library(without_library: None) -> None:
    problem = random_rows(np.random.default_rng(0), 2, 3, 4)
    for norm, name in (("linf", "primal_dual"), ("nuclear", "interior")):
        with pytest.raises(ImportError, match=r"compiled solvers .* missing: .*'pip install'.*; solver='cvxpy' does"):
            solve(problem, norm, name)
    with pytest.raises(ImportError, match="compiled solvers of attsvm are missing"):
        pivot_one(problem.pairs())


def test_a_library_of_another_machine_counts_as_missing(
    forget_library: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "_kernels.so").write_text("not a library")
    monkeypatch.setattr(kernels, "_PATH", tmp_path / "_kernels.so")
    forget_library()
    assert kernels.why_missing().startswith("_kernels.so cannot be loaded: ")
    assert not batched_pivoting.is_available()


def capsule(name: bytes) -> object:
    """As Cython exports a function; its address must never be called."""
    make = ctypes.pythonapi.PyCapsule_New
    make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return make(1, name, None)


def scipy_with(monkeypatch: pytest.MonkeyPatch, routine: str, replaced: object | None) -> None:
    """SciPy's exports with another routine, or without one."""

    def imported(name: str) -> Any:
        exports = dict(import_module(name).__pyx_capi__)
        if routine in exports:
            exports[routine] = replaced
        return SimpleNamespace(__pyx_capi__={key: value for key, value in exports.items() if value is not None})

    monkeypatch.setattr(kernels, "import_module", imported)


@pytest.mark.parametrize("routine", [name for routines in kernels.ROUTINES.values() for name in routines])
def test_a_scipy_of_64_bit_integers_is_never_called(
    routine: str, forget_library: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = next(routines[routine] for routines in kernels.ROUTINES.values() if routine in routines)
    types = {"c": "char", "i": "int64_t", "d": "__pyx_t_5scipy_6linalg_11cython_blas_d"}
    name = f"void ({', '.join(f'{types[kind]} *' for kind in arguments)})".encode()  # lives as long as its capsule
    scipy_with(monkeypatch, routine, capsule(name))
    forget_library()
    found, said = solved_with_warnings(problem_of("hard", batched=False), "linf")
    assert (found.status, found.solver) == (Status.OPTIMAL, "cvxpy")
    assert len(said) == 1
    for part in ("missing: they call a SciPy of 32-bit integers (LP64)", f".{routine} is 'void (", "int64_t *"):
        assert part in said[0]
    assert batched_pivoting.is_available()  # it calls no BLAS


def test_a_scipy_without_a_routine_is_told(forget_library: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    scipy_with(monkeypatch, "dgesdd", None)
    forget_library()
    assert kernels.why_missing() == "scipy.linalg.cython_lapack exports no dgesdd"


def test_sizes_that_int_does_not_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """At a limit of 5, as rows of the true one need more memory than a machine has."""
    problem = random_rows(np.random.default_rng(0), 2, 3, 4)
    monkeypatch.setattr(kernels, "_LARGEST", 5)
    message = r"compiled solvers take at most 5 rows or entries of W, got \d+"
    for call in (
        lambda: solve(problem, "linf", "primal_dual"),
        lambda: solve(problem, "nuclear", "interior"),
        lambda: pivot_one(problem.pairs()),
        lambda: DualDescent(PairRows(np.ones((1, 6)), [[1.0]], [0]), np.ones(1), Penalty(1.0), np.zeros(1)),
    ):
        with pytest.raises(MemoryError, match=message):
            call()
    monkeypatch.undo()
    monkeypatch.setattr(kernels, "_WIDEST", 5)
    for norm in ("nuclear", "spectral"):
        with pytest.raises(MemoryError, match=r"dx \+ dz of at most 5 in this norm, got \d+"):
            solve(problem, norm)
    assert solve(problem, "linf").status is Status.OPTIMAL
