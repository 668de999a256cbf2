"""Problem files: `.npz` and `.safetensors` with one documented schema, parsed defensively."""

from attsvm.files.formats import MAX_BYTES, SCHEMA, ProblemFileError
from attsvm.files.problem_files import ProblemFile, load_problem, read_problem_file, save_arrays, save_problem

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
