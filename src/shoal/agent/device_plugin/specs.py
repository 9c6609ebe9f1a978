"""The CDI spec files of the agent, one for each answer to an Allocate call, and those of NVIDIA on the node.

A file is written when its container is about to be created, and removed when the container's pod is over. Whenever the
agent is killed, a file is complete or absent.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from shoal.agent.device_plugin.edits import CONTROL_DEVICES, is_vendors
from shoal.agent.errors import RefusedError
from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits, Device, Spec
from shoal.kubelet.errors import CdiError
from shoal.kubelet.host_paths import HostPaths
from shoal.model.contract import dra, shoal
from shoal.model.gpu import Gpu

log = logging.getLogger(__name__)

_OWN: Final = cdi.file_name(shoal.CDI_KIND, "").removesuffix(".json")
_OF_CLAIMS: Final = cdi.file_name(dra.CDI_KIND, "").removesuffix(".json")
_DIGEST_BYTES: Final = 6
_Stamp = tuple[tuple[str, int, int], ...]


def device_name(resource: str, ids: Iterable[str], nonce: str) -> str:
    """The name of a CDI device: a digest of the devices, and a nonce that tells containers that share them apart."""
    digest = hashlib.blake2b("\n".join((resource, *sorted(ids))).encode(), digest_size=_DIGEST_BYTES)
    return f"{digest.hexdigest()}-{nonce}"


def qualified(name: str) -> str:
    """The full name of an agent's device, as a runtime is given it."""
    return f"{shoal.CDI_KIND}={name}"


def own_names(qualified_names: Iterable[str]) -> list[str]:
    """The agent's devices among full names, without their kind."""
    prefix = qualified("")
    return [name.removeprefix(prefix) for name in qualified_names if name.startswith(prefix)]


class CdiSpecs:
    """The CDI folders of one node."""

    def __init__(self, paths: HostPaths) -> None:
        self._paths = paths
        self._folder = paths.own_cdi
        self._stamp: _Stamp | None = None
        self._vendor: dict[str, tuple[Spec, Device]] = {}
        self._isolation: dict[str, str] = {}

    def write(self, name: str, edits: ContainerEdits) -> Path:
        """Write the spec of a device."""
        spec = Spec(cdi_version=cdi.VERSION, kind=shoal.CDI_KIND, devices=(Device(name, edits),))
        try:
            path = cdi.write(self._folder, spec, name)
        except CdiError as error:
            raise RefusedError(str(error)) from error
        self._isolation[name] = edits.environment({}).get(shoal.ENV_ISOLATION, "")
        return path

    def isolation(self, name: str) -> str:
        """The isolation tier that the device's spec tells its container; empty if it tells none."""
        if name not in self._isolation:
            try:
                (device,) = cdi.read(self._folder / cdi.file_name(shoal.CDI_KIND, name)).devices
            except (CdiError, ValueError):
                return ""
            self._isolation[name] = device.container_edits.environment({}).get(shoal.ENV_ISOLATION, "")
        return self._isolation[name]

    def remove(self, name: str) -> None:
        """Remove the spec of a device, if there is one."""
        (self._folder / cdi.file_name(shoal.CDI_KIND, name)).unlink(missing_ok=True)
        self._isolation.pop(name, None)

    def names(self) -> set[str]:
        """The devices that have a spec."""
        return {path.name.removeprefix(_OWN).removesuffix(".json") for path in self._files() if path.suffix == ".json"}

    def keep_only(self, names: Iterable[str]) -> set[str]:
        """Remove all specs but those of these devices; the devices whose specs were removed."""
        gone = self.names() - set(names)
        for name in gone:
            self.remove(name)
        return gone

    def remove_drafts(self) -> None:
        """Remove incomplete files that a killed agent left."""
        for path in self._listed(f".{_OWN}"):
            path.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        return self._listed(_OWN)

    def _listed(self, prefix: str) -> list[Path]:
        try:
            return [path for path in self._folder.iterdir() if path.name.startswith(prefix)]
        except FileNotFoundError:
            return []

    def vendor(self) -> dict[str, tuple[Spec, Device]]:
        """The devices of NVIDIA's own specs, read again when a file has changed."""
        stamp = tuple(one for folder in self._paths.cdi for one in _others(folder))
        if stamp != self._stamp:
            self._stamp, self._vendor = stamp, {}
            for path, *_ in stamp:
                try:
                    spec = cdi.read(Path(path))
                except CdiError as error:
                    log.warning("left out: %s", error)
                    continue
                if is_vendors(spec):
                    self._vendor.update({spec.qualified(device): (spec, device) for device in spec.devices})
        return self._vendor

    def device_nodes(self, gpus: Iterable[Gpu]) -> dict[str, tuple[str, str]]:
        """The device nodes of cards that the host has, by name."""
        names = [f"nvidia{gpu.minor}" for gpu in gpus if gpu.minor is not None]
        return {
            name: self._paths.device(name)
            for name in (*names, *CONTROL_DEVICES)
            if (self._paths.dev / name).is_char_device()
        }


def _others(folder: Path) -> _Stamp:
    """The spec files that are not the agent's: path, time and size."""
    found = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith((".json", ".yaml")) and not entry.name.startswith((".", _OWN, _OF_CLAIMS)):
                    status = entry.stat()
                    found.append((entry.path, status.st_mtime_ns, status.st_size))
    except FileNotFoundError:  # no folder, or a file that was removed meanwhile
        return tuple(sorted(found))
    return tuple(sorted(found))
