"""What a controller can want done about an object. Plain data: `shoal.embedded.controllers.execute` does it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shoal.embedded.kinds import Kind
from shoal.embedded.store import Object


@dataclass(frozen=True, slots=True)
class Event:
    """Something to tell about the object. `{name}` stands for the name of what was made, `{error}` for the refusal."""

    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object in the namespace of the owner; the events tell how it went."""

    kind: Kind
    obj: Object
    success: Event | None = None
    failure: Event | None = None


@dataclass(frozen=True, slots=True)
class Update:
    """Write another state of an object; `subresource` is `status` when only that is meant."""

    kind: Kind
    obj: Object
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very object."""

    kind: Kind
    obj: Object
    success: Event | None = None
    failure: Event | None = None
    propagation: str = "Background"
    grace_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class Status:
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


Action = Create | Update | Delete | Status | Event | Requeue | Remember


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
    #: How many pods the owners of these pods want in all.
    scale: int = 0
    memory: Any = None
    failure: Failure | None = None
