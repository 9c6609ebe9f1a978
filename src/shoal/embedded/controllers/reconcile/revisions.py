"""ControllerRevisions: the templates that a StatefulSet or a DaemonSet had, for `kubectl rollout history` and undo."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.embedded.controllers.execute import Action, Create, Update
from shoal.embedded.controllers.reconcile.pods import claim, owner_reference
from shoal.embedded.kinds import REVISIONS
from shoal.embedded.patch.json_values import copied
from shoal.embedded.store import Object

# Short names for templates: a hash in the letters that Kubernetes allows itself, which spell no words.


_LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
_OFFSET: Final = 2166136261
_PRIME: Final = 16777619


def hash_of(value: Any, collisions: int | None = None) -> str:
    """The hash of a value, another one for each number of collisions. Not the number the real cluster comes to."""
    number = _OFFSET
    for byte in msgspec.json.encode([value, collisions], order="deterministic"):
        number = ((number ^ byte) * _PRIME) & 0xFFFFFFFF
    return "".join(_LETTERS[ord(digit) % len(_LETTERS)] for digit in str(number))


#: On pods: the revision they were made from. StatefulSets write its name, DaemonSets the hash in it.
LABEL: Final = "controller-revision-hash"
_STATEFUL_LABEL: Final = "controller.kubernetes.io/hash"
_LONGEST_PREFIX: Final = 223


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of an object in their order, that of the present template, and the writes that make it so."""

    all: tuple[Object, ...]
    update: Object
    actions: tuple[Action, ...]

    def named(self, name: str) -> Object | None:
        """The revision of that name."""
        return next((one for one in self.all if one["metadata"]["name"] == name), None)


def history_of(owner: Object, candidates: Iterable[Object]) -> History:
    """The history with the present template in it, as the newest."""
    present, actions = claim(owner, candidates, REVISIONS)
    present.sort(key=_number)
    data = _patch(owner)
    equal = [one for one in present if one.get("data") == data]
    newest = max(map(_number, present), default=0)
    if not equal:
        update = _made(owner, data, newest + 1)
        return History((*present, update), update, (*actions, Create(REVISIONS, update)))
    update = equal[-1]
    if _number(update) < newest:
        update = {**update, "revision": newest + 1}
        actions = [*(action for action in actions if getattr(action, "obj", None) is not equal[-1])]
        actions.append(Update(REVISIONS, update))
    others = [one for one in present if one is not equal[-1]]
    return History((*others, update), update, tuple(actions))


def template_of(revision: Object) -> Object:
    """The template that a revision holds."""
    template = copied(revision["data"]["spec"]["template"])
    template.pop("$patch", None)
    return dict(template)


def hash_label(revision: Object) -> str:
    """The hash that pods of a DaemonSet carry."""
    return str(revision["metadata"]["labels"].get(LABEL, ""))


def _patch(owner: Object) -> Object:
    return {"spec": {"template": {**copied(owner["spec"]["template"]), "$patch": "replace"}}}


def _made(owner: Object, data: Object, number: int) -> Object:
    collisions = (owner.get("status") or {}).get("collisionCount") or 0
    short, metadata = hash_of(data, collisions), owner["metadata"]
    label = _STATEFUL_LABEL if owner["kind"] == "StatefulSet" else LABEL
    labels = {**(owner["spec"]["template"]["metadata"].get("labels") or {}), label: short}
    made: Object = {"name": f"{metadata['name'][:_LONGEST_PREFIX]}-{short}", "labels": labels}
    if metadata.get("annotations"):
        made["annotations"] = dict(metadata["annotations"])
    made["ownerReferences"] = [owner_reference(owner)]
    return {"metadata": made, "data": data, "revision": number}


def _number(revision: Object) -> int:
    return int(revision.get("revision", 0))
