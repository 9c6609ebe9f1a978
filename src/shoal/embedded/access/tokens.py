"""Tokens of service accounts: JSON web tokens that this server signs and alone can check.

The real server signs with a private key that others can check against; here a secret of the process does.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from shoal.embedded.access.users import AUTHENTICATED, User, account_name, account_of, groups_of
from shoal.embedded.errors import bad_request, invalid, invalid_value
from shoal.embedded.kinds import PODS, SECRETS, SERVICE_ACCOUNTS
from shoal.embedded.registry import Registry, timestamp
from shoal.embedded.store import Object
from shoal.embedded.writes import Write

ISSUER: Final = "https://kubernetes.default.svc"
_SECONDS: Final = 3600
_LEAST: Final = 600
_MOST: Final = 1 << 32
_LONGEST: Final = 8192
#: What a token can be bound to.
_BOUND: Final = {"Pod": PODS, "Secret": SECRETS}


class Tokens:
    """Makes tokens for the service accounts of a registry, and knows them again."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._secret = secrets.token_bytes(32)

    def request(self, namespace: str, name: str, given: Object) -> Object:
        """The answer to a TokenRequest for a service account."""
        account = self._registry.get(SERVICE_ACCOUNTS, namespace, name)
        asked = {**given, "metadata": {"name": name, "namespace": namespace}}
        self._registry.refuse_mutation(Write(SERVICE_ACCOUNTS, None, asked, "token"))
        spec = given.get("spec") or {}
        seconds = _seconds(spec.get("expirationSeconds"))
        audiences = spec.get("audiences") or [ISSUER]
        bound = spec.get("boundObjectRef")
        now = self._registry.clock()
        ends = now + timedelta(seconds=seconds)
        private = _private(account)
        if bound:
            private |= self._bound(namespace, name, bound)
        claims = {
            "aud": audiences,
            "exp": int(ends.timestamp()),
            "iat": int(now.timestamp()),
            "iss": ISSUER,
            "kubernetes.io": private,
            "nbf": int(now.timestamp()),
            "sub": account_name(namespace, name),
        }
        return {
            "kind": "TokenRequest",
            "apiVersion": "authentication.k8s.io/v1",
            "metadata": {"name": name, "namespace": namespace, "creationTimestamp": timestamp(now)},
            "spec": {"audiences": audiences, "expirationSeconds": seconds, "boundObjectRef": bound},
            "status": {"token": self._signed(claims), "expirationTimestamp": timestamp(ends)},
        }

    def user(self, token: str, audiences: Sequence[str] = (ISSUER,)) -> User | None:
        """Whose token it is; None if it is none, no longer, or for none of these audiences."""
        claims = self._claims(token)
        if claims is None or claims["exp"] <= self._registry.clock().timestamp():
            return None
        if not self.audiences(token, audiences):
            return None
        account = account_of(claims["sub"])
        private = claims["kubernetes.io"]
        if account is None or not self._is_same(SERVICE_ACCOUNTS.key, account, private["serviceaccount"]["uid"]):
            return None
        secret = private.get("secret")
        if secret and not self._is_same(SECRETS.key, (account[0], secret["name"]), secret["uid"]):
            return None
        extra = {}
        if pod := private.get("pod"):
            if not self._is_same(PODS.key, (account[0], pod["name"]), pod["uid"]):
                return None
            names = ("authentication.kubernetes.io/pod-name", "authentication.kubernetes.io/pod-uid")
            extra = {names[0]: [pod["name"]], names[1]: [pod["uid"]]}
        if node := private.get("node"):
            extra["authentication.kubernetes.io/node-name"] = [node["name"]]
        groups = (*groups_of(claims["sub"]), AUTHENTICATED)
        return User(claims["sub"], groups, private["serviceaccount"]["uid"], extra)

    def audiences(self, token: str, wanted: Sequence[str]) -> list[str]:
        """Those of the audiences that a token is for."""
        claims = self._claims(token)
        return [] if claims is None else [one for one in wanted if one in claims["aud"]]

    def _is_same(self, resource: tuple[str, str], key: tuple[str, str], uid: str) -> bool:
        found = self._registry.store.get(resource, key)
        return found is not None and found["metadata"]["uid"] == uid

    def _bound(self, namespace: str, account: str, bound: Object) -> dict[str, Any]:
        """The pod or Secret whose end is the end of the token, and a pod's node."""
        kind = bound.get("kind", "")
        if kind not in _BOUND:
            raise bad_request(f'cannot bind a token of serviceaccount "{account}" to a "{kind}": use a Pod or a Secret')
        found = self._registry.get(_BOUND[kind], namespace, bound.get("name", ""))
        meta = found["metadata"]
        node = found["spec"].get("nodeName", "") if kind == "Pod" else ""
        claims: dict[str, Any] = {kind.lower(): {"name": meta["name"], "uid": meta["uid"]}}
        return claims | ({"node": {"name": node}} if node else {})

    def _signed(self, claims: dict[str, Any]) -> str:
        parts = [_encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
        return ".".join([*parts, _encoded(self._signature(".".join(parts)))])

    def _signature(self, text: str) -> bytes:
        return hmac.digest(self._secret, text.encode(), hashlib.sha256)

    def _claims(self, token: str) -> dict[str, Any] | None:
        text, _, signature = token.rpartition(".")
        if len(token) > _LONGEST or not token.isascii():
            return None
        if not hmac.compare_digest(signature, _encoded(self._signature(text))):
            return None
        try:
            body = text.partition(".")[2]
            claims: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        except (binascii.Error, ValueError):
            return None
        return claims


def _private(account: Object) -> dict[str, Any]:
    meta = account["metadata"]
    return {"namespace": meta["namespace"], "serviceaccount": {"name": meta["name"], "uid": meta["uid"]}}


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _seconds(asked: object) -> int:
    """How long a token lasts."""
    seconds = _SECONDS if asked is None else asked
    if isinstance(seconds, int) and _LEAST <= seconds <= _MOST:
        return seconds
    why = "may not specify a duration less than 10 minutes"
    if isinstance(seconds, int) and seconds > _MOST:
        why = "may not specify a duration larger than 2^32 seconds"
    fault = invalid_value("spec.expirationSeconds", seconds, why)
    raise invalid("TokenRequest", "authentication.k8s.io", "", [fault])
