from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest

import attsvm
from attsvm.training.options import TrainOptions, TrainSettings


def small():
    return attsvm.random_problem(n=3, T=4, d=6, seed=0)


def test_keywords_and_options_are_the_same_run():
    keywords = attsvm.train(small(), "KQ", 60, lr=0.2, m=2, seed=3, snapshots=4)
    options = TrainOptions("KQ", 60, lr=0.2, m=2, seed=3, snapshots=4)
    for run in (attsvm.train(small(), options), attsvm.train(small(), options=options)):
        np.testing.assert_array_equal(run.W, keywords.W)
        assert run.options == options


def test_keywords_replace_what_the_object_says():
    options = TrainOptions(steps=60, lr=0.2)
    run = attsvm.train(small(), "KQ", steps=30, options=options, seed=5)
    assert run.options == replace(options, parameterization="KQ", steps=30, seed=5)
    assert attsvm.train(small(), options, steps=0).history.steps.tolist() == [0]


def test_every_setting_is_a_keyword_and_a_field():
    names = {field.name for field in fields(TrainOptions)}
    assert set(TrainSettings.__annotations__) == names - {"parameterization", "steps"}
    for name in names:
        assert f"``{name}``" in attsvm.train.__doc__ or f"    {name} : " in attsvm.train.__doc__
        assert f"    {name} : " in TrainOptions.__doc__ or name in ("device", "dtype")


def test_options_are_frozen_and_checked_when_made():
    options = TrainOptions()
    with pytest.raises(FrozenInstanceError):
        options.steps = 3
    with pytest.raises(ValueError, match="steps must be an integer >= 0, got -1"):
        TrainOptions(steps=-1)
    with pytest.raises(ValueError, match="loss must be one of"):
        TrainOptions(loss="hinge")
    with pytest.raises(ValueError, match="lr must be given for optimizer 'gd' on factors"):
        TrainOptions("KQ", optimizer="gd")


def test_the_recipe_for_factors_is_spelled_out():
    recipe = TrainOptions("KQ", 400, optimizer="ridge_decay").recipe()
    assert (recipe.optimizer.name, recipe.log_ridge, recipe.decay_after) == ("normalized_gd", -200.0, 100)
    own = TrainOptions("KQ", 400, optimizer="ridge_decay", log_ridge=-50.0, decay_after=7).recipe()
    assert (own.log_ridge, own.decay_after) == (-50.0, 7)


def test_records_of_options_are_plain():
    import json

    options = TrainOptions(init=np.zeros((6, 6)), seed=np.random.default_rng(0), loss=attsvm.exponential, snapshots=3)
    record = json.loads(json.dumps(options.to_dict()))
    assert record["init"] == "given"
    assert record["seed"] == "generator"
    assert record["loss"] == "exponential"
    assert record["snapshots"] == options.snapshot_steps()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: attsvm.train(p.X), "problem must be an AttentionProblem, got ndarray"),
        (lambda p: attsvm.train(None), "problem must be an AttentionProblem, got NoneType"),
        (lambda p: attsvm.train(p, options={"steps": 3}), "options must be a TrainOptions, got dict"),
        (lambda p: attsvm.train(p, TrainOptions(), options=TrainOptions()), "train takes one TrainOptions, got two"),
        (lambda p: attsvm.train(p, learning_rate=0.1), "train takes no option 'learning_rate'; it takes param"),
        (lambda p: attsvm.diagnose(None), "problem must be an AttentionProblem, got NoneType"),
        (lambda p: attsvm.attraction(p.X), "problem must be an AttentionProblem, got ndarray"),
        (lambda p: attsvm.regularization_path(p.X, [1.0]), "problem must be an AttentionProblem, got ndarray"),
        (lambda p: attsvm.decompose(p.X, p.X), "problem must be an AttentionProblem, got ndarray"),
        (lambda p: attsvm.smoothness_constant(3), "problem must be an AttentionProblem, got int"),
    ],
)
def test_wrong_types_are_named(call, message):
    with pytest.raises(TypeError, match=message):
        call(small())
