"""Who may change which part of a ResourceClaim's status, as the API server of Kubernetes 1.36 decides it.

Beside `resourceclaims/status` a change needs a right on a resource that has no objects:

- `status.allocation` and `status.reservedFor`: the verb of the request on `resourceclaims/binding`, cluster-wide;
- `status.devices`: `associated-node:<verb>` or `arbitrary-node:<verb>` on `resourceclaims/driver`, named by driver,
  in the claim's namespace. The first is enough for a service account whose token is bound to the claim's node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shoal.embedded.access.authorization import Asked, decide
from shoal.embedded.access.users import User, account_of
from shoal.embedded.errors import FieldError, forbidden_value
from shoal.embedded.kinds import RESOURCE_CLAIMS
from shoal.embedded.store import Object, ObjectStore
from shoal.embedded.writes import Write

_NODE_NAME: Final = "authentication.kubernetes.io/node-name"
_DEVICE_KEY: Final = ("driver", "pool", "device", "shareID")


class ClaimStatusRights:
    """Finds changes of a claim's status that their author may not make."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __call__(self, write: Write) -> list[FieldError]:
        """One error for each part of the status that the author may not change."""
        if write.kind.key != RESOURCE_CLAIMS.key or write.subresource != "status" or write.before is None:
            return []
        before, after = write.before.get("status") or {}, write.after.get("status") or {}
        errors = []
        if any((before.get(part) or None) != (after.get(part) or None) for part in ("allocation", "reservedFor")):
            errors += self._binding_errors(write)
        if after.get("allocation"):
            for driver in _changed_drivers(before.get("devices") or (), after.get("devices") or ()):
                errors += self._driver_errors(write, driver, after["allocation"])
        return errors

    def _binding_errors(self, write: Write) -> list[FieldError]:
        refusal = self._refusal(write.user, self._asked(write.verb, "binding"))
        resource = f'resource="resourceclaims/binding", verb="{write.verb}"'
        needs = f"changing status.allocation or status.reservedFor requires {resource}"
        return [forbidden_value("status.allocation", f"{needs} permission: {refusal}")] if refusal else []

    def _driver_errors(self, write: Write, driver: str, allocation: Mapping[str, Any]) -> list[FieldError]:
        prefixes = ["arbitrary-node"]
        if _is_on_node(write.user, _node_of(allocation)):
            prefixes.insert(0, "associated-node")
        verbs = [f"{prefix}:{write.verb}" for prefix in prefixes]
        refusals = [self._refusal(write.user, self._asked(verb, "driver", write.namespace, driver)) for verb in verbs]
        if not all(refusals):
            return []
        needs = f'changing status.devices requires resource="resourceclaims/driver", verb="[{" ".join(verbs)}]"'
        return [forbidden_value("status.devices", f"{needs} permission: {refusals[0]}")]

    def _asked(self, verb: str, subresource: str, namespace: str = "", name: str = "") -> Asked:
        return Asked(verb, RESOURCE_CLAIMS.group, RESOURCE_CLAIMS.plural, subresource, namespace, name)

    def _refusal(self, user: User, asked: Asked) -> str:
        allowed, reason = decide(self._store, user, asked)
        return "" if allowed else asked.refusal(user.name, reason).message


def _changed_drivers(before: Sequence[Object], after: Sequence[Object]) -> list[str]:
    """The drivers with an entry that was added, changed or removed."""
    old = {tuple(one.get(part) for part in _DEVICE_KEY): one for one in before}
    new = {tuple(one.get(part) for part in _DEVICE_KEY): one for one in after}
    return sorted({str(key[0]) for key in {**old, **new} if old.get(key) != new.get(key)})


def _node_of(allocation: Mapping[str, Any]) -> str:
    """The one node that an allocation names; empty if there are others, or none."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or []
    if len(terms) != 1 or terms[0].get("matchExpressions") or len(terms[0].get("matchFields") or []) != 1:
        return ""
    field = terms[0]["matchFields"][0]
    if (field.get("key"), field.get("operator")) != ("metadata.name", "In") or len(field.get("values") or []) != 1:
        return ""
    return str(field["values"][0])


def _is_on_node(user: User, node: str) -> bool:
    return bool(node) and account_of(user.name) is not None and user.extra.get(_NODE_NAME) == [node]
