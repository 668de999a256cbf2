"""Without an optional package: whatever needs it says which extra brings it."""

import json
import subprocess
import sys

import pytest

from attsvm._lazy import EXTRAS

# What is called, the package that it needs first, and the extra that the error must name.
WITHOUT_ALL = {
    "attsvm.sklearn": ("import attsvm; attsvm.sklearn", "sklearn", "sklearn"),
    "import attsvm.sklearn": ("import attsvm.sklearn", "sklearn", "sklearn"),
    "train": ("import attsvm; attsvm.train", "torch", "torch"),
    "import attsvm.training": ("from attsvm.training import train", "torch", "torch"),
    "attsvm.torch": ("import attsvm; attsvm.torch", "torch", "torch"),
    "Monitor": ("import attsvm; attsvm.Monitor", "torch", "torch"),
    "next_token.train": ("import attsvm; attsvm.next_token.train", "torch", "torch"),
    "descend": ("import attsvm; attsvm.dynamics.polarization.descend", "torch", "torch"),
    "specialization": ("import attsvm; attsvm.dynamics.specialization", "torch", "torch"),
    "probe": ("import attsvm; attsvm.probe(object(), ['a', 'b'])", "torch", "torch"),
    "attraction": (
        "import attsvm; attsvm.attraction(attsvm.random_problem(n=2, T=3, d=4, seed=0))", "torch", "torch"
    ),
    "to_torch": ("from attsvm.export import to_torch; to_torch([[1.0]])", "torch", "torch"),
    "device": ("from attsvm.training.tensors import torch_device; torch_device('cpu')", "torch", "torch"),
    "to_onnx": ("from attsvm.export import to_onnx; to_onnx([[1.0]], 'a.onnx')", "onnx", "onnx"),
    "save_factors": (
        "from attsvm.export import save_factors; save_factors([[1.0]], 'a.safetensors')", "safetensors", "probe"
    ),
    "to_frame": ("from attsvm.probing import ProbeTable; ProbeTable((), {}).to_frame()", "pandas", "tables"),
    "to_parquet": ("from attsvm.probing import ProbeTable; ProbeTable((), {}).to_parquet('a')", "pyarrow", "tables"),
    "load_model": ("from attsvm.probing.model_files import load_model; load_model('m')", "torch and transformers",
                   "torch,probe"),
    "draw_selection_graph": (
        "import attsvm; from attsvm.enumeration import draw_selection_graph; "
        "draw_selection_graph(attsvm.selection_graph(attsvm.random_problem(n=2, T=3, d=4, seed=0)))",
        "matplotlib", "plot",
    ),
}  # fmt: skip
WITH_TORCH = {
    "trainer_callback": (
        "from attsvm.probing.monitor import trainer_callback; trainer_callback(None)", "transformers", "probe"
    ),
    "lightning_callback": (
        "from attsvm.probing.monitor import lightning_callback; lightning_callback(None)", "lightning", "lightning"
    ),
    "TensorBoardWriter": (
        "from attsvm.probing.monitor import TensorBoardWriter; TensorBoardWriter('a')", "tensorboard", "probe"
    ),
    "load_model": ("from attsvm.probing.model_files import load_model; load_model('m')", "transformers", "probe"),
    "plot": (
        "import attsvm; p = attsvm.random_problem(n=2, T=3, d=4, seed=0); "
        "attsvm.compare(attsvm.train(p, steps=2)).plot()", "matplotlib", "plot",
    ),
}  # fmt: skip

# The import hook of a package that is not installed; what is imported already stays.
HIDE = """
import json, sys
from importlib.abc import MetaPathFinder
import importlib.util
hidden, calls = map(json.loads, sys.argv[1:])
class Hidden(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name in hidden else found(name, package)
said = {}
for name, code in calls.items():
    try:
        exec(code, {})
        said[name] = "nothing was raised"
    except Exception as error:
        said[name] = f"{type(error).__name__}: {error}"
print(json.dumps(said))
"""


@pytest.mark.parametrize(
    ("calls", "kept"), [(WITHOUT_ALL, ()), (WITH_TORCH, ("torch",))], ids=["no extra", "torch only"]
)
def test_the_extra_is_named(calls, kept, tmp_path):
    hidden = [module for module in EXTRAS if module not in kept]
    given = json.dumps(hidden), json.dumps({name: code for name, (code, _, _) in calls.items()})
    done = subprocess.run([sys.executable, "-c", HIDE, *given], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name, (_, module, extra) in calls.items():
        assert said[name].startswith("ModuleNotFoundError"), (name, said[name])
        assert said[name].endswith(f" needs {module}: pip install 'attsvm[{extra}]'"), (name, said[name])


def test_compare_needs_no_torch_to_refuse_what_is_no_run():
    code = (
        "import sys; sys.modules['torch'] = None\nimport attsvm\n"
        "try:\n    attsvm.compare(3)\nexcept TypeError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "compare takes a Run first, as train returns it, got int\n"
