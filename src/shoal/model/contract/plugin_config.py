"""The configuration of NVIDIA's device plugin (`version: v1`), so that a node's existing one can be kept.

Text in, plain data out. What the plugin or Shoal ignores becomes a warning, what cannot be done an error. Of a
ConfigMap with several files the node's label `nvidia.com/device-plugin.config` names one, as for NVIDIA's config
manager. The agent serves cards by it, discovery tells it in labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from shoal.model.contract import nvidia
from shoal.model.errors import PluginConfigError, shown

MAX_BYTES: Final = 1 << 20
MOST_REPLICAS: Final = 1000
_PREFIX: Final = f"{nvidia.DOMAIN}/"
_TIME_SLICING: Final = nvidia.SHARING_STRATEGIES[1]
_MPS: Final = nvidia.SHARING_STRATEGIES[2]


class _Struct(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


class _Replicas(_Struct, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=253)]
    replicas: Annotated[int, msgspec.Meta(ge=2, le=MOST_REPLICAS)]
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
    shared_devices_allocation_policy: str | None = None


class _Flags(msgspec.Struct, frozen=True, rename="camel"):
    mig_strategy: str | None = None
    plugin: _Plugin | None = None


class _File(_Struct, frozen=True):
    version: Literal["v1"]
    flags: _Flags | None = None
    resources: Any = None
    sharing: _Sharing | None = None
    imex: Any = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """How the cards of one resource are shared: each counts as several replicas."""

    #: `time-slicing` or `mps`.
    strategy: str
    resource: str
    #: The name under which the replicas are served.
    served_as: str
    replicas: int
    fail_requests_greater_than_one: bool

    @property
    def by_mps(self) -> bool:
        """Whether MPS is to keep the replicas apart."""
        return self.strategy == _MPS


@dataclass(frozen=True, slots=True)
class NvidiaConfig:
    """What is used of the file."""

    sharing: tuple[Sharing, ...] = ()
    mig_strategy: str = nvidia.MIG_STRATEGIES[0]
    #: Replicas go to the fullest card, not to the emptiest.
    packed: bool = False
    #: Settings of the file that have no effect, in words.
    warnings: tuple[str, ...] = field(default=())

    def shared(self, resource: str) -> Sharing | None:
        """How a resource is shared; None if it is not. `resource` is its name in the file."""
        return next((one for one in self.sharing if one.resource == resource), None)

    def served(self, name: str) -> Sharing | None:
        """How the resource is shared that kubelet counts under a name; None if it is not."""
        return next((one for one in self.sharing if one.served_as == name), None)


def parse(
    text: str,
    *,
    where: str = "the configuration of the device plugin",
    mig_strategy: str = nvidia.MIG_STRATEGIES[0],
) -> NvidiaConfig:
    """The configuration in a file's text. `where` begins the message of a PluginConfigError.

    `mig_strategy` holds where the text says nothing of it and shares nothing by MPS, which serves no partitions.
    """
    if len(text) > MAX_BYTES:
        raise PluginConfigError(f"{where} has more than {MAX_BYTES} characters: is it the right file?")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise PluginConfigError(f"{where} is no YAML: {error}") from error
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise PluginConfigError(
            f"{where}: {error}: write it as NVIDIA's device plugin reads it, version: v1"
        ) from error
    warnings: list[str] = []
    if file.resources is not None:
        warnings.append("resources: names by pattern are ignored, as NVIDIA's plugin ignores them")
    if file.imex is not None:
        warnings.append("imex: channels are not handed out")
    flags = file.flags or _Flags()
    plugin = flags.plugin or _Plugin()
    _check_strategies(plugin.device_list_strategy, where, warnings)
    none = nvidia.MIG_STRATEGIES[0]
    sharing = _sharing(file.sharing or _Sharing(), where, warnings)
    by_mps = any(one.by_mps for one in sharing)
    otherwise = none if by_mps else mig_strategy
    mig = _one_of(flags.mig_strategy or otherwise, nvidia.MIG_STRATEGIES, f"{where}: migStrategy")
    if mig != none and by_mps:
        raise PluginConfigError(f"{where}: MPS serves no MIG partitions: write timeSlicing, or migStrategy: {none}")
    spread, packed = nvidia.ALLOCATION_POLICIES
    policy = plugin.shared_devices_allocation_policy or spread
    return NvidiaConfig(
        sharing=sharing,
        mig_strategy=mig,
        packed=_one_of(policy, nvidia.ALLOCATION_POLICIES, f"{where}: sharedDevicesAllocationPolicy") == packed,
        warnings=tuple(warnings),
    )


def choose_file(files: Mapping[str, str], labels: Mapping[str, str], *, default: str = "") -> str | None:
    """The name of the file that a node's label asks for; else the default, else the only one, else none."""
    named = labels.get(nvidia.LABEL_DEVICE_PLUGIN_CONFIG) or default
    if named:
        if named not in files:
            known = ", ".join(sorted(files)) or "none"
            raise PluginConfigError(
                f"label {nvidia.LABEL_DEVICE_PLUGIN_CONFIG} asks for {shown(named)}, which is not there: "
                f"choose of {known}"
            )
        return named
    return next(iter(files)) if len(files) == 1 else None


def _one_of(value: str, known: tuple[str, ...], where: str) -> str:
    if value not in known:
        raise PluginConfigError(f"{where} {shown(value)} is not known: choose one of {', '.join(known)}")
    return value


def _check_strategies(value: str | tuple[str, ...] | None, where: str, warnings: list[str]) -> None:
    if not value:
        return
    for one in value.split(",") if isinstance(value, str) else value:
        _one_of(one.strip(), nvidia.DEVICE_LIST_STRATEGIES, f"{where}: deviceListStrategy")
    warnings.append("deviceListStrategy: the agent's own setting of that name decides")


def _sharing(sharing: _Sharing, where: str, warnings: list[str]) -> tuple[Sharing, ...]:
    if sharing.mps is not None:
        if sharing.time_slicing is not None:
            warnings.append("sharing: mps wins over timeSlicing")
        return _section(sharing.mps, _MPS, where, warnings)
    if sharing.time_slicing is not None:
        return _section(sharing.time_slicing, _TIME_SLICING, where, warnings)
    return ()


def _section(section: _Section, strategy: str, where: str, warnings: list[str]) -> tuple[Sharing, ...]:
    mps = strategy == _MPS
    fails = mps if section.fail_requests_greater_than_one is None else section.fail_requests_greater_than_one
    found: dict[str, Sharing] = {}
    for entry in section.resources:
        name = entry.name if "/" in entry.name else _PREFIX + entry.name
        served = name + nvidia.SHARED_SUFFIX if section.rename_by_default else name
        mig = name.startswith(nvidia.RESOURCE_MIG_PREFIX)
        if not (mig or name == nvidia.RESOURCE_GPU) or len(served) > nvidia.MAX_RESOURCE_NAME:
            raise PluginConfigError(
                f"{where}: resource {shown(entry.name)} cannot be shared: write {nvidia.RESOURCE_GPU}, or a MIG "
                f"profile such as {nvidia.RESOURCE_MIG_PREFIX}1g.10gb"
            )
        if mig and mps:
            raise PluginConfigError(f"{where}: {name} cannot be shared by MPS: write it under timeSlicing")
        if name in found:
            raise PluginConfigError(f"{where}: resource {shown(name)} is listed twice: keep one of the entries")
        if mps and entry.replicas > nvidia.MAX_MPS_CLIENTS:
            raise PluginConfigError(
                f"{where}: {entry.replicas} replicas of {name} are more than the {nvidia.MAX_MPS_CLIENTS} clients that "
                "MPS serves: write fewer"
            )
        if entry.rename or entry.devices not in (None, "all"):
            warnings.append(f"{name}: rename and devices are ignored, as NVIDIA's plugin ignores them")
        found[name] = Sharing(strategy, name, served, entry.replicas, fails)
    return tuple(found.values())
