"""SVM measures of many heads: stored as they finish, resumed, and run on any executor."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import attsvm
from attsvm.probing import SvmBudget, heads_from_arrays
from attsvm.probing.probe_model import svm_columns
from attsvm.trained_head import TrainedHead

BUDGET = SvmBudget(sequences=4, held_out=3, queries=2, nuclear=False, shares=(0.5,))


def layer_of(offset=None):
    rng = np.random.default_rng(0)
    heads = [TrainedHead.from_weights(*rng.normal(size=(2, 3, 6))) for _ in range(2)]
    return heads_from_arrays(rng.normal(size=(8, 5, 6)), heads, offset=offset)


def test_a_second_call_solves_nothing(tmp_path, monkeypatch):
    counted = []
    first, details = svm_columns(
        [layer_of()], BUDGET, store=tmp_path / "a.sqlite", progress=lambda k, n: counted.append(k)
    )
    assert counted[-1] == 2 and details[0]["curve"][0]["sequences"] == 2

    def never(*_, **__):
        raise AssertionError("solved again")

    monkeypatch.setattr("attsvm.probing.probe_model.sample_measures", never)
    again, _ = svm_columns([layer_of()], BUDGET, store=tmp_path / "a.sqlite")
    assert again == first
    with pytest.raises(AssertionError, match="solved again"):  # other data are other problems
        svm_columns([layer_of(offset=np.ones((8, 2, 5, 5)))], BUDGET, store=tmp_path / "a.sqlite")


def test_an_executor_gives_the_same(tmp_path):
    here, _ = svm_columns([layer_of()], BUDGET)
    with ThreadPoolExecutor(2) as pool:
        there, _ = svm_columns([layer_of()], BUDGET, executor=pool)
    assert here == there


def test_columns_and_bounds():
    table = attsvm.probe(layer_of(), svm=BUDGET)
    for record in table:
        assert record["status_frobenius"] == "optimal" and record["gap_soft_frobenius"] < 1e-4
        for name in ("margin_ratio_frobenius", "soft_ratio_frobenius", "correlation_seen_frobenius"):
            assert 0 <= record[name] <= 1 + 1e-6
            assert np.isfinite(record[f"{name}_random"])
        assert record["correlation_seen_frobenius"] >= record["correlation_frobenius"] - 1e-12


def test_offsets_move_to_the_right_hand_side():
    rng = np.random.default_rng(1)
    offset = rng.normal(size=(8, 2, 5, 5))
    layer = layer_of(offset=offset)
    table = attsvm.probe(
        layer, svm=SvmBudget(sequences=4, held_out=0, queries=2, nuclear=False, baseline=False, shares=())
    )
    assert all(record["status_frobenius"] == "optimal" for record in table)
    assert all(record.get("margin_ratio_frobenius") is None for record in table)  # an offset has a scale of its own
