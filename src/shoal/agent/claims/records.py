"""The claims that are prepared on this node: one file for each, the agent's own memory.

A file is written before kubelet is told that its claim is prepared, and removed when kubelet takes the claim back. The
folder outlives a restart of the machine, since kubelet's own record of claims does.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import msgspec

from shoal.agent.claims.results import ClaimResult, NamedRequest
from shoal.agent.errors import RefusedError
from shoal.kubelet.dra import ClaimRef
from shoal.kubelet.files import write_whole
from shoal.model.contract.node_files import CLAIMS_SUFFIX

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """A prepared claim: its devices on the node, and which requests each CDI device tells of.

    `names` tells, by request, what asked for it by number, if the claim was made of resource names.
    """

    claim: ClaimRef
    node: str
    results: tuple[ClaimResult, ...]
    views: Mapping[str, tuple[str, ...]]
    names: Mapping[str, NamedRequest] = field(default_factory=dict)


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: Literal[1]
    record: ClaimRecord


_DECODER: Final = msgspec.json.Decoder(_File)


class ClaimRecords:
    """The files of one node."""

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder
        self._node = node

    def write(self, record: ClaimRecord) -> None:
        """Write a claim's file. RefusedError if that fails."""
        try:
            write_whole(self._path(record.claim.uid), msgspec.json.encode(_File(1, record)))
        except OSError as error:
            raise RefusedError(
                f"what the claim gets cannot be remembered in {self._folder}: {error.strerror or error}"
            ) from error

    def remove(self, uid: str) -> None:
        """Remove a claim's file, if there is one."""
        self._path(uid).unlink(missing_ok=True)

    def read(self) -> list[ClaimRecord]:
        """The content of all files of this node. One that cannot be read is left out: kubelet prepares again."""
        found = []
        for path in self._files():
            try:
                record = _DECODER.decode(path.read_bytes()).record
            except (msgspec.MsgspecError, OSError) as error:
                log.warning("%s is left out: %s", path, error)
                continue
            if record.node == self._node and self._path(record.claim.uid) == path:
                found.append(record)
        return found

    def clear(self) -> None:
        """Remove all files of this node."""
        for record in self.read():
            self.remove(record.claim.uid)

    def _files(self) -> list[Path]:
        try:
            listed = self._folder.iterdir()
            return sorted(path for path in listed if path.suffix == CLAIMS_SUFFIX and not path.name.startswith("."))
        except FileNotFoundError:
            return []

    def _path(self, uid: str) -> Path:
        return self._folder / f"{Path(uid).name}{CLAIMS_SUFFIX}"
