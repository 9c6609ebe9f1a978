"""Kubernetes objects as plain dictionaries, checked once.

Objects come from the API server, from files and from tests, so nothing about their shape is taken for granted: what is
not of the right type raises the reader's own error, with the path to it. What the fields mean is not decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from shoal.model.errors import ModelError, RequestError, shown
from shoal.model.request import ContainerKind

Fields = Mapping[str, object]

_NOTHING: Final[Fields] = MappingProxyType({})
#: More than any API server accepts.
_MAX_CONTAINERS: Final = 1000


@dataclass(frozen=True, slots=True)
class PodContainer:
    """A container of a pod with the amounts it names, unread."""

    name: str
    kind: ContainerKind
    limits: Fields
    requests: Fields


@dataclass(frozen=True, slots=True)
class PodManifest:
    """The parts of a pod that placement looks at. Containers stand in the order of the spec, init containers first."""

    labels: Fields
    annotations: Fields
    #: The node the pod is bound to; empty before.
    node: str
    containers: tuple[PodContainer, ...]
    pod_limits: Fields
    pod_requests: Fields
    overhead: Fields

    def app_names(self) -> tuple[str, ...]:
        """The names of `spec.containers`, in order."""
        return tuple(container.name for container in self.containers if container.kind is ContainerKind.APP)


def fields(value: object, *, where: str, error: type[ModelError]) -> Fields:
    """A mapping; absent counts as empty."""
    if value is None:
        return _NOTHING
    # A dict is what there nearly always is, and the abstract test is slow.
    if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101
        return value
    raise error(f"{where} is {shown(value)}: write a mapping of names to values")


def name_of(value: object, *, where: str, error: type[ModelError]) -> str:
    """A name that must be there."""
    if isinstance(value, str) and value:
        return value
    raise error(f"{where} is {shown(value)}: write a name")


def read_pod(pod: object) -> PodManifest:
    """The parts of a pod object; RequestError for anything that is not a pod."""
    if not isinstance(pod, Mapping):
        raise RequestError(f"the pod is {shown(pod)}: give a Kubernetes pod object, a mapping with metadata and spec")
    metadata = _fields(pod.get("metadata"), "metadata")
    if pod.get("spec") is None:
        raise RequestError("the pod has no spec: give a Kubernetes pod object with spec.containers")
    spec = _fields(pod["spec"], "spec")
    resources = _fields(spec.get("resources"), "spec.resources")
    node = spec.get("nodeName")
    if node is not None and not isinstance(node, str):
        raise RequestError(f"spec.nodeName is {shown(node)}: write the name of a node or leave it out")
    containers = (
        *_containers(spec.get("initContainers"), "spec.initContainers", init=True),
        *_containers(spec.get("containers"), "spec.containers", init=False),
    )
    names = [container.name for container in containers]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"two containers are named {shown(twice)}: give each container of the pod its own name")
    return PodManifest(
        labels=_fields(metadata.get("labels"), "metadata.labels"),
        annotations=_fields(metadata.get("annotations"), "metadata.annotations"),
        node=node or "",
        containers=containers,
        pod_limits=_fields(resources.get("limits"), "spec.resources.limits"),
        pod_requests=_fields(resources.get("requests"), "spec.resources.requests"),
        overhead=_fields(spec.get("overhead"), "spec.overhead"),
    )


def _containers(value: object, where: str, *, init: bool) -> tuple[PodContainer, ...]:
    if value is None:
        return ()
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or len(value) > _MAX_CONTAINERS:
        raise RequestError(f"{where} is {shown(value)}: write a list of at most {_MAX_CONTAINERS} containers")
    return tuple(_container(item, f"{where}[{place}]", init=init) for place, item in enumerate(value))


def _container(item: object, where: str, *, init: bool) -> PodContainer:
    container = _fields(item, where)
    name = name_of(container.get("name"), where=f"{where}.name", error=RequestError)
    resources = _fields(container.get("resources"), f"{where}.resources")
    if not init:
        kind = ContainerKind.APP
    elif container.get("restartPolicy") == "Always":
        kind = ContainerKind.SIDECAR
    else:
        kind = ContainerKind.INIT
    return PodContainer(
        name=name,
        kind=kind,
        limits=_fields(resources.get("limits"), f"{where}.resources.limits"),
        requests=_fields(resources.get("requests"), f"{where}.resources.requests"),
    )


def _fields(value: object, where: str) -> Fields:
    return fields(value, where=where, error=RequestError)
