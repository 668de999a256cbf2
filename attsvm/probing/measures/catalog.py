"""Every measure by name: which theory it belongs to and what it says, in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["MEASURES", "THEORIES", "Measure", "describe"]

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
    """

    name: str
    theory: str
    label: str
    sentence: str
    share: bool = False
    baseline: bool = True


def _rows() -> tuple[Measure, ...]:
    svm, cond, pol, loc, spec = THEORIES
    return (
        Measure("selects_first", svm, "selects the first token", "Share of queries whose highest logit is on the first token.", True),
        Measure("selects_last", svm, "selects the last token", "Share of queries whose highest logit is on the last token of the sequence.", True),
        Measure("selects_self", svm, "selects its own token", "Share of queries whose highest logit is on themselves.", True),
        Measure("selects_previous", svm, "selects the previous token", "Share of queries whose highest logit is on the token before them.", True),
        Measure("selects_next", svm, "selects the next token", "Share of queries whose highest logit is on the token after them.", True),
        Measure("selects_same", svm, "selects the same token", "Of the queries whose token occurs elsewhere, the share that select one of those places.", True),
        Measure("distance", svm, "distance", "Mean number of places between a query and the token it selects."),
        Measure("margin_min_frobenius", svm, "smallest margin / |W|_F", "Smallest lead of a selected token over its closest competitor in a sequence, divided by the Frobenius norm of W: how firmly the head selects, whatever its scale."),
        Measure("margin_q10_frobenius", svm, "10 % margin / |W|_F", "The lead that nine tenths of the queries of a sequence exceed, over the Frobenius norm of W."),
        Measure("margin_median_frobenius", svm, "median margin / |W|_F", "Median lead of the selected token, over the Frobenius norm of W."),
        Measure("margin_min_nuclear", svm, "smallest margin / |W|_*", "Smallest lead of a selected token in a sequence, over the nuclear norm of W."),
        Measure("margin_q10_nuclear", svm, "10 % margin / |W|_*", "The lead that nine tenths of the queries exceed, over the nuclear norm of W."),
        Measure("margin_median_nuclear", svm, "median margin / |W|_*", "Median lead of the selected token, over the nuclear norm of W."),
        Measure("effective_rank", svm, "effective rank of W", "Participation of the squared singular values of W: how many directions the head uses.", baseline=False),
        Measure("margin_ratio_frobenius", svm, "margin against the best, Frobenius", "Margin of the head on the sampled rows over the largest margin that any W has for the same selections; 1 only for the Att-SVM solution itself.", True),
        Measure("margin_ratio_nuclear", svm, "margin against the best, nuclear", "The same against the largest margin per nuclear norm (Att-SVM*).", True),
        Measure("soft_ratio_frobenius", svm, "soft margin against the best, Frobenius", "Smallest soft-margin objective of any W over the best that a multiple of the head's W reaches; 1 only for the soft Att-SVM solution.", True),
        Measure("soft_ratio_nuclear", svm, "soft margin against the best, nuclear", "The same for the nuclear norm.", True),
        Measure("correlation_frobenius", svm, "correlation with Att-SVM", "Cosine between W and the hard-margin solution of its own selections; compare with the random W, which scores well above 0 too."),
        Measure("correlation_nuclear", svm, "correlation with Att-SVM*", "Cosine between W and the nuclear-norm solution of its own selections."),
        Measure("correlation_soft_frobenius", svm, "correlation with soft Att-SVM", "Cosine between W and the soft-margin solution of its own selections."),
        Measure("correlation_soft_nuclear", svm, "correlation with soft Att-SVM*", "Cosine between W and the soft-margin nuclear solution of its own selections."),
        Measure("rank_certified", svm, "certified rank of Att-SVM*", "No solution of the nuclear-norm problem has a rank above this (proved by its dual)."),
        Measure("support_tokens", svm, "support tokens per query", "Closest competitors: tokens on the margin of the Att-SVM solution, per query."),
        Measure("agreement_frobenius", svm, "held-out agreement of Att-SVM", "Share of queries of held-out sequences for which the fitted SVM selects the head's token.", True),
        Measure("agreement_nuclear", svm, "held-out agreement of Att-SVM*", "The same for the nuclear norm.", True),
        Measure("log10_kappa", cond, "log10 condition number", "Condition number of the softmax Jacobian (log10, mean over queries): how unequal the directions are in which the logits can still be trained."),
        Measure("delta", cond, "separation Delta", "Lead of the tokens with at least half of the largest attention over all others, in logits."),
        Measure("gamma", cond, "spread Gamma", "Width of the logits of those leading tokens."),
        Measure("noise_float32", cond, "gradient is rounding, float32", "Share of queries whose attention off the selected token is below the rounding of 1 in float32.", True),
        Measure("noise_bfloat16", cond, "gradient is rounding, bfloat16", "The same in bfloat16.", True),
        Measure("underflow_float32", cond, "gradient underflows, float32", "Share of queries for which every other token's weight underflows to zero in float32.", True),
        Measure("underflow_bfloat16", cond, "gradient underflows, bfloat16", "The same in bfloat16.", True),
        Measure("sink_first", pol, "sink score, first token", "Share of attention on the first token, from queries elsewhere.", True),
        Measure("sink_last", pol, "sink score, last token", "Share of attention on the last token, from queries elsewhere.", True),
        Measure("sink_any", pol, "sink score, any token", "Share of attention on the token that gets most of it.", True),
        Measure("entropy", pol, "entropy", "Mean entropy of the attention in nats."),
        Measure("entropy_share", pol, "entropy / largest", "Entropy over the logarithm of the number of tokens: 1 is uniform, 0 one token.", True),
        Measure("sparsity", pol, "sparsity", "Mean largest attention weight of a query.", True),
        Measure("flip_rate", pol, "one-token flip rate", "Share of queries whose output goes over to another sequence's when the most attended token is exchanged between the two.", True),
        Measure("trace", loc, "trace of W_QK", "Sum of the eigenvalues of W_QK (steps between tokens for covariance, temperature included): positive lets late tokens through, negative early ones.", baseline=False),
        Measure("scale", loc, "scale of W_QK", "Root of the sum of squared eigenvalues: large values localize.", baseline=False),
        Measure("rho_peak", loc, "peak of rho", "Highest probability that a token passes a gradient, over places of a random walk with the model's steps.", True, baseline=False),
        Measure("rho_theta", loc, "place of the peak", "Where in the sequence (0 first, 1 last) that probability peaks.", True, baseline=False),
        Measure("entropy_bound", loc, "entropy bound", "No attention with these tokens and this norm of W has a lower entropy."),
        Measure("max_logit", loc, "largest logit", "Largest logit of a sequence: what explodes before training does."),
        Measure("redundancy", spec, "redundancy", "Largest affinity of its attention with that of another head; 1 is a copy.", True, baseline=False),
        Measure("importance", spec, "importance", "Relative change of the model's output when the head is removed.", baseline=False),
        Measure("softmax_one", spec, "softmax-1 change", "Relative change of the model's output if the head could attend to nothing (softmax-1).", baseline=False),
        Measure("softmax_one_mass", spec, "softmax-1 mass", "Attention that softmax-1 would leave the head: low values mean that it would rather abstain.", True),
        Measure("pruned_at", spec, "pruned as number", "Place in the order of greedy removal; 1 goes first.", baseline=False),
    )  # fmt: skip


MEASURES: dict[str, Measure] = {row.name: row for row in _rows()}


def describe(name: str) -> str:
    """What a measure means, in one sentence.

    Examples
    --------
    >>> from attsvm.probing.measures.catalog import describe
    >>> describe("sparsity")
    'Mean largest attention weight of a query.'
    """
    if name not in MEASURES:
        raise ValueError(f"no measure is named {name!r}; there are {', '.join(MEASURES)}")
    return MEASURES[name].sentence
