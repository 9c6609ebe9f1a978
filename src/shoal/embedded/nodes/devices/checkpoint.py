"""kubelet's record of devices, `kubelet_internal_checkpoint`, in its own JSON with its own checksum."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from shoal.embedded.nodes.errors import CheckpointError
from shoal.kubelet.files import write_whole

#: The NUMA node of a device that is near none.
NO_NUMA: Final = -1
_FNV_OFFSET: Final = 0x811C9DC5
_FNV_PRIME: Final = 0x01000193
#: Longer pieces are not kept with their hashes.
_KEPT_LENGTH: Final = 8192


@dataclass(frozen=True, slots=True)
class Entry:
    """The devices of one resource that one container has, and what the plugin said to them, as protobuf."""

    pod_uid: str
    container: str
    resource: str
    #: By NUMA node.
    devices: Mapping[int, tuple[str, ...]]
    response: bytes
    #: As JSON and as kubelet's debug printer writes it: both are needed again with every other entry that comes.
    _written: list[tuple[msgspec.Raw, str]] = field(default_factory=list, init=False, compare=False, repr=False)

    @property
    def written(self) -> tuple[msgspec.Raw, str]:
        """The entry in the file, and for the checksum."""
        if not self._written:
            self._written.append((msgspec.Raw(msgspec.json.encode(_in_file(self))), _printed(self)))
        return self._written[0]

    @property
    def ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(device for devices in self.devices.values() for device in devices)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All of it: who has what, and the healthy devices by resource."""

    entries: tuple[Entry, ...] = ()
    registered: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class _Entry(msgspec.Struct, frozen=True):
    PodUID: str
    ContainerName: str
    ResourceName: str
    DeviceIDs: dict[str, list[str]]
    AllocResp: str


class _Data(msgspec.Struct, frozen=True):
    PodDeviceEntries: list[_Entry] | None
    RegisteredDevices: dict[str, list[str]] | None


class _File(msgspec.Struct, frozen=True):
    Data: _Data
    Checksum: int


def encode(checkpoint: Checkpoint) -> bytes:
    """The file's content."""
    entries = [one.written[0] for one in checkpoint.entries]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": checkpoint.registered}
    return msgspec.json.encode({"Data": data, "Checksum": checksum(checkpoint)})


def _in_file(one: Entry) -> _Entry:
    return _Entry(
        PodUID=one.pod_uid,
        ContainerName=one.container,
        ResourceName=one.resource,
        DeviceIDs={str(numa): list(devices) for numa, devices in one.devices.items()},
        AllocResp=base64.b64encode(one.response).decode(),
    )


def decode(content: bytes) -> Checkpoint:
    """What a file says; CheckpointError if it is damaged."""
    try:
        file = msgspec.json.decode(content, type=_File)
        entries = tuple(_entry(one) for one in file.Data.PodDeviceEntries or ())
    except (msgspec.MsgspecError, ValueError) as error:
        raise CheckpointError(f"the checkpoint cannot be read: {error}") from error
    registered = {name: tuple(devices) for name, devices in (file.Data.RegisteredDevices or {}).items()}
    checkpoint = Checkpoint(entries, registered)
    actual = checksum(checkpoint)
    if actual != file.Checksum:
        raise CheckpointError(f"checkpoint is corrupted: checksum {actual}, {file.Checksum} is written")
    return checkpoint


def _entry(one: _Entry) -> Entry:
    try:
        response = base64.b64decode(one.AllocResp, validate=True)
    except binascii.Error as error:
        raise CheckpointError(f"the plugin's answer for {one.ContainerName!r} is not base64") from error
    devices = {int(numa): tuple(ids) for numa, ids in one.DeviceIDs.items()}
    return Entry(one.PodUID, one.ContainerName, one.ResourceName, devices, response)


def checksum(checkpoint: Checkpoint) -> int:
    """kubelet's checksum: FNV-1a over the data as its debug printer writes it."""
    pieces = ["(checkpoint.checkpointData){PodDeviceEntries:([]checkpoint.PodDevicesEntry)"]
    pieces += _listed(one.written[1] for one in checkpoint.entries) if checkpoint.entries else ["<nil>"]
    pieces.append(" RegisteredDevices:(map[string][]string)map")
    pieces += _listed(f"{name}:[{' '.join(ids)}]" for name, ids in sorted(checkpoint.registered.items()))
    return _fnv([*pieces, "}"])


def _printed(one: Entry) -> str:
    return (
        f"{{PodUID:(string){one.pod_uid} ContainerName:(string){one.container} ResourceName:(string){one.resource} "
        f"DeviceIDs:(checkpoint.DevicesPerNUMA)map[{_lists(one.devices)}] "
        f"AllocResp:([]uint8)[{' '.join(map(str, one.response))}]}}"
    )


def _listed(pieces: Iterable[str]) -> list[str]:
    return ["[", *(f"{' ' if number else ''}{piece}" for number, piece in enumerate(pieces)), "]"]


def _lists(devices: Mapping[int, tuple[str, ...]]) -> str:
    return " ".join(f"{numa}:[{' '.join(ids)}]" for numa, ids in sorted(devices.items()))


def _fnv(pieces: Iterable[str]) -> int:
    """FNV-1a of all pieces. Most of them are as they were in the last checkpoint, and hashing is slow here.

    A byte only ever meets the lowest byte of the hash, and so does a whole piece: the higher ones are just multiplied.
    """
    value = _FNV_OFFSET
    for piece in pieces:
        content, low = piece.encode(), value & 0xFF
        hashed = (_hashed if len(content) < _KEPT_LENGTH else _hashed.__wrapped__)(content, low)
        value = ((value - low) * pow(_FNV_PRIME, len(content), 1 << 32) + hashed) & 0xFFFFFFFF
    return value


@lru_cache(maxsize=4096)
def _hashed(content: bytes, value: int) -> int:
    for byte in content:
        value = ((value ^ byte) * _FNV_PRIME) & 0xFFFFFFFF
    return value


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Put the file into place, whole or not at all."""
    write_whole(path, encode(checkpoint))


def read(path: Path) -> Checkpoint | None:
    """What is there; None without a file."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return None
