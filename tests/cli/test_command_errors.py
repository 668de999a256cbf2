"""Errors: one line on stderr, nothing on stdout, an exit code that means something, a traceback only on request."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest

import attsvm


def one_line(result, code, *words):
    assert result.code == code
    assert result.out == ""
    assert result.err.count("\n") == 1, result.err
    assert result.err.startswith("attsvm: ")
    for word in words:
        assert word in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("nonsense", ["No such command 'nonsense'", "attsvm --help"]),
        ("solve", ["Missing argument 'FILE'", "attsvm solve --help"]),
        ("solve p.npz --nonsense", ["No such option: --nonsense"]),
        ("train p.npz --steps many", ["'--steps'", "valid int"]),
        ("train p.npz --parameterization V", ["'V' is not one of"]),
        ("solve missing.npz", ["no such file: missing.npz (attsvm new writes an example)"]),
        ("probe minilm --text none.txt", ["--text none.txt does not exist: expected a text file, each line"]),
        ("probe minilm --text .", ["--text . is a folder: expected a text file"]),
        ("probe none --text p.npz", ["MODEL must be a folder, a .gguf file or one of minilm"]),
        ("solve p.csv", ["end in .npz or .safetensors, got '.csv'"]),
        ("solve p.npz --norm other", ["norm must be 'frobenius'"]),
        ("solve p.npz --solver other", ["solver must be 'auto'"]),
        ("solve p.npz --selection 1,2", ["--selection must have 4 tokens"]),
        ("solve p.npz --selection 1,2,3,9", ["selection[3] = 9 is out of range"]),
        ("solve p.npz --selection a,b", ["--selection must be token indices"]),
        ("solve p.npz --selection 1,2;1", ["equally many tokens"]),
        ("solve p.npz --index 0", ["--index goes with a batch"]),
        ("solve p.npz --out s.txt", ["--out writes .npz, got s.txt"]),
        ("solve p.npz --norm nuclear --norm frobenius --out s.npz", ["--out writes one norm"]),
        ("solve p.npz --norm nuclear --rank 0", ["rank must be None or an integer >= 1"]),
        ("solve p.npz --out no/such/folder/s.npz", ["--out is in a folder that does not exist: no/such/folder"]),
        ("train p.npz --steps -1", ["steps must be an integer >= 0"]),
        ("train p.npz --lr 0", ["--lr must be None or a positive number"]),
        ("train p.npz --optimizer other", ["optimizer"]),
        ("train p.npz --device nowhere", ["--device must name a torch device"]),
        ("train p.npz --out r.txt", ["--out writes .npz, got r.txt"]),
        ("compare p.npz --out c.txt", ["--out writes .csv or .json, got c.txt"]),
        ("enumerate p.npz --top 0", ["top must be None or an integer >= 1"]),
        ("enumerate p.npz --graph g.txt", ["--graph writes .graphml or .png or .svg or .pdf, got g.txt"]),
        ("enumerate p.npz --out e.txt", ["--out writes .npz, got e.txt"]),
        ("diagnose p.npz --loss other", ["loss"]),
        ("report p.npz -o .", ["--out must be a file, but . is a folder"]),
        ("report p.npz -o no/r.html", ["--out is in a folder that does not exist: no"]),
        ("new no/x.npz", ["FILE is in a folder that does not exist: no"]),
        ("report p.npz --steps -1", ["steps must be an integer >= 0"]),
        ("new x.txt", ["end in .npz or .safetensors"]),
        ("new x.npz -T 1", ["T must be an integer >= 2, got 1"]),
        ("new x.npz --batch 2 --head relu", ["--batch goes with --head linear"]),
        ("validate nonsense", ["nonsense"]),
    ],
)
def test_bad_input_is_one_line(attsvm_command, arguments, words):
    attsvm_command("new", "p.npz", "-q")
    one_line(attsvm_command(*arguments.split()), 2, *words)


@pytest.mark.parametrize("command", ["solve", "train", "compare", "enumerate", "diagnose", "report"])
def test_a_bad_file_is_one_line_for_every_command(attsvm_command, tmp_path, command):
    entries = {"schema": "attsvm.problem/1", "X": np.full((1, 2, 2), np.nan), "Z": np.ones((1, 2))}
    np.savez(tmp_path / "bad.npz", **entries)
    one_line(attsvm_command(command, "bad.npz"), 2, "bad.npz: X must be finite, but X[0, 0, 0] is nan")


def test_a_problem_without_a_head_is_explained(attsvm_command, tmp_path):
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    attsvm.files.save_problem(attsvm.AttentionProblem(problem.X, None, problem.Z), tmp_path / "p.npz")
    one_line(attsvm_command("solve", "p.npz"), 2, "scores need a prediction head")
    assert attsvm_command("solve", "p.npz", "--selection", "0,1").code == 0


def test_debug_shows_the_traceback(attsvm_command):
    for arguments in (["solve", "missing.npz", "--debug"], ["--debug", "solve", "missing.npz"]):
        result = attsvm_command(*arguments)
        assert result.code == 2
        assert "Traceback (most recent call last)" in result.err
        assert result.err.endswith("attsvm: no such file: missing.npz (attsvm new writes an example)\n")


def test_an_error_inside_is_told_apart(attsvm_command, monkeypatch):
    attsvm_command("new", "-q")

    def broken(*arguments, **options):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(attsvm, "att_svm", broken)
    one_line(
        attsvm_command("solve", "problem.npz"), 70, "internal error, ZeroDivisionError: a bug (--debug shows where)"
    )


def test_an_interrupt_is_130(attsvm_command, monkeypatch):
    attsvm_command("new", "-q")

    def interrupted(*arguments, **options):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(attsvm, "att_svm", interrupted)
    # Where tests run in the background, processes inherit that Ctrl-C is ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        one_line(attsvm_command("solve", "problem.npz"), 130, "interrupted")
    finally:
        signal.signal(signal.SIGINT, before)


def test_missing_torch_is_one_line(attsvm_command, monkeypatch):
    attsvm_command("new", "-q")

    def missing(*arguments, **options):
        raise ImportError("attsvm.train needs torch: pip install 'attsvm[torch]'")

    monkeypatch.setattr(attsvm, "train", missing, raising=False)
    one_line(attsvm_command("train", "problem.npz"), 2, "needs torch: pip install 'attsvm[torch]'")


def test_a_closed_pipe_is_no_error(tmp_path):
    code = "from attsvm.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, "bench", "--list"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=tmp_path
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
    assert err == b""
    assert process.returncode == 141


def test_progress_goes_to_stderr(attsvm_command, tmp_path):
    pty = pytest.importorskip("pty")
    attsvm_command("new", "-q")
    master, slave = pty.openpty()
    code = "from attsvm.cli import main; main()"
    environment = os.environ | {"TERM": "xterm", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "problem.npz", "--steps", "200"],
        stdout=subprocess.PIPE, stderr=slave, cwd=tmp_path, env=environment,
    )  # fmt: skip
    os.close(slave)
    seen = b""
    while True:
        try:
            part = os.read(master, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    out, _ = process.communicate(timeout=60)
    os.close(master)
    assert process.returncode == 0
    assert b"training" in seen
    assert b"finished after 200 steps" in out
    assert b"training" not in out
