import itertools
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch

import attsvm
from attsvm.attention import logits as attention_logits
from attsvm.training.log_gradient import naive_gradient, scaled_gradient
from attsvm.training.tensors import tensor_problem

LOSSES = ["logistic", "exponential", "correlation"]


def smooth_head(x):
    """A head that is neither linear nor one of ours; works on torch tensors only."""
    return torch.tanh(2 * x[..., 0]) + x[..., 1] ** 2 - x[..., 1] * x[..., 2]


def make_head(name, rng, d):
    v, V = rng.standard_normal(d), rng.standard_normal((d, 3))
    return {
        "linear": attsvm.LinearHead(v),
        "relu": attsvm.ReluHead(V),
        "concave": attsvm.ConcaveHead(v, 0.7),
        "callable": smooth_head,
    }[name]


def autograd(data, W, loss, head):
    """Loss written the plain way and differentiated by torch."""
    W = W.clone().requires_grad_()
    s = torch.softmax(attention_logits(data, W), dim=-1)
    composed = s @ data.X
    if isinstance(head, attsvm.LinearHead):
        h = composed @ torch.tensor(head.v.copy())
    elif isinstance(head, attsvm.ConcaveHead):
        h = composed @ torch.tensor(head.v.copy()) - head.lam * composed.square().sum(-1)
    elif isinstance(head, attsvm.ReluHead):
        h = torch.relu(composed @ torch.tensor(head.V.copy())).sum(-1)
    else:
        h = head(composed)
    value = attsvm.get_loss(loss).value(data.Y * h).sum(dim=(1, 2)) / data.X.shape[1]
    return torch.autograd.grad(value.sum(), W)[0]


@pytest.mark.parametrize("head", ["linear", "relu", "concave", "callable"])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("kind", ["one query", "K queries", "masked", "causal", "batch"])
def test_gradient_equals_autograd(rng, head, loss, kind):
    options = {
        "K queries": {"queries": 3, "dz": 6},
        "causal": {"kind": "sequence", "causal": True},
        "batch": {"batch": 3},
    }
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=rng, **options.get(kind, {}))
    if kind == "masked":
        problem = replace(problem, mask=np.arange(4) < np.array([[4], [2], [1]]))  # the last sees one token only
    chosen = make_head(head, rng, 5)
    problem = replace(problem, head=chosen)
    data = tensor_problem(problem)
    W = torch.tensor(rng.standard_normal((data.batch, 5, problem.dz)))
    gradient = scaled_gradient(data, W, loss)
    exact = gradient.direction * gradient.log_scale.exp()[:, None, None]
    reference = autograd(data, W, loss, chosen)
    # Both are sums of a few dozen products in float64.
    torch.testing.assert_close(exact, reference, rtol=1e-11, atol=1e-13)
    plain = naive_gradient(data, W, loss).direction
    torch.testing.assert_close(plain, reference, rtol=1e-11, atol=1e-13)


def exact_direction(problem, W, loss, slope):
    """Unit gradient with 4,000 digits, from equation (15); ``slope(x)`` is the head's gradient, ``None`` linear."""
    mpmath.mp.dps = 4000  # e^-5000 is 10^-2171: sums with 1 must keep digits beyond it
    mp = mpmath.mpf
    X = [[[mp(float(e)) for e in t] for t in x] for x in problem.X]
    Wm = [[mp(float(e)) for e in row] for row in W]
    total = mpmath.zeros(problem.dx, problem.dz)
    for i, tokens in enumerate(X):
        z = [mp(float(e)) for e in problem.Z[i]]
        key = [mpmath.fsum(w * e for w, e in zip(row, z, strict=True)) for row in Wm]
        logits = [mpmath.fsum(a * b for a, b in zip(t, key, strict=True)) for t in tokens]
        top = max(logits)
        weights = [mpmath.exp(h - top) for h in logits]
        s = [w / mpmath.fsum(weights) for w in weights]
        composed = [mpmath.fsum(s[t] * tokens[t][e] for t in range(len(s))) for e in range(problem.dx)]
        value, direction = slope(composed)
        y = mp(float(problem.Y[i]))
        u = [y * mpmath.fsum(a * b for a, b in zip(direction, t, strict=True)) for t in tokens]
        derivative = {
            "logistic": lambda a: -1 / (1 + mpmath.exp(a)),
            "exponential": lambda a: -mpmath.exp(-a),
            "correlation": lambda a: mp(-1),
        }[loss](y * value)
        mean = mpmath.fsum(a * b for a, b in zip(s, u, strict=True))
        in_logits = [derivative * s[t] * (u[t] - mean) for t in range(len(s))]
        pulled = [mpmath.fsum(in_logits[t] * tokens[t][e] for t in range(len(s))) for e in range(problem.dx)]
        for e, f in itertools.product(range(problem.dx), range(problem.dz)):
            total[e, f] += pulled[e] * z[f]
    size = mpmath.sqrt(mpmath.fsum(total[e, f] ** 2 for e in range(problem.dx) for f in range(problem.dz)))
    unit = [[float(total[e, f] / size) for f in range(problem.dz)] for e in range(problem.dx)]
    return np.array(unit), float(mpmath.log(size / problem.n))


@pytest.mark.parametrize("gap", [50, 500, 5000])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("head", ["linear", "concave"])
def test_direction_is_exact_however_saturated(gap, loss, head):
    problem = attsvm.random_problem(n=2, T=4, d=3, seed=3)
    v = [mpmath.mpf(float(e)) for e in problem.head.v]
    lam = 0.3

    def linear(x):
        return mpmath.fsum(a * b for a, b in zip(v, x, strict=True)), v

    def concave(x):
        value = linear(x)[0] - lam * mpmath.fsum(a * a for a in x)
        return value, [a - 2 * mpmath.mpf(lam) * b for a, b in zip(v, x, strict=True)]

    if head == "concave":
        problem = replace(problem, head=attsvm.ConcaveHead(problem.head.v, lam))
    W = gap * attsvm.att_svm(attsvm.random_problem(n=2, T=4, d=3, seed=3)).W  # smallest logit gap is `gap`
    gradient = scaled_gradient(tensor_problem(problem), torch.tensor(W)[None], loss)
    unit, log_size = exact_direction(problem, W, loss, {"linear": linear, "concave": concave}[head])
    ours = gradient.direction[0].numpy()
    size = np.linalg.norm(ours)
    assert np.linalg.norm(ours / size - unit) <= 1e-10
    assert np.log(size) + gradient.log_scale.item() == pytest.approx(log_size, abs=1e-9)
    if gap >= 500:  # where the published arithmetic has nothing left but rounding, or nothing at all
        plain = naive_gradient(tensor_problem(problem), torch.tensor(W)[None], loss).direction[0].numpy()
        assert np.linalg.norm(plain) == 0 or np.linalg.norm(plain / np.linalg.norm(plain) - unit) > 1e-2


def test_two_tokens_that_share_the_attention_are_fine():
    problem = attsvm.AttentionProblem([[[1.0], [1.0 - 1e-12], [0.0]]], [1], [[1.0]], lambda x: x[..., 0] ** 2)
    gradient = scaled_gradient(tensor_problem(problem), torch.full((1, 1, 1), 800.0).double(), "correlation")
    assert torch.isfinite(gradient.direction).all()
    assert gradient.direction.item() < 0


def test_equal_scores_have_zero_gradient():
    problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    flat = replace(problem, head=attsvm.LinearHead(np.zeros(4)))
    assert scaled_gradient(tensor_problem(flat), torch.ones(1, 4, 4).double(), "logistic").direction.abs().sum() == 0


def test_float32_keeps_the_direction():
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    W = 30 * attsvm.att_svm(problem).W
    wide = scaled_gradient(tensor_problem(problem), torch.tensor(W)[None], "logistic")
    narrow = scaled_gradient(tensor_problem(problem, dtype=torch.float32), torch.tensor(W).float()[None], "logistic")
    a, b = wide.direction[0], narrow.direction[0].double()
    # Logits of about 100 carry 1e-5 in single precision, and so does every weight.
    assert 1 - (a * b).sum() / (a.norm() * b.norm()) <= 1e-6


def test_heads_that_torch_cannot_read_are_named(rng):
    problem = replace(attsvm.random_problem(n=2, T=3, d=4, seed=0), head=lambda x: 3.0)
    with pytest.raises(ValueError, match="head must map torch tensors"):
        scaled_gradient(tensor_problem(problem), torch.zeros(1, 4, 4).double(), "logistic")
    with pytest.raises(ValueError, match="training needs a prediction head"):
        tensor_problem(replace(problem, head=None))
    with pytest.raises(ValueError, match="loss must be one of"):
        attsvm.train(attsvm.random_problem(n=2, T=3, d=4, seed=0), loss="hinge")


def linear_in_mpmath(v):
    v = [mpmath.mpf(float(e)) for e in v]
    return lambda x: (mpmath.fsum(a * b for a, b in zip(v, x, strict=True)), v)


def relu_in_mpmath(V):
    columns = [[mpmath.mpf(float(e)) for e in column] for column in np.asarray(V).T]

    def slope(x):
        hidden = [mpmath.fsum(a * b for a, b in zip(c, x, strict=True)) for c in columns]
        on = [c for c, h in zip(columns, hidden, strict=True) if h > 0]
        return mpmath.fsum(h for h in hidden if h > 0), [mpmath.fsum(c[e] for c in on) for e in range(len(x))]

    return slope


def hidden_by_a_query_without_gradient(name):
    """Problems in which one query has no gradient at all while the other is saturated; its W; and its exact head."""
    pair = [[[1.0, 0.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0]]]
    v, eye = [0.0, 1.0], np.eye(2)
    if name == "tied scores":
        return attsvm.AttentionProblem(pair, [1, 1], eye, attsvm.LinearHead(v)), [[0.1, 0.0], [0.3, 2000.0]], v
    if name == "zero query":
        X = [[[0.2, 1.0], [0.5, 0.0]], [[0.1, 1.0], [0.3, 0.0]]]
        return attsvm.AttentionProblem(X, [1, 1], [[0.0, 0.0], [0.5, 1.0]], attsvm.LinearHead(v)), 1500 * eye, v
    if name == "one token":
        mask = [[True, False], [True, True]]
        return attsvm.AttentionProblem(pair, [1, 1], eye, attsvm.LinearHead(v), mask), 1500 * eye, v
    if name == "tie within a query":  # two likely tokens are worth the same; only the third has a gradient
        X = [[[1.0, 1.0], [0.9, 1.0], [0.0, 0.0]], [[0.0, 1.0], [0.0, 0.0], [0.0, -1.0]]]
        return attsvm.AttentionProblem(X, [1, 1], eye, attsvm.LinearHead(v)), [[1200.0, 0.0], [900.0, 2500.0]], v
    if name == "flat loss":  # l'(u) = -e^-u underflows for the first query, and is too small to square for the second
        X = [[[0.0, 800.0], [0.0, 790.0]], [[0.0, 500.0], [0.1, 499.0]]]
        return attsvm.AttentionProblem(X, [1, 1], eye, attsvm.LinearHead(v)), [[0.01, 0.0], [0.2, 0.3]], v
    assert name == "dead ReLU"
    X = [[[-1.0, -2.0], [-2.0, -1.0]], [[1.0, 2.0], [0.5, 0.25]]]
    return attsvm.AttentionProblem(X, [1, 1], eye, attsvm.ReluHead(eye)), [[0.1, 0.2], [0.0, 1200.0]], None


SILENT = ["tied scores", "zero query", "one token", "tie within a query", "flat loss", "dead ReLU"]


@pytest.mark.parametrize("name", SILENT)
@pytest.mark.parametrize("loss", LOSSES)
def test_a_query_without_gradient_does_not_hide_the_others(name, loss):
    problem, W, v = hidden_by_a_query_without_gradient(name)
    gradient = scaled_gradient(tensor_problem(problem), torch.tensor(np.array(W))[None], loss)
    ours = gradient.direction[0].numpy()
    exact = relu_in_mpmath(problem.head.V) if v is None else linear_in_mpmath(v)
    if name == "one token":  # a query of one token has the gradient of one whose tokens are all the same
        X = np.array(problem.X)
        X[0, 1] = X[0, 0]
        problem = replace(problem, X=X, mask=None)
    unit, log_size = exact_direction(problem, np.array(W), loss, exact)
    size = np.linalg.norm(ours)
    assert size > 1e-100  # of moderate size: it can be squared
    assert np.linalg.norm(ours / size - unit) <= 1e-10
    assert np.log(size) + gradient.log_scale.item() == pytest.approx(log_size, abs=1e-9)


def test_problems_without_any_gradient_are_zero_beside_others_that_are_not():
    problem, W, _ = hidden_by_a_query_without_gradient("tied scores")
    stuck = replace(problem, head=attsvm.LinearHead([0.0, 0.0]))
    both = attsvm.AttentionProblem(
        np.stack([problem.X, stuck.X]),
        np.stack([problem.Y, stuck.Y]),
        np.stack([problem.Z, stuck.Z]),
        attsvm.LinearHead(np.stack([problem.head.v, stuck.head.v])),
    )
    gradient = scaled_gradient(tensor_problem(both), torch.tensor(np.array([W, W])), "logistic")
    assert gradient.direction[1].abs().sum() == 0
    assert gradient.log_scale[1] == 0
    alone = scaled_gradient(tensor_problem(problem), torch.tensor(np.array(W))[None], "logistic")
    torch.testing.assert_close(gradient.direction[:1], alone.direction, rtol=0, atol=0)
    for name in ("tied scores", "zero query"):  # without ties the gradient takes its short cut
        zero = replace(hidden_by_a_query_without_gradient(name)[0], Z=np.zeros((2, 2)))
        data = tensor_problem(zero)
        assert data.irregular == (name == "tied scores")
        found = scaled_gradient(data, torch.tensor(np.array(W))[None], "logistic")
        assert found.direction.abs().sum() == 0
        assert torch.isfinite(found.log_scale).all()


def test_a_repeated_problem_stores_its_tokens_once_and_has_the_same_gradient():
    for problem in (
        attsvm.random_problem(n=3, T=5, d=4, seed=0),
        attsvm.random_problem(n=2, T=4, d=5, kind="sequence", causal=True, seed=0),
    ):
        shared = tensor_problem(problem.repeat(6))
        stored = replace(shared, X=shared.X.contiguous(), Z=shared.Z.contiguous())
        assert shared.is_repeated and not stored.is_repeated
        assert shared.X.untyped_storage().nbytes() * 6 == stored.X.untyped_storage().nbytes()
        W = torch.randn(6, problem.dx, problem.dz, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        one, other = scaled_gradient(shared, W, "logistic"), scaled_gradient(stored, W, "logistic")
        # The same sums in another order.
        assert torch.allclose(one.direction, other.direction, rtol=1e-12, atol=1e-14)
        assert torch.allclose(one.log_scale, other.log_scale, rtol=1e-12)
