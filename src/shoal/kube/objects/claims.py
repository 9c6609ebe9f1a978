"""Dynamic resource allocation (`resource.k8s.io/v1`): claims, their templates, device classes and slices.

Slim, but for slices, which hold all that Shoal's own driver writes; what another driver's slices say besides is lost.
"""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.kube.objects.meta import Base, Object, ObjectMeta
from shoal.kube.objects.pod import Quantities
from shoal.model.contract import dra

Quantity = str | int | float


class CelSelector(Base, frozen=True, kw_only=True):
    """An expression that a device must satisfy."""

    expression: str = ""


class DeviceSelector(Base, frozen=True, kw_only=True):
    """A condition on devices; CEL is the only kind."""

    cel: CelSelector | None = None


class DeviceToleration(Base, frozen=True, kw_only=True):
    """A taint of a device that the request puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class CapacityRequirements(Base, frozen=True, kw_only=True):
    """What is asked for of a device that several claims share."""

    requests: Quantities = msgspec.field(default_factory=dict)


class ExactDeviceRequest(Base, frozen=True, kw_only=True):
    """Devices of a class: how many, which, and how much of each."""

    device_class_name: str = ""
    selectors: tuple[DeviceSelector, ...] = ()
    allocation_mode: str = ""
    count: int = 0
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: CapacityRequirements | None = None


class DeviceSubRequest(ExactDeviceRequest, frozen=True, kw_only=True):
    """An alternative of a request, with a name of its own."""

    name: str = ""


class DeviceRequest(Base, frozen=True, kw_only=True):
    """One request of a claim: either `exactly` or the first alternative that can be had."""

    name: str = ""
    exactly: ExactDeviceRequest | None = None
    first_available: tuple[DeviceSubRequest, ...] = ()


class DeviceConstraint(Base, frozen=True, kw_only=True):
    """What devices of several requests must have in common, or must not."""

    requests: tuple[str, ...] = ()
    match_attribute: str | None = None
    distinct_attribute: str | None = None


class OpaqueConfiguration(Base, frozen=True, kw_only=True):
    """Settings for a driver; `parameters` stay as they came."""

    driver: str = ""
    parameters: dict[str, Any] | None = None


class DeviceConfiguration(Base, frozen=True, kw_only=True):
    """Settings of a class or claim. In an allocation `source` tells whose they were."""

    source: str = ""
    requests: tuple[str, ...] = ()
    opaque: OpaqueConfiguration | None = None


class DeviceClaim(Base, frozen=True, kw_only=True):
    """What a claim asks for."""

    requests: tuple[DeviceRequest, ...] = ()
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class ResourceClaimSpec(Base, frozen=True, kw_only=True):
    """The wish, which cannot be changed."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Base, frozen=True, kw_only=True):
    """One device that a claim got for one request."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None
    tolerations: tuple[DeviceToleration, ...] = ()
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Quantities = msgspec.field(default_factory=dict)


class DeviceAllocation(Base, frozen=True, kw_only=True):
    """All devices of a claim, and the settings for their drivers."""

    results: tuple[AllocatedDevice, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()


class AllocationResult(Base, frozen=True, kw_only=True):
    """Where a claim's devices are; `node_selector` stays as it came."""

    devices: DeviceAllocation = DeviceAllocation()
    node_selector: dict[str, Any] | None = None
    allocation_timestamp: str | None = None


class ConsumerReference(Base, frozen=True, kw_only=True):
    """Who uses a claim."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Base, frozen=True, kw_only=True):
    """What became of the wish."""

    allocation: AllocationResult | None = None
    reserved_for: tuple[ConsumerReference, ...] = ()


class ResourceClaim(Object, frozen=True, kw_only=True):
    """A claim of devices."""

    spec: ResourceClaimSpec = ResourceClaimSpec()
    status: ResourceClaimStatus = ResourceClaimStatus()

    def is_made_for(self, pod_uid: str) -> bool:
        """Whether the claim says that a scheduler made it of the extended resources of the pod with this UID."""
        meta = self.metadata
        own = any(owner.uid == pod_uid and owner.controller for owner in meta.owner_references)
        return own and meta.annotations.get(dra.ANNOTATION_EXTENDED_RESOURCE) == "true"


class ResourceClaimTemplateSpec(Base, frozen=True, kw_only=True):
    """The claims that are made."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceClaimSpec = ResourceClaimSpec()


class ResourceClaimTemplate(Object, frozen=True, kw_only=True):
    """Of what claims are made, one for each pod."""

    spec: ResourceClaimTemplateSpec = ResourceClaimTemplateSpec()


class DeviceClassSpec(Base, frozen=True, kw_only=True):
    """Which devices, and what their drivers are told."""

    selectors: tuple[DeviceSelector, ...] = ()
    config: tuple[DeviceConfiguration, ...] = ()
    extended_resource_name: str | None = None


class DeviceClass(Object, frozen=True, kw_only=True):
    """A kind of devices that requests name."""

    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceAttribute(Base, frozen=True, kw_only=True):
    """A property of a device: one of the four, or a list of one kind."""

    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    string: str | None = None
    version: str | None = None
    ints: tuple[int, ...] = ()
    bools: tuple[bool, ...] = ()
    strings: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()


class CapacityRange(Base, frozen=True, kw_only=True):
    """Amounts that may be consumed, in steps from the smallest."""

    min: Quantity | None = None
    max: Quantity | None = None
    step: Quantity | None = None


class CapacityRequestPolicy(Base, frozen=True, kw_only=True):
    """How an amount that is asked for becomes the one that is consumed."""

    default: Quantity | None = None
    valid_values: tuple[Quantity, ...] = ()
    valid_range: CapacityRange | None = None


class DeviceCapacity(Base, frozen=True, kw_only=True):
    """How much of something a device has."""

    value: Quantity = 0
    request_policy: CapacityRequestPolicy | None = None


class DeviceCounter(Base, frozen=True, kw_only=True):
    """An amount that several devices draw on."""

    value: Quantity = 0


class CounterSet(Base, frozen=True, kw_only=True):
    """Amounts of one piece of hardware."""

    name: str = ""
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class CounterConsumption(Base, frozen=True, kw_only=True):
    """What a device takes of a counter set while it is allocated."""

    counter_set: str = ""
    counters: dict[str, DeviceCounter] = msgspec.field(default_factory=dict)


class DeviceTaint(Base, frozen=True, kw_only=True):
    """Keeps claims away that do not tolerate it."""

    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str | None = None


class SliceDevice(Base, frozen=True, kw_only=True):
    """A device that can be allocated."""

    name: str = ""
    attributes: dict[str, DeviceAttribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, DeviceCapacity] = msgspec.field(default_factory=dict)
    consumes_counters: tuple[CounterConsumption, ...] = ()
    taints: tuple[DeviceTaint, ...] = ()
    allow_multiple_allocations: bool | None = None


class ResourcePool(Base, frozen=True, kw_only=True):
    """The slices that belong together. Those of an older generation do not count."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(Base, frozen=True, kw_only=True):
    """Devices of a driver on a node; or counters that they consume, never both."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str | None = None
    node_selector: dict[str, Any] | None = None
    all_nodes: bool | None = None
    devices: tuple[SliceDevice, ...] = ()
    per_device_node_selection: bool | None = None
    shared_counters: tuple[CounterSet, ...] = ()


class ResourceSlice(Object, frozen=True, kw_only=True):
    """A part of a driver's pool of devices."""

    spec: ResourceSliceSpec = ResourceSliceSpec()
