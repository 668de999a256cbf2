from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from attsvm.solvers.compiled import batched_pivoting, kernels

CACHED = (
    kernels._opened, kernels._library, kernels.why_missing, batched_pivoting._loaded, batched_pivoting.is_available
)  # fmt: skip


@pytest.fixture
def forget_library() -> Iterator[Callable[[], None]]:
    """Forgets what was found of the library, when it is called and at the end of the test."""

    def forget() -> None:
        for function in CACHED:
            function.cache_clear()

    yield forget
    forget()


@pytest.fixture
def without_library(
    forget_library: Callable[[], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[None]:
    """As on a machine where the library was not built."""
    monkeypatch.setattr(kernels, "_PATH", tmp_path / "_kernels.so")
    forget_library()
    assert kernels.why_missing() and not batched_pivoting.is_available()
    yield
