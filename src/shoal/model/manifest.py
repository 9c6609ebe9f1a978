"""The parts of Kubernetes objects that the model reads, from decoded structs and from plain dictionaries.

A struct has been checked by its decoder (`shoal.kube.objects`). Nothing about the shape of a dictionary is taken for
granted: what is not of the right type raises the reader's own error, with the path to it. What the fields mean is not
decided here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

from shoal.model.contract.mechanisms import BY_NUMBER
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
class PodParts:
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


def read_pod(pod: object) -> PodParts:
    """The parts of a pod in a plain dictionary; RequestError for anything that is not a pod."""
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
    check_names(containers)
    return PodParts(
        labels=_fields(metadata.get("labels"), "metadata.labels"),
        annotations=_fields(metadata.get("annotations"), "metadata.annotations"),
        node=node or "",
        containers=containers,
        pod_limits=_fields(resources.get("limits"), "spec.resources.limits"),
        pod_requests=_fields(resources.get("requests"), "spec.resources.requests"),
        overhead=_fields(spec.get("overhead"), "spec.overhead"),
    )


def check_names(containers: Sequence[PodContainer]) -> None:
    """Refuse a pod whose containers cannot be told apart."""
    if len(containers) == 1 and containers[0].name:
        return
    names = [container.name for container in containers]
    if not all(names):
        raise RequestError("a container has no name: give each container of the pod its own name")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestError(f"two containers are named {shown(twice)}: give each container of the pod its own name")


class _Amounts(Protocol):
    @property
    def limits(self) -> Fields: ...
    @property
    def requests(self) -> Fields: ...


class _Container(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def restart_policy(self) -> str | None: ...
    @property
    def resources(self) -> _Amounts: ...


class _Metadata(Protocol):
    @property
    def labels(self) -> Fields: ...
    @property
    def annotations(self) -> Fields: ...


class _Spec(Protocol):
    @property
    def node_name(self) -> str: ...
    @property
    def containers(self) -> Sequence[_Container]: ...
    @property
    def init_containers(self) -> Sequence[_Container]: ...
    @property
    def resources(self) -> _Amounts | None: ...
    @property
    def overhead(self) -> Fields: ...


class PodStruct(Protocol):
    """A decoded pod, such as `shoal.kube.objects.pod.Pod`."""

    @property
    def metadata(self) -> _Metadata:
        """Its labels and annotations."""

    @property
    def spec(self) -> _Spec:
        """Its containers and what they ask for."""


def pod_parts(pod: PodStruct, *, by_claims: Collection[str] = ()) -> PodParts:
    """The parts of a decoded pod.

    `by_claims` are the resource names that the pod's node serves through claims: a container with such a name has a
    device claim and no devices, so its extended resources are left out. The node decides this; the pod's status, which
    others than the scheduler can write, does not.
    """
    meta, spec = pod.metadata, pod.spec
    containers = [_of_struct(one, ContainerKind.APP) for one in spec.containers]
    if spec.init_containers:
        containers = [_of_struct(one, _init_kind(one.restart_policy)) for one in spec.init_containers] + containers
    if by_claims:
        containers = [one if one.limits.keys().isdisjoint(by_claims) else _without_numbers(one) for one in containers]
    whole = spec.resources
    return PodParts(
        labels=meta.labels,
        annotations=meta.annotations,
        node=spec.node_name,
        containers=tuple(containers),
        pod_limits=_NOTHING if whole is None else whole.limits,
        pod_requests=_NOTHING if whole is None else whole.requests,
        overhead=spec.overhead,
    )


def _of_struct(container: _Container, kind: ContainerKind) -> PodContainer:
    amounts = container.resources
    return PodContainer(container.name, kind, amounts.limits, amounts.requests)


def _without_numbers(container: PodContainer) -> PodContainer:
    limits, requests = (
        {name: amount for name, amount in amounts.items() if name not in BY_NUMBER}
        for amounts in (container.limits, container.requests)
    )
    return PodContainer(container.name, container.kind, limits, requests)


def _init_kind(restart_policy: object) -> ContainerKind:
    return ContainerKind.SIDECAR if restart_policy == "Always" else ContainerKind.INIT


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
    return PodContainer(
        name=name,
        kind=_init_kind(container.get("restartPolicy")) if init else ContainerKind.APP,
        limits=_fields(resources.get("limits"), f"{where}.resources.limits"),
        requests=_fields(resources.get("requests"), f"{where}.resources.requests"),
    )


def _fields(value: object, where: str) -> Fields:
    return fields(value, where=where, error=RequestError)
