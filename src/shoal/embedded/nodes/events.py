"""The events kubelet and the node controllers tell: equal ones are counted, none is told about what is gone."""

from __future__ import annotations

import itertools
from collections import OrderedDict
from typing import Any, Final

from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import EVENTS
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object

#: As many different events are remembered, to be counted when they come again.
_REMEMBERED: Final = 4096


class Recorder:
    """Writes events of all nodes of a process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._names: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._numbers = itertools.count(int(registry.clock().timestamp() * 1_000_000_000))

    def tell(
        self,
        about: Object,
        reason: str,
        message: str,
        *,
        component: str = "kubelet",
        host: str = "",
        field_path: str = "",
        warning: bool = False,
    ) -> None:
        """Tell something about an object."""
        meta = about["metadata"]
        namespace = meta.get("namespace", "default")
        kind = "Warning" if warning else "Normal"
        key = (meta["uid"], host, field_path, kind, reason, message)
        present = self._registry.store.get(EVENTS.key, (namespace, self._names.get(key, "")))
        try:
            if present is not None:
                self._count(namespace, present)
                return
            source = {"component": component, **({"host": host} if host else {})}
            event = {
                "metadata": {"name": f"{meta['name']}.{next(self._numbers):x}"},
                "involvedObject": _reference(about, field_path),
                "reason": reason,
                "message": message,
                "source": source,
                "firstTimestamp": self._registry.now(),
                "lastTimestamp": self._registry.now(),
                "count": 1,
                "type": kind,
                "reportingComponent": component,
                "reportingInstance": host,
            }
            made = self._registry.create(EVENTS, namespace, event, manager=None)
        except ApiStatus:
            return  # its namespace is on its way out: as in the real cluster, the event is given up
        self._names[key] = made["metadata"]["name"]
        if len(self._names) > _REMEMBERED:
            self._names.popitem(last=False)

    def _count(self, namespace: str, present: Object) -> None:
        more = {**present, "count": present.get("count", 1) + 1, "lastTimestamp": self._registry.now()}
        self._registry.update(EVENTS, namespace, present["metadata"]["name"], more, manager=None)


def _reference(about: Object, field_path: str) -> dict[str, Any]:
    meta = about["metadata"]
    reference: dict[str, Any] = {"kind": about["kind"], "name": meta["name"], "uid": meta["uid"]}
    if "namespace" in meta:
        reference["namespace"] = meta["namespace"]
    reference["apiVersion"] = about["apiVersion"]
    if "resourceVersion" in meta and about["kind"] == "Pod":
        reference["resourceVersion"] = meta["resourceVersion"]
    if field_path:
        reference["fieldPath"] = field_path
    return reference
