import queue
import time
from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import attsvm
from attsvm.validation.bench import call_growth, fit_cases, matrix_speed, peers, solver_cases
from attsvm.validation.bench.cases import CASES, SOFT_CASES, DrawCase, NumberGoal, called
from attsvm.validation.bench.measurement import (
    Line,
    Result,
    Spread,
    Stopwatch,
    Verdict,
    as_record,
    as_table,
    as_verdicts,
    at_least,
    at_most,
    draw_growth,
    measure,
    measure_with_timeout,
    missed,
)
from attsvm.validation.bench.model_cases import training_throughput
from attsvm.validation.bench.peers import (
    PEERS,
    Peer,
    Task,
    feasible_gap,
    missing_modules,
    norm_of,
    proxsuite_solve,
    run_peer,
    tasks_of,
)
from attsvm.validation.bench.solver_cases import SolveCase, fitted_exponent, growth
from attsvm.validation.matrix import NORM_NAMES
from attsvm.validation.matrix_calls import public_functions
from slow_work import fail, nap


def silent(line):
    pass


def test_the_median_and_the_spread_are_those_of_the_draws():
    found = Spread((5.0, 1.0, 9.0, 2.0))
    assert (found.median, found.low, found.high) == (3.5, 1.0, 9.0)
    assert np.isnan(Spread((1.0, float("nan"))).median)
    with pytest.raises(ValueError, match="values must hold at least one number"):
        Spread(())


def test_goals_are_judged_by_medians_and_accuracy_by_every_draw():
    spread = Spread((1.0, 10.0, 100.0))
    assert at_least("", 10.0, spread) == Verdict("", 10.0, True)
    assert at_least("", 11.0, spread).met is False
    assert at_most("", 10.0, spread).met is True
    assert at_most("", 99.0, spread, every_draw=True) == Verdict("", 100.0, False)
    assert at_least("", 1.0, None).met is None
    assert at_most("", 1.0, None).met is None
    assert at_least("", 1.0, Spread((float("nan"),))).met is False  # what was measured as not a number is no success


def test_only_measured_goals_are_missed():
    verdicts = (Verdict("a", 1.0, True), Verdict("b", 2.0, False), Verdict("c", None, None))
    assert missed([Result("x", "", (), verdicts), Result("y", "", (), verdicts)]) == ["x: b", "y: b"]


def test_tables_and_records_show_the_spread():
    lines = (
        Line("ours", {"seconds": Spread((1e-6, 3e-3, 2.0)), "gap": Spread((1e-9,)), "share": Spread((0.5,))}),
        Line("peer", {"ratio": Spread((0.08, 0.1, 0.2)), "memory": Spread((2.0**21, 2.0**20, 2.0**20))}),
        Line("absent", {}, "not installed: x"),
    )
    result = Result("x", "work", lines, (Verdict("fast", 0.1, False),))
    table = as_table([result])
    cells = [list(column.cells) for column in table.columns]
    assert table.row_count == 2
    assert cells[0] == ["x: work", ""]
    assert cells[2][0] == "1e-09"
    assert cells[3] == ["3 ms (1 us to 2 s)", "-"]
    assert cells[4] == ["-", "0.1x (0.08x to 0.2x)"]
    assert cells[5] == ["-", "1 MiB (1 MiB to 2 MiB)"]
    assert cells[6][0] == "share 0.5"
    assert as_verdicts([result]) == ["MISSED     x: fast (0.1)"]
    record = as_record([result])[0]
    assert record["goals"] == [{"text": "fast", "value": 0.1, "met": False}]
    assert record["lines"][2] == {"name": "absent", "note": "not installed: x"}


def test_a_draw_case_takes_one_seed_per_draw():
    seeds = []

    def draw(seed):
        seeds.append(seed)
        return {"ours": {"ratio": float(seed), "error": 1.0}}

    goals = (
        NumberGoal("fast", "ours", "ratio", "at least", 8.0),
        NumberGoal("exact", "ours", "error", "at most", 0.5),
    )
    result = DrawCase("x", "title", draw, goals).run(7, 3, silent)
    assert seeds == [7, 8, 9]
    assert result.lines[0].numbers["ratio"].values == (7.0, 8.0, 9.0)
    assert [verdict.met for verdict in result.verdicts] == [True, False]


def test_a_bound_on_every_draw_is_missed_by_one_draw():
    def verdict(every_draw):
        goal = NumberGoal("no fault", "ours", "faults", "at most", 0.0, every_draw=every_draw)
        return DrawCase("x", "", lambda seed: {"ours": {"faults": float(seed == 1)}}, (goal,)).run(0, 3, silent)

    assert missed([verdict(False)]) == []
    assert missed([verdict(True)]) == ["x: no fault"]


def test_ratios_of_the_matrix_count_only_what_is_proved(monkeypatch):
    found = matrix_speed.matrix_speed(0, ["frobenius"], ["hard", "squared-row"], ["few"], batch=2, repeats=1)
    assert list(found) == ["frobenius, hard", "frobenius, squared-row", "frobenius, soft", "all"]
    assert found["all"]["unproved"] == 0.0
    assert found["frobenius, hard"]["worst time of a batch over the hard batch"] == 1.0
    assert 0 < found["all"]["worst ratio"] == min(found[name]["ratio"] for name in list(found)[:2])
    honest = matrix_speed.solved

    def unproved(problem, given, norm, margin, form, solver):
        return honest(problem, given, norm, margin, form, solver) if margin.hard else SimpleNamespace(status="failed")

    monkeypatch.setattr(matrix_speed, "solved", unproved)
    found = matrix_speed.matrix_speed(0, ["frobenius"], ["hard", "squared-row"], ["few"], batch=2, repeats=1)
    assert found["frobenius, soft"]["ratio"] == found["all"]["worst ratio in a batch"] == 0.0
    assert found["all"]["unproved"] > 0


def test_goals_of_soft_margins_name_numbers_that_are_measured():
    goals = {case.name: case.goals for case in SOFT_CASES}
    speed = matrix_speed.matrix_speed(0, ["l1"], ["hard", "hinge-row"], ["few"], batch=2, repeats=1)
    names = {f"{norm}, soft" for norm in NORM_NAMES} | {"all"}
    assert {goal.line for goal in goals["matrix-speed"]} == names
    assert {goal.number for goal in goals["matrix-speed"]} <= set(speed["l1, soft"]) == set(speed["all"])
    agreement = matrix_speed.matrix_agreement(0, ["l1"], every=200)
    classes = fit_cases.multiclass_speed(0, ("iris",), (1.0,), repeats=1)
    size = fit_cases.soft_size(0, (12, 4, 5))
    for case, lines in {"matrix": agreement, "multiclass": classes, "soft-large": size}.items():
        assert all(goal.number in lines[goal.line] for goal in goals[case])


def test_measuring_takes_the_median_and_does_not_time_the_preparation(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(time, "process_time", lambda: clock[0])

    def spend(seconds):
        clock[0] += seconds
        return seconds

    works = iter((3.0, 1.0, 8.0))
    found = measure(spend, lambda: (spend(100.0), next(works))[1], repeats=3)
    assert (found.answer, found.seconds) == (8.0, 3.0)
    works = iter((1.0, 2.0, 4.0, 8.0))
    assert measure(spend, lambda: next(works), repeats=4, budget=3.0).seconds == 1.5  # no third call after 3 seconds


def test_neither_waiting_nor_threads_are_counted(monkeypatch):
    wall, processors = [0.0], [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: wall[0])
    monkeypatch.setattr(time, "process_time", lambda: processors[0])
    watch = Stopwatch()
    wall[0], processors[0] = 5.0, 2.0  # three seconds without a processor
    assert watch.seconds() == 2.0
    processors[0] = 9.0  # two threads for most of the time
    assert watch.seconds() == 5.0


def test_slow_and_failing_peers_are_shown_as_such():
    done, note = measure_with_timeout(nap, 0.0, [0.0, 60.0], limit=5.0)
    assert [timed.answer for timed in done] == [0.0]  # what was finished counts
    assert note == "timed out at 5 s"
    assert measure_with_timeout(fail, None, [None], limit=60.0) == ([], "failed: RuntimeError")


def test_tasks_are_the_rows_of_the_problem():
    problem = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    task = tasks_of(problem, 1)[0]
    best = attsvm.att_svm(problem[0])
    alpha = problem[0].optimal_tokens().indices
    rows = [
        (problem.X[0, i, alpha[i]] - problem.X[0, i, t], problem.Z[0, i])
        for i in range(3)
        for t in range(4)
        if t != alpha[i]
    ]
    np.testing.assert_allclose(task.features(), [np.outer(a, z).ravel() for a, z in rows])
    np.testing.assert_allclose(task.gram(), task.features() @ task.features().T)
    np.testing.assert_allclose(task.margins(best.W), task.features() @ best.W.ravel())
    weights = np.arange(9.0)
    np.testing.assert_allclose(task.combine(weights).ravel(), weights @ task.features())
    assert task.margins(best.W).min() == pytest.approx(1.0, abs=1e-12)
    assert feasible_gap(task, best.W, best.norm) == pytest.approx(0.0, abs=1e-12)
    assert feasible_gap(task, 0.5 * best.W, 0.5 * best.norm) == pytest.approx(1.0)
    assert feasible_gap(task, -best.W, best.norm) == float("inf")
    assert norm_of(np.diag([3.0, 4.0]), "nuclear") == pytest.approx(7.0)
    assert len(tasks_of(problem)) == 2


@pytest.mark.parametrize("name", list(PEERS))
def test_peers_solve_the_same_problem(name):
    if missing_modules(name):
        pytest.skip(f"{name} needs {missing_modules(name)}")
    norm = "nuclear" if name.startswith("nuclear") else "frobenius"
    problem = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=3)
    for task, W, best in zip(
        tasks_of(problem), run_peer(name, tasks_of(problem)), attsvm.att_svm(problem, norm=norm), strict=True
    ):
        # Default accuracies of general solvers: 1e-3 is the loosest (SCS, LinearSVC).
        assert abs(feasible_gap(task, W, best.certificate.lower_bound, norm)) <= 1e-3


def exact(tasks):
    return [attsvm.att_svm(attsvm.AttentionProblem(t.X, np.ones(len(t.X)), t.Z), t.selected).W for t in tasks]


@pytest.fixture
def fake_peers(monkeypatch):
    monkeypatch.setitem(PEERS, "exact", Peer(exact, ()))
    monkeypatch.setitem(PEERS, "wrong", Peer(lambda tasks: [-W for W in exact(tasks)], ()))
    monkeypatch.setitem(PEERS, "broken", Peer(fail, ()))
    monkeypatch.setitem(PEERS, "absent", Peer(fail, ("no_such_module",)))


def test_a_peer_with_threads_of_its_own_leaves_those_of_torch():
    pytest.importorskip("proxsuite")
    import torch

    for number in (1, 2, 3):
        torch.set_num_threads(number)
        proxsuite_solve([np.eye(3)] * 2)
        assert torch.get_num_threads() == number


def test_a_case_measures_every_draw_and_every_peer(fake_peers):
    asked = {"exact": 1e-9, "wrong": 1.0, "broken": 1.0, "absent": 1.0}
    case = SolveCase("x", (3, 3, 4), peers=asked, repeats=2)
    result = case.run(5, 2, silent)
    lines = {line.name: line for line in result.lines}
    assert [len(s.values) for s in lines["exact"].numbers.values()] == [2, 2, 2, 2]
    assert abs(lines["exact"].numbers["gap"].high) <= 1e-12
    assert "ratio" not in lines["wrong"].numbers  # no ratio is claimed against a useless answer
    assert lines["broken"].note == "failed: RuntimeError"
    assert lines["absent"].note == "not installed: no_such_module (pip install 'attsvm[bench]')"
    assert [verdict.met for verdict in result.verdicts] == [True, True, None, None, None]
    assert result.verdicts[1].text == "at most 1e+09x the time of exact"
    assert missed([result]) == []


def test_goals_of_a_case_can_be_missed(fake_peers, monkeypatch):
    result = SolveCase("x", (3, 3, 4), peers={"exact": 1e9}, gap=1e-300, memory=0.0).run(0, 2, silent)
    assert missed([result])[:2] == ["x: gap <= 1e-300 in every draw", "x: >= 1e+09x exact"]
    monkeypatch.setitem(PEERS, "qpsolvers exact", PEERS["exact"])
    result = SolveCase("x", (3, 3, 4), peers={"qpsolvers exact": None}, qp_goal=1e9).run(0, 2, silent)
    assert missed([result]) == ["x: >= 1e+09x the best dense QP solver"]


def test_ratios_are_taken_draw_by_draw():
    def ours(seconds):
        return solver_cases._Ours(seconds, 0.0, 1.0, 1.0, (1.0,), "s", 1.0)

    found = {
        "p": [
            solver_cases._Found(8.0, 0.0, 0.0),
            solver_cases._Found(2.0, 0.0, 0.0),
            solver_cases._Found(9.0, 0.0, 0.0),
        ]
    }
    case = SolveCase("x", (2, 2, 2), peers={"p": 3.0})
    result = case._result([ours(2.0), ours(1.0), ours(3.0)], found, {"p": ""})
    assert result.lines[1].numbers["ratio"].values == (4.0, 2.0, 3.0)
    assert result.verdicts[1] == Verdict(">= 3x p", 3.0, True)


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_a_batch_is_measured_per_problem(fake_peers, norm):
    case = SolveCase("x", (2, 3, 4), norm, batch=4, read=False)
    result = case.run(0, 2, silent)
    assert result.lines[0].numbers["gap"].high <= 1e-8
    assert result.title == f"{norm} (2, 3, 4), batch 4"
    assert ("certified rank is the numerical one" in result.lines[0].numbers) == (norm == "nuclear")


def test_a_peer_with_a_limit_runs_apart():
    result = SolveCase("x", (2, 3, 4), peers={"scipy NNLS": None}, timeout=120.0, dtype="float32").run(0, 2, silent)
    assert len(result.lines[1].numbers["ratio"].values) == 2


def test_growth_and_its_picture(tmp_path: Path):
    assert fitted_exponent([10, 1000], [1.0, 1e4]) == pytest.approx(2.0)
    case = DrawCase("growth", "", lambda seed: growth(seed, sizes=(2, 4), T=3, d=8))
    draw_growth(tmp_path / "growth.png", case.run(0, 2, silent))
    assert (tmp_path / "growth.png").stat().st_size > 1000


@pytest.mark.parametrize("begun", [False, True])
def test_a_process_that_ends_is_no_slow_call(monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """One that never said anything is an error; one that ended in a call says so of the call, and others go on."""
    name = "softmax.condition_number"

    class Ended:
        exitcode = 0

        def __init__(self, target: object, args: tuple[list[call_growth.Job], queue.Queue[Any]], daemon: bool) -> None:
            self.jobs, self.channel = args

        def start(self) -> None:
            first = self.jobs[0]
            if first[1] == "T":  # of the second process: no call ends it
                for job in self.jobs:
                    self.channel.put(("done", job, 0.5 * job[2], 0.0))
                self.channel.put(("end", None, 0.0, 0.0))
                return
            self.exitcode = -9
            if begun:
                self.channel.put(("begun", first, 0.0, 0.0))

        def is_alive(self) -> bool:
            return False

        def kill(self) -> None:
            pass

        join = kill

    context = SimpleNamespace(Queue=queue.Queue, Process=Ended)
    monkeypatch.setattr(call_growth.multiprocessing, "get_context", lambda kind: context)
    if not begun:
        with pytest.raises(RuntimeError, match="did not start: exit code -9"):
            call_growth.growth_all(0, (name,))
        return
    lines = call_growth.growth_all(0, (name,))
    assert np.isnan(lines[f"{name}, n"]["seconds at 10x"]) and lines[f"{name}, n"]["raised"] == 1.0
    assert lines[f"{name}, T"]["seconds at 10x"] == 5.0


def test_growth_of_every_size_with_the_plain_way_beside_it(monkeypatch):
    lines = call_growth.growth_all(0, ("softmax.condition_number", "locally_optimal_selections"), limit=1.0)
    assert list(lines)[:2] == ["softmax.condition_number, n", "softmax.condition_number, T"]
    spectrum, listing = lines["softmax.condition_number, T"], lines["locally_optimal_selections, n"]
    assert 0 < spectrum["seconds"] < 1 and spectrum["plain way at 10x"] > spectrum["plain way"]
    assert call_growth.marks(listing) == ["10x refused"]  # 5^50 selections
    assert call_growth.marks(lines["locally_optimal_selections, T"]) == ["10x above 10 s"]  # ended at the limit
    table = call_growth.as_markdown(lines)
    assert len(table.splitlines()) == 2 + len(lines) and "**10x refused**" in table


def test_every_mark_in_the_documented_growth_table_has_its_reason():
    docs = Path(__file__).parents[2] / "docs"
    text = (docs / "studies" / "growth.md").read_text(encoding="utf-8")
    page = (docs / "benchmarks.md").read_text(encoding="utf-8").partition("## How every function grows")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    growth = {row[0]: row[-1] for row in rows if len(row) == 8 and row[0].rpartition(", ")[0] in call_growth.GROWN}
    named = {f"{name}, {axis}" for name, grown in call_growth.GROWN.items() for axis in grown.sizes}
    assert set(growth) == named
    marked = {name: mark.rpartition("**: ")[2] for name, mark in growth.items() if mark}
    assert 5 < len(marked) < 20
    for name, reason in marked.items():
        function, _, axis = name.rpartition(", ")
        assert reason and reason == call_growth.GROWN[function].reasons[axis], name
        assert f"`{function.partition(', ')[0]}`" in page, "the page names what is marked"


def test_entries_of_the_growth_table_are_public_and_run_at_their_example():
    public = {name.removeprefix("attsvm.").removeprefix("dynamics.") for name in public_functions()}
    assert {name.split(", ")[0] for name in call_growth.GROWN} <= public
    for name, grown in call_growth.GROWN.items():
        assert all(size >= 2 for size in grown.sizes.values()), name


def test_training_reports_both_parameterizations():
    found = training_throughput(0, batch=3, steps=4)
    for numbers in found.values():
        assert numbers["times as fast as the autograd loop"] == pytest.approx(
            numbers["peer's seconds"] / numbers["seconds"]
        )


def test_the_list_of_cases():
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
    held = {case.name: case.peers for case in CASES if isinstance(case, SolveCase)}
    assert all(name in PEERS for asked in held.values() for name in asked)
    assert held["fro-bare"]["daqp, Gram matrix given"] == pytest.approx(1 / 3)
    assert held["fro-batch-daqp"]["daqp loop, rows built"] == 1.5
    assert held["fro-tiny"]["cvxpy per constraint"] == 60.0
    goals = {case.name: case.goals for case in CASES if isinstance(case, DrawCase)}
    named = [case.draw.args[0] for case in CASES if getattr(getattr(case, "draw", None), "func", None) is called]
    assert len(named) > 10 and all(callable(resolve_name(f"attsvm.validation.bench.{name}")) for name in named)
    assert (goals["growth"][0].number, goals["growth"][0].sense, goals["growth"][0].bound) == (
        "exponent",
        "at most",
        1.3,
    )
    assert isinstance(peers.PEERS["scipy NNLS"], Peer)
    assert Task(np.eye(2)[None], np.ones((1, 2)), np.zeros(1, dtype=np.int64)).shape == (2, 2)
