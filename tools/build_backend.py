"""Setuptools as the build backend, with a C compiler from the registry where the machine has none.

The library of `attsvm.solvers.compiled` is C without headers of Python. Where Python's own compiler is not found, the
package ``ziglang``, which carries one, is asked for and used: an installation needs Python and pip, nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (  # noqa: F401  the rest of the interface is setuptools' own
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

Settings = dict[str, Any] | None


def _needs_compiler() -> bool:
    command = os.environ.get("CC") or sysconfig.get_config_var("CC") or ""
    return os.name == "posix" and not (command and shutil.which(command.split()[0]))


def _compiler() -> list[str]:
    return ["ziglang"] if _needs_compiler() else []


def _use_compiler() -> None:
    if _needs_compiler():
        os.environ["CC"] = f"{sys.executable} -m ziglang cc"
        os.environ["LDSHARED"] = f"{sys.executable} -m ziglang cc -shared"


def get_requires_for_build_wheel(config_settings: Settings = None) -> list[str]:
    """What setuptools asks for, and a compiler."""
    return [*build_meta.get_requires_for_build_wheel(config_settings), *_compiler()]


def get_requires_for_build_editable(config_settings: Settings = None) -> list[str]:
    """What setuptools asks for, and a compiler."""
    return [*build_meta.get_requires_for_build_editable(config_settings), *_compiler()]


def build_wheel(wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None) -> str:
    """As setuptools builds it."""
    _use_compiler()
    return build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str, config_settings: Settings = None, metadata_directory: str | None = None
) -> str:
    """As setuptools builds it."""
    _use_compiler()
    return build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
