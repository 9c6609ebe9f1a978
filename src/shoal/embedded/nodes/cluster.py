"""Which nodes to simulate: from a few numbers, or from a cluster file.

    nodes:
      - name: a100                     # nodes a100-1, a100-2, …; just a100 if there is one and count is not given
        count: 2
        labels: {zone: east}
        taints: ["gpu=yes:NoSchedule"] # or {key: gpu, value: yes, effect: NoSchedule}
        cpu: 64
        memory: 256Gi
        pods: 110
        gpus: 8xA100-80G               # as shoal.gpu.describe reads it: text, or a list of cards
        resources: {example.com/unit: 8}   # extended resources that no plugin serves
        devicePlugins: true            # false: no sockets; plugins cannot register

What is left out is as on a small GPU server. Everything unknown, doubled or out of bounds is a ClusterError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from shoal.embedded.names import label_key_errors, label_value_errors, subdomain_errors
from shoal.embedded.nodes.errors import ClusterError
from shoal.embedded.rules.pods import is_extended
from shoal.gpu.describe import CardDescription, parse_cards
from shoal.gpu.errors import DescriptionError
from shoal.model import quantity
from shoal.model.errors import QuantityError, shown

MAX_NODES: Final = 5000
MAX_FILE_BYTES: Final = 1024 * 1024
_MAX_PODS: Final = 10_000
_KEYS: Final = ("name", "count", "labels", "taints", "cpu", "memory", "pods", "gpus", "resources", "devicePlugins")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TAINT: Final = re.compile(r"(?P<key>[^=:]+)(?:=(?P<value>[^=:]*))?:(?P<effect>[A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """One node to simulate."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Mapping[str, str], ...] = ()
    cpu: str = "32"
    memory: str = "256Gi"
    pods: int = 110
    cards: tuple[CardDescription, ...] = ()
    resources: Mapping[str, int] = field(default_factory=dict)
    #: Whether device plugins can register from the start. It costs two gRPC servers.
    device_plugins: bool = True


def few(count: int, gpus: object = "", *, prefix: str = "node") -> tuple[NodeDescription, ...]:
    """Equal nodes, as `--nodes 3 --gpus 4xA30-24G` asks for them."""
    return parse([{"name": prefix, "count": count, "gpus": gpus or []}])


def read_file(path: Path) -> tuple[NodeDescription, ...]:
    """The nodes of a cluster file."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ClusterError(f"{path}: {error.strerror or error}: give the path of a cluster file") from error
    if len(raw) > MAX_FILE_BYTES:
        raise ClusterError(f"{path} is longer than {MAX_FILE_BYTES} bytes: use count for nodes that are equal")
    try:
        content = yaml.safe_load(raw)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path} is not YAML: {error}") from error
    if not isinstance(content, dict) or set(content) != {"nodes"} or not isinstance(content["nodes"], list):
        raise ClusterError(f"{path}: write a list of groups of nodes under the one key `nodes`")
    return parse(content["nodes"], where=f"{path}: nodes")


def parse(groups: Sequence[object], *, where: str = "nodes") -> tuple[NodeDescription, ...]:
    """The nodes that groups describe. `where` begins the message of a ClusterError."""
    found: list[NodeDescription] = []
    for number, group in enumerate(groups):
        found += _group(group, f"{where}[{number}]")
        if len(found) > MAX_NODES:
            raise ClusterError(f"{where}: more than {MAX_NODES} nodes: describe fewer")
    seen: set[str] = set()
    for node in found:
        if node.name in seen:
            raise ClusterError(f"{where}: two nodes are named {shown(node.name)}: give the groups different names")
        seen.add(node.name)
    return tuple(found)


def _group(group: object, where: str) -> list[NodeDescription]:
    if not isinstance(group, Mapping):
        raise ClusterError(f"{where}: {shown(group)} is not a group of nodes: write name, count, gpus and so on")
    for key in group:
        if key not in _KEYS:
            raise ClusterError(f"{where}: {shown(key)} is not known here: use {', '.join(_KEYS)}")
    name = group.get("name", "node")
    if not isinstance(name, str) or subdomain_errors(f"{name}-{MAX_NODES}"):
        raise ClusterError(f"{where}.name: {shown(name)} cannot name nodes: use lower case letters, digits and -")
    count = _whole(group.get("count", 1), f"{where}.count", MAX_NODES)
    names = [name] if "count" not in group else [f"{name}-{number}" for number in range(1, count + 1)]
    node = NodeDescription(
        name="",
        labels=_labels(group.get("labels") or {}, f"{where}.labels"),
        taints=tuple(_taint(one, f"{where}.taints") for one in _listed(group.get("taints"), f"{where}.taints")),
        cpu=_amount(group.get("cpu", NodeDescription("").cpu), f"{where}.cpu", binary=False),
        memory=_amount(group.get("memory", NodeDescription("").memory), f"{where}.memory", binary=True),
        pods=_whole(group.get("pods", NodeDescription("").pods), f"{where}.pods", _MAX_PODS),
        cards=_cards(group.get("gpus") or [], f"{where}.gpus"),
        resources=_resources(group.get("resources") or {}, f"{where}.resources"),
        device_plugins=_truth(group.get("devicePlugins", True), f"{where}.devicePlugins"),
    )
    return [_named(node, one) for one in names]


def _named(node: NodeDescription, name: str) -> NodeDescription:
    return NodeDescription(
        name=name,
        labels=node.labels,
        taints=node.taints,
        cpu=node.cpu,
        memory=node.memory,
        pods=node.pods,
        cards=node.cards,
        resources=node.resources,
        device_plugins=node.device_plugins,
    )


def _cards(value: object, where: str) -> tuple[CardDescription, ...]:
    try:
        return parse_cards(value, where=where)
    except DescriptionError as error:
        raise ClusterError(str(error)) from error


def _labels(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ClusterError(f"{where}: {shown(value)} is not a mapping: write {{key: value}}")
    found: dict[str, str] = {}
    for key, label in value.items():
        text = str(label).lower() if isinstance(label, bool) else str(label)
        errors = label_key_errors(str(key)) + label_value_errors(text)
        if errors:
            raise ClusterError(f"{where}: {shown(key)}: {shown(label)} cannot be a label: {errors[0]}")
        found[str(key)] = text
    return found


def _taint(value: object, where: str) -> dict[str, str]:
    if isinstance(value, str) and (match := _TAINT.fullmatch(value)):
        value = {name: text for name, text in match.groupdict().items() if text is not None}
    if not isinstance(value, Mapping) or not {"key", "effect"} <= set(value) <= {"key", "value", "effect"}:
        raise ClusterError(f"{where}: {shown(value)} is not a taint: write key=value:NoSchedule")
    if value["effect"] not in _EFFECTS:
        raise ClusterError(f"{where}: {shown(value['effect'])} is no effect: use {', '.join(_EFFECTS)}")
    return {str(name): str(text) for name, text in value.items()}


def _resources(value: object, where: str) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ClusterError(f"{where}: {shown(value)} is not a mapping: write {{example.com/unit: 8}}")
    for name in value:
        if not isinstance(name, str) or not is_extended(name) or label_key_errors(name):
            raise ClusterError(f"{where}: {shown(name)} is no extended resource: write domain/name")
    return {str(name): _whole(amount, f"{where}.{name}", 2**53) for name, amount in value.items()}


def _listed(value: object, where: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise ClusterError(f"{where}: {shown(value)} is not a list: write it in brackets")
    return value


def _amount(value: object, where: str, *, binary: bool) -> str:
    try:
        amount = quantity.parse(value)
    except QuantityError as error:
        raise ClusterError(f"{where}: {error}") from error
    if amount <= 0:
        raise ClusterError(f"{where}: {shown(value)} is not more than nothing: write an amount such as 64 or 256Gi")
    return quantity.canonical(value, binary=binary)


def _whole(value: object, where: str, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ClusterError(f"{where}: {shown(value)} is not a whole number from 0 to {most}: write one")
    return value


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise ClusterError(f"{where}: {shown(value)} is neither true nor false: write one of them")
    return value
