"""What the measures of one layer share: who is padding, where a sequence starts and ends, how its tokens move.

What a number is compared with: the same head with a random W of the same spectrum, and with shuffled tokens.

Which tokens a head selects, and by what margin: the part of the SVM measures that needs no solve.

How hard a head is to train further: condition of its softmax, separation of its tokens, gradients that are lost.

Where a head lets a signal through: eigenspectrum of W_QK, rho(theta), the entropy bound and the largest logit.

How polarized a head's attention is: sinks, entropy, sparsity, and what exchanging one token does to its output.

All measures of a head that need no solve and no further run of the model, with intervals and baselines.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.curvature import separation
from attsvm.dynamics.conditioning.prompt_model import PromptProblem
from attsvm.dynamics.localization.eigenspectrum import Covariance, qk_spectrum, read_covariance
from attsvm.dynamics.localization.entropy_bounds import entropy_lower_bound, spectral_norm
from attsvm.dynamics.localization.propagation import signal_propagation
from attsvm.dynamics.localization.propagation_profile import summarize
from attsvm.dynamics.polarization.attention_metrics import sink_score, sparsity_score
from attsvm.probing.head_data import HeadData, LayerData
from attsvm.probing.measure_catalog import MEASURES
from attsvm.records import mean_of, mean_share_of
from attsvm.softmax import condition_number, entropy, log_softmax
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.trained_head import TrainedHead


@dataclass(frozen=True, eq=False)
class Context:
    """Of one layer on one set of sequences.

    Attributes
    ----------
    layer : LayerData
    ids : ndarray of int, shape (n, T), or None
        Token numbers, for heads that look for the same token.
    """

    layer: LayerData
    ids: IntArray | None = None
    _norms: dict[tuple[bool, int], FloatArray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def keys(self) -> BoolArray:
        """Tokens that some query that counts may see, shape (n, Tk)."""
        seen = self.layer.allowed & self.layer.valid[..., None]
        return np.asarray(seen.any(axis=1))

    @cached_property
    def first(self) -> IntArray:
        """First token of each sequence, shape (n,)."""
        return np.asarray(self.keys.argmax(axis=1))

    @cached_property
    def last(self) -> IntArray:
        """Last token of each sequence, shape (n,)."""
        return np.asarray(self.keys.shape[1] - 1 - self.keys[:, ::-1].argmax(axis=1))

    @property
    def lengths(self) -> IntArray:
        """Tokens of each sequence, shape (n,)."""
        return np.asarray(self.keys.sum(axis=1))

    def token_norms(self, biased: bool, tokens: npt.NDArray[np.floating]) -> FloatArray:
        """Largest singular value of the tokens of each sequence, with a constant 1 if biased, shape (n,)."""
        key = (biased, id(tokens))
        if key not in self._norms:
            x = np.where(self.keys[..., None], tokens, 0.0).astype(np.float64)
            gram = x @ x.swapaxes(-1, -2)
            if biased:
                gram = gram + self.keys[:, :, None] * self.keys[:, None, :]
            self._norms[key] = np.sqrt(np.maximum(np.linalg.eigvalsh(gram)[:, -1], 0.0))
        return self._norms[key]

    @cached_property
    def steps(self) -> Covariance | None:
        """Covariance of the step from a token to the next, as the theory of localization requires."""
        x = self.layer.tokens.astype(np.float64)
        both = self.keys[:, 1:] & self.keys[:, :-1]
        steps = (x[:, 1:] - x[:, :-1])[both]
        if len(steps) < 2:
            return None
        return read_covariance(steps.T @ steps / len(steps), x.shape[-1])


def per_sequence(values: npt.NDArray[np.floating], head: HeadData, where: BoolArray | None = None) -> FloatArray:
    """Mean over the queries that count of each sequence, shape (n,); NaN without such a query.

    Parameters
    ----------
    values : ndarray, shape (n, Tq)
    head : HeadData
    where : ndarray of bool, shape (n, Tq), optional
        Which queries, of those that count.
    """
    keep = head.counts if where is None else head.counts & where
    total = np.where(keep, values, 0.0).sum(axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(total / np.where(keep.any(axis=1), keep.sum(axis=1), np.nan))


def _orthonormal(rng: np.random.Generator, d: int, r: int) -> FloatArray:
    """Columns uniform among orthonormal ones, shape (d, r)."""
    Q, R = np.linalg.qr(rng.normal(size=(d, r)))
    return np.asarray(Q * np.sign(np.diagonal(R)))


def random_spectrum(head: HeadData, seed: int | np.random.Generator = 0) -> HeadData:
    """The head with ``U S V^T`` in place of its W: its singular values, random singular vectors.

    Masks, offsets and tokens stay. In head space W = I becomes a random rotation.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.probing import heads_from_arrays
    >>> from attsvm.trained_head import TrainedHead
    >>> rng = np.random.default_rng(0)
    >>> known = TrainedHead.from_weights(rng.normal(size=(2, 6)), rng.normal(size=(2, 6)))
    >>> head = heads_from_arrays(rng.normal(size=(3, 5, 6)), [known])[0]
    >>> drawn = random_spectrum(head)
    >>> bool(np.allclose(drawn.singular_values, head.singular_values)), bool(np.allclose(drawn.matrix, head.matrix))
    (True, False)
    """
    rng = np.random.default_rng(seed)
    if head.space == "head":
        return replace(head, q=head.q @ _orthonormal(rng, head.q.shape[-1], head.q.shape[-1]))
    assert head.weights is not None
    known, values = head.weights, head.singular_values
    U = _orthonormal(rng, known.key_map.shape[1], len(values))
    V = _orthonormal(rng, known.query_map.shape[1], len(values))
    drawn = TrainedHead((U * values).T, V.T, 1.0, known.biased)
    tokens, queries = head.points()
    return replace(head, k=tokens @ drawn.key_map.T, q=queries @ drawn.query_map.T, scale=1.0, weights=drawn)


def shuffled_tokens(head: HeadData, seed: int | np.random.Generator = 0) -> HeadData:
    """The head with its tokens randomly permuted over all sequences and places, which removes their order.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.probing import heads_from_arrays
    >>> from attsvm.trained_head import TrainedHead
    >>> same = TrainedHead.from_weights(np.eye(4), np.eye(4))
    >>> head = heads_from_arrays(np.random.default_rng(0).normal(size=(3, 5, 4)), [same])[0]
    >>> permuted = shuffled_tokens(head)
    >>> bool(np.allclose(np.sort(permuted.k.ravel()), np.sort(head.k.ravel()))), bool(np.allclose(permuted.k, head.k))
    (True, False)
    """
    rng = np.random.default_rng(seed)
    real = (head.allowed & head.valid[..., None]).any(axis=1)
    order = rng.permutation(int(real.sum()))
    out = {}
    for name in ("k", "v", "tokens"):
        values = getattr(head, name)
        if values is not None:
            permuted = values.copy()
            permuted[real] = values[real][order]
            out[name] = permuted
    return replace(head, **out)


_UNIFORM = 0.98  # share of the largest entropy from which a head counts as uniform


def head_gaps(head: HeadData) -> FloatArray:
    """Lead of the selected token over the next in logits, shape (n, Tq); nan for queries that see one token."""
    logits = head.logits
    if logits.shape[-1] < 2:
        return np.full(logits.shape[:-1], np.nan)
    top = np.partition(logits, -2, axis=-1)[..., -2:]
    with np.errstate(invalid="ignore"):
        gaps = top[..., 1] - top[..., 0]
    return np.where(head.counts & (head.seen > 1), gaps, np.nan)


def selection_measures(head: HeadData, context: Context) -> dict[str, Any]:
    """Places of the selected tokens, and the head's margins over the norms of its W.

    Returns
    -------
    dict
        Arrays of one number per sequence, and ``kind``.
    """
    chosen, queries = head.selected, np.arange(head.q.shape[1])[None]
    found: dict[str, Any] = {
        "selects_first": per_sequence(chosen == context.first[:, None], head, head.seen > 1),
        "selects_last": per_sequence(chosen == context.last[:, None], head, head.seen > 1),
    }
    if head.attends == "self":
        several = head.seen > 1
        for name, shift in (("selects_self", 0), ("selects_previous", -1), ("selects_next", 1)):
            found[name] = per_sequence(chosen == queries + shift, head, several)
        found["distance"] = per_sequence(np.abs(chosen - queries), head, several)
        found["selects_same"] = _same(head, context)
    gaps = head_gaps(head)
    values = head.singular_values
    norms = {"frobenius": float(np.linalg.norm(values)), "nuclear": float(values.sum())}
    some = np.isfinite(gaps)
    inside = [row[keep] for row, keep in zip(gaps, some, strict=True)]
    for norm, size in norms.items():
        for label, q in (("min", 0.0), ("q10", 0.1), ("median", 0.5)):
            cut = np.array([np.quantile(row, q) if len(row) else np.nan for row in inside])
            found[f"margin_{label}_{norm}"] = cut / size if size > 0 else np.full(head.n, np.nan)
    share = entropy(log_attention=head.log_attention) / np.log(np.maximum(head.seen, 2))
    found["entropy_share"] = per_sequence(share, head, head.seen > 1)
    found["kind"] = head_kind({name: np.nanmean(value) for name, value in found.items() if np.isfinite(value).any()})
    return found


def _same(head: HeadData, context: Context) -> FloatArray:
    """Queries whose token occurs elsewhere and that select one of those places."""
    if context.ids is None or context.ids.shape[1] != head.q.shape[1]:
        return np.full(head.n, np.nan)
    ids = context.ids
    twins = (ids[:, :, None] == ids[:, None, :]) & head.allowed & ~np.eye(ids.shape[1], dtype=bool)
    hit = np.take_along_axis(twins, head.selected[..., None], axis=-1)[..., 0]
    return per_sequence(hit, head, twins.any(axis=-1))


def head_kind(means: dict[str, Any]) -> str:
    """What a head selects for most of its queries: where their highest logits are, not how much attention is there.

    The share of attention that a token gets is its sink share, ``sink_share_first`` and the like.

    Examples
    --------
    >>> head_kind({"entropy_share": 0.3, "selects_first": 0.9}), head_kind({"entropy_share": 0.99})
    ('first token', 'uniform')
    """
    if means.get("entropy_share", 0.0) >= _UNIFORM:
        return "uniform"
    words = {
        "selects_previous": "previous token",
        "selects_next": "next token",
        "selects_self": "own token",
        "selects_same": "same token",
        "selects_first": "first token",
        "selects_last": "last token",
    }
    best = max(words, key=lambda name: means.get(name, 0.0))
    return words[best] if means.get(best, 0.0) > 0.5 else "mixed"


# Unit roundoff and smallest positive number of the formats that models are trained in.
FORMATS = {"float32": (2.0**-24, 2.0**-149), "bfloat16": (2.0**-8, 2.0**-133)}


def log_rest(head: HeadData) -> tuple[FloatArray, FloatArray]:
    """Logarithm of the attention off the selected token, and of its largest part, shape (n, Tq)."""
    logs = head.log_attention.copy()
    np.put_along_axis(logs, head.selected[..., None], -np.inf, axis=-1)
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(logs - safe[..., None]).sum(axis=-1)), top


def conditioning_measures(head: HeadData, *, queries: int = 8, seed: int = 0) -> dict[str, Any]:
    """Condition number of the softmax Jacobian, Delta and Gamma, and the share of queries whose gradient is lost.

    Parameters
    ----------
    head : HeadData
    queries : int
        Per sequence, for the condition number and the separation; the shares are over all queries.
    seed : int
        Of the choice of queries.

    Returns
    -------
    dict
        One number per sequence. ``noise_*``: the attention off the selected token is below the rounding of 1, so that
        its own gradient ``s (1 - s)`` is rounding; ``underflow_*``: every other weight underflows to zero.
    """
    rest, second = log_rest(head)
    several = head.seen > 1
    found: dict[str, Any] = {}
    for name, (roundoff, least) in FORMATS.items():
        found[f"noise_{name}"] = per_sequence(rest < np.log(roundoff), head, several)
        found[f"underflow_{name}"] = per_sequence(second < np.log(least), head, several)
    kappa, gap, spread = (np.full(several.shape, np.nan) for _ in range(3))
    rng = np.random.default_rng(seed)
    drawn: list[tuple[int, int]] = []
    for i, keep in enumerate(head.counts & several):
        places = np.flatnonzero(keep)
        drawn += [(i, int(q)) for q in rng.permutation(places)[:queries]]
    for count in sorted({int(head.seen[place]) for place in drawn}):  # softmaxes of equal length together
        rows = tuple(np.array([place for place in drawn if head.seen[place] == count]).T)
        logits = np.sort(head.logits[rows], axis=-1)[:, -count:]
        logs = log_softmax(logits)
        kappa[rows] = condition_number(log_attention=logs, log=True) / np.log(10.0)
        gap[rows], spread[rows] = _separations(logits, logs)
    for name, values in (("log10_kappa", kappa), ("delta", gap), ("gamma", spread)):
        found[name] = _means(values)
    return found


def _means(values: FloatArray) -> FloatArray:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))


def _separations(logits: FloatArray, logs: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Delta and Gamma of each query: the prompt model with logits for keys, p = 1; nan where all tokens are alike."""
    members = logs >= logs.max(axis=-1, keepdims=True) - np.log(2.0)
    some = ~members.all(axis=-1)
    gap, spread = np.full(len(logits), np.nan), np.full(len(logits), np.nan)
    if some.any():
        problem = PromptProblem(X=logits[some][..., None], y=np.zeros(int(some.sum())), v=np.ones(1))
        apart = separation(problem, np.ones(1), members[some])
        gap[some], spread[some] = apart.gap, apart.spread
    return gap, spread


def localization_curve(head: HeadData, context: Context) -> dict[str, Any]:
    """Eigenspectrum of ``W_QK Sigma`` (Sigma: the covariance of steps between tokens), rho and its site.

    In head space W_QK is that of a token with itself: a rotation apart, tokens meet another one. Without any W
    (normalized queries and keys) and for cross-attention the theory has nothing to say, and the dict is empty.
    """
    if head.weights is None or head.attends == "cross" or context.steps is None:
        return {}
    known = head.weights
    pair = tuple(m[:, : head.tokens.shape[-1]] for m in (known.query_map, known.key_map))  # without the biases
    if not (np.any(pair[0]) and np.any(pair[1])):
        return {}
    spectrum = qk_spectrum(pair, context.steps)
    temperature = 1.0 / abs(known.scale)
    T = max(2, int(np.median(context.lengths)))
    passed = signal_propagation(spectrum, T, temperature=temperature, method="gaussian")
    site = summarize(passed.rho, passed.theta)
    return {
        "trace": spectrum.trace / temperature,
        "scale": float(np.sqrt(abs(spectrum.trace_squared))) / temperature,
        "site": site.site,
        "rho_peak": site.peak,
        "rho_theta": site.peak_theta,
        "rho": passed.rho,
        "eigenvalues": np.sort(np.abs(spectrum.eigenvalues))[::-1] / temperature,
    }


def localization_measures(head: HeadData, context: Context) -> dict[str, Any]:
    """Largest logit, and how far the entropy could fall, one number per sequence."""
    seen = head.allowed & head.counts[..., None]
    found: dict[str, Any] = {
        "max_logit": np.where(seen, head.logits, -np.inf).max(axis=(1, 2)),
        "entropy_bound": np.full(head.n, np.nan),
    }
    found["max_logit"][~np.isfinite(found["max_logit"])] = np.nan
    if head.offset is not None:  # an offset lifts logits that no norm of W bounds
        return found
    for i in range(head.n):
        counts = head.seen[i][head.counts[i] & (head.seen[i] > 1)]
        if len(counts):
            nu = _radius(head, context, i)
            sizes, times = np.unique(counts, return_counts=True)
            bounds = [float(entropy_lower_bound(nu, int(size))) for size in sizes]
            found["entropy_bound"][i] = float(np.dot(bounds, times) / times.sum())
    return found


def _radius(head: HeadData, context: Context, i: int) -> float:
    """nu: the norm of every query's logits is at most this."""
    real = context.keys[i]
    if head.space == "tokens" and head.attends == "self" and head.weights is not None:
        known = head.weights
        size = context.token_norms(known.biased, head.tokens)[i]
        return float(size) ** 2 * spectral_norm((known.query_map, known.key_map)) * abs(known.scale)
    keys, queries = head.k[i][real].astype(np.float64), head.q[i][head.counts[i]].astype(np.float64)
    return abs(head.scale) * float(np.linalg.norm(keys, 2)) * float(np.linalg.norm(queries, axis=-1).max())


def polarization_measures(head: HeadData, context: Context, *, seed: int = 0) -> dict[str, Any]:
    """Sink scores, entropy, sparsity and the one-token flip rate, one number per sequence.

    ``sink_share_first`` and ``sink_share_last`` are the shares of attention on the first and last token from queries
    elsewhere; ``sink_share_any`` that of the token with the largest share, whichever it is.
    """
    logs = head.log_attention
    attention = np.exp(logs)
    found: dict[str, Any] = {
        name: np.full(head.n, np.nan) for name in ("sink_share_first", "sink_share_last", "sink_share_any", "sparsity")
    }
    for group in _alike(head, context):
        one = group[0]
        rows, places = np.flatnonzero(head.counts[one]), np.flatnonzero(context.keys[one])
        if len(rows) < 2 or len(places) < 2:
            continue
        # Sequences take the axis of heads, so that each gets a score of its own.
        part = attention[np.ix_(np.array(group), rows, places)][None, :, None]
        found["sink_share_first"][group] = sink_score(part, sink=0, queries=slice(1, None))[0]
        found["sink_share_last"][group] = sink_score(part, sink=len(places) - 1, queries=slice(0, -1))[0]
        received = part[0, :, 0].mean(axis=1)  # every token's share, its own query included
        best = received.argmax(axis=-1)
        found["sink_share_any"][group] = np.take_along_axis(received, best[:, None], axis=-1)[:, 0]
        found["sparsity"][group] = sparsity_score(part)[0]
    found["entropy"] = per_sequence(entropy(log_attention=logs), head, head.seen > 1)
    found["flip_rate"] = flip_rate(head, seed=seed)
    return found


def _alike(head: HeadData, context: Context) -> list[list[int]]:
    """Sequences by their padding."""
    groups: dict[bytes, list[int]] = {}
    for i in range(head.n):
        groups.setdefault(head.counts[i].tobytes() + context.keys[i].tobytes(), []).append(i)
    return list(groups.values())


def flip_rate(head: HeadData, *, queries: int = 8, seed: int = 0) -> FloatArray:
    """Share of queries whose output goes over to another sequence's when one token is exchanged, shape (n,).

    Two sequences, a query at the same place in both; the token that each query attends to most is exchanged, and the
    query is flipped if its output is then nearer to what the other sequence gave than to what its own gave. It is the
    flip of a label (section 4.6 of the polarization paper) for a head that has no labels.

    Parameters
    ----------
    head : HeadData
        With values; without them outputs are mixtures of hidden states.
    queries : int
        Per pair of sequences.
    seed : int
    """
    rates = np.full(head.n, np.nan)
    if head.n < 2:
        return rates
    rng = np.random.default_rng(seed)
    values = (head.tokens if head.v is None else head.v).astype(np.float64)
    for i in range(head.n):
        j = (i + 1 + int(rng.integers(head.n - 1))) % head.n
        shared = np.flatnonzero(head.counts[i] & head.counts[j] & (head.seen[i] > 1) & (head.seen[j] > 1))
        if not len(shared):
            continue
        places = rng.permutation(shared)[:queries]
        rows = np.arange(len(places))
        mine, theirs = head.selected[i, places], head.selected[j, places]
        own, other = (np.exp(head.log_attention[s, places]) @ values[s] for s in (i, j))
        # Only the logit and the value of one token change.
        logits = head.logits[i, places].copy()
        place_of = np.arange(len(places))
        new = head.scale * np.einsum("qr,qr->q", head.q[i, places], head.k[j, theirs], dtype=np.float64)
        if head.offset is not None:
            new += np.broadcast_to(head.offset, head.logits.shape)[i, places, mine]
        logits[place_of, mine] = new
        weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        swapped = weights @ values[i] + weights[rows, mine][:, None] * (values[j, theirs] - values[i, mine])
        nearer = np.linalg.norm(swapped - other, axis=-1) < np.linalg.norm(swapped - own, axis=-1)
        rates[i] = nearer.mean()
    return rates


HISTOGRAM_BINS = 24


def softmax_one_factors(head: HeadData) -> FloatArray:
    """What softmax-1 multiplies a head's output by: ``Z / (1 + Z)`` with ``Z = sum_t e^{l_t}``, shape (n, Tq)."""
    logits = np.where(head.counts[..., None], head.logits, 0.0)
    top = np.maximum(logits.max(axis=-1), 0.0)
    log_z = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    return np.asarray(1.0 / (1.0 + np.exp(-log_z)))


def _measured(head: HeadData, context: Context, seed: int) -> dict[str, Any]:
    return {
        **selection_measures(head, context),
        **conditioning_measures(head, seed=seed),
        **polarization_measures(head, context, seed=seed),
        **localization_measures(head, context),
        "softmax_one_mass": per_sequence(softmax_one_factors(head), head),
        **{name: measure.function(head) for name, measure in MEASURES.items() if measure.function is not None},
    }


def add_interval(record: dict[str, Any], name: str, values: Any) -> None:
    """Mean over sequences with its 95 % interval, as three columns; within the values that the measure can take."""
    measure = MEASURES.get(name)
    found = (mean_share_of if measure is not None and measure.share else mean_of)(values)
    low = max(found.low, 0.0) if measure is not None and measure.size else found.low
    record[name], record[f"{name}_low"], record[f"{name}_high"] = found.value, low, found.high


def cheap_measures(
    head: HeadData, context: Context, *, baselines: int = 8, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One row of the table, and curves for the page.

    Parameters
    ----------
    head : HeadData
    context : Context
        Of its layer.
    baselines : int
        Sequences on which the baselines are measured, 0 for none.
    seed : int

    Returns
    -------
    record, details : dict
    """
    values = head.singular_values
    record: dict[str, Any] = {
        "layer": head.layer, "head": head.head, "name": head.name, "attends": head.attends, "space": head.space,
    }  # fmt: skip
    measured = _measured(head, context, seed)
    record["kind"] = measured.pop("kind")
    curve = localization_curve(head, context)
    record["site"] = curve.pop("site", None)
    details: dict[str, Any] = {"singular_values": values, "histogram": _histogram(head)}
    details |= {name: curve.pop(name) for name in ("rho", "eigenvalues") if name in curve}
    for name, found in measured.items():
        add_interval(record, name, found)
    squares = values**2
    total = float((squares**2).sum())
    record["effective_rank"] = float(squares.sum()) ** 2 / total if total > 0 else 0.0
    record |= curve
    if baselines:
        some = np.arange(min(baselines, head.n))
        part = head.take(some)
        inner = Context(_layer_part(context, some), None if context.ids is None else context.ids[some])
        for label, other in (("random", random_spectrum(part, seed)), ("shuffled", shuffled_tokens(part, seed))):
            for name, found in _measured(other, inner, seed).items():
                if name in MEASURES and MEASURES[name].baseline:
                    record[f"{name}_{label}"] = mean_of(found).value
    return record, details


def _layer_part(context: Context, some: Any) -> Any:
    from dataclasses import replace

    layer = context.layer
    return replace(
        layer, allowed=layer.allowed[some], valid=layer.valid[some], tokens=layer.tokens[some],
        queries=layer.queries[some],
    )  # fmt: skip


def _histogram(head: HeadData) -> dict[str, Any]:
    """Margins over the Frobenius norm of W, in bins."""
    gaps = head_gaps(head)
    size = float(np.linalg.norm(head.singular_values))
    inside = gaps[np.isfinite(gaps)] / size if size > 0 else np.zeros(0)
    if not len(inside):
        return {"edges": [], "counts": []}
    counts, edges = np.histogram(inside, bins=HISTOGRAM_BINS)
    return {"edges": edges, "counts": counts}
