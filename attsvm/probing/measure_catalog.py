"""Every measure by name: which theory it belongs to and what it says, in one sentence."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from attsvm.solvers.arrays import FloatArray

if TYPE_CHECKING:
    from attsvm.probing.head_data import HeadData

THEORIES = {
    "svm": "Max-margin selection",
    "conditioning": "Conditioning",
    "polarization": "Polarization",
    "localization": "Localization",
    "specialization": "Specialization",
}


@dataclass(frozen=True)
class Measure:
    """One column of the table.

    Attributes
    ----------
    name : str
        Of the column; ``name_low`` and ``name_high`` bound it (95 %, over sequences), ``name_random`` and
        ``name_shuffled`` are its baselines.
    theory : str
    label : str
    sentence : str
        What the number means.
    share : bool
        Whether it lies in [0, 1].
    baseline : bool
        Whether it is measured on the baselines too.
    size : bool
        Whether it is never negative.
    function : callable, optional
        Maps a `HeadData` to one number per sequence, shape (n,). An entry of `MEASURES` that has one is a column of
        every table; the library's own measures share work and are computed together.
    """

    name: str
    theory: str
    label: str
    sentence: str
    share: bool = False
    baseline: bool = True
    size: bool = False
    function: Callable[[HeadData], FloatArray] | None = field(default=None, repr=False)

    def record(self) -> dict[str, object]:
        """What is said of it, for a page."""
        return {name: value for name, value in vars(self).items() if name != "function"}


# A theory in brackets, then its measures: name, label, marks, meaning. share: in [0, 1]; size: never negative;
# alone: without baselines.
_TEXT = """\
[svm]
selects_first: selects the first token (share)
    Share of queries whose highest logit is on the first token.
selects_last: selects the last token (share)
    Share of queries whose highest logit is on the last token of the sequence.
selects_self: selects its own token (share)
    Share of queries whose highest logit is on themselves.
selects_previous: selects the previous token (share)
    Share of queries whose highest logit is on the token before them.
selects_next: selects the next token (share)
    Share of queries whose highest logit is on the token after them.
selects_same: selects the same token (share)
    Of the queries whose token occurs elsewhere, the share that select one of those places.
distance: distance (size)
    Mean number of places between a query and the token it selects.
margin_min_frobenius: smallest margin / |W|_F (size)
    Smallest lead of a selected token over its closest competitor in a sequence, divided by the Frobenius norm
    of W: how firmly the head selects, whatever its scale.
margin_q10_frobenius: 10 % margin / |W|_F (size)
    The lead that nine tenths of the queries of a sequence exceed, over the Frobenius norm of W.
margin_median_frobenius: median margin / |W|_F (size)
    Median lead of the selected token, over the Frobenius norm of W.
margin_min_nuclear: smallest margin / |W|_* (size)
    Smallest lead of a selected token in a sequence, over the nuclear norm of W.
margin_q10_nuclear: 10 % margin / |W|_* (size)
    The lead that nine tenths of the queries exceed, over the nuclear norm of W.
margin_median_nuclear: median margin / |W|_* (size)
    Median lead of the selected token, over the nuclear norm of W.
effective_rank: effective rank of W (alone)
    Participation of the squared singular values of W: how many directions the head uses.
margin_ratio_frobenius: margin against the best, Frobenius (share)
    Margin of the head on the sampled rows over the largest margin that any W has for the same selections; 1
    only for the Att-SVM solution itself.
margin_ratio_nuclear: margin against the best, nuclear (share)
    The same against the largest margin per nuclear norm (Att-SVM*).
soft_ratio_frobenius: soft margin against the best, Frobenius (share)
    Smallest soft-margin objective of any W over the best that a multiple of the head's W reaches; 1 only for
    the soft Att-SVM solution.
soft_ratio_nuclear: soft margin against the best, nuclear (share)
    The same for the nuclear norm, with the W that was found: the true value lies between this and its least.
soft_ratio_nuclear_least: soft margin against the best, nuclear, proved least (share)
    Lower bound of the same from the dual: no W has a smaller objective.
correlation_frobenius: correlation with Att-SVM
    Cosine between W and the hard-margin solution of its own selections; compare with the random W, which scores
    well above 0 too.
correlation_nuclear: correlation with Att-SVM*
    Cosine between W and the nuclear-norm solution of its own selections.
correlation_seen_frobenius: correlation with Att-SVM, seen part
    Cosine of the part of W that the sampled tokens and queries can see with the Att-SVM solution, which lies there.
correlation_seen_nuclear: correlation with Att-SVM*, seen part
    The same for the nuclear-norm solution.
correlation_soft_frobenius: correlation with soft Att-SVM
    Cosine between W and the soft-margin solution of its own selections.
correlation_soft_nuclear: correlation with soft Att-SVM*
    Cosine between W and the soft-margin nuclear solution of its own selections.
rank_certified: certified rank of Att-SVM*
    No solution of the nuclear-norm problem has a rank above this (proved by its dual).
support_tokens: support tokens per query (size)
    Closest competitors: tokens on the margin of the Att-SVM solution, per query.
agreement_frobenius: held-out agreement of Att-SVM (share)
    Share of queries of held-out sequences for which the fitted SVM selects the head's token.
agreement_nuclear: held-out agreement of Att-SVM* (share)
    The same for the nuclear norm.

[conditioning]
log10_kappa: log10 condition number (size)
    Condition number of the softmax Jacobian (log10, mean over queries): how unequal the directions are in which
    the logits can still be trained.
delta: separation Delta (size)
    Lead of the tokens with at least half of the largest attention over all others, in logits.
gamma: spread Gamma (size)
    Width of the logits of those leading tokens.
noise_float32: gradient is rounding, float32 (share)
    Share of queries whose attention off the selected token is below the rounding of 1 in float32.
noise_bfloat16: gradient is rounding, bfloat16 (share)
    The same in bfloat16.
underflow_float32: gradient underflows, float32 (share)
    Share of queries for which every other token's weight underflows to zero in float32.
underflow_bfloat16: gradient underflows, bfloat16 (share)
    The same in bfloat16.

[polarization]
sink_share_first: sink share, first token (share)
    Share of attention on the first token, from queries elsewhere.
sink_share_last: sink share, last token (share)
    Share of attention on the last token, from queries elsewhere.
sink_share_any: sink share, any token (share)
    Share of attention on the token that gets most of it.
entropy: entropy (size)
    Mean entropy of the attention in nats.
entropy_share: entropy / largest (share)
    Entropy over the logarithm of the number of tokens: 1 is uniform, 0 one token.
sparsity: sparsity (share)
    Mean largest attention weight of a query.
flip_rate: one-token flip rate (share)
    Share of queries whose output changes to another sequence's when the most attended token is exchanged
    between the two.

[localization]
trace: trace of W_QK (alone)
    Sum of the eigenvalues of W_QK (steps between tokens for covariance, temperature included): positive values
    favour late tokens, negative ones early tokens.
scale: scale of W_QK (alone)
    Root of the sum of squared eigenvalues: large values localize.
rho_peak: peak of rho (share alone)
    Highest probability that a token passes a gradient, over places of a random walk with the model's steps.
rho_theta: place of the peak (share alone)
    Where in the sequence (0 first, 1 last) that probability peaks.
entropy_bound: entropy bound (size)
    No attention with these tokens and this norm of W has a lower entropy.
max_logit: largest logit
    Largest logit of a sequence; it grows before training diverges.

[specialization]
redundancy: redundancy (share alone)
    Largest affinity of its attention with that of another head; 1 is a copy.
importance: importance (alone)
    Relative change of the model's output when the head is removed.
softmax_one: softmax-1 change (alone)
    Relative change of the model's output if the head could attend to nothing (softmax-1).
softmax_one_mass: softmax-1 mass (share)
    Attention that softmax-1 would leave the head: low values mean that it would attend to nothing.
pruned_at: pruned as number (alone)
    Place in the order of greedy removal; 1 goes first.
"""


def _read(text: str) -> Iterator[Measure]:
    theory = ""
    for block in re.split(r"\n(?=\S)", text.strip()):
        if block.startswith("["):
            theory = block.strip().strip("[]")
            continue
        head, _, sentence = block.partition("\n")
        name, label, marks = re.fullmatch(r"(\w+): (.*?)(?: \(((?:share|alone|size| )+)\))?", head.strip()).groups()  # type: ignore[union-attr]
        marked = (marks or "").split()
        sentence = " ".join(sentence.split())
        yield Measure(name, theory, label, sentence, "share" in marked, "alone" not in marked, "size" in marked)


MEASURES: dict[str, Measure] = {measure.name: measure for measure in _read(_TEXT)}
