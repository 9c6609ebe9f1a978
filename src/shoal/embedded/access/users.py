"""Who asks: the administrator, a service account, or somebody the administrator speaks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

MASTERS: Final = "system:masters"
AUTHENTICATED: Final = "system:authenticated"
_ACCOUNT: Final = "system:serviceaccount:"
_ACCOUNTS: Final = "system:serviceaccounts"


@dataclass(frozen=True, slots=True)
class User:
    """A name with its groups, as authorization sees it."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: dict[str, list[str]] = field(default_factory=dict, compare=False)

    @property
    def is_master(self) -> bool:
        """Whether nothing is refused to them."""
        return MASTERS in self.groups

    def info(self) -> dict[str, Any]:
        """As reviews tell of them."""
        told: dict[str, Any] = {"username": self.name}
        if self.uid:
            told["uid"] = self.uid
        told["groups"] = list(self.groups)
        return told | ({"extra": self.extra} if self.extra else {})


ADMIN: Final = User("admin", (MASTERS, AUTHENTICATED))
#: Who makes the pods of workloads: what their templates say is not more than their authors may.
WORKLOAD_CONTROLLERS: Final = User(
    f"{_ACCOUNT}kube-system:workload-controllers", (_ACCOUNTS, f"{_ACCOUNTS}:kube-system", AUTHENTICATED)
)
#: Who makes claims of templates, and deallocates claims that no pod uses.
CLAIM_CONTROLLER: Final = User(
    f"{_ACCOUNT}kube-system:resource-claim-controller", (_ACCOUNTS, f"{_ACCOUNTS}:kube-system", AUTHENTICATED)
)


def kubelet_of(node: str) -> User:
    """The kubelet of a node."""
    return User(f"system:node:{node}", ("system:nodes", AUTHENTICATED))


def account_name(namespace: str, name: str) -> str:
    """The name of the user that a service account is."""
    return f"{_ACCOUNT}{namespace}:{name}"


def account_of(user: str) -> tuple[str, str] | None:
    """Namespace and name of the service account that a user is; None for others."""
    namespace, colon, name = user.removeprefix(_ACCOUNT).partition(":")
    return (namespace, name) if user.startswith(_ACCOUNT) and colon and namespace and name else None


def groups_of(user: str) -> tuple[str, ...]:
    """The groups that a user is in by their name alone."""
    account = account_of(user)
    return (_ACCOUNTS, f"{_ACCOUNTS}:{account[0]}") if account else ()
