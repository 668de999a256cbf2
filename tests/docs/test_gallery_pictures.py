"""Every picture of the gallery, cell by cell as the gallery shows it, and pictures of `attsvm validate`."""

import sys
from pathlib import Path

import pytest

import attsvm
from attsvm.validation.pictures import picture_faults

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
from matplotlib import pyplot  # noqa: E402

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("plot_*.py"))


def drawn(figure):
    """How much there is on a figure: what a later cell adds would not be shown."""
    return sum(len(axes.get_children()) for axes in figure.axes)


def run_as_gallery(script):
    """Run a script cell by cell; after each cell its figures are judged and closed, as sphinx-gallery does."""
    source = script.read_text(encoding="utf-8")
    cells, names, seen, faults = source.split("\n# %%"), {"__name__": "__main__", "__file__": str(script)}, [], []
    line = 0
    for cell in cells:
        exec(compile("\n" * line + "# " * (line > 0) + cell, str(script), "exec"), names)
        line += cell.count("\n") + 1
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            faults += picture_faults(figure)
            seen.append((figure, drawn(figure)))
        pyplot.close("all")
    faults += ["a later cell draws on a figure that is closed"] * any(drawn(figure) != count for figure, count in seen)
    return len(seen), faults


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda path: path.stem)
def test_every_picture_of_the_gallery_is_whole(script, monkeypatch, tmp_path, capsys):
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", [str(script), str(picture)])
    monkeypatch.chdir(tmp_path)
    with matplotlib.rc_context():
        shown, faults = run_as_gallery(script)
    assert shown >= 1
    assert faults == []
    assert " object at 0x" not in capsys.readouterr().out
    assert picture.stat().st_size > 10_000


def test_empty_axes_overlaps_and_reprs_are_seen():
    figure, axes = pyplot.subplots(1, 2)
    axes[0].plot([0, 1], [0, 1])
    assert picture_faults(figure) == ["axes 2 is empty"]
    axes[1].text(0.5, 0.5, "one thing")
    axes[1].text(0.52, 0.5, "another thing")
    axes[0].set_title(str(object()))
    faults = picture_faults(figure)
    assert len(faults) == 2 and "is no text" in faults[0] and "'one thing' and 'another thing' overlap" in faults[1]
    pyplot.close(figure)


def test_a_cell_that_draws_on_a_closed_figure_is_seen(tmp_path):
    script = tmp_path / "plot_late.py"
    script.write_text(
        '"""Late"""\nfrom matplotlib import pyplot as plt\nf, a = plt.subplots()\na.plot([1, 2])\n'
        "# %%\n# More\na.plot([2, 1])\n"
    )
    assert run_as_gallery(script) == (1, ["a later cell draws on a figure that is closed"])


def test_report_plots_are_whole():
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=3)
    report = attsvm.compare(attsvm.train(problem, steps=300), attsvm.att_svm(problem, norm="nuclear"))
    figure = report.plot()
    assert picture_faults(figure) == []
    pyplot.close(figure)
    batch = attsvm.random_problem(n=3, T=4, d=5, seed=0, batch=4)
    figure = attsvm.compare(attsvm.train(batch, steps=100)).plot()
    assert picture_faults(figure) == []
    pyplot.close(figure)
