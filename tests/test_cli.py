import importlib
import json
import subprocess
import sys

import pytest

import attsvm


def run(*arguments):
    command = [sys.executable, "-c", "from attsvm.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_version_and_help():
    assert run("--version").stdout.strip() == f"attsvm {attsvm.__version__}"
    assert "demo" in run("--help").stdout
    assert "--json" in run("demo", "--help").stdout


def test_demo_prints_both_solutions_with_certificates():
    result = run("demo", "--seed", "1", "--steps", "500")
    assert result.returncode == 0, result.stderr
    for word in ("Att-SVM*", "certified rank", "relative duality gap", "support", "optimal", "Training against theory"):
        assert word in result.stdout


def test_demo_json_agrees_with_the_library():
    result = run("demo", "--seed", "1", "--json", "--steps", "2000")
    record = json.loads(result.stdout)
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=1)
    for norm, solution in record["solutions"].items():
        assert solution["status"] == "optimal"
        assert solution["margin"] == pytest.approx(attsvm.att_svm(problem, norm=norm).margin, rel=1e-6)
        assert solution["certificate"]["gap"] <= 1e-7
    assert record["solutions"]["nuclear"]["certificate"]["rank"] == record["solutions"]["nuclear"]["rank"]
    assert set(record["versions"]) >= {"attsvm", "numpy", "python", "torch"}
    W, KQ = record["training"]
    assert W["convergence"] == KQ["convergence"] == "Global"
    assert W["solutions"][1]["norm"] == "frobenius"
    assert W["solutions"][1]["misalignment"] < 5e-3 < W["solutions"][2]["misalignment"]
    # (K, Q) follows the nuclear solution, not the Frobenius one.
    assert KQ["solutions"][2]["misalignment"] < 0.3 * KQ["solutions"][1]["misalignment"]


def test_demo_explains_infeasible_data():
    result = run("demo", "-d", "2", "-T", "8", "--seed", "0", "--steps", "50")
    assert result.returncode == 0
    assert "is infeasible: sequences" in result.stdout
    record = json.loads(run("demo", "-d", "2", "-T", "8", "--seed", "0", "--json", "--steps", "0").stdout)
    assert record["solutions"]["frobenius"]["farkas"]["residual"] <= 1e-9


def test_bad_input_is_one_line_on_stderr():
    result = run("demo", "-T", "1")
    assert result.returncode == 2
    assert result.stderr.strip() == "attsvm: T must be an integer >= 2, got 1"
    assert run("nonsense").returncode == 2


def test_demo_without_torch_says_what_is_missing(capsys, monkeypatch):
    demo = importlib.import_module("attsvm.cli.demo")  # the command of that name hides the module
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    demo.run_demo(n=2, T=3, d=4, seed=0, steps=10, as_json=False)
    out = capsys.readouterr().out
    assert "it needs torch (pip install 'attsvm[torch]')" in out
    assert "Training against theory" not in out
