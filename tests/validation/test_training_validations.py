import json

import pytest

from attsvm.solvers import get_norm, solve
from attsvm.validation.bench import __main__ as bench
from attsvm.validation.bench.cases import CASES, Case, Result, run_case
from attsvm.validation.bench.measure import Measurement, measure_with_timeout
from attsvm.validation.bench.peers import PEERS, call_peer, feasible_gap
from kkt import random_rows


@pytest.mark.parametrize("name", [name for name in PEERS if not name.startswith("nuclear")])
def test_peers_solve_the_same_problem(rng, name):
    problem = random_rows(rng, 4, 4, 6)
    best = solve(problem)
    W = call_peer(name, problem)
    # Default accuracies of general solvers: 1e-3 is the loosest (SCS, LinearSVC).
    assert abs(feasible_gap(problem, W, best.certificate.lower_bound, get_norm("frobenius"))) <= 1e-3


@pytest.mark.parametrize("name", [name for name in PEERS if name.startswith("nuclear")])
def test_nuclear_peers_solve_the_same_problem(rng, name):
    problem = random_rows(rng, 4, 3, 5)
    best = solve(problem, "nuclear")
    assert feasible_gap(problem, call_peer(name, problem), best.certificate.lower_bound, get_norm("nuclear")) <= 1e-3


def _sleep(seconds):
    import time

    time.sleep(seconds)


def _fail(argument):
    raise RuntimeError


def test_slow_and_failing_peers_are_shown_as_such():
    assert measure_with_timeout(_sleep, 0.0, 60.0, limit=3.0)[3] == "timed out at 3 s"
    assert measure_with_timeout(_fail, None, None, limit=30.0)[3] == "failed: RuntimeError"


def test_goals_can_be_missed():
    case = Case("x", (2, 3, 4), peers={"peer": 10.0}, gap=1e-8)
    good, bad = Measurement(1.0, 1e-12, 0.0), Measurement(1.0, 1e-3, 0.0)
    assert all(Result(case, good, "s", 1.0, {}, {"peer": 20.0}).goals().values())
    assert not any(Result(case, bad, "s", 1.0, {}, {"peer": 2.0}).goals().values())


def test_a_case_measures_ours_and_the_peers():
    case = Case("x", (3, 3, 4), peers={"scipy NNLS": None, "cvxpy OSQP": 1.0}, repeats=2)
    result = run_case(case)
    assert result.ours.gap <= 1e-8
    assert set(result.ratios) == {"scipy NNLS", "cvxpy OSQP"}
    assert result.peers["scipy NNLS"].gap <= 1e-9
    assert len({case.name for case in CASES}) == len(CASES)


def test_the_command_prints_tables_and_json(capsys):
    bench.main(["--only", "fro-tiny", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["cases"][0]["ours"]["gap"] <= 1e-8
    bench.main(["--only", "fro-tiny"])
    assert "cvxpy per constraint" in capsys.readouterr().out
