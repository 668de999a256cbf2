"""What a newcomer meets in a terminal of 80 columns: a verdict first, tables that fit, the next command last."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import attsvm
from attsvm.cli import app
from attsvm.files import save_problem
from attsvm.records import Table, render
from attsvm.validation.figures.figure import choose_figures


@pytest.fixture
def files(tmp_path):
    """A single problem and a batch, in the folder where the command runs."""
    save_problem(attsvm.random_problem(n=4, T=5, d=4, seed=0), tmp_path / "one.npz")
    save_problem(attsvm.random_problem(n=3, T=4, d=4, seed=0, batch=3), tmp_path / "many.npz")


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        ("demo --steps 60", "One W selects these tokens in all 6 sequences: proved optimal", "Next: "),
        ("demo --dimension 2 --seed 0 --steps 0", "No W selects these tokens in all 6 sequences", "Next: "),
        ("solve one.npz", "One W selects these tokens in all 4 sequences", "Next: attsvm compare one.npz"),
        ("solve many.npz", "3 of 3 solutions are proved optimal", "Next: attsvm solve many.npz --index 0"),
        ("train one.npz --steps 60", "finished after 60 steps", "Next: attsvm compare one.npz"),
        ("train many.npz --steps 60", "3 of 3 runs finished; ", "Next: attsvm compare many.npz"),
        ("compare one.npz --steps 200", "Training W ends at", "Next: attsvm report one.npz"),
        ("compare many.npz --steps 200", "Training W ends at ", "Next: attsvm report many.npz"),
        (
            "diagnose one.npz",
            "Training W converges to this selection from starts near it",
            "Next: attsvm compare one.npz",
        ),
        ("diagnose many.npz", "Problem 0: ", "Next: attsvm compare many.npz"),
        ("enumerate one.npz", "5 selections are locally optimal: places where training can end", "Next: attsvm report"),
        ("enumerate many.npz", "7 selections of 3 problems are locally optimal", "Next: attsvm enumerate many.npz"),
        (
            "report many.npz --steps 30",
            "One W selects these tokens, proved optimal, in 3 of 3",
            "Next: attsvm enum",
        ),
        ("new more.npz --batch 2", "wrote more.npz: 4 sequences of 5 tokens", "Next: attsvm solve more.npz"),
        ("report one.npz --steps 60", "One W selects these tokens in all 4 sequences", "Next: attsvm enumerate"),
    ],
)
def test_commands_open_with_a_verdict_fit_80_columns_and_say_what_is_next(
    attsvm_command, files, monkeypatch, arguments, first, last
):
    for name, value in (("COLUMNS", "80"), ("TTY_COMPATIBLE", "1"), ("TERM", "dumb"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    lines = attsvm_command(*arguments.split()).out.rstrip().splitlines()
    assert " ".join(lines[:3]).startswith(first)
    assert max(map(len, lines)) <= 80
    assert any(line.startswith(last) for line in lines[-3:])


def test_tables_break_no_word_at_any_width():
    text = "a certificate proves optimality from the data alone, whoever computed the multipliers"
    table = Table(
        "Wide", ("name", *"abcdef", "because"), [("Frobenius", *map(str, range(6)), text)] * 2, align="LrrrrrrL"
    )
    for width in (60, 80, 100, 120):
        shown = render(table, width)
        assert max(map(len, shown.splitlines())) <= width
        words = set(shown.replace("┃", " ").replace("│", " ").split())
        assert {"certificate", "multipliers", "Frobenius"} <= words


def test_tables_are_never_cut_at_the_right():
    """A grid whose columns could all be narrower was drawn too wide and cut: its last word and border were gone."""
    columns = ("xi", "xi eta", "form", "site", "peak", "window at half height", "its limit", "participation")
    row = ("128", "1.28", "corrected", "middle", "1", "0.500 - 1.000", "0.500 - 0.695", "0.5")
    for width in range(60, 130):
        lines = render(Table("Cut", columns, [row]), width).splitlines()
        assert max(map(len, lines)) <= width
        shown = " ".join(lines)
        assert "participation" in shown
        if "┏" in shown:
            assert (
                sum(line.endswith(("┓", "┃", "┩", "│", "┘")) for line in lines) == len(lines) - 1
            )  # all but the title


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            "enumerate one.npz --mode search",
            "--mode search looks for the best few: pass --top k, or use --mode",
        ),
        ("enumerate one.npz --top 0", "--top must be None or an integer >= 1"),
        ("train one.npz --steps -1", "--steps must be an integer >= 0, got -1"),
        ("train one.npz --device nope", "--device must name a torch device"),
        ("solve one.npz --rank 2", "--norm"),
        ("enumerate many.npz --graph g.graphml", "--graph draws one problem of the batch in many.npz: add --index 0"),
        ("solve many.npz --exact", "add --index 0"),
    ],
)
def test_messages_speak_of_options(attsvm_command, files, arguments, said):
    done = attsvm_command(*arguments.split())
    assert done.code == 2 and said in done.err and done.err.count("\n") == 1
    assert "='" not in done.err


def test_a_step_size_beyond_floating_point_ends_with_a_status(attsvm_command, files):
    done = attsvm_command("train", "one.npz", "--lr", "1e300", "--steps", "50")
    assert done.code == 1 and done.out.startswith("not finite after")


def test_n_means_the_same_everywhere(attsvm_command):
    assert "5 sequences" in attsvm_command("new", "a.npz", "--n", "5").out
    assert "5 sequences" in attsvm_command("new", "b.npz", "-n", "5").out
    assert "n=5" in attsvm_command("demo", "-n", "5", "--steps", "0").out


def test_what_new_suggests_for_a_batch_works(attsvm_command):
    said = attsvm_command("new", "batch.npz", "--batch", "2", "-n", "2", "-T", "3").out
    for command in said.split("Next: ")[1].split(" or "):
        words = command.split()[1:]
        assert attsvm_command(*words, *(["--steps", "60"] if words[0] != "solve" else [])).code in (0, 1)


def test_the_demo_writes_its_report(attsvm_command, tmp_path, monkeypatch):
    import webbrowser

    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    done = attsvm_command("demo", "--steps", "60", "--open")
    assert opened == [(tmp_path / "attsvm-demo.html").as_uri()]
    assert "wrote attsvm-demo.html" in done.out and (tmp_path / "attsvm-demo.html").stat().st_size > 20_000


def test_a_figure_may_be_named_with_its_paper():
    assert [(f.paper, f.name) for f in choose_figures(["polarization:fig2", "fig5"])] == [
        ("polarization", "fig2"),
        ("svm", "fig5"),
    ]


def test_write_errors_name_the_file_that_was_asked_for(attsvm_command, files, tmp_path):
    (tmp_path / "out.html").mkdir()
    assert "out.html" in attsvm_command("report", "one.npz", "-o", "out.html").err
    done = attsvm_command("new", "/proc/mine.npz")
    assert done.code == 2 and "cannot write /proc/mine.npz: " in done.err and ".partial" not in done.err
    assert "attsvm new writes an example" not in done.err


def test_the_help_fits_80_columns(monkeypatch):
    """Lines that are printed as they stand, such as those of exit codes and examples, do not wrap."""
    monkeypatch.setenv("COLUMNS", "80")
    names = [command.name for command in app.registered_commands]
    for arguments in ([], *([name] for name in names)):
        said = CliRunner().invoke(app, [*arguments, "--help"]).output
        assert "Usage" in said and [line for line in said.splitlines() if len(line) > 80] == []


def test_what_a_command_writes_by_default_is_ignored_by_git():
    root = Path(attsvm.__file__).parents[1]
    for name in ("attsvm-demo.html", "atlas.html"):
        asked = subprocess.run(["git", "check-ignore", "-q", name], cwd=root)
        assert asked.returncode in (0, 128), name  # 128: not a clone


@pytest.mark.timeout(90)
def test_ctrl_c_keeps_the_last_snapshot(files, tmp_path):
    code = (
        "import attsvm.training.loop as loop\nfrom attsvm.cli import main\nstep = loop.training_step\n"
        "def told(data, state, method, k):\n    if k == 100: print('training', flush=True)\n"
        "    return step(data, state, method, k)\nloop.training_step = told\nmain()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "train", "one.npz", "--steps", "100000000", "--out", "run.npz"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout.readline() == "training\n"
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and "Traceback" not in said
    assert "wrote run.npz: the run up to step" in said
    with np.load(tmp_path / "run.npz") as kept:
        assert str(kept["status"]) == "interrupted"
        assert len(kept["steps"]) == len(kept["W"]) > 1 and np.isfinite(kept["final_W"]).all()
        np.testing.assert_array_equal(kept["final_W"], kept["W"][-1])


WITHOUT = """
import sys
for name in ("torch", "matplotlib"):
    sys.modules[name] = None  # as if not installed
from attsvm.cli import app
from attsvm.cli.command_support import run_app
for arguments in {commands!r}:
    try:
        run_app(app, arguments.split())
    except SystemExit as ended:
        print("exit", ended.code, flush=True)
"""


def test_what_needs_no_torch_works_without(files, tmp_path):
    commands = [
        "solve one.npz -q", "enumerate one.npz -q", "diagnose one.npz -q", "report one.npz -q", "claims svm:thm1",
        "claims --paper specialization",
        "validate --list", "bench --list", "solve one.npz --norm nuclear --solver nuclear_batch -q",
        "train one.npz", "enumerate one.npz --graph g.png -q",
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.format(commands=commands)], cwd=tmp_path, capture_output=True, text=True
    )
    codes = [line for line in done.stdout.splitlines() if line.startswith("exit ")]
    assert codes == ["exit 0"] * 9 + ["exit 2"] * 2, done.stderr
    assert "attsvm.train needs torch: pip install 'attsvm[torch]'" in done.stderr
    assert "needs matplotlib: pip install 'attsvm[plot]'" in done.stderr


def test_the_listing_is_that_of_the_figures():
    from attsvm.validation.figures.figure import GROUPS, all_figures, figure_titles

    for group in GROUPS:
        assert figure_titles(group) == [(figure.names, figure.title) for figure in all_figures(group)]
