"""kubelet's own record of devices (its checkpoint file): which container has which, with the plugin's answer to it.

Only this record lists init containers, and tells two containers with the same devices apart: each has the answer of
its own Allocate call. kubelet writes it before a pod is admitted and replaces the whole file. The format is kubelet's,
the same since 1.20.

kubelet makes the content of the file under a lock and writes it after: of two writes at one time the older may come
last, and a pod's devices are then missing until the next write. A device plugin's list makes kubelet write again.
"""

from __future__ import annotations

import base64
import binascii
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from google.protobuf.message import DecodeError

from shoal.agent.errors import IdentityError, RecordError
from shoal.kubelet.api import deviceplugin_pb2 as api

_MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class DeviceRecord:
    """The devices of one resource that one container has, and the plugin's answer to it, as it is in the file."""

    pod_uid: str
    container: str
    resource: str
    ids: frozenset[str]
    answer: str = ""
    #: The decoded answer, once it was asked for.
    _response: list[api.ContainerAllocateResponse] = field(default_factory=list, init=False, repr=False, compare=False)

    def response(self) -> api.ContainerAllocateResponse:
        """What the plugin answered. Do not change it."""
        if not self._response:
            try:
                raw = base64.b64decode(self.answer, validate=True)
                self._response.append(api.ContainerAllocateResponse.FromString(raw))
            except (binascii.Error, DecodeError) as error:
                message = f"kubelet's record of container {self.container} cannot be read: {error}"
                raise IdentityError(message) from error
        return self._response[0]


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


#: Identifies a record. The answer tells several records of one container apart.
_Key = tuple[str, str, str, str]


def _key(record: DeviceRecord) -> _Key:
    return record.pod_uid, record.container, record.resource, record.answer


_DECODER: Final = msgspec.json.Decoder(_File)


def decode(content: bytes) -> tuple[DeviceRecord, ...]:
    """All records of a file."""
    try:
        entries = _DECODER.decode(content).Data.PodDeviceEntries or ()
    except msgspec.MsgspecError as error:
        raise IdentityError(f"kubelet's checkpoint cannot be read: {error}") from error
    return tuple(
        DeviceRecord(
            entry.PodUID,
            entry.ContainerName,
            entry.ResourceName,
            frozenset(one for ids in (entry.DeviceIDs or {}).values() for one in ids),
            entry.AllocResp or "",
        )
        for entry in entries
    )


class KubeletCheckpoint:
    """The file of one node. It is read again only when kubelet has replaced it."""

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.monotonic) -> None:
        #: Counts the versions of the file that were read.
        self.version = 0
        self._path = path
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._records: tuple[DeviceRecord, ...] = ()
        self._by_pod: dict[str, list[DeviceRecord]] = {}
        self._since: dict[_Key, tuple[float, DeviceRecord]] = {}

    def records(self) -> tuple[DeviceRecord, ...]:
        """All records; none while kubelet has not written any."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                seen = (status.st_ino, status.st_mtime_ns, status.st_size)
                if seen != self._seen:
                    if status.st_size > _MAX_BYTES:
                        raise IdentityError(f"kubelet's checkpoint {self._path} has {status.st_size} bytes: too many")
                    self._take(decode(file.read()), seen)
        except FileNotFoundError:
            if self._seen is not None:
                self._take((), None)
        except OSError as error:
            raise IdentityError(
                f"kubelet's checkpoint {self._path} cannot be read: {error.strerror}: mount its folder into the agent"
            ) from error
        return self._records

    def _take(self, records: Iterable[DeviceRecord], seen: tuple[int, int, int] | None) -> None:
        """Take over the file's content. Unchanged records stay the same objects, with the time they were first seen."""
        now = self._clock()
        before, self._since, self._by_pod = self._since, {}, {}
        for fresh in records:
            since, known = before.get(_key(fresh), (now, fresh))
            record = known if known == fresh else fresh
            self._since[_key(fresh)] = (since, record)
            self._by_pod.setdefault(fresh.pod_uid, []).append(record)
        self._records = tuple(record for found in self._by_pod.values() for record in found)
        self._seen = seen
        self.version += 1

    def of(self, pod_uid: str) -> Sequence[DeviceRecord]:
        """The records of a pod's containers."""
        self.records()
        return self._by_pod.get(pod_uid, ())

    def since(self, record: DeviceRecord) -> float:
        """When a present record was first seen."""
        return self._since[_key(record)][0]

    def in_use(self, pods: Container[str]) -> dict[str, frozenset[str]]:
        """By resource, the devices of the pods with these UIDs. kubelet keeps records of pods that are gone."""
        found: dict[str, set[str]] = {}
        for record in self.records():
            if record.pod_uid in pods:
                found.setdefault(record.resource, set()).update(record.ids)
        return {resource: frozenset(ids) for resource, ids in found.items()}


def holders(records: Iterable[DeviceRecord], resource: str, ids: frozenset[str]) -> tuple[DeviceRecord, ...]:
    """The containers with exactly these devices: one, or several of one pod that run one after another.

    Raises RecordError when there is none.
    """
    found = tuple(record for record in records if record.resource == resource and record.ids == ids)
    if not found:
        raise RecordError(
            f"kubelet has no record of a container with these {len(ids)} devices of {resource}: it will ask again"
        )
    if len({record.pod_uid for record in found}) > 1:
        raise RecordError(f"kubelet's record gives the same devices of {resource} to several pods: delete one of them")
    return found
