"""Rows of what makes up a cluster: nodes, namespaces, events, services, settings, leases, claims of devices."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from shoal.embedded.tables.layout import (
    NONE,
    UNKNOWN,
    Column,
    Layout,
    age,
    columns,
    condition,
    is_true,
    labels_text,
    mapping,
    moment,
    number,
    objects,
    part,
    since,
    text,
)

_ROLE = "node-role.kubernetes.io/"


def name_of(value: dict[str, Any]) -> str:
    """The object's name."""
    return text(value, "metadata", "name")


def _node(node: dict[str, Any], now: datetime) -> list[Any]:
    status = ["Unknown"]
    if condition(node, "Ready"):
        status = ["Ready" if is_true(node, "Ready") else "NotReady"]
    if part(node, "spec", "unschedulable") is True:
        status.append("SchedulingDisabled")
    info = mapping(node, "status", "nodeInfo")
    architecture = text(info, "architecture")
    return [
        name_of(node),
        ",".join(status),
        ",".join(_roles(node)) or NONE,
        age(node, now),
        text(info, "kubeletVersion"),
        _address(node, "InternalIP"),
        _address(node, "ExternalIP"),
        text(info, "osImage") or UNKNOWN,
        (text(info, "kernelVersion") or UNKNOWN) + (f" ({architecture})" if architecture else ""),
        text(info, "containerRuntimeVersion") or UNKNOWN,
    ]


def _roles(node: dict[str, Any]) -> list[str]:
    labels = mapping(node, "metadata", "labels")
    roles = {key.removeprefix(_ROLE) for key in labels if key.startswith(_ROLE)}
    return sorted((roles | {text(labels, "kubernetes.io/role")}) - {""})


def _address(node: dict[str, Any], type_: str) -> str:
    found = (entry for entry in objects(node, "status", "addresses") if text(entry, "type") == type_)
    return next((text(entry, "address") for entry in found), NONE)


def _event(event: dict[str, Any], now: datetime) -> list[Any]:
    """Both the core API's and events.k8s.io's names of the fields."""
    first = moment(event, "firstTimestamp") or moment(event, "deprecatedFirstTimestamp") or moment(event, "eventTime")
    last = moment(event, "lastTimestamp") or moment(event, "deprecatedLastTimestamp") or first
    count = number(event, "count") or number(event, "deprecatedCount") or 1
    if part(event, "series") is not None:
        last, count = moment(event, "series", "lastObservedTime"), number(event, "series", "count")
    about = mapping(event, "involvedObject") or mapping(event, "regarding")
    return [
        since(last, now),
        text(event, "type"),
        text(event, "reason"),
        text(about, "kind").lower() + (f"/{text(about, 'name')}" if text(about, "name") else ""),
        text(about, "fieldPath"),
        _source(event),
        (text(event, "message") or text(event, "note")).strip(),
        since(first, now),
        count,
        name_of(event),
    ]


def _source(event: dict[str, Any]) -> str:
    source = mapping(event, "source") or mapping(event, "deprecatedSource")
    controller = text(event, "reportingComponent") or text(event, "reportingController")
    component = text(source, "component") or controller
    host = text(source, "host") or text(event, "reportingInstance")
    return f"{component}, {host}" if host else component


def _service(service: dict[str, Any], now: datetime) -> list[Any]:
    addresses = part(service, "spec", "clusterIPs")
    first = addresses[0] if isinstance(addresses, list) and addresses else text(service, "spec", "clusterIP")
    return [
        name_of(service),
        text(service, "spec", "type"),
        first or NONE,
        _external(service),
        ",".join(map(_port, objects(service, "spec", "ports"))) or NONE,
        age(service, now),
        labels_text(mapping(service, "spec", "selector")),
    ]


def _external(service: dict[str, Any]) -> str:
    kind = text(service, "spec", "type")
    given = part(service, "spec", "externalIPs")
    outside = [str(address) for address in given] if isinstance(given, list) else []
    if kind in ("ClusterIP", "NodePort"):
        return ",".join(outside) or NONE
    if kind == "LoadBalancer":
        ingress = objects(service, "status", "loadBalancer", "ingress")
        balanced = {text(entry, "ip") or text(entry, "hostname") for entry in ingress} - {""}
        return ",".join([*sorted(balanced), *outside]) or "<pending>"
    return text(service, "spec", "externalName") if kind == "ExternalName" else UNKNOWN


def _port(port: dict[str, Any]) -> str:
    node_port = f":{number(port, 'nodePort')}" if number(port, "nodePort") else ""
    return f"{number(port, 'port')}{node_port}/{text(port, 'protocol')}"


def _entries(value: dict[str, Any], *fields: str) -> int:
    return sum(len(mapping(value, field)) for field in fields)


def _claim_state(claim: dict[str, Any]) -> str:
    deleted = bool(text(claim, "metadata", "deletionTimestamp"))
    states = ["deleted"] if deleted else []
    if part(claim, "status", "allocation") is not None:
        states.append("allocated")
        states += ["reserved"] if objects(claim, "status", "reservedFor") else []
    elif not deleted:
        states.append("pending")
    return ",".join(states)


NODE = Layout(
    columns(
        *("Name", "Status", "Roles", "Age", "Version"),
        wide=("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime"),
    ),
    _node,
)
NAMESPACE = Layout(
    columns("Name", "Status", "Age"),
    lambda value, now: [name_of(value), text(value, "status", "phase"), age(value, now)],
)
EVENT = Layout(
    (
        *columns("Last Seen", "Type", "Reason", "Object"),
        *(Column("Subobject", wide=True), Column("Source", wide=True), Column("Message")),
        *(Column("First Seen", wide=True), Column("Count", wide=True), Column("Name", wide=True)),
    ),
    _event,
)
SERVICE = Layout(columns("Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", wide=("Selector",)), _service)
#: What has nothing to show but itself.
NAMED = Layout(columns("Name", "Age"), lambda value, now: [name_of(value), age(value, now)])
CONFIG_MAP = Layout(
    columns("Name", "Data", "Age"),
    lambda value, now: [name_of(value), _entries(value, "data", "binaryData"), age(value, now)],
)
SECRET = Layout(
    columns("Name", "Type", "Data", "Age"),
    lambda value, now: [name_of(value), text(value, "type"), _entries(value, "data"), age(value, now)],
)
LEASE = Layout(
    columns("Name", "Holder", "Age"),
    lambda value, now: [name_of(value), text(value, "spec", "holderIdentity"), age(value, now)],
)
DISRUPTION_BUDGET = Layout(
    columns(
        "Name", "Min Available", "Max Unavailable", "Allowed Disruptions", "Age", integers=("Allowed Disruptions",)
    ),
    lambda value, now: [
        name_of(value),
        *(str(mapping(value, "spec").get(name, "N/A")) for name in ("minAvailable", "maxUnavailable")),
        number(value, "status", "disruptionsAllowed"),
        age(value, now),
    ],
)
PRIORITY_CLASS = Layout(
    (
        *(Column("Name"), Column("Value", "integer"), Column("Global-Default", "boolean")),
        *columns("Age", "PreemptionPolicy"),
    ),
    lambda value, now: [
        name_of(value),
        number(value, "value"),
        part(value, "globalDefault") is True,
        age(value, now),
        text(value, "preemptionPolicy"),
    ],
)
RESOURCE_CLAIM = Layout(
    columns("Name", "State", "Age"), lambda value, now: [name_of(value), _claim_state(value), age(value, now)]
)
RESOURCE_SLICE = Layout(
    columns("Name", "Node", "Driver", "Pool", "Age"),
    lambda value, now: [
        name_of(value),
        text(value, "spec", "nodeName"),
        text(value, "spec", "driver"),
        text(value, "spec", "pool", "name"),
        age(value, now),
    ],
)
