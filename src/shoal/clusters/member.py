"""A joined cluster, as the other parts of the manager see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from shoal.kube.client import Client
from shoal.model.contract.clusters import DEFAULT_POD_ACCOUNT


@dataclass(frozen=True, slots=True)
class Member:
    """A cluster that is joined and answers. Its `uid` (of its namespace kube-system) is what it is known by."""

    name: str
    uid: str
    client: Client
    #: It is the cluster in which the manager runs.
    own: bool = False
    #: It was joined by `shoal clusters join`, so that a policy confines the manager's account there.
    joined: bool = False
    #: Weights of the choice: what a card costs there, and how much it is preferred.
    cost: float = 0.0
    preference: float = 0.0
    #: Where Shoal's scheduler is there: the namespace of `shoal-room` and of the Service `shoal-offer`.
    namespace: str = "kube-system"
    #: The ServiceAccount of dispatched pods.
    pod_account: str = DEFAULT_POD_ACCOUNT
    #: Where its scheduler is asked for offers, https://HOST:PORT, and the certificates (PEM) that its own is signed
    #: with; empty: through its API server.
    offer_url: str = ""
    offer_authority: bytes = field(default=b"", repr=False)


class Health(StrEnum):
    """Whether a cluster can be used."""

    #: It was not asked yet.
    UNKNOWN = "unknown"
    ANSWERS = "answers"
    #: No answer, or none that can be used.
    SILENT = "silent"
    #: It answers, and does not take the credentials.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class MemberState:
    """A cluster that was read somewhere, and how it is. The identity is empty until it is known."""

    name: str
    #: Where it was read, in words.
    where: str
    uid: str = ""
    own: bool = False
    health: Health = Health.UNKNOWN
    #: For how many seconds it has not been usable; None while it is.
    silent_for: float | None = None
    why: str = ""
    #: The version of its API server, and what its ClusterProfile says.
    version: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


class MemberTable(Protocol):
    """The clusters of the moment."""

    @property
    def members(self) -> Mapping[str, Member]:
        """Those that answer, by name."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Those that do not, by name or by where they were read: the cause and the fix."""

    def on_change(self, call: Callable[[], None]) -> None:
        """Call this whenever a cluster comes, goes, or answers again."""
