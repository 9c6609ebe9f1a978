"""kubelet's own record of devices: which container has which, and what the plugin answered when it got them.

It is the one place that knows init containers, and that tells two containers with the same devices apart: each has the
answer of its own Allocate call. kubelet writes it before a pod is admitted and replaces it whole. The format is
kubelet's, the same since 1.20.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from shoal.agent.errors import IdentityError
from shoal.kubelet.api import deviceplugin_pb2 as api

_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Record:
    """The devices of one resource that one container has, and the plugin's answer to it, as it is in the file."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    answer: str = ""

    def response(self) -> api.ContainerAllocateResponse:
        """What the plugin answered."""
        try:
            return api.ContainerAllocateResponse.FromString(base64.b64decode(self.answer, validate=True))
        except (binascii.Error, DecodeError) as error:
            raise IdentityError(f"kubelet's record of container {self.container} cannot be read: {error}") from error


class _Entry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    #: By NUMA node.
    DeviceIDs: dict[str, list[str]] | None = None
    AllocResp: str | None = None


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: list[_Entry] | None = None


class _File(msgspec.Struct, frozen=True):
    Data: _Data


_DECODER: Final = msgspec.json.Decoder(_File)


def decode(content: bytes) -> tuple[Record, ...]:
    """All records of a file."""
    try:
        entries = _DECODER.decode(content).Data.PodDeviceEntries or ()
    except msgspec.MsgspecError as error:
        raise IdentityError(f"kubelet's checkpoint cannot be read: {error}") from error
    return tuple(
        Record(
            entry.PodUID,
            entry.ContainerName,
            entry.ResourceName,
            frozenset(one for ids in (entry.DeviceIDs or {}).values() for one in ids),
            entry.AllocResp or "",
        )
        for entry in entries
    )


class Checkpoint:
    """The file of one node. It is read again only when kubelet has replaced it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._records: tuple[Record, ...] = ()

    def records(self) -> tuple[Record, ...]:
        """All records; none while kubelet has not written any."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    if status.st_size > _MAX_BYTES:
                        raise IdentityError(f"kubelet's checkpoint {self._path} has {status.st_size} bytes: too many")
                    self._records = decode(file.read())
                    self._seen = seen
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise IdentityError(
                f"kubelet's checkpoint {self._path} cannot be read: {error.strerror}: mount its folder into the agent"
            ) from error
        return self._records

    def in_use(self, resource: str, pods: Container[str]) -> frozenset[str]:
        """The devices of a resource that these pods, by UID, have. kubelet forgets pods that are gone when it must."""
        return frozenset(
            one
            for record in self.records()
            if record.resource == resource and record.pod_uid in pods
            for one in record.ids
        )


def holders(records: Iterable[Record], resource: str, ids: frozenset[str]) -> tuple[Record, ...]:
    """The containers with just these devices: one, or several of one pod that run one after another.

    Raises IdentityError when there is none.
    """
    found = tuple(record for record in records if record.resource == resource and record.ids == ids)
    if not found:
        raise IdentityError(
            f"kubelet has no record of a container with these {len(ids)} devices of {resource}: it will ask again"
        )
    if len({record.pod_uid for record in found}) > 1:
        raise IdentityError(
            f"kubelet's record gives the same devices of {resource} to several pods: delete one of them"
        )
    return found
