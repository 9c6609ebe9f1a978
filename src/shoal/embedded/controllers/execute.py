"""Does what a controller wants done, with the writes of the registry, and stops at the first refusal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from shoal.embedded.deletion import DeleteOptions, Deletion
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import Kind
from shoal.embedded.recorder import EventWriter
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object

# What a controller can want done about an object. Plain data: `shoal.embedded.controllers.execute` does it.


@dataclass(frozen=True, slots=True)
class EventAction:
    """Something to tell about the object. `{name}` stands for the name of what was made, `{error}` for the refusal."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object in the namespace of the owner; the events tell how it went."""

    kind: Kind
    obj: Object
    success: EventAction | None = None
    failure: EventAction | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Write another state of an object; `subresource` is `status` when only that is meant."""

    kind: Kind
    obj: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Removal:
    """Delete this very object."""

    kind: Kind
    obj: Object
    success: EventAction | None = None
    failure: EventAction | None = None
    propagation: str = "Background"
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class DropFinalizer:
    """Take a finalizer from an object, in the state in which the actions before have left it."""

    kind: Kind
    obj: Object
    finalizer: str


@dataclass(frozen=True, slots=True)
class StatusUpdate:
    """Write the status, and the annotations, of the object itself."""

    obj: Object


@dataclass(frozen=True, slots=True)
class Requeue:
    """Look at the object again at that moment, even if nothing changes."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Remember:
    """What the next look at this object shall know and no object tells."""

    memory: Any


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an action was refused: the reason as the API names it, and the message."""

    reason: str
    message: str


Action = Create | Update | Removal | DropFinalizer | StatusUpdate | EventAction | Requeue | Remember


@dataclass(frozen=True, slots=True)
class Owned:
    """What a look at one object needs: what it owns, and what it may adopt because nobody owns it.

    `failure` is set for a second look, after an action of the first was refused: then nothing is made or deleted any
    more, and only the status tells of it.
    """

    pods: tuple[Object, ...] = ()
    replica_sets: tuple[Object, ...] = ()
    revisions: tuple[Object, ...] = ()
    #: Pods of an owned ReplicaSet by its uid, or of the siblings of a ReplicaSet.
    indirect: dict[str, tuple[Object, ...]] = field(default_factory=dict)
    nodes: tuple[Object, ...] = ()
    claims: frozenset[str] = frozenset()
    #: Of a pod: the ResourceClaims that it names or owns, and the templates that it names.
    resource_claims: tuple[Object, ...] = ()
    templates: tuple[Object, ...] = ()
    #: How many pods the owners of these pods want in all.
    scale: int = 0
    memory: Any = None
    failure: Failure | None = None


MANAGER: Final = "kube-controller-manager"


class Execution:
    """The actions for one object, and what came of them."""

    def __init__(
        self, registry: Registry, deletion: Deletion, recorder: EventWriter, kind: Kind, about: Object
    ) -> None:
        self.again: datetime | None = None
        #: Set when the controller wants something remembered.
        self.memory: Any = None
        #: Whether something was made or deleted: then the next look comes at once.
        self.moved = False
        self._registry = registry
        self._deletion = deletion
        self._recorder = recorder
        self._kind = kind
        self._about = about
        self._namespace = about["metadata"].get("namespace", "")

    def run(self, actions: Iterable[Action]) -> Failure | None:
        """Do them in order. A refusal ends it and is the answer; an object that is gone is none."""
        for action in actions:
            failure = self._do(action)
            if failure is not None:
                return failure
        return None

    def _do(self, action: Action) -> Failure | None:
        match action:
            case Create():
                return self._create(action)
            case Update(kind, obj, subresource):
                return self._update(kind, obj, subresource)
            case Removal():
                return self._delete(action)
            case DropFinalizer():
                return self._drop_finalizer(action)
            case StatusUpdate(obj):
                return self._update(self._kind, obj, "status")
            case EventAction():
                self._tell(action)
            case Requeue(at):
                self.again = at if self.again is None else min(at, self.again)
            case Remember(memory):
                self.memory = memory
        return None

    def _create(self, action: Create) -> Failure | None:
        try:
            made = self._registry.create(action.kind, self._namespace, action.obj, manager=MANAGER)
        except ApiStatus as error:
            if _is_ending(error):
                return None
            if error.reason != "AlreadyExists" or action.obj["metadata"].get("generateName"):
                self._tell(action.failure, error=error.message)
            return Failure(error.reason, error.message)
        self.moved = True
        self._tell(action.success, name=made["metadata"]["name"])
        return None

    def _update(self, kind: Kind, obj: Object, subresource: str) -> Failure | None:
        metadata = obj["metadata"]
        try:
            self._registry.update(
                kind, metadata.get("namespace", ""), metadata["name"], obj, subresource=subresource, manager=MANAGER
            )
        except ApiStatus as error:
            return None if error.code == 404 else Failure(error.reason, error.message)
        return None

    def _drop_finalizer(self, action: DropFinalizer) -> Failure | None:
        given = action.obj["metadata"]
        present = self._registry.store.get(action.kind.key, (given.get("namespace", ""), given["name"]))
        if present is None or present["metadata"]["uid"] != given["uid"]:
            return None
        metadata = present["metadata"]
        kept = [name for name in metadata.get("finalizers") or () if name != action.finalizer]
        return self._update(action.kind, {**present, "metadata": {**metadata, "finalizers": kept}}, "")

    def _delete(self, action: Removal) -> Failure | None:
        metadata = action.obj["metadata"]
        options = DeleteOptions(uid=metadata["uid"], propagation=action.propagation, grace_seconds=action.grace_seconds)
        try:
            self._deletion.delete(action.kind, metadata.get("namespace", ""), metadata["name"], options)
        except ApiStatus as error:
            if error.code in (404, 409):
                return None  # gone, or another one of the same name by now: nothing is left to delete
            self._tell(action.failure, error=error.message)
            return Failure(error.reason, error.message)
        self.moved = True
        self._tell(action.success, name=metadata["name"])
        return None

    def _tell(self, event: EventAction | None, **words: str) -> None:
        if event is None:
            return
        message = event.message
        for word, text in words.items():
            message = message.replace(f"{{{word}}}", text)
        self._recorder.tell(self._about, event.reason, message, warning=event.warning)


def _is_ending(error: ApiStatus) -> bool:
    """Whether the namespace is being deleted: then nothing needs to be made, and nobody told."""
    causes = (error.details or {}).get("causes") or ()
    return any(cause.get("reason") == "NamespaceTerminating" for cause in causes)
