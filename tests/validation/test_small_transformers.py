"""The tasks of the polarization experiments, and the small transformers trained on them."""

import re

import pytest
import torch

from attsvm.dynamics import polarization as pol
from attsvm.validation import models

SOFTMAX = pol.AttentionKind("softmax")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: models.InductionTask(symbols=5, length=6), "length must be in 2..symbols = 5, got 6"),
        (lambda: models.SetTask(vocabulary=42), "vocabulary must be 1 + a multiple of labels = 4, got 42"),
        (lambda: models.SetTask(vocabulary=41, length=11), "length must be in 1..10, the size of a group, got 11"),
        (lambda: models.TransformerSpec(4, 4, 4, dim=10, heads=3), "dim must be a multiple of heads, got 10 and 3"),
        (
            lambda: models.TransformerSpec(4, 4, 4, positions="rope"),
            "positions must be 'add', 'concat' or 'none'",
        ),
        (lambda: models.train_induction(SOFTMAX, steps=0), "steps must be an integer >= 1, got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_induction_samples():
    task = models.InductionTask(symbols=12, length=5)
    tokens, following = task.sample(500, torch.Generator().manual_seed(3))
    assert (tokens[:, 0] == 0).all()
    for row, then in zip(tokens.tolist(), following.tolist(), strict=True):
        middle, cue = row[1:-1], row[-1]
        assert len(set(middle)) == 5  # without replacement
        place = middle.index(cue - 12)
        assert then == (middle[place + 1] if place < 4 else cue)  # the last token is followed by t' itself
    same = models.InductionTask(symbols=12, length=5, shifted=False)
    tokens, _ = same.sample(10, torch.Generator().manual_seed(3))
    assert all(row[-1] in row[1:-1] for row in tokens.tolist())


def test_set_samples_and_the_degenerate_vocabulary():
    generator = torch.Generator().manual_seed(0)
    sets = {frozenset(row[:-1]) for row in models.SetTask(41).sample(300, generator)[0].tolist()}
    assert len(sets) == 4  # ten of ten tokens: one set per label
    assert len({frozenset(row[:-1]) for row in models.SetTask(81).sample(300, generator)[0].tolist()}) == 300


@pytest.mark.parametrize("positions", ["add", "concat", "none"])
def test_transformer_shapes_causality_and_seeds(positions):
    spec = models.TransformerSpec(20, 6, 7, heads=2, dim=8, feedforward=16, positions=positions)
    model = models.SmallTransformer(spec, seed=1)
    tokens = torch.randint(20, (3, 6), generator=torch.Generator().manual_seed(0))
    logits, attention = model(tokens, attention=True)
    assert attention.shape == (2, 2, 3, 6, 6)
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 20
    torch.testing.assert_close(model(changed)[0][:, :-1], logits[:, :-1])  # the future is hidden
    torch.testing.assert_close(models.SmallTransformer(spec, seed=1)(tokens)[0], logits)
    before = torch.random.get_rng_state()
    models.SmallTransformer(spec, seed=2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_set_classifier_does_not_see_the_order():
    task = models.SetTask(41)
    model = models.train_classifier(SOFTMAX, task=task, dim=16, steps=2)
    tokens, _ = task.sample(5, torch.Generator().manual_seed(0))
    shuffled = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], 1)
    torch.testing.assert_close(model(tokens)[0][:, -1], model(shuffled)[0][:, -1], atol=1e-5, rtol=1e-4)


def test_flip_rate_of_attention_known_by_construction():
    """A head that looks only at the smallest token: its swap always flips, and a classifier by majority never does."""

    class Peaked(torch.nn.Module):
        def __init__(self, peaked):
            super().__init__()
            self.peaked, self.dummy = peaked, torch.nn.Parameter(torch.zeros(1))

        def forward(self, tokens, attention=False):
            group = tokens[:, :-1] // 20
            place = (tokens[:, :-1] % 20).argmin(1)  # the token the head attends to
            one_hot = torch.nn.functional.one_hot(group, 4).double()
            picked = one_hot[torch.arange(len(tokens)), place] if self.peaked else one_hot.mean(1)
            A = torch.zeros(1, 1, len(tokens), 11, 11, dtype=torch.float64)
            A[0, 0, torch.arange(len(tokens)), -1, place] = 1.0
            return picked[:, None].expand(-1, 11, -1), A if attention else None

    rates = models.flip_rates(Peaked(True), models.SetTask(81), pairs=200)
    assert rates.accuracy == 1.0
    # The swapped-in token is its donor's smallest; it decides unless the receiver's second smallest is smaller or
    # equal.
    assert rates.worst > 0.5
    assert rates.worst > 4 * rates.control
    majority = models.flip_rates(Peaked(False), models.SetTask(81), pairs=200)
    assert majority.worst == 0.0


def test_softmax_flips_and_sigmoid_does_not():
    # The contrast of Figure 6 at 1/4 of the width; vocabulary 41 trains on its four sets.
    task = models.SetTask(41)
    options = {"task": task, "dim": 32, "layer_norm": False, "mlp": False, "lr": 1e-3, "steps": 300}
    softmax = models.flip_rates(models.train_classifier(SOFTMAX, **options), task, pairs=100)
    smooth = models.train_classifier(pol.AttentionKind("sigmoid", False), **options)
    sigmoid = models.flip_rates(smooth, task, pairs=100)
    assert softmax.accuracy == sigmoid.accuracy == 1.0
    assert softmax.worst > 0.5 > 0.2 > sigmoid.worst
    assert softmax.control < 0.3
    assert not softmax.top.requires_grad


def test_induction_training_runs_for_every_kind_and_reports():
    task = models.InductionTask(symbols=6, length=3)
    for kind in pol.ATTENTION_KINDS:
        model = models.train_induction(kind, task=task, heads=2, dim=8, batch=8, steps=2)
        report = models.induction_report(model, task, samples=40)
        assert report.scores.shape == (2,)
        assert 0 <= report.sink_share <= 1
        assert 0 <= report.accuracy <= 1
        if kind.normalized and kind.positive:
            torch.testing.assert_close(report.scores, report.pooled_scores)
