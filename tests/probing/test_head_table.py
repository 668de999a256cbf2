"""One table, one page: files, reading back, and the page in a real browser."""

import csv
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import attsvm
from attsvm.probing import MEASURES, ProbeTable, heads_from_arrays
from attsvm.trained_head import TrainedHead

sys.path.insert(0, str(Path(__file__).parents[1] / "reports"))


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    layers = []
    for k in range(2):
        heads = [TrainedHead.from_weights(*rng.normal(size=(2, 3, 6))) for _ in range(3)]
        layers.append(heads_from_arrays(rng.normal(size=(4, 5, 6)), heads, causal=True, layer=k, name=f"layer{k}"))
    return attsvm.probe(layers, svm=None, name="</script>small")


def test_columns_and_baselines(table):
    assert len(table) == 6 and table.grid("entropy").shape == (2, 3)
    for name, measure in MEASURES.items():
        if name in table.columns and measure.baseline and measure.theory != "svm":
            assert f"{name}_random" in table.columns and f"{name}_shuffled" in table.columns, name
    record = table.head(1, 2)
    assert record["entropy_low"] <= record["entropy"] <= record["entropy_high"]
    with pytest.raises(ValueError, match="no head 9 in layer 0"):
        table.head(0, 9)
    with pytest.raises(ValueError, match="no column is named 'speed'"):
        table.column("speed")


def test_files(table, tmp_path):
    table.to_csv(tmp_path / "a.csv")
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert len(rows) == 6 and float(rows[3]["entropy"]) == pytest.approx(table.head(1, 0)["entropy"])
    table.to_json(tmp_path / "a.json")
    again = ProbeTable.read(tmp_path / "a.json")
    assert np.allclose(again.column("sparsity"), table.column("sparsity")) and again.about == json.loads(
        json.dumps(table.about)
    )
    (tmp_path / "b.json").write_text("{}")
    with pytest.raises(ValueError, match=r"b\.json is no file of a probe"):
        ProbeTable.read(tmp_path / "b.json")


def test_frames(table, tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = table.to_frame()
    assert frame.shape == (6, len(table.columns)) and frame["kind"].notna().all()
    pytest.importorskip("pyarrow")
    table.to_parquet(tmp_path / "a.parquet")
    assert np.allclose(pandas.read_parquet(tmp_path / "a.parquet")["entropy"], frame["entropy"])


def test_the_page_needs_no_network_and_escapes(table, tmp_path):
    table.to_html(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text()
    assert "</script>small" not in page
    for name in ("http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot", "http-equiv"):
        page = page.replace(name, "")  # names that are not fetched: a standard, a comment, an attribute
    assert "http" not in page


def test_wrong_arguments_are_named(table):
    with pytest.raises(ValueError, match="removal must be an integer >= 0, got -1"):
        attsvm.probe(table, removal=-1)
    with pytest.raises(ValueError, match="inputs are missing"):
        attsvm.probe("model")
    with pytest.raises(ValueError, match="svm must be an SvmBudget, True or False, got str"):
        attsvm.probe(heads_from_arrays(np.ones((2, 3, 2)), [TrainedHead.from_weights(np.eye(2), np.eye(2))]), svm="all")
    with pytest.raises(ValueError, match=r"hidden must have shape \(n, T, d\)"):
        heads_from_arrays(np.ones((3, 2)), [TrainedHead.from_weights(np.eye(2), np.eye(2))])
    with pytest.raises(ValueError, match=r"mask must have shape \(2, 3\) or \(2, 3, 3\)"):
        heads_from_arrays(np.ones((2, 3, 2)), [TrainedHead.from_weights(np.eye(2), np.eye(2))], mask=[True])


@pytest.fixture(scope="module")
def page(table, tmp_path_factory):
    from chromium import Page, find_browser

    if find_browser() is None:
        pytest.skip("needs a Chromium")
    folder = tmp_path_factory.mktemp("atlas")
    table.to_html(folder / "atlas.html")
    opened = Page(folder / "profile")
    opened.open(folder / "atlas.html")
    yield opened
    opened.close()
    shutil.rmtree(folder / "profile", ignore_errors=True)


def test_in_a_browser(page, table, tmp_path):
    assert page.evaluate("document.querySelectorAll('#grid td[role=gridcell]').length") == 6
    widths = page.evaluate("[...document.querySelectorAll('#grid td')].map(cell => cell.offsetWidth)")
    assert max(widths) - min(widths) <= 1  # no column is stretched
    assert page.evaluate("document.getElementById('head-title').textContent").startswith("Layer 0, head 0")
    page.evaluate("document.querySelector('#grid td[tabindex=\"0\"]').focus()")
    page.press("ArrowRight", 39)
    page.press("ArrowDown", 40)
    assert page.evaluate("document.getElementById('head-title').textContent").startswith("Layer 1, head 1")
    page.evaluate(
        "const s = document.getElementById('measure'); s.value = 'entropy'; s.dispatchEvent(new Event('change'))"
    )
    assert page.evaluate("document.getElementById('sentence').textContent") == MEASURES["entropy"].sentence
    first = "document.querySelector('#table tbody tr th').textContent"
    page.evaluate(
        "[...document.querySelectorAll('#table thead button')]"
        ".find(b => b.textContent.startsWith('median margin / |W|_F')).click()"
    )
    values = table.column("margin_median_frobenius")
    best = table.records[int(np.argmax(values))]
    assert page.evaluate(first) == f"{best['layer']}.{best['head']}"
    page.evaluate("document.querySelectorAll('#words button')[2].click()")
    assert page.evaluate("document.querySelector('#words button[aria-selected=true]').textContent") == "2"
    page.screenshot(tmp_path / "atlas.png")
    assert page.errors == [] and len(page.requests) == 1 and (tmp_path / "atlas.png").stat().st_size > 20_000


def test_on_a_phone_and_in_the_dark(page):
    page.call("Emulation.setDeviceMetricsOverride", width=375, height=800, deviceScaleFactor=1, mobile=True)
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.evaluate("document.querySelector('#measure option').textContent = 'a measure with a long name '.repeat(9)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    right = (
        "Math.max(...[...document.querySelectorAll('#numbers td')].map((cell) => cell.getBoundingClientRect().right))"
    )
    assert page.evaluate(right) <= 375  # every value is beside its name
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 26, 33)"
    assert page.errors == []
