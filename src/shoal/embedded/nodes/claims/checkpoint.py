"""kubelet's record of claims, `dra_manager_state`, in its own JSON with its own checksum."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from shoal.embedded.nodes.errors import CheckpointError
from shoal.kubelet.files import write_whole

_TYPE: Final = {"kind": "DRACheckpoint", "apiVersion": "checkpoint.dra.kubelet.k8s.io/v1"}


@dataclass(frozen=True, slots=True)
class ClaimDevice:
    """A device of a claim as its driver describes it: the requests it is for, and what containers get for it."""

    pool: str
    device: str
    requests: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()
    share: str | None = None


@dataclass(slots=True)
class ClaimInfo:
    """A claim that pods of the node use."""

    namespace: str
    name: str
    uid: str
    #: The UIDs of these pods.
    pods: set[str] = field(default_factory=set)
    #: All drivers that have a part in it, with what they said; nothing until they were asked.
    drivers: dict[str, tuple[ClaimDevice, ...]] = field(default_factory=dict)
    #: By the kubelet that runs now: one that was started again asks drivers again before it makes a sandbox.
    prepared: bool = False


class _Device(msgspec.Struct, frozen=True):
    PoolName: str
    DeviceName: str
    ShareID: str | None
    RequestNames: list[str] | None
    CDIDeviceIDs: list[str] | None


class _Driver(msgspec.Struct, frozen=True):
    Devices: list[_Device] | None


class _Claim(msgspec.Struct, frozen=True):
    ClaimUID: str
    ClaimName: str
    Namespace: str
    PodUIDs: dict[str, dict[str, str]]
    DriverState: dict[str, _Driver]


class _Data(msgspec.Struct, frozen=True):
    ClaimInfoStateList: list[_Claim] | None


class _File(msgspec.Struct, frozen=True):
    Data: str
    Checksum: int


def encode(claims: Iterable[ClaimInfo]) -> bytes:
    """The file's content."""
    data = msgspec.json.encode({**_TYPE, "ClaimInfoStateList": [_in_file(one) for one in claims]})
    return msgspec.json.encode({"Data": data.decode(), "Checksum": zlib.crc32(data)})


def _in_file(claim: ClaimInfo) -> _Claim:
    drivers = {
        name: _Driver(
            [
                _Device(one.pool, one.device, one.share, list(one.requests) or None, list(one.cdi) or None)
                for one in devices
            ]
            or None
        )
        for name, devices in sorted(claim.drivers.items())
    }
    return _Claim(claim.uid, claim.name, claim.namespace, {uid: {} for uid in sorted(claim.pods)}, drivers)


def decode(content: bytes) -> list[ClaimInfo]:
    """What a file says; CheckpointError if it is damaged."""
    try:
        file = msgspec.json.decode(content, type=_File)
        actual = zlib.crc32(file.Data.encode())
        if actual != file.Checksum:
            raise CheckpointError(f"checkpoint is corrupted: checksum {actual}, {file.Checksum} is written")
        data = msgspec.json.decode(file.Data, type=_Data)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"the checkpoint of claims cannot be read: {error}") from error
    return [_claim(one) for one in data.ClaimInfoStateList or ()]


def _claim(one: _Claim) -> ClaimInfo:
    drivers = {
        name: tuple(
            ClaimDevice(
                device.PoolName,
                device.DeviceName,
                tuple(device.RequestNames or ()),
                tuple(device.CDIDeviceIDs or ()),
                device.ShareID,
            )
            for device in driver.Devices or ()
        )
        for name, driver in one.DriverState.items()
    }
    return ClaimInfo(one.Namespace, one.ClaimName, one.ClaimUID, set(one.PodUIDs), drivers)


def write(path: Path, claims: Iterable[ClaimInfo]) -> None:
    """Put the file into place, whole or not at all."""
    write_whole(path, encode(claims))


def read(path: Path) -> list[ClaimInfo]:
    """What is there; nothing without a file."""
    try:
        return decode(path.read_bytes())
    except FileNotFoundError:
        return []
