"""Problem files: `.npz` and `.safetensors` with one documented schema, read without trusting them."""

from attsvm.files.errors import MAX_BYTES, ProblemFileError
from attsvm.files.problems import ProblemFile, load_problem, read_problem_file, save_problem
from attsvm.files.results import save_arrays
from attsvm.files.schema import SCHEMA

__all__ = [
    "MAX_BYTES",
    "SCHEMA",
    "ProblemFile",
    "ProblemFileError",
    "load_problem",
    "read_problem_file",
    "save_arrays",
    "save_problem",
]
