"""The configuration of NVIDIA's device plugin (`version: v1`), so that a node's existing one can be kept.

`parse` is pure: text in, plain data out. What the plugin or the agent ignores becomes a
warning, what cannot be done an error. `replicas` and `partitions` have what is served by it.

`ConfigSource` is where the text comes from: nowhere, a file, or a ConfigMap. Of a ConfigMap the node's label
`nvidia.com/device-plugin.config` names the key, as for NVIDIA's config manager. Changes of the file, the map and the
label are taken as they come. What cannot be read leaves the last good configuration in force, with an event about the
node. Before there is a good one nothing is known about NVIDIA's resources, and none is offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from shoal.agent.config import AgentConfig
from shoal.agent.errors import AgentConfigError
from shoal.agent.node.object import NodeObject
from shoal.kube.client import Client
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.objects.others import ConfigMap
from shoal.kube.reflector import Reflector
from shoal.kube.resources import CONFIG_MAPS, NODES
from shoal.kube.store import Change
from shoal.model.contract import nvidia
from shoal.model.errors import shown

log = logging.getLogger(__name__)

TAKEN: Final = "GPUConfigTaken"
REFUSED: Final = "GPUConfigRefused"
MAX_BYTES: Final = 1 << 20
_LOOK_SECONDS: Final = 5.0
_WAIT_SECONDS: Final = 5.0
_MOST_REPLICAS: Final = 1000
_PREFIX: Final = f"{nvidia.DOMAIN}/"
_TIME_SLICING: Final = nvidia.SHARING_STRATEGIES[1]
_MPS: Final = nvidia.SHARING_STRATEGIES[2]


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
    """What the agent uses of the file."""

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


def parse(text: str, *, where: str = "the configuration of the device plugin") -> NvidiaConfig:
    """The configuration in a file's text. `where` begins the message of an AgentConfigError."""
    if len(text) > MAX_BYTES:
        raise AgentConfigError(f"{where} has more than {MAX_BYTES} characters: is it the right file?")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a date that does not exist
        raise AgentConfigError(f"{where} is no YAML: {error}") from error
    try:
        file = msgspec.convert(document, _File)
    except msgspec.ValidationError as error:
        raise AgentConfigError(f"{where}: {error}: write it as NVIDIA's device plugin reads it, version: v1") from error
    warnings: list[str] = []
    if file.resources is not None:
        warnings.append("resources: names by pattern are ignored, as NVIDIA's plugin ignores them")
    if file.imex is not None:
        warnings.append("imex: channels are not handed out")
    flags = file.flags or _Flags()
    plugin = flags.plugin or _Plugin()
    _check_strategies(plugin.device_list_strategy, where, warnings)
    none = nvidia.MIG_STRATEGIES[0]
    mig = _one_of(flags.mig_strategy or none, nvidia.MIG_STRATEGIES, f"{where}: migStrategy")
    sharing = _sharing(file.sharing or _Sharing(), where, warnings)
    if mig != none and any(one.by_mps for one in sharing):
        raise AgentConfigError(f"{where}: MPS serves no MIG partitions: write timeSlicing, or migStrategy: {none}")
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
            raise AgentConfigError(
                f"label {nvidia.LABEL_DEVICE_PLUGIN_CONFIG} asks for {shown(named)}, which is not there: "
                f"choose of {known}"
            )
        return named
    return next(iter(files)) if len(files) == 1 else None


def _one_of(value: str, known: tuple[str, ...], where: str) -> str:
    if value not in known:
        raise AgentConfigError(f"{where} {shown(value)} is not known: choose one of {', '.join(known)}")
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
            raise AgentConfigError(
                f"{where}: resource {shown(entry.name)} cannot be shared: write {nvidia.RESOURCE_GPU}, or a MIG "
                f"profile such as {nvidia.RESOURCE_MIG_PREFIX}1g.10gb"
            )
        if mig and mps:
            raise AgentConfigError(f"{where}: {name} cannot be shared by MPS: write it under timeSlicing")
        if name in found:
            raise AgentConfigError(f"{where}: resource {shown(name)} is listed twice: keep one of the entries")
        if mps and entry.replicas > nvidia.MAX_MPS_CLIENTS:
            raise AgentConfigError(
                f"{where}: {entry.replicas} replicas of {name} are more than the {nvidia.MAX_MPS_CLIENTS} clients that "
                "MPS serves: write fewer"
            )
        if entry.rename or entry.devices not in (None, "all"):
            warnings.append(f"{name}: rename and devices are ignored, as NVIDIA's plugin ignores them")
        found[name] = Sharing(strategy, name, served, entry.replicas, fails)
    return tuple(found.values())


class ConfigSource:
    """The configuration in force. `changed` is called when it is another one."""

    def __init__(
        self,
        config: AgentConfig,
        client: Client,
        node: NodeObject,
        recorder: Recorder,
        *,
        last: NvidiaConfig | None,
        changed: Callable[[], None],
    ) -> None:
        """`last` is the last good configuration before a reload."""
        self._file = Path(config.nvidia_config) if config.nvidia_config else None
        self._map = config.nvidia_config_map
        self._default = config.nvidia_config_default
        self._node = node
        self._recorder = recorder
        self._changed = changed
        self._text: str | None = None
        self._told = ""
        self._complaint = ""
        self._looked = asyncio.Event()
        self.current: NvidiaConfig | None = last if self._file or self._map else NvidiaConfig()
        #: Why the source's configuration is not in force, in words.
        self.problem = f"still reading ConfigMap {self._map}" if self._map else ""
        namespace, _, name = self._map.partition("/")
        self._reflector: Reflector[ConfigMap] = Reflector(
            client, CONFIG_MAPS, namespace=namespace, fields=f"metadata.name={name}", consumers=[self._on_map]
        )

    def waiting_for(self) -> str:
        """Why NVIDIA's resources are not offered; empty when they are."""
        if self.current is not None:
            return ""
        return f"{self.problem}: {self._reflector.last_error}" if self._reflector.last_error else self.problem

    async def run(self) -> None:
        """Follow the source until cancelled."""
        async with contextlib.AsyncExitStack() as stack:
            if self._map:
                await stack.enter_async_context(self._reflector)
                await self._reflector.wait_synced()
            self.look()
            self._looked.set()
            while self._file is not None:
                await asyncio.sleep(_LOOK_SECONDS)
                self.look()
            await asyncio.Event().wait()

    async def wait_looked(self) -> None:
        """Return when the source was read, good or not, or after a few seconds without an answer."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WAIT_SECONDS):
                await self._looked.wait()

    def look(self) -> None:
        """Read the source and take its configuration, if it can be read now."""
        if self._map and not self._reflector.synced.is_set():
            return
        try:
            text = self._read()
            if text is not None and text == self._text:
                self.problem = self._told = ""
                return
            self._take(NvidiaConfig() if text is None else parse(text, where=self._where))
            self._text = text
        except AgentConfigError as error:
            self._refuse(str(error))

    def _on_map(self, change: Change[ConfigMap]) -> None:
        self.look()

    @property
    def _where(self) -> str:
        return f"ConfigMap {self._map}" if self._map else str(self._file)

    def _read(self) -> str | None:
        """The text of the configuration; None if none is configured."""
        if self._file is not None:
            try:
                with self._file.open("rb") as file:
                    return file.read(MAX_BYTES + 1).decode()
            except OSError as error:
                raise AgentConfigError(
                    f"{self._file} cannot be read: {error.strerror}: give the path of the file"
                ) from error
            except UnicodeDecodeError as error:
                raise AgentConfigError(f"{self._file} is no text: {error}") from error
        if not self._map:
            return None
        found = self._reflector.store.get(*reversed(self._map.split("/")))
        if found is None:
            raise AgentConfigError(f"ConfigMap {self._map} is not there: create it, or change nvidiaConfigMap")
        key = choose_file(found.data, self._node.labels, default=self._default)
        return None if key is None else found.data[key]

    def _take(self, fresh: NvidiaConfig) -> None:
        self.problem = self._told = ""
        for warning in fresh.warnings:
            log.warning("%s: %s", self._where, warning)
        if fresh == self.current:
            return
        before, self.current = self.current, fresh
        words = _words(fresh)
        log.info("%s is taken: %s", self._where, words)
        if before is not None:
            self._tell("Normal", TAKEN, f"{self._where} is taken: {words}")
        self._changed()

    def _refuse(self, problem: str) -> None:
        self.problem = problem
        if problem != self._told:
            self._told = problem
            kept = "NVIDIA's resources are not offered" if self.current is None else "the last good one stays in force"
            log.error("%s: %s", problem, kept)
            self._tell("Warning", REFUSED, f"{problem}: {kept}")

    def complain(self, problem: str) -> None:
        """Tell, once, why the node's cards do not fit a good configuration; an empty `problem` if they do."""
        if problem != self._complaint and problem:
            log.warning("%s: %s", self._where, problem)
            self._tell("Warning", REFUSED, f"{self._where}: {problem}")
        self._complaint = problem

    def _tell(self, kind: EventType, reason: str, message: str) -> None:
        if self._node.node is not None:
            self._recorder.record(reference_to(NODES, self._node.node), kind, reason, message)


def _words(config: NvidiaConfig) -> str:
    shared = [f"{one.replicas} replicas a piece as {one.served_as} by {one.strategy}" for one in config.sharing]
    if config.mig_strategy != nvidia.MIG_STRATEGIES[0]:
        shared.append(f"MIG partitions by strategy {config.mig_strategy}")
    return "; ".join(shared) or "nothing is shared"
