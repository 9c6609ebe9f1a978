"""The files of readiness: what counts, what is written, and what stands in the way."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from shoal.model.contract import nvidia
from shoal.validator.errors import CheckError
from shoal.validator.files import FINDINGS, MOST, ValidationFiles, checked_name, driver_ready

CONTAINER = driver_ready(
    is_host=False,
    driver_root="/run/nvidia/driver",
    dev_root="/run/nvidia/driver",
    marker=nvidia.VALIDATION_DRIVER_CONTAINER,
)
HOST = driver_ready(is_host=True, driver_root="/", dev_root="/")


@pytest.fixture
def files(tmp_path: Path) -> ValidationFiles:
    return ValidationFiles(tmp_path / "validations")


def test_a_file_counts_while_what_it_rests_on_does(files: ValidationFiles) -> None:
    files.write("toolkit-ready")
    files.write("cuda-ready")
    assert files.missing("cuda-ready") == "driver-ready"
    files.write("driver-ready", HOST)
    assert files.counts("cuda-ready")
    files.write("driver-ready", CONTAINER)
    assert files.missing("cuda-ready") == ".driver-ctr-ready"
    files.write(".driver-ctr-ready", b"GDRCOPY_ENABLED=false\n")
    assert files.counts("cuda-ready")
    assert files.counts("driver-ready")
    assert files.missing("plugin-ready") == "plugin-ready"


def test_a_driver_file_of_nvidias_validator_rests_on_nothing(files: ValidationFiles) -> None:
    files.write("driver-ready", CONTAINER.rpartition(b"SHOAL_WHILE")[0])
    assert files.counts("driver-ready")


@pytest.mark.parametrize("marker", ["../../etc/passwd", "/etc/passwd", "x" * 300, "", "\0"])
def test_no_file_outside_the_folder_is_looked_at(files: ValidationFiles, marker: str) -> None:
    files.write("driver-ready", f"SHOAL_WHILE={marker}\n".encode())
    assert files.counts("driver-ready")


def test_shells_read_the_drivers_file(files: ValidationFiles) -> None:
    def sourced(content: bytes) -> dict[str, str]:
        files.write("driver-ready", content)
        said = subprocess.check_output(
            ["sh", "-c", f"set -o allexport; . {files.folder}/driver-ready; env"], text=True, env={}
        )
        return {key: value for key, _, value in (line.partition("=") for line in said.splitlines()) if key != "PWD"}

    assert sourced(HOST) == {
        "IS_HOST_DRIVER": "true",
        "NVIDIA_DRIVER_ROOT": "/",
        "DRIVER_ROOT_CTR_PATH": "/host",
        "NVIDIA_DEV_ROOT": "/",
        "DEV_ROOT_CTR_PATH": "/host",
    }
    assert sourced(CONTAINER) == {
        "IS_HOST_DRIVER": "false",
        "NVIDIA_DRIVER_ROOT": "/run/nvidia/driver",
        "DRIVER_ROOT_CTR_PATH": "/driver-root",
        "NVIDIA_DEV_ROOT": "/run/nvidia/driver",
        "DEV_ROOT_CTR_PATH": "/driver-root",
        "SHOAL_WHILE": ".driver-ctr-ready",
    }
    without_devices = driver_ready(is_host=False, driver_root="/opt/driver", dev_root="/")
    assert sourced(without_devices)["DEV_ROOT_CTR_PATH"] == "/host"


def test_what_is_there_is_not_written_again(files: ValidationFiles) -> None:
    files.write("driver-ready", HOST)
    before = (files.folder / "driver-ready").stat().st_ino
    files.write("driver-ready", HOST)
    assert (files.folder / "driver-ready").stat().st_ino == before
    files.remove("driver-ready", "toolkit-ready")
    files.remove("driver-ready")
    assert files.read("driver-ready") is None


def test_links_pipes_and_folders_are_no_files(files: ValidationFiles, tmp_path: Path) -> None:
    files.folder.mkdir()
    (tmp_path / "secret").write_text("secret")
    (files.folder / "toolkit-ready").symlink_to(tmp_path / "secret")
    os.mkfifo(files.folder / "driver-ready")
    (files.folder / "cuda-ready").mkdir()
    assert [files.read(name) for name in ("toolkit-ready", "driver-ready", "cuda-ready")] == [None, None, None]
    files.write("toolkit-ready", b"x")
    assert (tmp_path / "secret").read_text() == "secret"
    assert files.read("toolkit-ready") == b"x"


def test_long_files_are_read_to_a_bound(files: ValidationFiles) -> None:
    files.write("driver-ready", b"x" * 10_000_000)
    assert len(files.read("driver-ready") or b"") == MOST + 1


def test_a_full_folder_is_words(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=4", "tmpfs", folder], check=False)
    if mounted.returncode:
        pytest.skip("only root can mount a small folder")
    try:
        files = ValidationFiles(folder)
        (folder / "filler").write_bytes(b"x" * 4096)
        with pytest.raises(CheckError, match="cannot be written: No space left on device") as raised:
            files.write("driver-ready", HOST)
        assert raised.value.fix.startswith("make room in the node's")
        assert [path.name for path in folder.iterdir()] == ["filler"]
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        with pytest.raises(CheckError, match="Read-only file system") as raised:
            files.write("driver-ready", HOST)
        assert "may write there, as root" in raised.value.fix
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_folder_that_was_removed_is_words(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckError, match="cannot be written"):
        ValidationFiles(tmp_path / "file").write("driver-ready")


def test_drafts_of_the_killed_are_cleared_away(files: ValidationFiles) -> None:
    files.folder.mkdir()
    for name in (".driver-ready.7", f".{FINDINGS}.12", "driver-ready", ".driver-ctr-ready", ".other.7"):
        (files.folder / name).write_text("")
    files.remove_drafts()
    assert sorted(path.name for path in files.folder.iterdir()) == [".driver-ctr-ready", ".other.7", "driver-ready"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "", "-", "A", "a/b", "x" * 70, "a\nb", ".."])
def test_names_are_checked(name: str) -> None:
    with pytest.raises(ValueError, match="such as toolkit-ready"):
        checked_name(name)
