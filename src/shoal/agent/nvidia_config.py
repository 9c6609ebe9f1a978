"""Reads the configuration file of NVIDIA's device plugin (`version: v1`), so that a node's existing one can be kept.

Pure: text in, plain data out. What the plugin itself reads and ignores is kept as a warning, what Shoal does not do
(MIG strategies other than none) as an error that says so. Nothing is served from it here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from shoal.agent.errors import ConfigError
from shoal.model.contract import nvidia
from shoal.model.errors import shown

MAX_BYTES: Final = 1 << 20
_MOST_REPLICAS: Final = 1000
_PREFIX: Final = f"{nvidia.DOMAIN}/"


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Replicas(_Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    replicas: Annotated[int, msgspec.Meta(ge=2, le=_MOST_REPLICAS)]
    rename: str = ""
    devices: Any = None


class _Section(_Struct, frozen=True):
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: Annotated[tuple[_Replicas, ...], msgspec.Meta(max_length=64)] = ()


class _Sharing(_Struct, frozen=True):
    time_slicing: _Section | None = None
    mps: _Section | None = None


class _Plugin(msgspec.Struct, frozen=True, rename="camel"):
    device_list_strategy: str | tuple[str, ...] | None = None
    pass_device_specs: bool | None = None
    device_id_strategy: str | None = msgspec.field(default=None, name="deviceIDStrategy")


class _Flags(msgspec.Struct, frozen=True, rename="camel"):
    mig_strategy: str | None = None
    fail_on_init_error: bool | None = None
    plugin: _Plugin = _Plugin()


class _File(_Struct, frozen=True):
    version: Literal["v1"]
    flags: _Flags = _Flags()
    resources: Any = None
    sharing: _Sharing = _Sharing()
    imex: Any = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """How a card is counted several times under one resource."""

    #: `time-slicing` or `mps`.
    strategy: str
    resource: str
    #: The name under which the replicas are served.
    served_as: str
    replicas: int
    fail_requests_greater_than_one: bool


@dataclass(frozen=True, slots=True)
class NvidiaConfig:
    """What the file says that matters here."""

    sharing: tuple[Sharing, ...] = ()
    #: The first strategy that is listed; None leaves it to the agent.
    device_list_strategy: str | None = None
    fail_on_init_error: bool = True
    #: What the file says and nobody does, in words.
    warnings: tuple[str, ...] = field(default=())


def parse(text: str, *, where: str = "the configuration of the device plugin") -> NvidiaConfig:
    """The configuration in a file's text. `where` begins the message of a ConfigError."""
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{where} has more than {MAX_BYTES} characters: is it the right file?")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise ConfigError(f"{where} is no YAML: {error}") from error
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{where}: {error}: write it as NVIDIA's device plugin reads it, version: v1") from error
    warnings: list[str] = []
    if file.resources is not None:
        warnings.append("resources: names by pattern are ignored, as NVIDIA's plugin ignores them")
    if file.imex is not None:
        warnings.append("imex: channels are not handed out")
    _check_mig(file.flags.mig_strategy, where)
    return NvidiaConfig(
        sharing=_sharing(file.sharing, where, warnings),
        device_list_strategy=_strategy(file.flags.plugin.device_list_strategy, where),
        fail_on_init_error=file.flags.fail_on_init_error is not False,
        warnings=tuple(warnings),
    )


def choose(files: Mapping[str, str], labels: Mapping[str, str], *, default: str = "") -> str | None:
    """The name of the file that a node's label asks for; else the default, else the only one, else none."""
    named = labels.get(nvidia.LABEL_DEVICE_PLUGIN_CONFIG) or default
    if named:
        if named not in files:
            known = ", ".join(sorted(files)) or "none"
            raise ConfigError(
                f"label {nvidia.LABEL_DEVICE_PLUGIN_CONFIG} asks for {shown(named)}, which is not there: "
                f"choose of {known}"
            )
        return named
    return next(iter(files)) if len(files) == 1 else None


def _check_mig(strategy: str | None, where: str) -> None:
    if strategy is None or strategy == nvidia.MIG_STRATEGIES[0]:
        return
    if strategy not in nvidia.MIG_STRATEGIES:
        known = ", ".join(nvidia.MIG_STRATEGIES)
        raise ConfigError(f"{where}: migStrategy {shown(strategy)} is not known: choose one of {known}")
    raise ConfigError(f"{where}: migStrategy {strategy} is not served here: use none, or NVIDIA's plugin on this node")


def _strategy(value: str | tuple[str, ...] | None, where: str) -> str | None:
    listed = [one.strip() for one in value.split(",")] if isinstance(value, str) else list(value or ())
    for one in listed:
        if one not in nvidia.DEVICE_LIST_STRATEGIES:
            known = ", ".join(nvidia.DEVICE_LIST_STRATEGIES)
            raise ConfigError(f"{where}: deviceListStrategy {shown(one)} is not known: choose of {known}")
    return listed[0] if listed else None


def _sharing(sharing: _Sharing, where: str, warnings: list[str]) -> tuple[Sharing, ...]:
    if sharing.mps is not None:
        if sharing.time_slicing is not None:
            warnings.append("sharing: mps wins over timeSlicing")
        return _section(sharing.mps, nvidia.SHARING_STRATEGIES[2], where, warnings)
    if sharing.time_slicing is not None:
        return _section(sharing.time_slicing, nvidia.SHARING_STRATEGIES[1], where, warnings)
    return ()


def _section(section: _Section, strategy: str, where: str, warnings: list[str]) -> tuple[Sharing, ...]:
    mps = strategy == nvidia.SHARING_STRATEGIES[2]
    fails = mps if section.fail_requests_greater_than_one is None else section.fail_requests_greater_than_one
    found: dict[str, Sharing] = {}
    for entry in section.resources:
        name = entry.name if "/" in entry.name else _PREFIX + entry.name
        if not name.startswith(_PREFIX) or len(name) > nvidia.MAX_RESOURCE_NAME:
            raise ConfigError(f"{where}: resource {shown(entry.name)} cannot be shared: write {nvidia.RESOURCE_GPU}")
        if name in found:
            raise ConfigError(f"{where}: resource {shown(name)} is listed twice: keep one of the entries")
        if mps and entry.replicas > nvidia.MAX_MPS_CLIENTS:
            raise ConfigError(
                f"{where}: {entry.replicas} replicas of {name} are more than the {nvidia.MAX_MPS_CLIENTS} clients that "
                "MPS serves: write fewer"
            )
        if entry.rename or entry.devices not in (None, "all"):
            warnings.append(f"{name}: rename and devices are ignored, as NVIDIA's plugin ignores them")
        served = name + nvidia.SHARED_SUFFIX if section.rename_by_default else name
        found[name] = Sharing(strategy, name, served, entry.replicas, fails)
    return tuple(found.values())
