"""The types of the fields that the server itself reads. A body of another shape is refused with 400 before any rule.

The real server decodes into full types; here only the fields that later code relies on are looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from shoal.embedded.definitions import unknown_fields
from shoal.embedded.errors import ApiStatus, bad_request
from shoal.embedded.fields import strict
from shoal.embedded.fields.table import struct_of, structs
from shoal.embedded.kinds import Kind
from shoal.embedded.patch.json_values import type_name
from shoal.model.errors import QuantityError
from shoal.model.quantity import stored

#: The struct of what all objects have.
METADATA: Final = "meta.ObjectMeta"
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


class _ClaimUse(_Struct):
    name: _Text = None
    request: _Text = None


class _Resources(_Struct):
    limits: _Quantities = None
    requests: _Quantities = None
    claims: list[_ClaimUse] | None = None


class _PodClaim(_Struct):
    name: _Text = None
    resource_claim_name: _Text = None
    resource_claim_template_name: _Text = None


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


class _Gate(_Struct):
    name: _Text = None


class _PodSpec(_Struct):
    scheduling_gates: list[_Gate] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    volumes: list[_Volume] | None = None
    resource_claims: list[_PodClaim] | None = None
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


class _Rule(_Struct):
    api_groups: list[str] | None = None
    api_versions: list[str] | None = None
    resources: list[str] | None = None
    operations: list[str] | None = None
    resource_names: list[str] | None = None
    scope: _Text = None


class _Match(_Struct):
    resource_rules: list[_Rule] | None = None
    exclude_resource_rules: list[_Rule] | None = None
    namespace_selector: _Selector | None = None
    object_selector: _Selector | None = None


class _Expression(_Struct):
    name: _Text = None
    expression: _Text = None


class _Mutation(_Struct):
    patch_type: _Text = None
    json_patch: _Expression | None = None
    apply_configuration: _Expression | None = None


class _MutatingSpec(_Struct):
    match_constraints: _Match | None = None
    match_conditions: list[_Expression] | None = None
    variables: list[_Expression] | None = None
    mutations: list[_Mutation] | None = None
    failure_policy: _Text = None
    reinvocation_policy: _Text = None


class _MutatingPolicy(_Base):
    spec: _MutatingSpec | None = None  # type: ignore[assignment]


class _MutatingBindingSpec(_Struct):
    policy_name: _Text = None
    match_resources: _Match | None = None


class _MutatingBinding(_Base):
    spec: _MutatingBindingSpec | None = None  # type: ignore[assignment]


class _ClaimCapacity(_Struct):
    requests: _Quantities = None


class _ExactRequest(_Struct):
    name: _Text = None
    device_class_name: _Text = None
    allocation_mode: _Text = None
    count: int | None = None
    capacity: _ClaimCapacity | None = None


class _DeviceRequest(_Struct):
    name: _Text = None
    exactly: _ExactRequest | None = None
    first_available: list[_ExactRequest] | None = None


class _NamingRequests(_Struct):
    requests: list[str] | None = None


class _DeviceClaim(_Struct):
    requests: list[_DeviceRequest] | None = None
    constraints: list[_NamingRequests] | None = None
    config: list[_NamingRequests] | None = None


class _ClaimSpec(_Struct):
    devices: _DeviceClaim | None = None


class _ClaimResult(_Struct):
    request: _Text = None
    driver: _Text = None
    pool: _Text = None
    device: _Text = None
    consumed_capacity: _Quantities = None


class _ClaimResults(_Struct):
    results: list[_ClaimResult] | None = None


class _ClaimAllocation(_Struct):
    devices: _ClaimResults | None = None


class _ClaimUser(_Struct):
    api_group: _Text = None
    resource: _Text = None
    name: _Text = None
    uid: _Text = None


class _ClaimStatus(_Struct):
    allocation: _ClaimAllocation | None = None
    reserved_for: list[_ClaimUser] | None = None


class _ResourceClaim(_Base):
    spec: _ClaimSpec | None = None  # type: ignore[assignment]
    status: _ClaimStatus | None = None  # type: ignore[assignment]


class _ClaimTemplateSpec(_Struct):
    metadata: _Meta | None = None
    spec: _ClaimSpec | None = None


class _ClaimTemplate(_Base):
    spec: _ClaimTemplateSpec | None = None  # type: ignore[assignment]


class _Pool(_Struct):
    name: _Text = None
    resource_slice_count: int | None = None


class _DevicePolicy(_Struct):
    default: str | int | float | None = None
    valid_range: _Quantities = None


class _DeviceCapacity(_Struct):
    value: str | int | float | None = None
    request_policy: _DevicePolicy | None = None


class _SliceDevice(_Struct):
    name: _Text = None
    capacity: dict[str, _DeviceCapacity] | None = None


class _SliceSpec(_Struct):
    driver: _Text = None
    node_name: _Text = None
    pool: _Pool | None = None
    devices: list[_SliceDevice] | None = None


class _Slice(_Base):
    spec: _SliceSpec | None = None  # type: ignore[assignment]


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
    "MutatingAdmissionPolicy": _MutatingPolicy,
    "MutatingAdmissionPolicyBinding": _MutatingBinding,
    "ResourceClaim": _ResourceClaim,
    "ResourceClaimTemplate": _ClaimTemplate,
    "ResourceSlice": _Slice,
    **dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job"), _Workload),
}


def check_shape(obj: dict[str, Any], kind: Kind) -> None:
    """Refuse an object whose fields have types that cannot be."""
    shape = _Custom if kind.custom else _SHAPES.get(kind.kind, _Base)
    try:
        msgspec.convert(obj, shape)
    except msgspec.ValidationError as error:
        raise _refusal(kind, _go_words(str(error), kind)) from error


def field_faults(obj: dict[str, Any], document: Any, kind: Kind) -> Iterator[str]:
    """Fields that the kind does not have, and fields that are there twice."""
    if not kind.custom:
        yield from strict.faults(document, struct_of(kind.group, kind.kind))
        return
    yield from strict.faults(document, None)
    yield from strict.faults(obj.get("metadata"), structs()[METADATA], "metadata")
    yield from (f'unknown field "{path}"' for path in unknown_fields(obj, kind.schema))


def check_decoded(obj: dict[str, Any], before: dict[str, Any], kind: Kind) -> None:
    """Refuse what a patch made of an object, if a decoder that takes no unknown fields would."""
    for name in ("apiVersion", "kind"):
        if obj.get(name) != before.get(name):
            raise _refusal(kind, f"{name} may not be changed to {obj.get(name)!r}")
    if not isinstance(obj.get("metadata"), dict):
        raise _refusal(kind, f"json: cannot unmarshal {type_name(obj.get('metadata'))} into metadata")
    struct = None if kind.custom else struct_of(kind.group, kind.kind)
    for wrong in strict.wrong_types(obj, struct) if struct is not None else ():
        raise _refusal(kind, _go_mismatch(wrong))
    check_shape(obj, kind)
    faults = list(field_faults(obj, obj, kind))
    if faults:
        raise _refusal(kind, f"strict decoding error: {', '.join(faults)}")


def _go_mismatch(wrong: strict.WrongType) -> str:
    """`json: cannot unmarshal string into Go struct field PodSpec.spec.priority of type int32` and its like."""
    field = wrong.field
    path = re.sub(r"\[\d+\]", "", wrong.path)
    of = _GO_FIELDS.get(field.of) or f"v1.{field.of.rpartition('.')[2]}"
    shape = field.shape.replace("{}", "map[string]") if wrong.wanted in ("list", "map") else ""
    if field.of == "quantity" and not shape:
        return _QUANTITY_TEXT
    owner = wrong.struct.rpartition(".")[2]
    return f"json: cannot unmarshal {type_name(wrong.value)} into Go struct field {owner}.{path} of type {shape}{of}"


#: The types of Go behind the table's; how wide a number is, the table does not tell.
_GO_FIELDS: Final = {
    **dict.fromkeys(("str", "time", "microtime"), "string"),
    "int": "int32",
    "num": "float64",
    "bool": "bool",
    "bytes": "[]uint8",
    "intstr": "intstr.IntOrString",
}


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
