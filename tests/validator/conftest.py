"""Roots of systems with the stand-in for NVIDIA's library."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.real.conftest import describe_machine
from tests.gpu.conftest import nvml_library  # noqa: F401 - fixture
from tests.testbed.nvml.shim import Shim, build_cuda

CARDS = "2xT4"


class Root:
    """The root of a system, of a node or of a driver container."""

    def __init__(self, library: Path, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self._library = library
        self.shim: Shim | None = None

    def install(self, folder: str = "usr/lib/x86_64-linux-gnu", cards: str = CARDS, **more: object) -> Shim:
        """Put the driver's library into a folder."""
        (self.path / folder).mkdir(parents=True, exist_ok=True)
        self.shim = Shim(self._library, self.path / folder)
        build_cuda(self.path / folder)
        self.have(cards, **more)
        return self.shim

    def have(self, cards: str = CARDS, **more: object) -> None:
        """Have these cards; `errors` and `version` as the stand-in has them."""
        assert self.shim is not None
        text = describe_machine(cards) if cards else "driver 615.71.05\ncuda 13040\n"
        errors = "".join(f"error {name} {code}\n" for name, code in dict(more.get("errors") or {}).items())  # type: ignore[call-overload]
        lines = text.splitlines(keepends=True)
        if version := more.get("version"):
            lines[0] = f"driver {version}\n"
        self.shim.write("".join([*lines[:2], errors, *lines[2:]]))

    def remove(self) -> None:
        """Have no driver any more."""
        assert self.shim is not None
        self.shim.library.unlink()


NewRoot = Callable[[str], Root]


@pytest.fixture
def new_root(nvml_library: Path, tmp_path: Path) -> NewRoot:  # noqa: F811
    """Makes roots."""
    return lambda name: Root(nvml_library, tmp_path / name)


def compiled(folder: Path, name: str, source: str) -> Path:
    """A library of the test's own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.c"
    path.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / name, path], check=True)
    path.unlink()
    return folder / name
