"""CDI specs: what a device name stands for, and what it does to a container (Container Device Interface, 0.x and 1.x).

Reads and writes spec files and merges their edits as container runtimes do. Nothing is applied here: creating device
nodes, mounting and running hooks is for the runtime. Fields this module has no name for are not kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
import yaml

from shoal.kubelet.errors import CdiError, UnresolvableError
from shoal.kubelet.files import write_whole
from shoal.model.errors import shown

#: Where runtimes look, the last one first. Specs that are made while the node runs belong into the last.
FOLDERS: Final = (Path("/etc/cdi"), Path("/var/run/cdi"))
VERSION: Final = "0.6.0"
#: A spec describes the devices of one node: a few hundred bytes each.
MAX_BYTES: Final = 4 * 1024 * 1024

HOOKS: Final = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_DEVICE_TYPES: Final = ("b", "c", "u", "p")
_VENDOR: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_CLASS: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?")
_SUFFIXES: Final = (".json", ".yaml")


class _Struct(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel"):
    pass


class DeviceNode(_Struct, frozen=True):
    """A device node in the container; `host_path` only where it differs."""

    path: str
    host_path: str = ""
    type: str = ""
    major: int | None = None
    minor: int | None = None
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None


class Mount(_Struct, frozen=True):
    """A bind mount."""

    host_path: str
    container_path: str
    options: tuple[str, ...] = ()
    type: str = ""


class Hook(_Struct, frozen=True):
    """A program of the node that the runtime runs at a moment of the container's life."""

    hook_name: str
    path: str
    args: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    timeout: int | None = None


class ContainerEdits(_Struct, frozen=True):
    """What is done to a container."""

    env: tuple[str, ...] = ()
    device_nodes: tuple[DeviceNode, ...] = ()
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    additional_gids: tuple[int, ...] = ()

    def __add__(self, more: ContainerEdits) -> ContainerEdits:
        """These edits, then those."""
        return ContainerEdits(
            env=self.env + more.env,
            device_nodes=self.device_nodes + more.device_nodes,
            mounts=self.mounts + more.mounts,
            hooks=self.hooks + more.hooks,
            additional_gids=self.additional_gids + more.additional_gids,
        )

    def environment(self, given: Mapping[str, str]) -> dict[str, str]:
        """A container's environment with these edits: they win over what was there, and later ones over earlier."""
        changed = dict(given)
        for variable in self.env:
            name, _, value = variable.partition("=")
            changed[name] = value
        return changed


class Device(_Struct, frozen=True):
    """One device of a spec."""

    name: str
    container_edits: ContainerEdits
    annotations: dict[str, str] = {}


class Spec(_Struct, frozen=True, kw_only=True):
    """One spec file: devices of a kind (`vendor/class`), and edits for whichever of them a container has."""

    cdi_version: str
    kind: str
    devices: tuple[Device, ...]
    container_edits: ContainerEdits = ContainerEdits()
    annotations: dict[str, str] = {}

    def qualified(self, device: Device) -> str:
        """The name by which a container asks for a device: `vendor/class=name`."""
        return f"{self.kind}={device.name}"


@dataclass(frozen=True, slots=True)
class Found:
    """What the spec files of some folders hold: devices by qualified name, and why files or devices were left out."""

    devices: dict[str, tuple[Spec, Device]] = field(default_factory=dict)
    errors: tuple[str, ...] = ()


_DECODER: Final = msgspec.json.Decoder(Spec)


def read(path: Path) -> Spec:
    """The spec in a file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise CdiError(f"failed to read CDI Spec {str(path)!r}: {error.strerror or error}") from error
    if len(raw) > MAX_BYTES:
        raise CdiError(f"CDI Spec {str(path)!r} is longer than {MAX_BYTES} bytes: split it by device")
    try:
        # Which is JSON too; the quick way first, since agents write JSON.
        spec = _DECODER.decode(raw) if path.suffix == ".json" else msgspec.convert(yaml.safe_load(raw), Spec)
    except (msgspec.MsgspecError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise CdiError(f"failed to parse CDI Spec {str(path)!r}: {error}") from error
    faults = check(spec)
    if faults:
        raise CdiError(f"invalid CDI Spec {str(path)!r}: {faults[0]}")
    return spec


def check(spec: Spec) -> list[str]:
    """What keeps a runtime from using a spec; nothing if it is good."""
    faults = []
    vendor, slash, class_ = spec.kind.partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(class_):
        faults.append(f"invalid kind {shown(spec.kind)}: write vendor/class, such as example.com/gpu")
    if not spec.cdi_version:
        faults.append(f"no cdiVersion: write {VERSION}")
    if not spec.devices:
        faults.append("no devices")
    faults += _edit_faults(spec.container_edits, "the spec")
    seen: set[str] = set()
    for device in spec.devices:
        if not _DEVICE.fullmatch(device.name):
            faults.append(f"invalid device name {shown(device.name)}: use letters, digits and . _ : - between them")
        if device.name in seen:
            faults.append(f"multiple device {shown(device.name)}")
        seen.add(device.name)
        if device.container_edits == ContainerEdits():
            faults.append(f"device {shown(device.name)} has empty device edits")
        faults += _edit_faults(device.container_edits, f"device {shown(device.name)}")
    return faults


def _edit_faults(edits: ContainerEdits, where: str) -> list[str]:
    faults = [
        f"{where}: invalid environment variable {shown(variable)}: write NAME=value"
        for variable in edits.env
        if variable.find("=") < 1
    ]
    for node in edits.device_nodes:
        if not node.path:
            faults.append(f"{where}: a device node has no path")
        if node.type and node.type not in _DEVICE_TYPES:
            faults.append(f"{where}: device node {shown(node.path)} has type {shown(node.type)}: use b, c, u or p")
        if set(node.permissions) - set("rwm"):
            faults.append(f"{where}: device node {shown(node.path)} has permissions {shown(node.permissions)}: use rwm")
    faults += [
        f"{where}: a mount needs hostPath and containerPath"
        for mount in edits.mounts
        if not mount.host_path or not mount.container_path
    ]
    for hook in edits.hooks:
        if hook.hook_name not in HOOKS:
            faults.append(f"{where}: unknown hook {shown(hook.hook_name)}: use one of {', '.join(HOOKS)}")
        if not hook.path:
            faults.append(f"{where}: hook {shown(hook.hook_name)} has no path")
    return faults


def file_name(kind: str, tag: str) -> str:
    """The name of a file for the spec of a kind; `tag` tells several of them apart."""
    return f"{re.sub(r'[^A-Za-z0-9._-]', '-', f'{kind}-{tag}')}.json"


def write(folder: Path, spec: Spec, tag: str) -> Path:
    """Put a spec into place, whole or not at all; an earlier one with this tag is replaced."""
    faults = check(spec)
    if faults:
        raise CdiError(f"refused to write a CDI Spec of kind {shown(spec.kind)}: {faults[0]}")
    path = folder / file_name(spec.kind, tag)
    try:
        write_whole(path, msgspec.json.encode(spec))
    except OSError as error:
        raise CdiError(f"failed to write CDI Spec {str(path)!r}: {error.strerror or error}") from error
    return path


def load(folders: Iterable[Path], spec_in: Callable[[Path], Spec] = read) -> Found:
    """All devices of some folders. A later folder wins over an earlier one; two files of one folder do not agree."""
    devices: dict[str, tuple[Spec, Device]] = {}
    errors: list[str] = []
    for folder in folders:
        own: dict[str, tuple[Spec, Device]] = {}
        places: dict[str, Path] = {}
        conflicts: set[str] = set()
        for path in _files(folder):
            try:
                spec = spec_in(path)
            except CdiError as error:
                errors.append(str(error))
                continue
            for device in spec.devices:
                name = spec.qualified(device)
                if name in own:
                    conflicts.add(name)
                    errors.append(f"conflicting device {name!r} (specs {str(places[name])!r}, {str(path)!r})")
                own[name], places[name] = (spec, device), path
        devices |= own
        for name in conflicts:
            del devices[name]
    return Found(devices, tuple(errors))


def _files(folder: Path) -> list[Path]:
    try:
        found = [path for path in folder.iterdir() if path.suffix in _SUFFIXES and not path.name.startswith(".")]
    except FileNotFoundError:
        return []
    return sorted(found)


def resolve(names: Sequence[str], found: Found) -> ContainerEdits:
    """All that a container's devices do to it: of each spec its own edits once, then those of the device."""
    missing = [name for name in names if name not in found.devices]
    if missing:
        raise UnresolvableError(missing)
    edits = ContainerEdits()
    seen: list[Spec] = []
    for name in names:
        spec, device = found.devices[name]
        if not any(spec is one for one in seen):
            seen.append(spec)
            edits += spec.container_edits
        edits += device.container_edits
    return edits
