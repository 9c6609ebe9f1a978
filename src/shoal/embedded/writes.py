"""A write as admission sees it: what it is about, the state before and after, and who makes it."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from shoal.embedded.access.users import ADMIN, User
from shoal.embedded.kinds import Kind
from shoal.embedded.store import Object

#: Who writes. Requests say who asks, controllers and kubelets who they are; whoever holds the registry itself is the
#: administrator.
ACTING: Final[ContextVar[User]] = ContextVar("acting", default=ADMIN)
#: The verb of the request that is being answered; `update` for those who hold the registry itself.
VERB: Final[ContextVar[str]] = ContextVar("verb", default="update")


@dataclass(frozen=True, slots=True)
class Write:
    """A write that broke no rule and is not stored yet."""

    kind: Kind
    before: Object | None
    after: Object
    subresource: str = ""
    #: Where it was sent, if that is no place of the kind: `bindings` of pods.
    resource: str = ""
    dry_run: bool = False

    @property
    def user(self) -> User:
        """Who makes it."""
        return ACTING.get()

    @property
    def verb(self) -> str:
        """The verb of the request, as authorization names it."""
        return VERB.get()

    @property
    def plural(self) -> str:
        """The resource it was sent to."""
        return self.resource or self.kind.plural

    @property
    def namespace(self) -> str:
        """The namespace of the object; none if its kind has none."""
        return str(self.after["metadata"].get("namespace", "")) if self.kind.namespaced else ""

    @property
    def name(self) -> str:
        """The name of the object."""
        return str(self.after["metadata"].get("name", ""))

    @property
    def operation(self) -> str:
        """In the words of admission."""
        return "CREATE" if self.before is None else "UPDATE"
