"""Where the programs come from. These run the same command as `make kube`, without building anything."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.testbed import binaries, nvidia

ROOT = Path(__file__).parents[2]
PROGRAMS = [program for module in binaries.modules(binaries.DEFAULT_KUBE_VERSION) for program in module.programs]


def test_a_test_of_make_test_gets_none_of_the_programs() -> None:
    with pytest.raises(binaries.BinariesError, match="must ask for the fixture testbed_run"):
        binaries.find("kubectl")


def make_kube(cache: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command with an empty cache and no Go."""
    clean = {name: value for name, value in os.environ.items() if name not in ("KUBE_VERSION", "KUBEBUILDER_ASSETS")}
    return subprocess.run(
        [sys.executable, "-m", "tests.testbed.binaries", *arguments],
        cwd=ROOT,
        env={**clean, "PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(cache), **env},
        capture_output=True,
        text=True,
        check=False,
    )


def assets(folder: Path, names: list[str], version: str) -> str:
    """A folder of programs that can only say their version."""
    folder.mkdir()
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho Kubernetes v{version}\n")
        (folder / name).chmod(0o755)
    return str(folder)


def test_without_go_and_assets_one_line_says_so(tmp_path: Path) -> None:
    done = make_kube(tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("make kube: no Go here and no KUBEBUILDER_ASSETS with kube-apiserver, ")


def test_ready_programs_are_taken(tmp_path: Path) -> None:
    folder = assets(tmp_path / "assets", PROGRAMS, binaries.DEFAULT_KUBE_VERSION)
    done = make_kube(tmp_path / "cache", "--json", KUBEBUILDER_ASSETS=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert f'"etcd": "{folder}/etcd"' in done.stdout


def test_what_the_assets_lack_is_named(tmp_path: Path) -> None:
    given = ["etcd", "kube-apiserver", "kubectl"]
    folder = assets(tmp_path / "assets", given, binaries.DEFAULT_KUBE_VERSION)
    done = make_kube(tmp_path / "cache", KUBEBUILDER_ASSETS=folder)
    assert done.returncode == 1
    named = done.stderr.partition("KUBEBUILDER_ASSETS with ")[2].partition(":")[0].split(", ")
    assert set(named) == set(PROGRAMS) - set(given)


def test_assets_of_another_version_are_refused(tmp_path: Path) -> None:
    done = make_kube(tmp_path / "cache", KUBEBUILDER_ASSETS=assets(tmp_path / "assets", PROGRAMS, "1.30.4"))
    assert done.returncode == 1
    assert done.stderr.endswith("holds Kubernetes 1.30.4, not 1.36.3: set KUBE_VERSION=1.30.4\n")


def test_a_version_that_is_none_is_refused(tmp_path: Path) -> None:
    done = make_kube(tmp_path, KUBE_VERSION="latest")
    assert (done.returncode, done.stderr) == (
        1,
        "make kube: KUBE_VERSION='latest' is not a version; write it like 1.36.3\n",
    )


def test_every_pinned_module_is_complete() -> None:
    for module in [*binaries.modules("1.36.3"), *binaries.modules("1.32.2")]:
        folder = binaries.MODULES / module.folder
        if module.folder == "dra":  # a program of the test bed's own
            assert {path.name for path in folder.iterdir()} == {"go.mod", "go.sum", "main.go"}
            continue
        assert {path.name for path in folder.iterdir()} == {"go.mod", "go.sum", "tools.go"}
        named = (folder / "tools.go").read_text()
        assert all(f'_ "{package}"' in named for package in module.packages)


def test_nvidias_parts_that_cannot_be_had_are_told_and_hold_up_nothing(tmp_path: Path) -> None:
    """On a machine without apt. The tests with them are skipped with a word."""
    environment = {**os.environ, "PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "tests.testbed.nvidia"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.splitlines() == [
        f"NVIDIA's own parts of R{series} cannot be had, tests with them are skipped: this is no Debian"
        for series in nvidia.SERIES
    ]


def test_without_nvidias_parts_a_test_says_what_fetches_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match="`make kube` fetches them"):
        nvidia.parts_or_skip("535")
