"""The page in headless Chromium (or the one inside Qt WebEngine); skipped only where neither is found."""

import json
import time
from pathlib import Path

import numpy as np
import pytest
from reports.chromium import Page, find_browser
from reports.qt_page import QtPage, has_qt

import attsvm
from attsvm.reports import build_content, render_page

chromium_only = pytest.mark.skipif(find_browser() is None, reason="needs the debugger of a Chromium")

SCRUB = """((s) => {
  const scrubber = document.getElementById("scrubber");
  scrubber.value = s;
  scrubber.dispatchEvent(new Event("input", {bubbles: true}));
})"""
MAP = """[...document.querySelectorAll("#maps tbody tr")].map(
  (row) => [...row.querySelectorAll("td")].map((cell) => [cell.textContent, getComputedStyle(cell).backgroundColor]))"""
CURSOR = 'document.querySelector("#plot-0 .u-cursor-x").style.transform'
RING = '(() => { const r = document.querySelector(".ring"); return [r.getAttribute("cx"), r.getAttribute("cy")]; })()'
LEGEND = '[...document.querySelectorAll("#plot-2 .u-value")].map((d) => d.textContent)'  # of the norm of W
READ = '[...document.querySelectorAll("#readout dd")].map((d) => d.textContent)'
DATA = 'JSON.parse(document.getElementById("data").textContent)'


def scrub(page, s):
    page.evaluate(f"{SCRUB}({s})")


def text(page, identifier):
    return page.evaluate(f"document.getElementById({json.dumps(identifier)}).textContent")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    if find_browser() is None and not has_qt():
        pytest.skip("no Chromium found: set ATTSVM_BROWSER to its path, or pip install PySide6-Addons==6.8.3")
    made = Page(folder) if find_browser() else QtPage(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "report.html"
    problem = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    path.write_text(render_page(build_content(problem, steps=400, name="three sequences")), encoding="utf-8")
    return path


@pytest.fixture
def opened(page, report):
    page.errors.clear()
    page.requests.clear()
    page.open(report)
    yield page
    assert page.errors == []
    assert page.requests == [report.resolve().as_uri()]  # nothing else is asked for


def test_it_renders(opened):
    assert opened.evaluate("document.title").startswith("three sequences")
    assert opened.evaluate('document.querySelectorAll("#training figure .u-series").length') >= 6 + 4  # and four steps
    painted = """[...document.querySelectorAll("figure canvas")].map((canvas) => new Set(
      new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)).size)"""
    colours = opened.evaluate(painted)
    assert len(colours) == 6 and min(colours) > 10  # lines, numbers and a grid, with soft edges
    assert opened.evaluate('document.querySelectorAll("#graph .edge").length') > 20
    nodes = 'document.querySelectorAll("#graph [class^=node-]").length'
    assert opened.evaluate(nodes) == 64
    assert text(opened, "step") == "step 400"


def test_the_scrubber_moves_everything(opened):
    data = opened.evaluate(DATA)
    run = data["runs"][0]
    seen = []
    for s in (0, len(run["steps"]) // 2, len(run["steps"]) - 1):
        scrub(opened, s)
        assert text(opened, "step") == f"step {run['steps'][s]}"
        shown = opened.evaluate(MAP)
        for row, values in zip(shown, run["attention"][s], strict=True):
            for (label, colour), value in zip(row, values, strict=True):
                assert label == (str(int(np.floor(value / 10 + 0.5))) if value >= 5 else "")
                alpha = 1.0 if colour.startswith("rgb(") else float(colour.split(",")[-1].rstrip(")"))
                assert alpha == pytest.approx(value / 1000, abs=0.006)  # the browser shows two digits
        assert opened.evaluate(LEGEND) == [str(run["steps"][s]), opened.evaluate(READ)[1]]
        norm = float(opened.evaluate(READ)[1])
        assert norm == pytest.approx(run["norm"][s], rel=1e-4)
        assert "-".join(map(str, run["selection"][s])) in text(opened, "graph-here")
        seen.append((json.dumps(shown), opened.evaluate(CURSOR), norm, tuple(opened.evaluate(RING))))
    for column in list(zip(*seen, strict=True))[:3]:
        assert len(set(column)) == 3
    assert len({ring for *_, ring in seen}) >= 2  # the start is not where the run ends
    assert opened.evaluate('document.getElementById("scrubber").getAttribute("aria-valuetext")') == "step 400"


def test_the_other_run_can_be_chosen(opened):
    data = opened.evaluate(DATA)
    before = opened.evaluate(MAP)
    scrub(opened, 10)
    opened.evaluate('document.querySelectorAll("input[name=run]")[1].click()')
    assert opened.evaluate(MAP) != before
    assert "of run KQ at step" in text(opened, "graph-here")
    scrub(opened, 5)
    assert float(opened.evaluate(READ)[1]) == pytest.approx(data["runs"][1]["norm"][5], rel=1e-4)


@chromium_only
def test_the_pointer_reads_a_chart_and_then_the_step_is_back(opened):
    steps = opened.evaluate(DATA)["runs"][0]["steps"]
    opened.evaluate('document.getElementById("plot-2").scrollIntoView({behavior: "instant", block: "center"})')
    edge = opened.evaluate('document.querySelector("#plot-2 .u-over").getBoundingClientRect().toJSON()')
    for x, y, step in ((edge["left"] + 2, edge["top"] + 30, steps[0]), (2, 2, steps[-1])):
        opened.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        assert opened.evaluate(LEGEND)[0] == str(step)
    assert text(opened, "step") == f"step {steps[-1]}"


@chromium_only
def test_charts_follow_the_colours_and_the_width_of_the_screen(opened):
    looks = """[getComputedStyle(document.querySelectorAll("#plot-0 .u-marker")[1]).borderTopColor,
      document.querySelector("#plot-0 .u-wrap").clientWidth]"""
    light, wide = opened.evaluate(looks)
    scrub(opened, 7)
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    opened.call("Emulation.setDeviceMetricsOverride", width=375, height=800, deviceScaleFactor=2, mobile=True)
    opened.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    dark, narrow = opened.evaluate(looks)
    assert dark != light and narrow < 375 < wide
    assert opened.evaluate(LEGEND)[0] == str(opened.evaluate(DATA)["runs"][0]["steps"][7])
    opened.call("Emulation.clearDeviceMetricsOverride")
    opened.call("Emulation.setEmulatedMedia", features=[])


@chromium_only
def test_keys_and_the_play_button_work(opened):
    data = opened.evaluate(DATA)
    steps = data["runs"][0]["steps"]
    opened.evaluate('document.getElementById("scrubber").focus()')
    opened.press("ArrowLeft", 37)
    assert text(opened, "step") == f"step {steps[-2]}"
    opened.press("Home", 36)
    assert text(opened, "step") == f"step {steps[0]}"
    opened.evaluate('document.getElementById("play").click()')
    assert text(opened, "play") == "Pause"
    moved = """new Promise((done) => { const wait = setInterval(() => {
      if (Number(document.getElementById("scrubber").value) >= 2) { clearInterval(wait); done(true); } }, 30); })"""
    assert opened.evaluate(moved)
    opened.evaluate('document.getElementById("play").click()')
    assert text(opened, "play") == "Play"


@chromium_only
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_is_readable_in_both_schemes(opened, scheme, tmp_path):
    opened.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    contrast = """(() => {
      const parse = (c) => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
      const light = (c) => parse(c).map((v) => v / 255)
        .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
        .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
      const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
      const paper = getComputedStyle(document.body).backgroundColor;
      const plain = ["p", "h1", "h2", "caption", "td", ".soft", "a"].map((s) =>
        ratio(getComputedStyle(document.querySelector(s)).color, paper));
      const badges = [...document.querySelectorAll(".badge")].map((b) =>
        ratio(getComputedStyle(b).color, getComputedStyle(b).backgroundColor));
      return Math.min(...plain, ...badges);
    })()"""
    assert opened.evaluate(contrast) >= 4.5  # WCAG AA
    opened.screenshot(tmp_path / "page.png")
    assert (tmp_path / "page.png").stat().st_size > 50_000
    opened.call("Emulation.setEmulatedMedia", features=[])


@chromium_only
def test_it_prints(opened):
    printed = opened.call("Page.printToPDF")["data"]
    assert len(printed) > 50_000


@chromium_only
@pytest.mark.parametrize("width", [390, 800, 1600])
def test_nothing_sticks_out_of_a_screen(opened, width):
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=width < 500)
    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    frames = 0  # charts take their new width in the frames after the screen has its own
    while opened.evaluate(wide) > 0 and frames < 50:
        time.sleep(0.02)
        frames += 1
    assert opened.evaluate(wide) <= 0
    opened.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.parametrize("name", ["untrained", "infeasible", "causal", "no head"])
def test_other_problems_have_no_errors_either(page, tmp_path, name):
    tiny = attsvm.random_problem(n=3, T=4, d=4, seed=5)
    problem, options = {
        "untrained": (tiny, {"steps": 0}),
        "infeasible": (attsvm.random_problem(n=6, T=8, d=2, seed=0), {"steps": 20}),
        "causal": (attsvm.random_problem(n=2, T=3, d=6, kind="sequence", causal=True, seed=0), {"steps": 30}),
        "no head": (attsvm.AttentionProblem(tiny.X, None, tiny.Z), {"selection": [0, 1, 2]}),
    }[name]
    evil = '</script><script>document.title="hacked"</script>'
    path = tmp_path / "page.html"
    path.write_text(render_page(build_content(problem, name=evil, graph_limit=100, **options)), encoding="utf-8")
    page.errors.clear()
    page.open(path)
    assert page.errors == []
    assert page.evaluate("document.title").startswith("</script>")
    if name == "causal":
        assert page.evaluate('document.querySelectorAll("#maps table").length') == 2
        assert page.evaluate('document.querySelectorAll("#maps td.masked").length') == 6
        scrub(page, 0)
        assert text(page, "step") == "step 0"


def test_a_large_graph_opens_with_its_optima_and_shows_all_on_demand(page, tmp_path):
    problem = attsvm.random_problem(n=4, T=5, d=4, seed=0)
    path = tmp_path / "large.html"
    content = build_content(problem, steps=30)
    path.write_text(render_page(content), encoding="utf-8")
    page.errors.clear()
    page.open(path)
    count = 'document.querySelectorAll("#graph [class^=node-]").length'
    few, total = page.evaluate(count), len(content["graph"]["nodes"])
    assert total == 625 and 5 <= few < 150
    page.evaluate('document.getElementById("graph-all").click()')
    assert page.evaluate(count) == 625
    assert page.errors == []


def test_tiny_probabilities_are_written_as_people_do(page, tmp_path):
    path = tmp_path / "saturated.html"
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    path.write_text(render_page(build_content(problem, steps=4000)), encoding="utf-8")
    page.open(path)
    shown = page.evaluate(READ)[2]
    mantissa, exponent = shown.split("e")
    assert 1 <= float(mantissa) < 10 and int(exponent) < -30


@chromium_only
def test_nothing_is_wider_than_a_phone(page, tmp_path):
    path = tmp_path / "phone.html"
    problem = attsvm.random_problem(n=14, T=20, d=20, seed=0)
    path.write_text(render_page(build_content(problem, steps=30)), encoding="utf-8")
    page.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
    page.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.call("Emulation.clearDeviceMetricsOverride")


DOCS = Path(__file__).parents[2] / "docs"
TYPE = """((label, text) => {
  const box = document.querySelector(`[aria-label="${label}"]`);
  box.value = text;
  box.dispatchEvent(new Event("input", {bubbles: true}));
})"""
SEEN = """[...document.querySelectorAll("tbody tr")].filter((r) => r.offsetParent !== null).map(
  (r) => r.cells[0].textContent)"""


def documentation(folder, script, body):
    """A page as the documentation has it, with one of its scripts."""
    path = folder / "page.html"
    source = (DOCS / "_static" / script).read_text(encoding="utf-8")
    path.write_text(f"<!DOCTYPE html><meta charset='utf-8'><script>{source}</script><article>{body}</article>")
    return path


def table(names, *columns):
    rows = "".join(f"<tr><td>{name}</td>{''.join(f'<td>{c}</td>' for c in columns)}</tr>" for name in names)
    return f"<div class='table-wrapper'><table><tbody>{rows}</tbody></table></div>"


def test_long_tables_of_the_documentation_have_a_filter(page, tmp_path):
    long = table([f"claim {k}" for k in range(30)], "holds") + table(["other"], "fails")
    bare = f"<section id='bare'><h2>Bare</h2>{table([f'word {k}' for k in range(30)], 'fails')}</section>"
    page.open(documentation(tmp_path, "tables.js", f"<section><h1>Long</h1>{long}{bare}</section>"))
    assert len(page.evaluate(SEEN)) == 61
    page.evaluate(f"{TYPE}('filter the tables of this page', '17 HOLDS')")
    assert page.evaluate(SEEN) == ["claim 17", "other"]  # a short table stays
    assert page.evaluate("document.querySelector('.tables-filter span').textContent") == " 1 of 60 rows"
    assert page.evaluate("document.getElementById('bare').offsetParent") is None  # no heading without its table
    page.evaluate(f"{TYPE}('filter the tables of this page', '')")
    assert len(page.evaluate(SEEN)) == 61
    page.open(documentation(tmp_path, "tables.js", table(["short"], "holds")))
    assert page.evaluate("document.querySelector('.tables-filter')") is None
    page.open(documentation(tmp_path, "tables.js", table(["gap"], "9e-16", "0.15 ms", "proved to 9e-16")))
    kept = "[...document.querySelectorAll('td')].map((cell) => cell.style.whiteSpace)"
    assert page.evaluate(kept) == ["", "nowrap", "nowrap", ""]  # no break after the minus of an exponent
