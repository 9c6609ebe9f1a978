"""NVIDIA's own parts that run without a card: the MPS control daemon and the NVML library, from Debian's archive.

`python -m tests.testbed.nvidia` (part of `make kube`) fetches them into the cache beside the programs of a cluster. The
machine's package sources and packages stay as they are: apt gets a list of its own, and the packages are only unpacked.
NVIDIA's licence allows use and no redistribution, so nothing of them is in the tree. Where they cannot be had `make
kube` says so and goes on, and the tests that need them are skipped.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.testbed.binaries import cache_root

#: Driver series, and the release of Debian that has it.
SERIES = {"535": "bookworm", "550": "trixie"}
_PACKAGES = ("nvidia-cuda-mps", "libcuda1", "libnvidia-ml1")
_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_ARCHIVE = "http://deb.debian.org/debian"
_SECONDS = 120


class UnavailableError(Exception):
    """NVIDIA's parts cannot be had here; the message says why."""


@dataclass(frozen=True)
class NvidiaParts:
    """The unpacked packages of one driver series."""

    series: str

    @property
    def folder(self) -> Path:
        return cache_root() / f"nvidia-{self.series}"

    @property
    def control(self) -> Path:
        """The MPS control program."""
        return self.folder / "usr/bin/nvidia-cuda-mps-control"

    @property
    def libraries(self) -> Path:
        """The folder of `libnvidia-ml.so.1` and `libcuda.so.1`."""
        return next(self.folder.glob("usr/lib/*/nvidia/current"), self.folder)

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """An environment in which programs find these and no other."""
        path = f"{self.folder}/usr/bin:{self.folder}/usr/sbin:{base.get('PATH', '')}"
        return {**base, "PATH": path, "LD_LIBRARY_PATH": str(self.libraries)}


def parts_or_skip(series: str) -> NvidiaParts:
    """The parts of a series; the test is skipped with a word where they are not."""
    parts = NvidiaParts(series)
    if not parts.folder.is_dir():
        pytest.skip(f"NVIDIA's own parts of R{series} are not here: `make kube` fetches them where Debian's archive is")
    return parts


def fetch(series: str) -> None:
    """Have the parts of a series in the cache."""
    target = NvidiaParts(series).folder
    if target.is_dir():
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg") or not _KEYRING.is_file():
        raise UnavailableError("this is no Debian")
    cache_root().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_root()) as scratch:
        folder = Path(scratch)
        options = _own_apt(folder, SERIES[series])
        _run(["apt-get", *options, "update"], folder)
        _run(["apt-get", *options, "download", *(f"{package}/{SERIES[series]}" for package in _PACKAGES)], folder)
        for package in sorted(folder.glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(folder / "root")], folder)
        try:
            (folder / "root").rename(target)
        except OSError as error:
            if not target.is_dir():  # another run was faster
                raise UnavailableError(f"{target} cannot be made: {error.strerror}") from error


def _own_apt(folder: Path, release: str) -> list[str]:
    """Options with which apt reads a list of sources in this folder, and keeps everything there."""
    found = re.search(r"^URIs: *(\S+/debian/?)$", _SOURCES.read_text() if _SOURCES.is_file() else "", re.MULTILINE)
    source = f"deb [signed-by={_KEYRING}] {found[1] if found else _ARCHIVE} {release} non-free\n"
    (folder / "own.list").write_text(source)
    (folder / "lists" / "partial").mkdir(parents=True)
    settings = {
        "Dir::Etc::sourcelist": folder / "own.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": folder / "lists",
        "Dir::Cache": folder,
        "Dir::Cache::pkgcache": "",
        "Dir::Cache::srcpkgcache": "",
        "APT::Sandbox::User": "root",
        "APT::Update::Error-Mode": "any",
        "Acquire::Languages": "none",
    }
    return [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]


def _run(command: list[str], folder: Path) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{command[0]} did not end in {_SECONDS} s") from error
    errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "W:", "Err:", "dpkg:"))]
    if done.returncode:
        raise UnavailableError(f"{command[0]}: {errors[-1] if errors else f'exit status {done.returncode}'}")


def main() -> int:
    """Fetch what is missing, and say what cannot be had."""
    for series in SERIES:
        try:
            fetch(series)
        except UnavailableError as error:
            sys.stderr.write(f"NVIDIA's own parts of R{series} cannot be had, tests with them are skipped: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
