"""Bad GPU requests are refused as the admission policies of `deploy/admission` refuse them, word for word.

There is no CEL here: what the policies say in it, `shoal.model` says itself. Which of the policies are installed is not
looked up either; who starts the cluster decides, and a namespace can opt out with its label.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from shoal.embedded.errors import ApiStatus, forbidden
from shoal.embedded.kinds import NAMESPACES, Kind
from shoal.embedded.store import Object, Store
from shoal.model.contract import shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.errors import RequestError
from shoal.model.manifest import read_pod
from shoal.model.pod import ANNOTATIONS_READ, LABELS_READ, gpus_of_manifest

_Template = Mapping[str, Any]
#: Where the pod or pod template of a kind lies, and the policy that looks at it.
_PLACES: Final[dict[tuple[str, str], tuple[tuple[str, ...], str]]] = {
    ("", "pods"): ((), shoal.POLICY_PODS),
    ("apps", "deployments"): (("spec", "template"), shoal.POLICY_TEMPLATES),
    ("apps", "statefulsets"): (("spec", "template"), shoal.POLICY_TEMPLATES),
    ("apps", "daemonsets"): (("spec", "template"), shoal.POLICY_TEMPLATES),
    ("apps", "replicasets"): (("spec", "template"), shoal.POLICY_TEMPLATES),
    ("batch", "jobs"): (("spec", "template"), shoal.POLICY_TEMPLATES),
    ("batch", "cronjobs"): (("spec", "jobTemplate", "spec", "template"), shoal.POLICY_CRON_JOBS),
}


class GpuAdmission:
    """A validator of a registry."""

    def __init__(self, store: Store, *, unit: MemoryUnit) -> None:
        self._store = store
        self._unit = unit

    def __call__(self, kind: Kind, before: Object | None, after: Object) -> None:
        """Refuse a pod or a workload whose request nobody could place, unless it was so before this write."""
        place = _PLACES.get(kind.key)
        if place is None or self._ignored(after["metadata"].get("namespace", "")):
            return
        path, policy = place
        asked = _at(after, path)
        same = _same_template if path else _same_pod
        if before is not None and same(_at(before, path), asked):
            return
        try:
            gpus_of_manifest(read_pod(asked), unit=self._unit)
        except RequestError as error:
            raise _denied(kind, after["metadata"]["name"], policy, str(error)) from error

    def _ignored(self, namespace: str) -> bool:
        home = self._store.get(NAMESPACES.key, ("", namespace)) or {"metadata": {}}
        return (home["metadata"].get("labels") or {}).get(shoal.LABEL_ADMISSION) == shoal.ADMISSION_IGNORE


def _at(obj: Object, path: tuple[str, ...]) -> _Template:
    found: Any = obj
    for name in path:
        found = found.get(name) or {}
    return found if found.get("spec") else {**found, "spec": {}}


def _same_template(before: _Template, after: _Template) -> bool:
    return before == after


def _same_pod(before: _Template, after: _Template) -> bool:
    """Whether a pod asks for the same: its resources cannot change, nearly everything else is not looked at."""
    return all(
        (before["metadata"].get(part) or {}).get(key) == (after["metadata"].get(part) or {}).get(key)
        for part, keys in (("labels", LABELS_READ), ("annotations", ANNOTATIONS_READ))
        for key in keys
    )


def _denied(kind: Kind, name: str, policy: str, why: str) -> ApiStatus:
    message = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {why}"
    return forbidden(kind.plural, kind.group, name, message, [{"message": message}])
