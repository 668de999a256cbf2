import json

import pytest

from attsvm.validation import assumptions
from attsvm.validation.assumptions import AssumptionRow, assumption_row, ends_row, main

SMALL = ["--problems", "2", "--starts", "8", "--steps", "200", "--end-problems", "1", "--ends", "6"]


def test_D_implies_one_local_optimum_and_not_conversely():
    rows = [assumption_row(n=3, T=3, d=d, problems=12, seed=1) for d in (4, 12)]
    for row in rows:
        assert row.violations == row.undecided == 0
        assert row.D + row.converse == row.single
        assert row.optimal_listed == row.feasible
        assert row.exact_B1 <= row.proxy_B1
        assert len(row.local_optima) == row.problems == 12
    assert sum(row.converse for row in rows) > 0 < sum(row.D for row in rows)


def test_ends_outside_the_list_are_counted_with_examples():
    row = ends_row(n=4, T=4, d=5, starts=20, steps=1)  # stopped at once: most starts are nowhere yet
    assert row.outside == row.unsaturated == row.counts["Not local"] > 0
    assert row.examples[0]["starts"]


def test_commands_print_their_tables(capsys):
    main(SMALL)
    text = capsys.readouterr().out
    assert "D implies one local optimum: 0 violations" in text
    assert "Ends outside the list: 0 of 8" in text
    main([*SMALL, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [row["d"] for row in record["assumptions"]] == [3, 5, 8, 10, 15, 20]
    assert record["ends"][0]["starts"] == 8


def test_a_violation_is_an_exit_code(monkeypatch, capsys):
    monkeypatch.setattr(
        assumptions,
        "assumption_row",
        lambda n, T, d, problems, seed: AssumptionRow(d, 1, D=1, violations=1, local_optima=[2]),
    )
    with pytest.raises(SystemExit) as stop:
        main(SMALL)
    assert stop.value.code == 1
    assert "6 problems satisfy D" in capsys.readouterr().err
