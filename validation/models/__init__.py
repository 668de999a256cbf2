"""Small transformers, corpora and training loops that the experiments of the papers use."""

from attsvm._lazy import attach

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

__all__ = sorted(_LAZY)
__getattr__, __dir__ = attach(__name__, _LAZY, __all__)
