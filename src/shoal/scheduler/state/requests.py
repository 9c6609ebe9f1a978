"""Requests by template: pods made from one template are read once.

The key of a template is made of the fields that `shoal.model` reads, so two pods with one key have equal requests. A
request that cannot be met as written is kept too, as its error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

import msgspec

from shoal.kube.objects.pod import Pod
from shoal.model.bounded_cache import BoundedCache
from shoal.model.contract import keti
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import RequestError
from shoal.model.manifest import pod_parts
from shoal.model.pod import ANNOTATIONS_READ, LABELS_READ, request_of
from shoal.model.request import Request

#: Templates remembered; the ones unused for longest are forgotten beyond it.
_TEMPLATES: Final = 10_000

#: Longer keys are kept as a digest: thousands are remembered, and a tenant can write a pod of 1.5 MB.
_MAX_KEY: Final = 1024
_DIGEST_BYTES: Final = 32

_encode = msgspec.json.Encoder().encode


class Requests:
    """The requests of pods, each template read once."""

    def __init__(self, unit: MemoryUnit) -> None:
        self._unit = unit
        self._known: BoundedCache[bytes, Request | str] = BoundedCache(_TEMPLATES)
        #: The pod asked about last: one decision asks several times.
        self._last: tuple[Pod | None, Request | str] = (None, "")

    def of(self, pod: Pod, *, by_claims: Collection[str] = ()) -> Request:
        """The pod's request, without the containers that ask for a name in `by_claims`.

        Raises RequestError when it cannot be met as written.
        """
        if by_claims:
            key = template_key(pod) + _encode(sorted(by_claims))
            known = self._known.of(key, lambda: self._read(pod, by_claims))
        else:
            if self._last[0] is not pod:
                self._last = (pod, self._known.of(template_key(pod), lambda: self._read(pod)))
            known = self._last[1]
        if isinstance(known, str):
            raise RequestError(known)
        return known

    def _read(self, pod: Pod, by_claims: Collection[str] = ()) -> Request | str:
        try:
            return request_of(pod_parts(pod, by_claims=by_claims), unit=self._unit)
        except RequestError as error:
            return str(error)


def template_key(pod: Pod) -> bytes:
    """A key that is the same for pods with the same request."""
    spec, meta = pod.spec, pod.metadata
    return _key(
        (
            [(c.name, c.restart_policy, c.resources) for c in spec.containers],
            [(c.name, c.restart_policy, c.resources) for c in spec.init_containers],
            spec.resources,
            spec.overhead,
            [meta.annotations.get(name) for name in ANNOTATIONS_READ] if meta.annotations else None,
            [meta.labels.get(name) for name in LABELS_READ] if meta.labels else None,
        )
    )


def placement_key(pod: Pod) -> bytes:
    """A key that is the same for pods that fit in the same places: their request and all that filters read of them."""
    spec = pod.spec
    return _key(
        (
            template_key(pod),
            pod.metadata.namespace,
            pod.metadata.labels,
            pod.metadata.annotations.get(keti.ANNOTATION_NODE),
            pod.metadata.annotations.get(keti.ANNOTATION_CLUSTER),
            spec.node_selector,
            spec.affinity,
            spec.tolerations,
            spec.topology_spread_constraints,
            spec.volumes,
            spec.preemption_policy,
            [c.ports for c in spec.containers if c.ports],
        )
    )


def _key(parts: tuple[object, ...]) -> bytes:
    key = _encode(parts)
    return key if len(key) <= _MAX_KEY else hashlib.blake2b(key, digest_size=_DIGEST_BYTES).digest()
