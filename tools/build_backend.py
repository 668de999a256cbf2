"""Setuptools as the build backend, for a C library that knows nothing of Python.

The library of `attsvm.solvers.compiled` is C without headers of Python, which ctypes loads: one wheel of each system
serves every Python 3, free-threaded ones too. Where Python's own compiler is not found, the package ``ziglang``, which
carries one, is required and used: an installation needs Python and pip, nothing else.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from typing import Any

from setuptools import Extension, build_meta
from setuptools.build_meta import (  # noqa: F401  the rest of the interface is setuptools' own
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

Settings = dict[str, Any] | None

# Sums are not fused (clang would on ARM): a problem has the same solution whatever the compiler.
GNU_OPTIONS = ["-O3", "-std=c11", "-fvisibility=hidden", "-ffp-contract=off"]
MSVC_OPTIONS = ["/O2", "/std:c11", "/fp:precise"]


class BuildLibrary(build_ext):
    """A library in the place of an extension module."""

    def get_ext_filename(self, fullname: str) -> str:
        """The file without the name of a Python in it: see `_PATH` in kernels.py."""
        return os.path.join(*fullname.split(".")) + (".dll" if os.name == "nt" else ".so")

    def get_export_symbols(self, ext: Extension) -> list[str]:
        """None for the linker: what is exported is marked in the source."""
        return []

    def build_extension(self, ext: Extension) -> None:
        """With the options of the compiler that is used."""
        ext.extra_compile_args = MSVC_OPTIONS if self.compiler.compiler_type == "msvc" else GNU_OPTIONS
        super().build_extension(ext)


class BuildWheel(bdist_wheel):
    """A wheel for one system and every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """``py3-none-SYSTEM``."""
        return "py3", "none", super().get_tag()[2]


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
