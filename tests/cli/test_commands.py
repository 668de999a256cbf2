"""What each command prints, writes and exits with, against the library."""

import json
from fractions import Fraction

import numpy as np
import pytest

import attsvm
from attsvm.exact_tokens import exact_listing
from attsvm.files import load_problem, read_problem_file, save_problem


def written(name):
    """What a command wrote; the file is closed at once, not when garbage is collected in a later test."""
    with np.load(name, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture
def problem(tmp_path):
    made = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    save_problem(made, tmp_path / "p.npz")
    return made


@pytest.fixture
def hopeless(tmp_path):
    made = attsvm.random_problem(n=6, T=8, d=2, seed=0)
    save_problem(made, tmp_path / "hopeless.npz")
    return made


@pytest.mark.parametrize("kind", ["cross", "self", "sequence", "causal"])
@pytest.mark.parametrize("head", ["linear", "relu", "concave"])
def test_new_writes_what_was_asked_for(attsvm_command, kind, head):
    for name in ("a.npz", "a.safetensors"):
        result = attsvm_command("new", name, "--kind", kind, "--head", head, "-n", 2, "-T", 3, "-d", 4, "--seed", 7)
        assert result.code == 0
        assert f"wrote {name}: 2 sequences of 3 tokens in dimension 4" in result.out
    first, second = load_problem("a.npz"), load_problem("a.safetensors")
    np.testing.assert_array_equal(first.X, second.X)
    assert type(first.head).__name__.lower() == f"{head}head"
    assert first.multi_query == (kind in ("sequence", "causal"))
    assert (first.mask is not None) == (kind == "causal")


def test_new_refuses_to_overwrite(attsvm_command):
    assert attsvm_command("new").code == 0
    again = attsvm_command("new")
    assert (again.code, again.out) == (2, "")
    assert again.err == "attsvm: problem.npz exists already: choose another name or replace it with --force\n"
    assert attsvm_command("new", "--force", "-q").out == ""


def test_solve_agrees_with_the_library_and_writes_the_solution(attsvm_command, problem):
    result = attsvm_command("solve", "p.npz", "--norm", "nuclear", "--json", "--out", "s.npz")
    assert result.code == 0
    (record,) = result.record["solutions"]
    solution = attsvm.att_svm(problem, norm="nuclear")
    assert record["margin"] == pytest.approx(solution.margin, rel=1e-6)
    assert record["certificate"]["rank"] == solution.certificate.rank
    assert result.record["problem"]["selection"] == problem.optimal_tokens().indices.tolist()
    saved = written("s.npz")
    np.testing.assert_allclose(saved["W"], solution.W, atol=1e-6)  # two runs of the same solver
    assert json.loads(str(saved["record"]))["status"] == "optimal"
    assert saved["support"].shape == (3, 4)


def test_solve_prints_both_norms(attsvm_command, problem):
    out = attsvm_command("solve", "p.npz", "--norm", "frobenius", "--norm", "nuclear").out
    for word in ("Att-SVM (frobenius)", "Att-SVM* (nuclear)", "relative duality gap", "support (nuclear)", "optimal"):
        assert word in out
    assert attsvm_command("solve", "p.npz", "-q").out == ""


def test_solve_takes_norms_ranks_and_solvers(attsvm_command, problem):
    result = attsvm_command("solve", "p.npz", "--norm", "spectral", "--solver", "cvxpy:CLARABEL", "--json")
    assert result.code == 0
    assert "CLARABEL" in result.record["solutions"][0]["solver"].upper()
    limited = attsvm_command("solve", "p.npz", "--norm", "nuclear", "--rank", 3, "--json")
    assert limited.record["solutions"][0]["rank"] <= 3


def test_selection_comes_from_the_option_then_the_file_then_the_scores(attsvm_command, problem, tmp_path):
    save_problem(problem, tmp_path / "chosen.npz", selection=[2, 3, 3])

    def selection(*arguments):
        return attsvm_command("solve", *arguments, "--json").record["problem"]["selection"]

    assert selection("chosen.npz") == [2, 3, 3]
    assert selection("chosen.npz", "--selection", "optimal") == [3, 3, 3]
    assert selection("chosen.npz", "--selection", "0,1,2") == [0, 1, 2]
    assert selection("p.npz") == [3, 3, 3]
    attsvm_command("new", "k.npz", "--kind", "causal", "-n", 2, "-T", 3, "-d", 6, "-q")
    assert selection("k.npz", "--selection", "0,0,2;0,1,1") == [[0, 0, 2], [0, 1, 1]]


def test_infeasible_data_exit_with_1_and_a_proof(attsvm_command, hopeless):
    result = attsvm_command("solve", "hopeless.npz", "--out", "s.npz")
    assert result.code == 1
    assert "is infeasible: sequences [0, 1, 2, 3] conflict" in result.out
    assert "W" not in written("s.npz")
    record = attsvm_command("solve", "hopeless.npz", "--json").record["solutions"][0]
    assert record["farkas"]["residual"] <= 1e-9


def test_exact_proves_again_and_says_so(attsvm_command, problem, hopeless):
    out = attsvm_command("solve", "p.npz", "--norm", "frobenius", "--norm", "nuclear", "--exact").out
    words = " ".join(out.split())
    assert "Att-SVM in exact arithmetic: optimal. W violates no row by more than" in words
    assert "Every optimal W has at most" in words and " above " in words  # the certified rank with its resolution
    record = attsvm_command("solve", "p.npz", "--norm", "nuclear", "--exact", "--json").record["solutions"][0]
    low, high = record["exact"]["norm"]
    assert record["exact"]["status"] == "optimal" and low <= record["norm"] * (1 + 1e-9) and low <= high
    assert float(Fraction(record["exact"]["violation_fraction"])) == record["exact"]["violation"]
    assert record["certificate"]["resolution"] >= 0
    failed = attsvm_command("solve", "hopeless.npz", "--exact", "--json")
    proof = failed.record["solutions"][0]["exact"]
    assert failed.code == 1 and proof["status"] == "infeasible"
    assert sum(map(Fraction, proof["multipliers"])) == 1 and len(proof["rows"]) == len(proof["multipliers"])
    said = " ".join(attsvm_command("solve", "hopeless.npz", "--exact").out.split())
    assert "in exact arithmetic: infeasible. The rows" in said
    assert "exact" not in attsvm_command("solve", "p.npz", "--json").record["solutions"][0]


def test_exact_refuses_what_is_too_large(attsvm_command):
    attsvm_command("new", "large.npz", "-n", 10, "-T", 11, "-d", 21, "-q")
    refused = attsvm_command("solve", "large.npz", "--exact")
    assert refused.code == 2 and "up to 40000 rows times entries of W; this one has 100 rows" in refused.err


def test_one_of_a_batch_by_its_index(attsvm_command):
    assert "batch of 3" in attsvm_command("new", "b.npz", "--batch", 3, "-d", 6).out
    whole = attsvm_command("solve", "b.npz", "--json", "-o", "w.npz")
    assert whole.code == 0 and [record["problem"] for record in whole.record["solutions"]] == [0, 1, 2]
    assert written("w.npz")["W"].shape == (3, 6, 6)
    assert attsvm_command("train", "b.npz", "--steps", 5, "--json", "-o", "r.npz").record["run"]["steps"] == [5, 5, 5]
    assert len(attsvm_command("diagnose", "b.npz", "--json").record) == 3
    assert len(attsvm_command("compare", "b.npz", "--steps", 30, "--json", "-o", "c.json").record["runs"]) == 2
    listed = attsvm_command("enumerate", "b.npz", "--json", "-o", "l.npz").record
    kept = written("l.npz")
    for k in range(3):
        alone = attsvm_command("enumerate", "b.npz", "--index", k, "--json").record
        assert [item["tokens"] for item in listed[k]["selections"]] == [item["tokens"] for item in alone["selections"]]
        assert kept["selections"][kept["problem"] == k].tolist() == [item["tokens"] for item in alone["selections"]]
    assert kept["complete"].tolist() == [True] * 3
    result = attsvm_command("solve", "b.npz", "--index", 1, "--json")
    expected = attsvm.att_svm(read_problem_file("b.npz").problem[1])
    assert result.record["solutions"][0]["margin"] == pytest.approx(expected.margin, rel=1e-6)
    assert "--index must be in 0..2" in attsvm_command("train", "b.npz", "--index", 3).err


def test_train_agrees_with_the_library_and_writes_the_run(attsvm_command, problem):
    result = attsvm_command("train", "p.npz", "--steps", 40, "--seed", 3, "--json", "--out", "r.npz")
    assert result.code == 0
    run = attsvm.train(problem, steps=40, seed=3)
    np.testing.assert_array_equal(result.record["run"]["W"], run.W)
    saved = written("r.npz")
    np.testing.assert_array_equal(saved["W"], run.history.W)
    np.testing.assert_array_equal(saved["final_W"], run.W)
    assert json.loads(str(saved["settings"]))["steps"] == 40
    shown = attsvm_command("train", "p.npz", "-p", "KQ", "--steps", 20, "--optimizer", "adam", "--lr", "0.05").out
    assert "KQ, adam" in shown
    assert "finished after 20 steps" in shown
    assert "ridge_decay" in attsvm_command("train", "p.npz", "-p", "KQ", "--steps", 5, "--json").out


def test_train_says_when_it_breaks(attsvm_command, problem):
    result = attsvm_command("train", "p.npz", "--optimizer", "sign", "--lr", "1e308", "--steps", 20)
    assert result.code == 1
    assert "not finite" in result.out


def test_compare_prints_and_writes_every_snapshot(attsvm_command, problem):
    result = attsvm_command("compare", "p.npz", "--steps", 100, "--out", "c.csv")
    assert result.code in (0, 1)  # where so short a run stands is not the point here
    assert "Training against theory" in result.out
    runs = attsvm_command("compare", "p.npz", "--steps", 100, "--json").record["runs"]
    assert [run["parameterization"] for run in runs] == ["W", "KQ"]
    run = attsvm.train(problem, steps=100)
    expected = attsvm.compare(run, attsvm.att_svm(problem)).to_dict()
    assert runs[0]["convergence"] == expected["convergence"]
    assert runs[0]["solutions"][0]["misalignment"] == pytest.approx(expected["solutions"][0]["misalignment"], rel=1e-6)
    with open("c.csv") as file:
        head, *rows = file.read().splitlines()
    assert head.startswith("run,solution,norm,step,correlation")
    assert {row.split(",")[0] for row in rows} == {"W", "KQ"}
    assert attsvm_command("compare", "p.npz", "--steps", 30, "-p", "W", "--out", "c.json", "-q").out == ""
    with open("c.json") as file:
        assert {record["run"] for record in json.load(file)} == {"W"}


def test_compare_exits_with_1_when_a_run_ends_nowhere(attsvm_command, hopeless):
    result = attsvm_command("compare", "hopeless.npz", "--steps", 50, "-p", "W")
    assert result.code == 1
    assert "Not local" in result.out


def test_enumerate_decides_every_selection_exactly(attsvm_command):
    attsvm_command("new", "s.npz", "-n", 2, "-T", 3, "-d", 3)
    record = attsvm_command("enumerate", "s.npz", "--exact", "--json").record
    assert record["exact"] == {"complete": True, "locally_optimal": len(record["selections"]), "selections": 9,
                               "missing": [], "wrong": []}  # fmt: skip
    assert (
        "selections locally optimal in exact arithmetic; the list: complete"
        in attsvm_command("enumerate", "s.npz", "--exact").out
    )
    with pytest.MonkeyPatch.context() as patch:  # a list that exact arithmetic contradicts, whatever float64 said
        patch.setattr(
            "attsvm.enumeration.selection_space.exact_listing", lambda problem, *_: exact_listing(problem, [])
        )
        wrong = attsvm_command("enumerate", "s.npz", "--exact", "--json")
    assert wrong.code == 1 and wrong.record["complete"] and wrong.record["exact"]["missing"]
    attsvm_command("new", "b.npz", "-n", 2, "-T", 3, "-d", 3, "--batch", 2)
    assert "problem 1: " in attsvm_command("enumerate", "b.npz", "--exact").out
    nuclear = attsvm_command("enumerate", "s.npz", "--exact", "--norm", "nuclear")
    assert nuclear.code == 2 and "--norm frobenius" in nuclear.err
    attsvm_command("new", "l.npz", "-n", 8, "-T", 4, "-d", 9)
    large = attsvm_command("enumerate", "l.npz", "--exact")
    assert large.code == 2 and "up to 5,000 selections one by one, got 65,536" in large.err


def test_enumerate_lists_all_and_draws_the_graph(attsvm_command, problem, tmp_path):
    result = attsvm_command("enumerate", "p.npz", "--json", "--graph", "g.graphml", "--out", "e.npz")
    assert result.code == 0
    found = attsvm.locally_optimal_selections(problem)
    assert [item["tokens"] for item in result.record["selections"]] == found.selections.tolist()
    assert result.record["complete"]
    np.testing.assert_allclose(written("e.npz")["margins"], found.margins, rtol=1e-9)
    assert (tmp_path / "g.graphml").read_text().count("<node ") == 64
    shown = attsvm_command("enumerate", "p.npz", "--top", 2, "--graph", "g.png").out
    assert "2 3 3" in shown
    assert "proved to be the 2 of largest margin; others may exist" in " ".join(shown.split())
    assert "proved complete" not in shown
    best = attsvm_command("enumerate", "p.npz", "--top", 2, "--json")
    assert best.code == 0 and best.record["proved_best"] and not best.record["complete"]
    two = attsvm_command("enumerate", "p.npz", "--limit", 2, "--json")
    assert two.code == 1 and len(two.record["selections"]) == 2 and not two.record["complete"]
    assert (tmp_path / "g.png").read_bytes().startswith(b"\x89PNG")
    stopped = attsvm_command("enumerate", "p.npz", "--mode", "heuristic", "--limit", 1)
    assert stopped.code == 1  # nothing is proved
    assert "not proved complete" in stopped.out


def test_an_undecided_graph_exits_with_1(attsvm_command, problem, monkeypatch, tmp_path):
    def undecided(*arguments, **options):
        raise RuntimeError("the graph is undecided at selection (0, 0, 0)")

    monkeypatch.setattr(attsvm, "selection_graph", undecided, raising=False)
    result = attsvm_command("enumerate", "p.npz", "--graph", "g.png")
    assert result.code == 1
    assert result.err == "attsvm: the graph is undecided at selection (0, 0, 0)\n"
    assert "proved complete" in result.out
    assert not (tmp_path / "g.png").exists()


def test_diagnose_agrees_with_the_library(attsvm_command, problem, hopeless):
    result = attsvm_command("diagnose", "p.npz", "--json")
    assert result.code == 0
    assert result.record["applies"] == list(attsvm.diagnose(problem).applies)
    assert "Theorem 5" in attsvm_command("diagnose", "p.npz", "--norm", "nuclear").out
    none = attsvm_command("diagnose", "hopeless.npz", "-q")
    assert (none.code, none.out) == (1, "")


def test_report_writes_a_page(attsvm_command, problem, tmp_path):
    result = attsvm_command("report", "p.npz", "--steps", 30, "-o", "page.html")
    assert result.code == 0
    assert "wrote page.html (" in result.out
    page = (tmp_path / "page.html").read_text()
    assert "<h1>p.npz</h1>" in page
    assert 'id="scrubber"' in page
    assert attsvm_command("report", "p.npz", "--steps", 0, "-q").out == ""
    assert "Training was skipped: steps = 0." in (tmp_path / "report.html").read_text()


class FakeCase:
    """A case of the benchmark that measures nothing: a number and whether it is good enough."""

    def __init__(self, name, met, slow=False, note=""):
        self.name, self.met, self.slow, self.note, self.calls = name, met, slow, note, []
        self.opt_in = False

    def run(self, seed, draws, report):
        from attsvm.validation.bench.measurement import Line, Result, Spread, Verdict

        self.calls.append((seed, draws))
        report(f"{self.name} runs")
        lines = (Line("ours", {"ratio": Spread((1.0, 4.0, 2.0))}), Line("a peer", {}, self.note))
        return Result(self.name, "work", lines, (Verdict("as fast as asked", 2.0, self.met),))


@pytest.fixture
def fake_bench(monkeypatch):
    import attsvm.validation.bench.cases as cases

    def install(*fakes):
        monkeypatch.setattr(cases, "CASES", fakes)
        return fakes

    return install


def test_bench_ends_with_code_1_when_a_goal_is_missed(attsvm_command, fake_bench):
    good, bad = fake_bench(FakeCase("good", True), FakeCase("bad", False))
    result = attsvm_command("bench")
    assert result.code == 1
    assert "ok         good: as fast as asked (2)" in result.out
    assert "MISSED     bad: as fast as asked (2)" in result.out
    assert attsvm_command("bench", "--only", "good").code == 0
    assert (good.calls, bad.calls) == ([(0, 10), (0, 10)], [(0, 10)])


def test_bench_with_a_missing_peer_says_so_and_does_not_fail(attsvm_command, fake_bench):
    fake_bench(FakeCase("x", None, note="not installed: daqp (pip install 'attsvm[bench]')"))
    result = attsvm_command("bench", "--draws", 3, "--seed", 4)
    assert result.code == 0
    assert [line for line in result.err.splitlines() if "not installed" in line] == [
        "x: a peer: not installed: daqp (pip install 'attsvm[bench]')"
    ]
    assert "not judged x: as fast as asked" in result.out


def test_bench_prints_medians_and_spread(attsvm_command, fake_bench):
    (case,) = fake_bench(FakeCase("x", False))
    assert "2x (1x to 4x)" in attsvm_command("bench", "--draws", 3, "--seed", 4).out
    assert case.calls == [(4, 3)]
    result = attsvm_command("bench", "--json")
    assert result.code == 1
    record = json.loads(result.out)
    assert record["missed"] == ["x: as fast as asked"]
    assert record["cases"][0]["lines"][0]["ratio"] == {"median": 2.0, "low": 1.0, "high": 4.0, "draws": [1.0, 4.0, 2.0]}


def test_bench_chooses_cases(attsvm_command, fake_bench):
    fast, slow = fake_bench(FakeCase("fast", True), FakeCase("slow", True, slow=True))
    assert attsvm_command("bench", "--quick").code == 0
    assert attsvm_command("bench", "--only", "slow").code == 0
    assert (len(fast.calls), len(slow.calls)) == (1, 1)
    assert attsvm_command("bench", "--list").out.split() == ["fast", "slow"]
    assert attsvm_command("bench", "--only", "x").err.startswith("attsvm: --only must be one of fast, slow")
    refused = attsvm_command("bench", "--plot", "a.png", "--only", "fast")
    assert refused.code == 2
    assert refused.err.startswith("attsvm: --plot draws the case growth")
    assert attsvm_command("bench", "--draws", 0).code == 2


def test_claims_and_validate_still_work(attsvm_command):
    assert "fig5" in attsvm_command("validate", "--list").out
    assert "svm:thm1" in attsvm_command("claims", "svm:thm1").out
    refused = attsvm_command("claims", "nonsense")
    assert refused.code == 2
    assert "no id begins with nonsense" in refused.err
