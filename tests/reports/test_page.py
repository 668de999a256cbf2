"""The page without a browser: structure, data, escaping, and that nothing is fetched."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.special import softmax

import attsvm
from attsvm.reports import (
    build_content,
    overview_record,
    page_of,
    render_page,
    write_overview,
    write_page,
    write_report,
)
from attsvm.reports.content import graph_content, run_content

VOID = {"meta", "link", "input", "br", "img"}


class Tree(HTMLParser):
    """Tags, attributes and text; fails on tags that do not close in order."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.stack, self.tags, self.texts = [], [], {}
        self.feed(page)
        self.close()
        assert not self.stack

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), tuple(t for t, _ in self.stack)))
        if tag not in VOID:
            self.stack.append((tag, dict(attributes)))

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes), tuple(t for t, _ in self.stack)))

    def handle_endtag(self, tag):
        assert self.stack, tag
        assert self.stack.pop()[0] == tag

    def handle_data(self, data):
        if self.stack:
            tag, attributes = self.stack[-1]
            key = attributes.get("id", tag)
            self.texts[key] = self.texts.get(key, "") + data

    def ids(self):
        return [attributes["id"] for _, attributes, _ in self.tags if "id" in attributes]


def tiny():
    return attsvm.random_problem(n=3, T=4, d=4, seed=5)


def infeasible():
    return attsvm.random_problem(n=6, T=8, d=2, seed=0)


def causal():
    return attsvm.random_problem(n=2, T=3, d=6, kind="sequence", causal=True, seed=0)


def headless():
    problem = tiny()
    return attsvm.AttentionProblem(problem.X, problem.Y, problem.Z)


CASES = {
    "tiny": (tiny, {"steps": 60}),
    "untrained": (tiny, {"steps": 0}),
    "infeasible": (infeasible, {"steps": 20, "graph_limit": 10}),
    "causal": (causal, {"steps": 30}),
    "no head": (headless, {"selection": [0, 1, 2]}),
    "other tokens": (tiny, {"steps": 20, "selection": [2, 3, 3]}),
}


@pytest.fixture(scope="module", params=list(CASES))
def built(request):
    make, options = CASES[request.param]
    problem = make()
    content = build_content(problem, name=request.param, **options)
    return request.param, problem, content, render_page(content)


def test_the_page_is_well_formed_and_accessible(built):
    _, _, content, page = built
    tree = Tree(page)
    ids = tree.ids()
    assert len(ids) == len(set(ids))
    assert ("html", {"lang": "en"}, ()) in tree.tags
    for tag, attributes, _ in tree.tags:
        if tag == "a":
            assert attributes["href"].removeprefix("#") in ids
        if tag == "th":
            assert attributes.get("scope") in ("row", "col")
        if tag == "svg" and "aria-hidden" not in attributes:
            assert attributes["role"] == "img"
            assert attributes["aria-label"]
        if tag == "section":
            assert attributes["aria-labelledby"] in ids
    headings = [tag for tag, _, _ in tree.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == "h1"
    assert headings.count("h1") == 1
    labels = [attributes.get("for") for tag, attributes, _ in tree.tags if tag == "label"]
    for tag, attributes, parents in tree.tags:
        if tag == "input":
            assert attributes.get("id") in labels or "label" in parents
    assert content["name"] in tree.texts["title"]


def test_nothing_is_fetched(built):
    page = built[-1]
    tree = Tree(page)
    for tag, attributes, _ in tree.tags:
        for name in ("src", "href", "action", "data", "poster"):
            assert attributes.get(name, "#").startswith("#") or attributes[name] == "data:,", (tag, attributes)
        assert tag not in ("img", "iframe", "object", "embed", "base", "form")
        assert not any(name.startswith("on") for name in attributes)
    policy = next(a["content"] for t, a, _ in tree.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    assert "@import" not in page
    assert set(re.findall(r"url\([^)]*\)", page)) <= {"url(#tip)"}
    assert set(re.findall(r"https?://[^\"'<> ]*", page)) <= {
        "http://www.w3.org/2000/svg",  # a name of the standard
        "https://github.com/leeoniya/uPlot",  # the first line of uPlot, a comment
    }


def test_the_data_survive(built):
    _, _, content, page = built
    data = json.loads(Tree(page).texts["data"])
    assert data["runs"] == content["runs"]
    assert data["graph"] == content["graph"]
    assert data["problem"]["selection"] == content["problem"]["selection"]


def test_numbers_of_the_page_are_those_of_the_library(built):
    name, problem, content, page = built
    for record in content["solutions"]:
        solution = attsvm.att_svm(problem, content["problem"]["selection"], norm=record["norm_name"])
        assert record["status"] == solution.status
        if solution.status == "optimal":
            assert record["norm"] == pytest.approx(solution.norm, rel=1e-9)
            assert f"{solution.margin:.6g}" in page
            assert len(record["singular_values"]) == min(problem.dx, problem.dz)
        else:
            assert f"sequences {record['farkas']['sequences']} conflict" in page
    if content["diagnosis"]["theorems"]:
        found = attsvm.diagnose(problem, content["problem"]["selection"])
        assert content["diagnosis"]["applies"] == list(found.applies)
        for text in found.prediction.values():
            assert text.split("(")[0].split("'")[0] in page
    assert (content["training_skipped"] is None) == (name not in ("untrained", "no head"))
    if content["training_skipped"]:
        assert content["training_skipped"] in page
        assert "scrubber" not in Tree(page).ids()


def test_attention_is_the_softmax_of_the_logits():
    for problem in (tiny(), causal()):
        run = attsvm.train(problem, steps=30, snapshots=3)
        maps = run_content(attsvm.compare(run))["attention"]
        Z = problem.Z.reshape(problem.n, problem.K, problem.dz)
        allowed = problem.allowed.reshape(problem.n, problem.K, problem.T)
        assert np.shape(maps) == (len(run.history), problem.n * problem.K, problem.T)
        for s, W in enumerate(run.history.W):
            for q, (i, k) in enumerate(np.ndindex(problem.n, problem.K)):
                logits = np.where(allowed[i, k], problem.X[i] @ W @ Z[i, k], -np.inf)
                # whole thousandths, plus a few roundings of terms <= 1000
                np.testing.assert_allclose(maps[s][q], 1000 * softmax(logits), atol=0.5 + 1e-9)


def test_series_of_a_run_are_those_of_the_report():
    problem = tiny()
    report = attsvm.compare(attsvm.train(problem, "KQ", steps=50, optimizer="ridge_decay"), attsvm.att_svm(problem))
    content = run_content(report)
    assert content["steps"] == report.steps.tolist()
    np.testing.assert_allclose(content["norm"], report.run.history.norm, rtol=1e-4)  # five digits are kept
    own, given = content["comparisons"]
    np.testing.assert_allclose(own["misalignment"], report.comparisons[0].misalignment, rtol=1e-4)
    np.testing.assert_allclose(given["misalignment"], report.comparisons[1].misalignment, rtol=1e-4)
    assert all(abs(sum(row) - 1000) <= problem.T for s in content["attention"] for row in s)
    assert content["selection"][-1] == report.run.selection.indices.tolist()


def test_the_run_of_the_same_problem_is_not_compared_twice():
    problem = attsvm.random_problem(n=2, T=3, d=6, seed=0)
    report = attsvm.compare(attsvm.train(problem, steps=200), attsvm.att_svm(problem))
    assert report.convergence == "Global"
    assert [c["label"] for c in run_content(report)["comparisons"]] == ["Att-SVM"]


def test_graph_holds_every_selection_and_every_local_optimum():
    problem = tiny()
    content = graph_content(problem, "frobenius", 64)
    found = attsvm.locally_optimal_selections(problem)
    assert len(content["nodes"]) == 64
    kinds = {node[0]: node[3] for node in content["nodes"]}
    assert {name for name, kind in kinds.items() if kind in ("local", "best")} == {
        "-".join(map(str, item.tokens)) for item in found
    }
    assert kinds["3-3-3"] == "best"
    margins = [item["margin"] for item in content["optima"]]
    np.testing.assert_allclose(margins, found.margins, rtol=1e-6)
    graph = attsvm.selection_graph(problem)
    names = [node[0] for node in content["nodes"]]
    assert {(names[a], names[b]) for a, b in content["edges"]} == {
        tuple("-".join(map(str, node)) for node in edge) for edge in graph.edges
    }
    assert content["edge_count"] == len(content["edges"])


EVIL = '</script><script>document.title="hacked"</script><img src=x onerror="document.title=1">&\u2028\'"'


def test_hostile_names_stay_text():
    page = render_page(build_content(tiny(), steps=0, name=EVIL))
    tree = Tree(page)
    assert tree.texts["h1"] == EVIL
    assert sum(tag == "script" for tag, _, _ in tree.tags) == 2
    assert not any(tag == "img" for tag, _, _ in tree.tags)


def test_no_text_ends_the_data_early():
    content = build_content(tiny(), steps=0)
    content["graph"] = {"skipped": EVIL, "</script>": [1]}
    text = Tree(render_page(content)).texts["data"]
    assert json.loads(text)["graph"] == content["graph"]
    assert not set(text) & set("<>&\u2028")


def test_a_large_problem_is_cut_to_what_can_be_looked_at(monkeypatch):
    for module in ("content", "page"):
        monkeypatch.setattr(f"attsvm.reports.{module}.MOST_QUERIES", 2)
        monkeypatch.setattr(f"attsvm.reports.{module}.MOST_TOKENS", 3)
    monkeypatch.setattr("attsvm.reports.content.MOST_EDGES", 5)
    content = build_content(tiny(), steps=20)
    assert np.shape(content["runs"][0]["attention"])[1:] == (2, 3)
    page = render_page(content)
    assert "The table shows 2 queries and 3 of 4 tokens, including the selected ones." in page
    assert len(content["graph"]["edges"]) == 5
    assert f"Of its {content['graph']['edge_count']} swaps the 5 into local optima are drawn." in page
    page = render_page(build_content(tiny(), steps=0, graph_limit=63))
    assert "The problem has 64 selections, more than the 63 that are drawn." in page


def test_maps_contain_the_selected_tokens_of_long_sequences():
    problem = attsvm.random_problem(n=3, T=128, d=140, seed=0)
    content = build_content(problem, selection=[127, 90, 5], steps=20)
    run = content["runs"][0]
    assert len(run["columns"]) == 64 == np.shape(run["attention"])[2]
    assert {127, 90, 5} <= set(run["columns"])
    assert {int(t) for t in run["selection"][-1]} <= set(run["columns"])


def test_many_queries_open_with_a_summary():
    content = build_content(attsvm.random_problem(n=100, T=3, d=100, seed=0), steps=0)
    page = render_page(content)
    assert "smallest lead" in page and "<details><summary>All 100 rows</summary>" in page
    assert page.index("smallest lead") < page.index("All 100 rows")
    few = render_page(build_content(attsvm.random_problem(n=3, T=3, d=4, seed=0), steps=0))
    assert "<summary>All" not in few


def test_the_page_opens_with_the_verdict_and_explains_its_words():
    page = render_page(build_content(tiny(), steps=20))
    assert page.index('class="verdict">One W selects') < page.index("<main>")
    assert "What the words mean" in page and "Next: <code>attsvm enumerate" in page


def test_writing_replaces_the_file_and_tells_its_progress(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")
    calls = []
    write_report(tiny(), path, steps=10, progress=lambda *call: calls.append(call))
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert [call[0] for call in calls] == [
        "solving (frobenius)", "solving (nuclear)", "diagnosing", "training W", "training KQ", "local optima",
    ]  # fmt: skip
    assert [call[1:] for call in calls] == [(k, 6) for k in range(6)]
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_the_same_problem_gives_the_same_page():
    def page():
        content = build_content(tiny(), steps=20, seed=3)
        return render_page(content)

    assert page() == page()


def test_bad_input():
    with pytest.raises(ValueError, match="a report takes one problem; index the batch first"):
        build_content(attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0))
    with pytest.raises(ValueError, match="steps must be an integer >= 0, got -1"):
        build_content(tiny(), steps=-1)
    with pytest.raises(ValueError, match="graph_limit must be a number >= 0, got -2"):
        build_content(tiny(), graph_limit=-2)
    with pytest.raises(ValueError, match="scores need a prediction head"):
        build_content(headless())


def test_without_torch_the_page_says_so(monkeypatch):
    monkeypatch.setattr("attsvm.reports.content.find_spec", lambda name: None)
    content = build_content(tiny(), steps=10)
    assert content["training_skipped"] == "Training needs torch: pip install 'attsvm[torch]'."
    assert content["graph"]["local_optima"] >= 1  # listing needs no torch
    assert "Training needs torch" in render_page(content)


def test_an_undecided_graph_is_left_out(monkeypatch):
    def undecided(*arguments):
        raise RuntimeError("the graph is undecided at selection (0, 0, 0)")

    monkeypatch.setattr("attsvm.reports.content.graph_content", undecided)
    content = build_content(tiny(), steps=0)
    assert content["graph"] == {"skipped": "No graph: the graph is undecided at selection (0, 0, 0)."}


def test_import_is_light():
    heavy = "[m for m in ('torch', 'cvxpy', 'jinja2', 'matplotlib', 'networkx') if m in sys.modules]"
    code = f"import attsvm.reports, attsvm.files, attsvm.cli, sys; print({heavy})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_a_batch_gets_a_page_that_leads_to_the_pages_of_its_problems(tmp_path):
    """The counts of the verdict are those of the rows, and every link leads to a page."""
    batch = attsvm.random_problem(n=2, T=3, d=3, seed=0, batch=2)
    records = []
    for k in range(2):
        content = build_content(batch[k], steps=20, name=f"<b>{k}")
        write_page(page_of(tmp_path / "all.html", k), content)
        records.append(overview_record(content))
    records[1]["runs"][0]["convergence"], records[1]["solutions"][1] = "Local", {
        "norm_name": "nuclear", "status": "infeasible", "margin": None
    }  # fmt: skip
    records[0]["runs"][0]["convergence"] = "Global"
    write_overview(tmp_path / "all.html", "<i>batch</i>", records)
    page = (tmp_path / "all.html").read_text()
    assert "<i>batch</i>" not in page and "&lt;i&gt;batch" in page
    assert "proved optimal, in 1 of 2 problems. Training W ends at the predicted tokens in 1 of 2 problems" in page
    for link in ("all-0.html", "all-1.html"):
        assert f'<a href="{link}">' in page and (tmp_path / link).stat().st_size > 10_000
    assert '<span class="badge bad">infeasible</span>' in page
