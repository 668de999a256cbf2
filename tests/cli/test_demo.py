import pytest

import attsvm
from attsvm.cli import run_commands


def test_demo_prints_both_solutions_with_certificates(attsvm_command):
    result = attsvm_command("demo", "--seed", "1", "--steps", "200")
    assert result.code == 0, result.err
    for word in ("Att-SVM*", "certified rank", "relative duality gap", "support", "optimal", "Training against theory"):
        assert word in result.out


def test_demo_json_agrees_with_the_library(attsvm_command):
    record = attsvm_command("demo", "--seed", "1", "--json", "--steps", "2000").record
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


def test_demo_explains_infeasible_data(attsvm_command):
    result = attsvm_command("demo", "-d", "2", "-T", "8", "--seed", "0", "--steps", "50")
    assert result.code == 0
    assert "is infeasible: sequences" in result.out
    record = attsvm_command("demo", "-d", "2", "-T", "8", "--seed", "0", "--json", "--steps", "0").record
    assert record["solutions"]["frobenius"]["farkas"]["residual"] <= 1e-9


def test_demo_without_torch_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.setattr("attsvm.cli.run_commands.find_spec", lambda name: None)
    run_commands.demo_command(n=2, tokens=3, dimension=4, seed=0, steps=10)
    out = capsys.readouterr().out
    assert "it needs torch (pip install 'attsvm[torch]')" in out
    assert "Training against theory" not in out
