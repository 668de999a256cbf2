"""Small transformers, corpora and training loops that the experiments of the papers use."""

from typing import Any

from attsvm._lazy import load

# Loaded at first use: all but the corpora need torch.
_LAZY = {
    "Corpus": "corpora",
    "InductionTask": "symbol_tasks",
    "LanguageModel": "language_model",
    "LanguageRun": "language_model",
    "SetTask": "symbol_tasks",
    "SmallTransformer": "small_transformer",
    "TransformerSpec": "small_transformer",
    "flip_rates": "transformer_training",
    "induction_report": "transformer_training",
    "read_wikitext": "corpora",
    "synthetic_corpus": "corpora",
    "train_classifier": "transformer_training",
    "train_induction": "transformer_training",
    "train_language_model": "language_model",
}


def __getattr__(name: str) -> Any:
    return load(__name__, {key: f"{__name__}.{module}" for key, module in _LAZY.items()}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


__all__ = [
    "Corpus",
    "InductionTask",
    "LanguageModel",
    "LanguageRun",
    "SetTask",
    "SmallTransformer",
    "TransformerSpec",
    "flip_rates",
    "induction_report",
    "read_wikitext",
    "synthetic_corpus",
    "train_classifier",
    "train_induction",
    "train_language_model",
]
