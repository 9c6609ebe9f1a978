"""The files of readiness of a node, `/run/nvidia/validations`: NVIDIA's names, so that its images wait for them too.

A file counts only while what it rests on does: `toolkit-ready` without `driver-ready` is left over from a driver that
has gone. So nothing has to be removed in time, and a validator may be killed at any moment.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Final

from shoal.kubelet.files import write_whole
from shoal.model.contract import nvidia
from shoal.model.contract.node_files import VALIDATION_FINDINGS
from shoal.validator.errors import CheckError

FINDINGS: Final = VALIDATION_FINDINGS
#: In `driver-ready`: the file without which the driver is gone. NVIDIA's programs do not look at it.
KEY_WHILE: Final = "SHOAL_WHILE"
#: Most bytes that are read of a file.
MOST: Final = 16384

#: What each file rests on.
RESTS_ON: Final = {
    nvidia.VALIDATION_TOOLKIT: nvidia.VALIDATION_DRIVER,
    nvidia.VALIDATION_CUDA: nvidia.VALIDATION_TOOLKIT,
    nvidia.VALIDATION_PLUGIN: nvidia.VALIDATION_TOOLKIT,
}
#: What goes with the driver.
OF_THE_DRIVER: Final = (
    nvidia.VALIDATION_DRIVER,
    nvidia.VALIDATION_TOOLKIT,
    nvidia.VALIDATION_CUDA,
    nvidia.VALIDATION_PLUGIN,
    FINDINGS,
)
_NAME: Final = re.compile(r"\.?[a-z0-9][a-z0-9._-]{0,62}").fullmatch
_DRAFT: Final = re.compile(rf"\.(?:{'|'.join(map(re.escape, OF_THE_DRIVER))})\.[0-9]+").fullmatch


def checked_name(name: str) -> str:
    """The name of a file of readiness, if it is one; ValueError otherwise."""
    if not _NAME(name):
        raise ValueError(f"{name!r} is no file of {nvidia.VALIDATIONS_DIRECTORY}: name one such as toolkit-ready")
    return name


class ValidationFiles:
    """The folder of one node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def counts(self, name: str) -> bool:
        """Whether the file is there, and what it rests on too."""
        return self.missing(name) is None

    def missing(self, name: str) -> str | None:
        """The first file that is missing for this one to count."""
        needs = RESTS_ON.get(name)
        if needs is not None and (first := self.missing(needs)) is not None:
            return first
        content = self.read(name)
        if content is None:
            return name
        if name == nvidia.VALIDATION_DRIVER and (marker := _settings(content).get(KEY_WHILE)):
            return marker if _NAME(marker) and self.read(marker) is None else None
        return None

    def read(self, name: str) -> bytes | None:
        """The beginning of a file; None if there is none. What is no plain file is none."""
        try:
            number = os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            return os.read(number, MOST + 1) if stat.S_ISREG(os.fstat(number).st_mode) else None
        except OSError:
            return None
        finally:
            os.close(number)

    def write(self, name: str, content: bytes = b"") -> None:
        """Have a file with this content, whole; it is not written if it is there. CheckError if it cannot be."""
        if self.read(name) == content:
            return
        path = self.folder / name
        try:
            write_whole(path, content, mode=0o644)
        except OSError as error:
            raise CheckError(f"{path} cannot be written: {error.strerror}", _fix(error, self.folder)) from error

    def remove(self, *names: str) -> None:
        """Have none of these files. CheckError if one cannot be removed."""
        for name in names:
            path = self.folder / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                if error.errno == errno.ENOTDIR:
                    continue
                raise CheckError(f"{path} cannot be removed: {error.strerror}", _fix(error, self.folder)) from error

    def remove_drafts(self) -> None:
        """Clear away what a process left that was killed while it wrote."""
        try:
            drafts = [path for path in self.folder.iterdir() if _DRAFT(path.name)]
        except OSError:
            return
        for path in drafts:
            path.unlink(missing_ok=True)


def _fix(error: OSError, folder: Path) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return f"make room in the node's {folder}: it is in memory, and full"
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return f"mount the node's {folder} into the validator so that it may write there, as root"
        case errno.ENOENT:
            return f"the node's {folder} was removed: restart the pod, which makes it anew"
    return f"look at the node's {folder}"


def driver_ready(*, is_host: bool, driver_root: str, dev_root: str, marker: str = "") -> bytes:
    """The content of `driver-ready`, which NVIDIA's toolkit reads as a shell does.

    Both roots are paths of the node. In the containers of NVIDIA's images the node's root is /host, and a driver
    container's root /driver-root.
    """
    of_host = {True: "/host", False: "/driver-root"}
    settings = {
        "IS_HOST_DRIVER": str(is_host).lower(),
        "NVIDIA_DRIVER_ROOT": driver_root,
        "DRIVER_ROOT_CTR_PATH": of_host[is_host],
        "NVIDIA_DEV_ROOT": dev_root,
        "DEV_ROOT_CTR_PATH": of_host[dev_root != driver_root or is_host],
    }
    if marker:
        settings[KEY_WHILE] = marker
    return "".join(f"{key}={value}\n" for key, value in settings.items()).encode()


def _settings(content: bytes) -> dict[str, str]:
    lines = content[:MOST].decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)
