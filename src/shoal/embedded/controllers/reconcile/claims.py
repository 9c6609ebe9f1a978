"""Who belongs to whom: objects that match a selector are adopted, those that match no longer are let go."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.embedded.controllers.actions import Action, Update
from shoal.embedded.controllers.reconcile.pods import controller_of, is_deleted, owner_reference
from shoal.embedded.kinds import Kind
from shoal.embedded.patch.json_values import copied
from shoal.embedded.selectors import matches_selector
from shoal.embedded.store import Object


def claim(
    owner: Object, candidates: Iterable[Object], kind: Kind, *, finalizer: str = ""
) -> tuple[list[Object], list[Action]]:
    """The candidates that belong to the owner, and the writes that make it so. An adopted one gets the finalizer."""
    claimed: list[Object] = []
    actions: list[Action] = []
    selector = owner["spec"].get("selector")
    for obj in candidates:
        controller = controller_of(obj)
        fits = matches_selector(selector, obj["metadata"].get("labels") or {})
        if controller is not None:
            if controller["uid"] != owner["metadata"]["uid"]:
                continue
            if fits:
                claimed.append(obj)
            elif not is_deleted(owner):
                actions.append(Update(kind, _released(obj, owner, finalizer)))
        elif fits and not is_deleted(owner) and not is_deleted(obj):
            adopted = _adopted(obj, owner, finalizer)
            claimed.append(adopted)
            actions.append(Update(kind, adopted))
    return claimed, actions


def _adopted(obj: Object, owner: Object, finalizer: str) -> Object:
    new: Object = copied(obj)
    metadata = new["metadata"]
    metadata["ownerReferences"] = [*metadata.get("ownerReferences", ()), owner_reference(owner)]
    if finalizer and finalizer not in metadata.get("finalizers", ()):
        metadata["finalizers"] = [*metadata.get("finalizers", ()), finalizer]
    return new


def _released(obj: Object, owner: Object, finalizer: str) -> Object:
    new: Object = copied(obj)
    metadata, uid = new["metadata"], owner["metadata"]["uid"]
    metadata["ownerReferences"] = [one for one in metadata["ownerReferences"] if one.get("uid") != uid]
    metadata["finalizers"] = [one for one in metadata.get("finalizers", ()) if one != finalizer]
    return new
