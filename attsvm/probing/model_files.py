"""Models from files on this machine, for the command line: a folder of transformers, or a GGUF file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attsvm._lazy import need


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model with its tokenizer and a name for the page."""

    model: Any
    tokenizer: Any
    name: str


def load_model(path: str | Path) -> LoadedModel:
    """A model from a folder (``config.json``, weights, tokenizer) or from a ``.gguf`` file; nothing is downloaded.

    Pickled weights are read with ``weights_only``: a file that holds code is refused.

    Raises
    ------
    ValueError
        In one line, if it is no such folder or file, or is damaged.
    """
    need(f"probing {path}", "torch", "transformers")
    place = Path(path)
    if not place.exists():
        raise FileNotFoundError(2, "no such file", str(place))
    if place.is_file() and place.suffix != ".gguf":
        raise ValueError(f"{place} is no model: expected a folder with config.json, or a .gguf file")
    if place.is_dir() and not (place / "config.json").is_file():
        raise ValueError(f"{place} holds no config.json: it is no folder of a transformers model")
    folder, options = (place.parent, {"gguf_file": place.name}) if place.is_file() else (place, {})
    with quiet_transformers():
        try:
            return _loaded(folder, options, place.name)
        except ImportError:
            raise
        except (
            Exception
        ) as error:  # transformers and its readers raise many kinds; all mean that the files are no model
            line = " ".join(str(error).split())[:300]
            raise ValueError(f"{place} cannot be read as a model ({type(error).__name__}: {line})") from error


def _loaded(folder: Path, options: dict[str, str], name: str) -> LoadedModel:
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    local: dict[str, Any] = {"local_files_only": True, **options}
    config: Any = AutoConfig.from_pretrained(str(folder), **local)
    written = [word for word in getattr(config, "architectures", None) or [] if word.endswith("CausalLM")]
    kind: Any = AutoModelForCausalLM if written or options else AutoModel
    model = kind.from_pretrained(str(folder), dtype=torch.float32, **local)
    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(folder), **local)
    except (OSError, ValueError, KeyError):  # a model of images, or weights alone
        tokenizer = None
    return LoadedModel(model.eval(), tokenizer, name)


def _logging() -> Any:
    from transformers.utils import logging

    return logging


class quiet_transformers:
    """While open, transformers neither warns nor draws bars."""

    def __enter__(self) -> None:
        logging = _logging()
        self._level, self._bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()

    def __exit__(self, *_: object) -> None:
        logging = _logging()
        logging.set_verbosity(self._level)
        if self._bars:
            logging.enable_progress_bar()
