"""Small transformers, corpora and training loops that the experiments of the papers use."""

from attsvm._lazy import attach

# Loaded at first use: these need torch.
_LAZY = {
    "Corpus": "language_model",
    "InductionTask": "symbol_transformers",
    "LanguageModel": "language_model",
    "LanguageRun": "language_model",
    "SetTask": "symbol_transformers",
    "SmallTransformer": "symbol_transformers",
    "TransformerSpec": "symbol_transformers",
    "flip_rates": "symbol_transformers",
    "induction_report": "symbol_transformers",
    "read_wikitext": "language_model",
    "synthetic_corpus": "language_model",
    "train_classifier": "symbol_transformers",
    "train_induction": "symbol_transformers",
    "train_language_model": "language_model",
}

__all__ = sorted(_LAZY)
__getattr__, __dir__ = attach(__name__, _LAZY, __all__)
