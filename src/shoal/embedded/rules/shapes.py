"""The types of the fields that the server itself reads. A body of another shape is refused with 400 before any rule.

The real server decodes into full types; here only the fields that later code relies on are looked at.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec

from shoal.embedded.errors import ApiStatus, bad_request
from shoal.embedded.kinds import Kind
from shoal.model.errors import QuantityError
from shoal.model.quantity import stored

_QUANTITY_TEXT: Final = "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
_GO_TYPES: Final = {"str": "string", "int": "number", "float": "number", "bool": "bool", "array": "array"}
_MAPS: Final = ("data", "stringData", "metadata.labels", "metadata.annotations")
_Text = str | None
_Texts = dict[str, str | None] | None
_Quantities = dict[str, str | int | float] | None


class _Struct(msgspec.Struct, rename="camel"):
    pass


class _Owner(_Struct):
    api_version: _Text = None
    kind: _Text = None
    name: _Text = None
    uid: _Text = None
    controller: bool | None = None


class _Meta(_Struct):
    name: _Text = None
    generate_name: _Text = None
    namespace: _Text = None
    uid: _Text = None
    resource_version: _Text = None
    labels: _Texts = None
    annotations: _Texts = None
    finalizers: list[str] | None = None
    owner_references: list[_Owner] | None = None


class _Custom(_Struct):
    metadata: _Meta | None = None


class _Base(_Custom):
    spec: dict[str, Any] | None = None
    status: dict[str, Any] | None = None


class _Resources(_Struct):
    limits: _Quantities = None
    requests: _Quantities = None


class _Mount(_Struct):
    name: _Text = None
    mount_path: _Text = None


class _Volume(_Struct):
    name: _Text = None


class _Container(_Struct):
    name: _Text = None
    image: _Text = None
    resources: _Resources | None = None
    ports: list[dict[str, Any]] | None = None
    env: list[dict[str, Any]] | None = None
    volume_mounts: list[_Mount] | None = None


class _PodSpec(_Struct):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    tolerations: list[dict[str, Any]] | None = None
    node_name: _Text = None
    service_account_name: _Text = None
    restart_policy: _Text = None
    scheduler_name: _Text = None
    termination_grace_period_seconds: int | None = None


class _Pod(_Base):
    spec: _PodSpec | None = None  # type: ignore[assignment]


class _Template(_Struct):
    metadata: _Meta | None = None
    spec: _PodSpec | None = None


class _Selector(_Struct):
    match_labels: _Texts = None
    match_expressions: list[dict[str, Any]] | None = None


class _Strategy(_Struct):
    type: _Text = None
    rolling_update: dict[str, Any] | None = None


class _WorkloadSpec(_Struct):
    replicas: int | None = None
    strategy: _Strategy | None = None
    update_strategy: _Strategy | None = None
    selector: _Selector | None = None
    template: _Template | None = None


class _Workload(_Base):
    spec: _WorkloadSpec | None = None  # type: ignore[assignment]


class _NodeStatus(_Struct):
    capacity: _Quantities = None
    allocatable: _Quantities = None
    conditions: list[dict[str, Any]] | None = None


class _NodeSpec(_Struct):
    taints: list[dict[str, Any]] | None = None
    unschedulable: bool | None = None


class _Node(_Base):
    spec: _NodeSpec | None = None  # type: ignore[assignment]
    status: _NodeStatus | None = None  # type: ignore[assignment]


class _ServiceSpec(_Struct):
    ports: list[dict[str, Any]] | None = None
    selector: _Texts = None


class _Service(_Base):
    spec: _ServiceSpec | None = None  # type: ignore[assignment]


class _Reference(_Struct):
    kind: _Text = None
    namespace: _Text = None
    name: _Text = None


class _Series(_Struct):
    count: int | None = None


class _Event(_Base):
    involved_object: _Reference | None = None
    regarding: _Reference | None = None
    reason: _Text = None
    message: _Text = None
    note: _Text = None
    action: _Text = None
    reporting_component: _Text = None
    reporting_controller: _Text = None
    reporting_instance: _Text = None
    series: _Series | None = None


class _LeaseSpec(_Struct):
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None


class _Lease(_Base):
    spec: _LeaseSpec | None = None  # type: ignore[assignment]


class _BudgetSpec(_Struct):
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    selector: _Selector | None = None


class _Budget(_Base):
    spec: _BudgetSpec | None = None  # type: ignore[assignment]


class _Data(_Base):
    data: _Texts = None
    binary_data: _Texts = None
    string_data: _Texts = None


_SHAPES: Final[dict[str, type[_Base]]] = {
    "Pod": _Pod,
    "Node": _Node,
    "ConfigMap": _Data,
    "Secret": _Data,
    "Service": _Service,
    "Event": _Event,
    "Lease": _Lease,
    "PodDisruptionBudget": _Budget,
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"), _Workload),
}


def check_shape(obj: dict[str, Any], kind: Kind) -> None:
    """Refuse an object whose fields have types that cannot be."""
    shape = _Custom if kind.custom else _SHAPES.get(kind.kind, _Base)
    try:
        msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        raise _refusal(kind, _go_words(str(error), kind)) from error


#: The same few amounts come again with every pod. By type too: 1 and true are equal.
_stored: Final = lru_cache(maxsize=1024, typed=True)(stored)


def canonical_quantities(quantities: dict[str, Any], kind: Kind) -> dict[str, str]:
    """Quantities as the server writes them: `0.5` is `500m`, `1024Mi` is `1Gi`."""
    try:
        return {name: _stored(value) for name, value in quantities.items()}
    except (QuantityError, TypeError) as error:  # or no text and no number at all
        raise _refusal(kind, _QUANTITY_TEXT) from error


def _refusal(kind: Kind, why: str) -> ApiStatus:
    return bad_request(f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: {why}')


def _go_words(text: str, kind: Kind) -> str:
    """`Expected `str | null`, got `int` - at `$.metadata.labels[...]`` in the words of Go's decoder."""
    what, _, where = text.partition(" - at ")
    words = what.split("`")
    if len(words) < 5:
        return f"json: {what}"
    path = where.strip("`").removeprefix("$.").replace("[...]", "").replace("[]", "")
    owner = "ObjectMeta" if path.startswith("metadata.") else kind.kind
    wanted = words[1].split(" | ")[0]
    if wanted == "object" and path in _MAPS:
        wanted = "map[string]string"
    return (
        f"json: cannot unmarshal {_GO_TYPES.get(words[3], words[3])} into Go struct field {owner}.{path} "
        f"of type {_GO_TYPES.get(wanted, wanted)}"
    )
