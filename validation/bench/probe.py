"""What a probe of MiniLM costs: the cheap measures of all heads, and the SVM measures of a few, carried on to all."""

from __future__ import annotations

import numpy as np

from attsvm.validation.bench.measure import Stopwatch, one_thread

__all__ = ["cheap_speed", "svm_speed"]

Numbers = dict[str, dict[str, float]]


def cheap_speed(seed: int, *, model: str = "minilm", sequences: int = 32, length: int = 128) -> Numbers:
    """Processor seconds of everything but the SVM solves, for every head of the model."""
    from attsvm.probing import probe
    from attsvm.validation.pretrained.transformer_models import english_paragraphs, installed_model

    loaded, texts = installed_model(model), english_paragraphs(sequences)
    with one_thread():
        watch = Stopwatch()
        table = probe(loaded.model, texts, tokenizer=loaded.tokenizer, svm=None, max_length=length, seed=seed)
        seconds = watch.seconds()
    return {"attsvm": {"seconds": seconds, "heads": float(len(table)), "tokens": float(table.about["tokens"])}}


def svm_speed(
    seed: int, *, model: str = "minilm", heads: int = 3, sequences: int = 32, length: int = 128, cores: int = 2
) -> Numbers:
    """Processor seconds per head of the SVM measures at the default budget, from some heads at random.

    ``minutes`` is what all heads would take on so many cores: an extrapolation, heads are independent.
    """
    from attsvm.probing import SvmBudget, capture
    from attsvm.probing.inputs import read_inputs
    from attsvm.probing.measures.svm import svm_measures
    from attsvm.validation.pretrained.transformer_models import english_paragraphs, installed_model

    loaded, budget = installed_model(model), SvmBudget()
    with one_thread():
        read = read_inputs(english_paragraphs(sequences), loaded.tokenizer, max_length=length)
        every = [head for layer in capture(loaded.model, read.batches) for head in layer]
        chosen = np.random.default_rng(seed).choice(len(every), min(heads, len(every)), replace=False)
        seconds, gaps = [], []
        for k in chosen:
            watch = Stopwatch()
            found = svm_measures(every[k], budget, seed)
            seconds.append(watch.seconds())
            gaps.append({name: float(value) for name, value in found.items() if name.startswith("gap_")})
    numbers = {
        "seconds": float(np.mean(seconds)),
        "slowest head": float(np.max(seconds)),
        "minutes for all heads on 2 cores": float(np.mean(seconds)) * len(every) / cores / 60.0,
        "gap": max(value for one in gaps for name, value in one.items() if name != "gap_soft_nuclear"),
        "gap of the soft nuclear solve": max(one["gap_soft_nuclear"] for one in gaps),
    }
    return {"attsvm": numbers}
