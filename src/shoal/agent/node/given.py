"""The cards that containers of this node were given: one file for each pod, the agent's own memory.

A pod's annotations tell what was decided, and others can change them; these files tell what was given. A file is
written before the first container of its pod may start, and removed when the pod has left its cards. The folder lies on
a file system that a restart of the machine empties: that ends the containers too.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from shoal.agent.errors import RefusedError
from shoal.kubelet.files import write_whole
from shoal.model.allocation import Allocation
from shoal.model.contract import shoal
from shoal.model.contract.node_files import GIVEN_SUFFIX
from shoal.model.errors import CodecError

log = logging.getLogger(__name__)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    uid: str
    namespace: str
    name: str
    allocation: str


_DECODER: Final = msgspec.json.Decoder(_File)


@dataclass(frozen=True, slots=True)
class Given:
    """A pod and the cards of its containers."""

    uid: str
    namespace: str
    name: str
    allocation: Allocation


class GivenFiles:
    """The files of one node."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, given: Given) -> None:
        """Write a pod's file. RefusedError if that fails."""
        file = _File(1, given.uid, given.namespace, given.name, shoal.encode_allocation(given.allocation))
        try:
            write_whole(self._path(given.uid), msgspec.json.encode(file))
        except OSError as error:
            raise RefusedError(
                f"what the container gets cannot be remembered in {self._folder}: {error.strerror or error}"
            ) from error

    def remove(self, uid: str) -> None:
        """Remove a pod's file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._path(uid).unlink()

    def read(self) -> list[Given]:
        """The content of all files. One that cannot be read is removed: then the pod's annotations count."""
        found = []
        for path in self._files():
            try:
                file = _DECODER.decode(path.read_bytes())
                allocation = shoal.decode_allocation(file.allocation)
            except (msgspec.MsgspecError, CodecError, OSError) as error:
                log.warning("%s is left out: %s", path, error)
                path.unlink(missing_ok=True)
                continue
            found.append(Given(file.uid, file.namespace, file.name, allocation))
        return found

    def clear(self) -> None:
        """Remove all files."""
        for path in self._files():
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        try:
            return sorted(path for path in self._folder.iterdir() if path.is_file())
        except FileNotFoundError:
            return []

    def _path(self, uid: str) -> Path:
        return self._folder / f"{Path(uid).name}{GIVEN_SUFFIX}"
