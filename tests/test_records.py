import contextlib
import dataclasses
import enum
import io
import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attsvm.records import (
    Interval,
    Raw,
    Table,
    console,
    mean_of,
    mean_share_of,
    plain,
    render,
    share,
    share_of,
    versions,
    write_json,
)


def test_values_become_json():
    value = {"a": np.float64(np.inf), "b": (1, np.int64(2)), "c": Interval(0.5, 0.0, 1.0), "d": np.zeros((1, 2))}
    found = plain(value)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["a"] is None and found["b"] == [1, 2] and found["c"]["low"] == 0.0 and found["d"] == [[0.0, 0.0]]


def test_intervals_are_right():
    x = np.random.default_rng(0).normal(2.0, 3.0, 400)
    interval = mean_of([*x, np.nan])
    assert interval.value == pytest.approx(x.mean()) and interval.high - interval.value == pytest.approx(
        1.96 * x.std(ddof=1) / 20
    )
    assert str(share_of([])) == "-" and str(mean_of([])) == "-"
    assert share_of([True, False]).value == 0.5
    assert isinstance(share_of([True]), Interval) and share_of([True]).low > 0


@given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_share_has_wilsons_interval(pair):
    count, total = pair
    found = share(count, total)
    # Wilson's interval: the p with (count / total - p)^2 = z^2 p (1 - p) / total, z the 97.5 % quantile.
    z2, p = 1.959963984540054**2, count / total
    assert 0 <= found.low <= p <= found.high <= 1
    for end in (found.low, found.high):
        assert (p - end) ** 2 == pytest.approx(z2 * end * (1 - end) / total, rel=1e-6, abs=1e-14)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=40))
def test_the_interval_of_a_mean_of_shares_stays_between_0_and_1(values):
    found = mean_share_of(values)
    assert 0 <= found.low <= found.value + 1e-12 and found.value - 1e-12 <= found.high <= 1
    assert found.value == pytest.approx(np.mean(values), abs=1e-12)


def test_the_mean_of_shares_is_wilsons_where_each_is_one_count():
    """Of zeros and ones the variance is p (1 - p) n / (n - 1), so the counts are n - 1, not n."""
    flags = [1.0] * 3 + [0.0] * 38
    found, known = mean_share_of(flags), share_of(flags)
    assert found.low == pytest.approx(known.low, rel=0.02) and found.high == pytest.approx(known.high, rel=0.02)
    rates = [0.0] * 7 + [0.125]  # the normal interval of these begins at -0.015
    assert mean_of(rates).low < 0 < mean_share_of(rates).low
    assert mean_share_of([0.0] * 8).high > 0.2  # eight zeros do not prove a zero
    with pytest.raises(ValueError, match=r"shares must lie in \[0, 1\], got 0 to 2"):
        mean_share_of([0.0, 2.0])


def test_the_mean_of_shares_covers():
    """Sequences of eight queries whose rates differ: the normal interval misses more often, by ending below 0."""
    rng = np.random.default_rng(0)
    inside = []
    for _ in range(1500):
        rates = rng.beta(0.5, 9.5, size=30)  # mean 0.05
        found = mean_share_of(rng.binomial(8, rates) / 8)
        inside.append(found.low <= 0.05 <= found.high)
    assert 0.92 <= np.mean(inside) <= 0.98  # 95 %; a skewed distribution of 30 units costs a point or two


def test_the_share_covers():
    rng = np.random.default_rng(0)
    true, total = 0.1, 200
    found = [share(int(c), total) for c in rng.binomial(total, true, size=2000)]
    inside = [interval.low <= true <= interval.high for interval in found]
    assert 0.93 <= np.mean(inside) <= 0.97  # 95 %, three standard errors of 0.5 points and the steps of a count
    assert share(50, 50).high == 1.0 and share(0, 50).low == 0.0


def test_nothing_is_cut_in_a_file():
    """As a grid and as blocks, also where a line is longer than the table may be."""
    long = " ".join(f"word{k}" for k in range(200))
    facts = [f"fact {k} of some length that stays short" for k in range(9)]
    shown = Table(
        "a title " * 40, ("id", *(f"c{k}" for k in range(9)), "long"), [("one", *facts, long)], align="L" * 11
    )
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        console().print(shown)
    said = " ".join(out.getvalue().split())
    for text in (long, *facts, ("a title " * 40).strip()):
        assert text in said
    narrow = Table("", ("id", "text"), [("one", "word " * 60)], align="Ll")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        console().print(narrow)
    assert out.getvalue().count("word") == 60 and "│" in out.getvalue()


def test_plain_values_of_every_kind():
    @dataclasses.dataclass
    class Pair:
        left: float
        right: object

    class Colour(enum.Enum):
        RED = "red"

    torch = pytest.importorskip("torch")
    value = Pair(np.nan, [Colour.RED, torch.ones(2, requires_grad=True), np.bool_(True), np.float32(0.5)])
    assert plain(value) == {"left": None, "right": ["red", [1.0, 1.0], True, 0.5]}
    assert np.isnan(plain(value, finite=False)["left"])
    assert plain({1: np.inf}, finite=False) == {"1": np.inf}


def test_an_interrupted_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, [1])
    with pytest.raises(TypeError):
        write_json(path, [object()])
    assert json.loads(path.read_text()) == [1] and [p.name for p in tmp_path.iterdir()] == ["a.json"]


TABLE = Table("a | title", ("x", "share <"), [("a|b", 0.25), (), ("[red]", None)], align="Lr")


def test_a_table_says_the_same_everywhere():
    text = str(TABLE)
    assert "a|b" in text and "[red]" in text and "0.25" in text and text.count("├") == 1  # the rule
    assert TABLE.markdown().splitlines()[1:] == ["|---|---|", r"| a\|b | 0.25 |", "| [red] | - |"]
    assert '<th scope="col" class="number">share &lt;</th>' in TABLE.html()
    assert '<tr><th scope="row">a|b</th><td class="number">0.25</td></tr>' in TABLE.html()
    assert "<b>bold</b>" in Table("", ("x",), [(Raw("<b>bold</b>"),)]).html()
    assert "&lt;b&gt;" in Table("", ("x",), [("<b>",)]).html()


def test_a_stored_table_reads_back():
    made = Table("t", ("x", "y"), [(1, Interval(0.5, 0.25, 0.75)), (True, np.nan)])
    record = json.loads(json.dumps(made.record(), allow_nan=False))
    assert Table.read(record).texts() == made.texts() == [["1", "0.5 ± 0.2"], ["yes", "-"]]
    assert record["values"][0][1]["low"] == 0.25 and record["values"][1][1] is None


def test_bad_tables_are_refused():
    with pytest.raises(ValueError, match="a row has 1 cells, expected 2"):
        Table("t", ("a", "b"), ((1,),))
    with pytest.raises(ValueError, match="align has 1 letters, expected 2"):
        Table("t", ("a", "b"), (), align="l")


def test_long_lines_stay_whole_in_a_file(capsys):
    console(width=40).print("word " * 30, markup=False)
    assert capsys.readouterr().out == "word " * 30 + "\n"
    assert max(map(len, render(TABLE, width=40).splitlines())) <= 40


def test_versions_name_what_is_installed():
    assert versions()["numpy"] == np.__version__ and "no such package" not in versions("no such package")


def test_records_load_neither_scipy_nor_rich():
    code = "import attsvm.records, sys; print([m for m in ('scipy', 'rich', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
