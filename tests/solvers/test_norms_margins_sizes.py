"""Every norm with every margin, kind of problem and size, alone and in a batch, by every solver, against cvxpy.

A sample runs here; `attsvm.validation.matrix.run` and ``attsvm bench --only matrix`` take all of it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from attsvm.solvers import NORMS, SOLVERS, get_norm
from attsvm.validation.matrix import (
    FORMS,
    KINDS,
    MARGINS,
    NORM_NAMES,
    SIZES,
    VALUES,
    Answer,
    Combination,
    check,
    combinations,
    constraints_of,
    drawn,
    faults_of,
    instances,
    objective,
    pairs_of,
    problem_of,
    reference,
    sample,
    solver_names,
)

# Cells in which earlier versions ended "inaccurate".
FAILED_BEFORE = (
    Combination("frobenius", "hinge-query", "gen", "few", "batch"),
    Combination("nuclear", "squared-query", "prior", "few", "batch"),
    Combination("nuclear", "squared-row", "offset", "few", "batch"),
    Combination("l1.5", "squared-row", "offset", "few", "batch"),
)
SAMPLE = sorted({*sample(150), *FAILED_BEFORE}, key=str)
OWN = [name for name, spec in SOLVERS.items() if not spec.foreign and not spec.ranks]


@pytest.mark.timeout(30)  # a hundred times what one takes: a solver that hangs is a failure of its own
@pytest.mark.parametrize("combination", SAMPLE, ids=str)
def test_every_answer_is_settled_and_agrees_with_cvxpy(combination):
    assert check(combination).faults == ()


def test_the_lists_are_those_of_the_library():
    assert set(NORMS) <= set(NORM_NAMES) == set(VALUES)
    families = {family for spec in SOLVERS.values() for family in spec.norms or ()}
    assert families <= {get_norm(name).family for name in NORM_NAMES}
    assert {name for norm in NORM_NAMES for margin in MARGINS for name in solver_names(norm, margin)} == set(OWN)


def test_a_new_solver_is_in_the_matrix_by_its_entry(registries):
    SOLVERS["newcomer"] = replace(SOLVERS["active_set"], name="newcomer", soft_norms=SOLVERS["active_set"].norms)
    taken = Counter(c.margin for c in combinations() if c.solver == "newcomer")
    assert taken == dict.fromkeys(MARGINS, len(KINDS) * len(SIZES) * len(FORMS))
    assert {"newcomer"} <= {c.solver for c in sample(150)}


def test_the_matrix_is_complete():
    plain = [c for c in combinations() if c.solver == "auto"]
    sizes = {"norm": len(NORM_NAMES), "margin": 5, "kind": 6, "size": 3, "form": 2}
    total = int(np.prod(list(sizes.values())))
    assert len(set(plain)) == len(plain) == total
    for axis, size in sizes.items():
        counts = Counter(getattr(c, axis) for c in plain)
        assert list(counts.values()) == [total // size] * size, axis
    named = Counter(c.solver for c in combinations())
    for solver in OWN:
        takes = [pair for pair in ((n, m) for n in NORM_NAMES for m in MARGINS) if solver in solver_names(*pair)]
        assert named[solver] == len(takes) * total // (sizes["norm"] * sizes["margin"]) > 0, solver


def test_the_sample_meets_in_all_pairs():
    assert 150 <= len(SAMPLE) <= 30 * len(NORM_NAMES)
    met = set().union(*map(pairs_of, SAMPLE))
    assert met == set().union(*map(pairs_of, combinations()))
    triples = {(c.norm, c.margin, c.size) for c in SAMPLE if c.solver == "auto"}
    assert len(triples) == len(NORM_NAMES) * len(MARGINS) * len(SIZES)
    for axis, least in {"norm": 10, "margin": 20, "kind": 15, "size": 40, "form": 60, "solver": 5}.items():
        assert min(Counter(getattr(c, axis) for c in SAMPLE).values()) >= least, axis


def test_the_problems_are_what_their_names_say():
    bounds = {"few": (0.1, 0.5), "equal": (0.6, 1.25), "many": (2.0, 6.0)}
    for kind in KINDS:
        for size, (low, high) in bounds.items():
            given = instances("frobenius", "hinge-query", kind, size, "batch")
            for instance in given:
                rows = constraints_of(instance)
                assert low <= len(rows.rhs) / rows.features.shape[1] <= high, (kind, size)
                assert rows.equality.any() == (kind in ("gen", "finite"))
            assert problem_of(given, "batch").batch == len(given) > 1
            assert problem_of(given, "one").batch is None
    hard = [c for c in SAMPLE if c.margin == "hard"]
    exists = Counter(
        reference(one, c.norm, MARGINS["hard"]).feasible
        for c in hard
        if c.norm == "frobenius"
        for one in instances(*(getattr(c, field.name) for field in fields(c)[:-1]))
    )
    assert exists[True] > exists[False] > 0


def test_the_reference_alone_gives_known_optima():
    """One query, two tokens: the least W is the dual norm's, whatever computes it."""
    instance = drawn("prior", "few", 0, wrong=False)
    one = replace(instance, X=instance.X[:1, :2], Z=instance.Z[:1], members=np.array([[True, False]]), prior=None)
    row = constraints_of(one).features.reshape(10, 9)
    for norm in NORM_NAMES:
        dual = get_norm(norm).dual.name
        known = VALUES[dual](row) if dual in VALUES else get_norm(dual)(row)
        assert reference(one, norm, MARGINS["hard"]).value == pytest.approx(1.0 / known, rel=1e-6)
        # Soft, linear in the slack and C far above the multiplier: the hard margin again, and with C = 0.01 nothing.
        soft = replace(one, C=100.0 / known**2 if norm == "frobenius" else 100.0 / known)
        found = reference(soft, norm, MARGINS["hinge-query"]).value
        assert found == pytest.approx(0.5 / known**2 if norm == "frobenius" else 1.0 / known, rel=1e-6)
    assert objective(one, "l3", MARGINS["squared-row"], np.zeros((10, 9))) == pytest.approx(one.C)


@pytest.mark.parametrize("margin", ["hard", "hinge-query", "squared-row"])
def test_wrong_answers_are_faults(margin):
    """What the comparison is for: each kind of wrong answer is seen."""
    given, kind = drawn("att", "few", 1, wrong=margin != "hard"), MARGINS[margin]
    known = reference(given, "nuclear", kind)

    def fault(status, W, proved=False, known=known):
        return faults_of(given, "nuclear", kind, Answer(status, W, proved), known)[1]

    assert fault("optimal", known.W) == ""
    assert "differs" in fault("optimal", known.W * (1 + 1e-4) + 1e-4)
    assert fault("optimal", known.W * np.nan) == "called optimal without a finite W"
    assert fault("inaccurate", known.W) == "status inaccurate"
    assert fault("failed", None) == "status failed"
    assert fault("infeasible", None, proved=True) == "called infeasible, but a W exists"
    if margin == "hard":
        assert "misses a constraint" in fault("optimal", 0.999 * known.W)


def test_wrong_claims_about_feasibility_are_faults():
    given, hard = drawn("finite", "many", 0, wrong=False), MARGINS["hard"]
    known = reference(given, "l1", hard)
    assert not known.feasible
    assert faults_of(given, "l1", hard, Answer("infeasible", None, True), known)[1] == ""
    assert "without a proof" in faults_of(given, "l1", hard, Answer("infeasible", None, False), known)[1]
    assert "no W exists" in faults_of(given, "l1", hard, Answer("optimal", np.ones((4, 3)), False), known)[1]


def test_a_solver_that_raises_is_a_fault(monkeypatch):
    def broken(*args, **options):
        raise ZeroDivisionError("no step")

    monkeypatch.setattr("attsvm.att_svm", broken)
    found = check(Combination("frobenius", "hard", "att", "few", "one"))
    assert found.faults == ("ZeroDivisionError: no step",)
