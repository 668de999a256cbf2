"""The command ``attsvm patch``: the function's answer, files in both formats, exit codes and errors in one line."""

import json
from pathlib import Path

import numpy as np
import pytest
from small_retriever import retriever

import attsvm


@pytest.fixture
def files(attsvm_command):
    """Embeddings, failures and golden answers in the folder of the command."""
    Z, X, wrong, right = retriever(3)
    np.save("z.npy", Z)
    np.save("x.npy", X)
    Path("failures.csv").write_text("query,document\n" + "".join(f"{q},{doc}\n" for q, doc in wrong[:3]))
    Path("golden.jsonl").write_text("".join(json.dumps({"query": q, "document": doc}) + "\n" for q, doc in right))
    return Z, X, wrong[:3], right


def test_the_command_does_what_the_function_does(attsvm_command, files):
    Z, X, wrong, right = files
    arguments = ("patch", "z.npy", "x.npy", "--failures", "failures.csv", "--golden", "golden.jsonl")
    told = attsvm_command(*arguments, "--json", "--out", "p.npz", "--report", "p.html", "--held-out", "failures.csv")
    assert told.code == 0, told.err
    ours = attsvm.patch(Z, X, wrong, right)
    np.testing.assert_allclose(attsvm.load_patch("p.npz").W, ours.W, atol=1e-12)
    assert told.record["status"] == "optimal" and len(told.record["outcomes"]) == len(wrong) + len(right)
    assert "recall@1" in Path("p.html").read_text()
    shown = attsvm_command(*arguments)
    assert shown.code == 0 and "repaired: 3 of 3 failures" in shown.out and "scan of the index" in shown.err
    again = attsvm_command("patch", "z.npy", "x.npy", "--golden", "golden.jsonl", "--after", "p.npz", "--json")
    assert again.record["rounds"] == ["patch 1", "patch 2"]


def test_ids_rankings_and_rivals(attsvm_command, files):
    Z, X, wrong, right = files
    Path("q.txt").write_text("".join(f"q{k}\n" for k in range(len(Z))))
    Path("d.txt").write_text("".join(f"d{k}\n" for k in range(len(X))))
    q, doc = wrong[0]
    rival = int((X @ Z[q]).argmax())
    Path("f.jsonl").write_text(json.dumps({"query": f"q{q}", "document": f"d{doc}", "rivals": [f"d{rival}"]}) + "\n")
    order = np.argsort(-(X @ Z[right[0][0]]))[:3]
    Path("g.csv").write_text(f"q{right[0][0]}," + ",".join(f"d{k}" for k in order) + "\n")
    told = attsvm_command(
        "patch", "z.npy", "x.npy", "--failures", "f.jsonl", "--golden", "g.csv", "--query-ids", "q.txt",
        "--document-ids", "d.txt", "--margin", "0.01", "--side", "both", "--norm", "nuclear", "--json",
    )  # fmt: skip
    ours = attsvm.patch(Z, X, [(q, doc, [rival])], [(right[0][0], order)], margin=0.01, norm="nuclear")
    assert told.code == 0 and told.record["relative_size"] == pytest.approx(ours.relative_size, rel=1e-6)
    assert len(told.record["outcomes"]) == 4 and told.record["outcomes"][0]["query"] == f"q{q}"


def test_a_contradiction_ends_with_1(attsvm_command):
    np.save("z.npy", np.array([[1.0, 0.2], [1.0, 0.2]]))
    np.save("x.npy", np.eye(2))
    Path("f.csv").write_text("0,0\n1,1\n")
    told = attsvm_command("patch", "z.npy", "x.npy", "--failures", "f.csv", "--report", "p.html")
    assert told.code == 1 and "contradict each other" in told.out and "Contradiction" in Path("p.html").read_text()
    soft = attsvm_command("patch", "z.npy", "x.npy", "--failures", "f.csv", "--C", "10")
    assert soft.code == 0 and "not served 1" in soft.out


@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        ("0,999\n", (), "failures[0]: document 999 does not exist"),
        ("0\n", (), "--failures f.csv, line 1: expected a query and a document"),
        ("a,0\n", (), "line 1: 'a' is no row number; pass --query-ids"),
        ("0,0\n", ("--margin", "tight"), "--margin must be 'just above' or 'calibrated', got 'tight'"),
        ("0,0\n", ("--golden", "none.csv"), "no such file: none.csv"),
        ("0,0\n", ("--out", "p.txt"), "--out writes .npz, got p.txt"),
        ("0,0\n", ("--report", "p.pdf"), "--report writes .html"),
        ("0,0\n", ("--memory-limit", "10"), "--memory-limit must be at least"),
    ],
)
def test_errors_in_one_line(attsvm_command, files, content, arguments, message):
    Path("f.csv").write_text(content)
    told = attsvm_command("patch", "z.npy", "x.npy", "--failures", "f.csv", *arguments)
    assert told.code == 2 and message in told.err and told.err.strip().count("\n") == 0, told.err


def test_json_lines_are_checked(attsvm_command, files):
    for line in ("{", '{"query": 0}', "3", '{"query": 0, "document": [1]}'):
        Path("f.jsonl").write_text(line + "\n")
        told = attsvm_command("patch", "z.npy", "x.npy", "--failures", "f.jsonl")
        assert told.code == 2 and "line 1" in told.err
