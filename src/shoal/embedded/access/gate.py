"""The way in: whose token a request carries, for whom it speaks, and whether that is allowed."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from shoal.embedded.access.asked import Asked
from shoal.embedded.access.rbac import GROUP, decide
from shoal.embedded.access.roles import first_roles
from shoal.embedded.access.tokens import Tokens
from shoal.embedded.access.users import ADMIN, AUTHENTICATED, User, account_of, groups_of
from shoal.embedded.errors import ApiStatus, bad_request
from shoal.embedded.registry import Registry

_UNAUTHENTICATED: Final = "system:unauthenticated"


class Gate:
    """Knows the administrator by their token, service accounts by theirs, and nobody else."""

    def __init__(self, registry: Registry, token: str) -> None:
        self.tokens = Tokens(registry)
        self._store = registry.store
        self._token = token.encode()
        for plural, obj in first_roles():
            kind = registry.catalogue.find(GROUP, "v1", plural)
            assert kind is not None
            registry.create(kind, "", obj)

    def user(self, authorization: str) -> User:
        """Who sends this header; 401 if it tells nobody."""
        kind, _, token = authorization.partition(" ")
        token = token.strip()
        if kind.lower() == "bearer":
            if hmac.compare_digest(token.encode(), self._token):
                return ADMIN
            if (user := self.tokens.user(token)) is not None:
                return user
        raise ApiStatus(401, "Unauthorized", "Unauthorized")

    def spoken_for(self, user: User, name: str, groups: Sequence[str], uid: str) -> User:
        """Whom a user speaks for by the headers `Impersonate-…`; themselves if there are none."""
        if not name:
            if groups or uid:
                raise bad_request("impersonation of groups or of a UID needs a user: add the header Impersonate-User")
            return user
        account = account_of(name)
        if account is not None:
            self.require(user, Asked("impersonate", "", "serviceaccounts", namespace=account[0], name=account[1]))
        else:
            self.require(user, Asked("impersonate", "", "users", name=name))
        for group in groups:
            self.require(user, Asked("impersonate", "", "groups", name=group))
        if uid:
            self.require(user, Asked("impersonate", "authentication.k8s.io", "uids", name=uid))
        found = tuple(groups) or groups_of(name)
        if AUTHENTICATED not in found and _UNAUTHENTICATED not in found:
            found = (*found, AUTHENTICATED)
        return User(name, found, uid)

    def decide(self, user: User, wanted: Asked) -> tuple[bool, str]:
        """Whether a user may do something, and why."""
        return decide(self._store, user, wanted)

    def require(self, user: User, wanted: Asked) -> None:
        """403 if a user may not do something."""
        allowed, reason = self.decide(user, wanted)
        if not allowed:
            raise wanted.refusal(user.name, reason)
