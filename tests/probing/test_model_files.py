"""Models from files, the command, and what happens without the extras."""

import subprocess
import sys

import numpy as np
import pytest

import attsvm
from attsvm.probing import ProbeTable, SvmBudget, heads_from_arrays
from attsvm.probing.model_files import load_model

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    from probing.tiny_models import make
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    place = tmp_path_factory.mktemp("model")
    make("bert").save_pretrained(place)
    words = ["[PAD]", "[UNK]", *"abcdefghijklmnopqrstuvwxyz"]
    made = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(
        place
    )
    return place


def test_a_folder_becomes_a_page(folder, tmp_path, monkeypatch):
    from attsvm.cli import app
    from attsvm.cli.command_support import run_app

    (tmp_path / "text.txt").write_text("a b c d e f\nb c d e f g h i\nx y z a b c\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        run_app(app, ["probe", str(folder), "--text", "text.txt", "-o", "atlas.html", "--no-svm", "-q"])
    assert ended.value.code == 0
    assert "Layers and heads" in (tmp_path / "atlas.html").read_text()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("nothing", "no such file"),
        ("no config", "holds no config.json"),
        ("text", "is no model: expected a folder"),
        ("cut", "cannot be read as a model"),
        ("gguf", "cannot be read as a model"),
    ],
)
def test_a_wrong_file_is_one_line(folder, tmp_path, damage, message):
    place = tmp_path / "m"
    if damage == "no config":
        place.mkdir()
    elif damage == "text":
        place.write_text("hello")
    elif damage == "gguf":
        place = tmp_path / "m.gguf"
        place.write_bytes(b"GGUF" + bytes(100))
    elif damage == "cut":
        import shutil

        shutil.copytree(folder, place)
        weights = place / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises((ValueError, FileNotFoundError), match=message) as told:
        load_model(place)
    assert "\n" not in str(told.value)


def test_pickled_code_is_refused(folder, tmp_path):
    import pickle
    import shutil

    class Harm:
        def __reduce__(self):
            return (open, (str(tmp_path / "harmed"), "w"))

    place = tmp_path / "m"
    shutil.copytree(folder, place)
    (place / "model.safetensors").unlink()
    (place / "pytorch_model.bin").write_bytes(pickle.dumps({"x": Harm()}))
    with pytest.raises(ValueError, match="cannot be read as a model"):
        load_model(place)
    assert not (tmp_path / "harmed").exists()


def test_arrays_need_neither_torch_nor_transformers():
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "import numpy as np, attsvm\n"
        "from attsvm.probing import heads_from_arrays\n"
        "rng = np.random.default_rng(0)\n"
        "head = attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 2, 4)))\n"
        "table = attsvm.probe(heads_from_arrays(rng.normal(size=(4, 5, 4)), [head]), svm=None)\n"
        "print(len(table))\n"
        "try:\n    attsvm.probe(object(), np.ones(3))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "1" and "attsvm[torch]" in done.stdout


def test_the_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr("attsvm._lazy.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"attsvm\[torch,probe\]"):
        load_model("anything")


def test_ctranslate2_files(tmp_path):
    import struct

    from attsvm.validation.pretrained.installed_models import read_ctranslate2

    def text(word):
        return struct.pack("<H", len(word) + 1) + word.encode() + b"\0"

    values = np.arange(6, dtype=np.float16)
    body = struct.pack("<I", 6) + text("Spec") + struct.pack("<II", 1, 1) + text("a/weight")
    body += struct.pack("<BIIBI", 2, 2, 3, 4, 12) + values.tobytes()
    body += struct.pack("<I", 1) + text("b/weight") + text("a/weight")
    (tmp_path / "model.bin").write_bytes(body)
    found = read_ctranslate2(tmp_path / "model.bin")
    assert np.array_equal(found["b/weight"], values.reshape(2, 3))
    (tmp_path / "model.bin").write_bytes(body[:-30])
    with pytest.raises(ValueError, match="ends early"):
        read_ctranslate2(tmp_path / "model.bin")
    (tmp_path / "model.bin").write_bytes(b"\xff" * 40)
    with pytest.raises(ValueError, match="is no CTranslate2 model"):
        read_ctranslate2(tmp_path / "model.bin")


def test_the_svms_are_left_out_unless_asked_for_and_announced(folder, tmp_path, monkeypatch, capsys):
    """Piped, every step is a line on stderr, and the SVMs say how long they take before they start."""
    from attsvm.cli import app
    from attsvm.cli.command_support import run_app

    (tmp_path / "text.txt").write_text("a b c d e f\nb c d e f g h i\nx y z a b c\n")
    monkeypatch.chdir(tmp_path)
    columns, said = {}, {}
    for name, options in (("without", []), ("with", ["--svm", "--workers", "0"]), ("quiet", ["-q"])):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_app(app, ["probe", str(folder), "--text", "text.txt", "-o", "heads.json", "--removal", "1", *options])
        assert ended.value.code == 0
        said[name] = capsys.readouterr().err.splitlines()
        columns[name] = set(ProbeTable.read("heads.json").columns)
    assert "margin_ratio_frobenius" not in columns["without"] and "margin_ratio_frobenius" in columns["with"]
    steps = [line.split(": ")[1] for line in said["with"]]
    for step in ("running the model", "measuring heads", "removing heads", "solving SVMs"):
        assert step in steps
    announced = next(k for k, step in enumerate(steps) if step.startswith("solving SVMs, about "))
    assert announced < steps.index("solving SVMs") and " heads in 1 process" in steps[announced]
    assert not any("SVM" in line for line in said["without"]) and len(said["without"]) > 3
    assert said["quiet"] == []


def test_the_function_leaves_the_svms_out_unless_asked_for():
    rng = np.random.default_rng(0)
    layers = heads_from_arrays(
        rng.normal(size=(6, 5, 4)), [attsvm.TrainedHead.from_weights(*rng.normal(size=(2, 2, 4)))]
    )
    told = []
    assert "margin_ratio_frobenius" not in attsvm.probe(layers).columns
    asked = attsvm.probe(layers, svm=True, progress=lambda label, done, total: told.append(label))
    assert "margin_ratio_frobenius" in asked.columns and asked.about["svm"] == SvmBudget().record()
    assert any(label.startswith("solving SVMs, about ") for label in told)
