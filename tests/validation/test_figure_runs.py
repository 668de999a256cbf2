import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from attsvm.sweeps import StoreError
from attsvm.validation.figures.figure import (
    GROUPS,
    PAPERS,
    Context,
    Figure,
    Options,
    Outcome,
    Table,
    all_figures,
    choose_figures,
    mean_of,
    run_figure,
    run_figures,
    share_of,
)


def squares(trials, seed, d):
    x = np.random.default_rng(seed).normal(size=trials)
    return {"x": x, "square": d * x * x}


def run(context):
    done = context.sweep(squares, {"d": [1, 2]}, chunk=5)
    rows = tuple((cell["d"], mean_of(columns["square"]), share_of(columns["x"] > 0)) for cell, columns in done)
    curves = {"d": [1, 2], "mean": [r[1].value for r in rows], "nothing": float("nan")}
    return Outcome([Table("means", ("d", "mean", "positive"), rows)], curves, ["a note | with a bar"])


def draw(outcome):
    from matplotlib import pyplot as plt

    picture, axis = plt.subplots()
    axis.plot(outcome.curves["d"], outcome.curves["mean"])
    return picture


FIGURE = Figure("svm", "fig0", "Squares", "Draw\n   and square.", {"trials": 20}, {"trials": 10}, run, draw, ("fig00",))


def test_a_run_writes_record_picture_and_summary(tmp_path):
    (record,) = run_figures([FIGURE], tmp_path, Options(quick=True, seed=3, command="attsvm validate fig0"))
    saved = json.loads((tmp_path / "svm_fig0.json").read_text())
    assert saved == json.loads(json.dumps(record))
    assert saved["command"] == "attsvm validate fig0" and saved["seed"] == 3 and saved["settings"] == {"trials": 10}
    assert saved["protocol"] == "Draw and square." and saved["curves"]["nothing"] is None
    assert {"python", "numpy", "attsvm"} <= set(saved["versions"]) and saved["wall_seconds"] > 0
    assert (tmp_path / "svm_fig0.png").read_bytes().startswith(b"\x89PNG")
    markdown, page = (tmp_path / "summary.md").read_text(), (tmp_path / "summary.html").read_text()
    assert "svm_fig0.png" in markdown and "svm_fig0.png" in page and '<th scope="row">1</th>' in page
    assert "http" not in page  # opens from disk, asks nothing of a network


def test_a_second_run_resumes_and_gives_the_same(tmp_path):
    first = run_figure(FIGURE, tmp_path)
    second = run_figure(FIGURE, tmp_path)
    assert (first["resumed_chunks"], second["resumed_chunks"]) == (0, 8)
    assert first["tables"] == second["tables"]
    with pytest.raises(StoreError, match="trials 20, now 30"):
        run_figure(FIGURE, tmp_path, Options(trials=30))
    assert run_figure(FIGURE, tmp_path, Options(trials=30, fresh=True))["resumed_chunks"] == 0


def test_another_seed_gives_other_numbers(tmp_path):
    a, b = (run_figure(FIGURE, tmp_path / name, Options(seed=seed)) for seed, name in enumerate("ab"))
    assert a["tables"] != b["tables"]


def test_bad_tables_and_settings_are_refused():
    with pytest.raises(ValueError, match="a row has 1 cells, expected 2"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="integer 'trials'"):
        Figure("svm", "f", "t", "p", {}, {"trials": 1}, run, draw)
    with pytest.raises(ValueError, match="trials must be None or an integer >= 1"):
        Options(trials=0)


def test_every_paper_has_figures_with_names_of_their_own():
    assert {"own", *PAPERS} == set(GROUPS)
    for paper in GROUPS:
        figures = all_figures(paper)
        names = [name for figure in figures for name in (figure.name, *figure.aliases)]
        assert figures and len(names) == len(set(names)), paper
        assert all(figure.paper == paper and figure.protocol.strip() for figure in figures)


def test_figures_are_chosen_by_name():
    assert [(f.paper, f.name) for f in choose_figures(["fig2", "fig5"])] == [("svm", "fig5")]
    assert {f.paper for f in choose_figures(["conditioning", "fig1", "svm", "fig1"])} == {"conditioning", "svm"}
    assert {f.paper for f in choose_figures([], everything=True)} == {"svm"}
    for words, everything, message in (
        ([], False, "name at least one figure"),
        (["fig3"], False, "svm has no 'fig3'"),
        (["fig5"], True, "name papers only"),
    ):
        with pytest.raises(ValueError, match=message):
            choose_figures(words, everything)
    with pytest.raises(ValueError, match="paper must be one of"):
        all_figures("poetry")


def test_the_papers_trial_counts_are_the_full_settings():
    trials = {f.name: f.settings()["trials"] for f in all_figures("svm")}
    assert trials["fig4"] == 100 and trials["fig5"] == 500 and trials["fig6"] == 500 and trials["fig7"] == 100


def test_a_killed_command_resumes(tmp_path):
    command = [
        sys.executable,
        "-c",
        # where tests run in the background, processes inherit that Ctrl-C is ignored
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from attsvm.cli import main; main()",
        "validate",
        "fig5",
        "--quick",
        "--trials",
        "8",
        "--set",
        "steps=200",
        "--workers",
        "1",
        "--out",
        str(tmp_path),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    store = tmp_path / "svm_fig5.sqlite"
    started = time.monotonic()
    while time.monotonic() - started < 120 and process.poll() is None and _stored(store) < 2:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)  # Ctrl-C
    assert process.wait(60) != 0
    kept = _stored(store)
    assert kept >= 2
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=os.environ | {"COLUMNS": "200"})
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "svm_fig5.json").read_text())
    assert record["resumed_chunks"] >= kept
    assert "Where descent ends" in done.stdout and f"{record['resumed_chunks']} resumed" in done.stdout


def _stored(store):
    import sqlite3

    if not store.exists():
        return 0
    connection = sqlite3.connect(f"file:{store}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT COUNT(*) FROM chunks").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def test_a_refuted_figure_says_so_and_is_an_exit_code(tmp_path, monkeypatch, capsys):
    import typer

    from attsvm.cli.validation_commands import validate_command as command

    def wrong(context):
        return Outcome([Table("t", ("a",), [(1,)])], {}, (), ["two and two are five"])

    figure = Figure("own", "wrong", "Sums", "Add.", {"trials": 1}, {"trials": 1}, wrong)
    monkeypatch.setattr("attsvm.validation.figures.figure.choose_figures", lambda *_: [figure])
    with pytest.raises(typer.Exit) as stop:
        command(["own", "wrong"], workers=0, out=tmp_path)
    assert stop.value.exit_code == 1
    assert "NOT confirmed: two and two are five" in capsys.readouterr().out
    assert json.loads((tmp_path / "own_wrong.json").read_text())["refuted"] == ["two and two are five"]
    assert "<img" not in (tmp_path / "summary.html").read_text()  # no picture was drawn


def test_settings_can_be_changed_by_name(tmp_path, capsys):
    from attsvm.cli.validation_commands import validate_command as command

    command(["own", "ranks"], quick=True, workers=0, out=tmp_path, json=True, trials=1, change=["n=3", "d=5"])
    (record,) = json.loads(capsys.readouterr().out)
    assert record["settings"] == {"trials": 1, "n": 3, "T": 4, "d": 5}
    with pytest.raises(ValueError, match="ranks has no setting 'm'; it has trials, n, T, d"):
        command(["own", "ranks"], out=tmp_path, change=["m=3"])
    with pytest.raises(ValueError, match="--set takes NAME=VALUE with a value in JSON, got 'n=x'"):
        command(["own", "ranks"], out=tmp_path, change=["n=x"])


def test_context_without_store_keeps_nothing():
    context = Context(settings={"trials": 4})
    assert run(context).tables[0].rows[0][0] == 1
    assert context.resumed == [0]


def test_the_command_prints_records_as_json(tmp_path, capsys):
    from attsvm.cli.validation_commands import validate_command as command

    command(["fig1"], quick=True, workers=0, out=tmp_path, json=True)
    (record,) = json.loads(capsys.readouterr().out)
    assert record["figure"] == "fig1" and record["tables"] and (tmp_path / "svm_fig1.png").exists()
