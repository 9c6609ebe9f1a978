"""Files that only their owner can read."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.kube.access.secret_files import make_secret_folder, write_secret


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("before", ["nothing", "a file that all can read", "a link"])
def test_a_file_replaces_what_was_there(tmp_path: Path, before: str) -> None:
    path, other = tmp_path / "kubeconfig", tmp_path / "other"
    if before == "a link":
        path.symlink_to(other)
    elif before != "nothing":
        path.touch(0o666)
    write_secret(path, b"token")
    assert (path.read_bytes(), path.lstat().st_mode) == (b"token", 0o100600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_secret(path, b"token")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_secret_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    make_secret_folder(folder)
    assert folder.stat().st_mode & 0o777 == 0o755
