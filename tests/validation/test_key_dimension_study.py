"""The study of key dimensions on layers of random heads in place of the installed models."""

from dataclasses import replace

import numpy as np
import pytest
from figure_outcomes import check_picture, outcome_of

import attsvm
from attsvm.probing import SvmBudget, heads_from_arrays
from attsvm.validation.figures.own import key_dimension_study
from attsvm.validation.pretrained.installed_models import is_installed


def layer(space, sequences=6):
    rng = np.random.default_rng(0)
    heads = [attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 4, 8))) for _ in range(2)]
    made = heads_from_arrays(rng.normal(size=(sequences, 5, 8)), heads)
    return replace(made, space=space)


def test_a_table_per_model_and_one_beside_random_heads(monkeypatch):
    monkeypatch.setattr(key_dimension_study, "model_layers", lambda *_: [layer("tokens"), layer("tokens")])
    outcome = outcome_of(key_dimension_study.FIGURE_KEY_DIMENSION, sequences=6, queries=3, heads=1)
    layers, shares, random = outcome.tables
    assert [row[0] for row in layers.rows] == ["0", "all"]
    assert [row[1] for row in shares.rows] == [1, 1, 2, 2] and len(random.rows) == 4 and not outcome.refuted
    check_picture(key_dimension_study.FIGURE_KEY_DIMENSION, outcome, 1)


def test_keys_and_rotated_keys_are_the_same_problem():
    """In head space the keys are the tokens: without a rotation both ways are one problem."""
    budget = SvmBudget(sequences=3, held_out=3, queries=3)
    one, two = (key_dimension_study.head_record(layer(space)[1], budget, 0) for space in ("tokens", "head"))
    same = ("rank", "certified", "least", "kq_svd_kept_half", "kq_svd_shown_quarter")
    assert [one[name] for name in same] == [two[name] for name in same]


def test_what_cannot_be_studied_is_named():
    budget = SvmBudget(sequences=1, held_out=0, queries=2)
    with pytest.raises(ValueError, match="must leave some to hold out"):
        key_dimension_study.head_record(layer("tokens", 1)[0], budget, 0)
    shifted = replace(layer("tokens"), offset=np.ones((1, 2, 1, 5)))
    with pytest.raises(ValueError, match="a position bias is in its logits"):
        key_dimension_study.head_record(shifted[0], replace(budget, sequences=3, held_out=3), 0)


@pytest.mark.skipif(not is_installed("rxnmapper") or not is_installed("transformers"), reason="make models")
def test_reactions_run_through_every_call_of_the_shared_layer():
    layers = key_dimension_study.model_layers("rxnmapper", 3, 48)
    assert len(layers) == 12 and {found.module for found in layers} == {layers[0].module}
    assert layers[0].heads == 8 and layers[0].q.shape[0] == 3 and layers[0].q.shape[-1] == 32
