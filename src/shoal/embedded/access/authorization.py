"""Who may do what: whose token a request carries, what it asks for, and whether RBAC allows that."""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from shoal.embedded.access.tokens import Tokens
from shoal.embedded.access.users import (
    ADMIN,
    AUTHENTICATED,
    CLAIM_CONTROLLER,
    MASTERS,
    User,
    account_name,
    account_of,
    groups_of,
)
from shoal.embedded.errors import ApiStatus, bad_request, forbidden
from shoal.embedded.registry import Registry
from shoal.embedded.store import Object, ObjectStore

_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_COLLECTIONS: Final = {"get": "list", "delete": "deletecollection"}
_OF_NAMESPACES: Final = ("status", "finalize")
_NAMED: Final = "metadata.name="


@dataclass(frozen=True, slots=True)
class Asked:
    """A verb on a resource, or on a path that is none."""

    verb: str
    group: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    path: str = ""

    @property
    def whole(self) -> str:
        """The resource with its part, as rules name it."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def refusal(self, user: str, reason: str = "") -> ApiStatus:
        """403 in the words of the real server."""
        told = f": {reason}" if reason else ""
        if self.path:
            return ApiStatus(
                403, "Forbidden", f'forbidden: User "{user}" cannot {self.verb} path "{self.path}"{told}', {}
            )
        where = f'in the namespace "{self.namespace}"' if self.namespace else "at the cluster scope"
        why = f'User "{user}" cannot {self.verb} resource "{self.whole}" in API group "{self.group}" {where}{told}'
        return forbidden(self.resource, self.group, self.name, why)


def asked(method: str, path: Sequence[str], query: Mapping[str, str]) -> Asked:
    """What a request is about."""
    verb = _VERBS.get(method, method.lower())
    depth = {"api": 2, "apis": 3}.get(path[0], len(path))
    rest = list(path[depth:])
    if not rest:
        return Asked(verb, path="/" + "/".join(path))
    group = path[1] if depth == 3 else ""
    watched = rest[0] == "watch" and len(rest) > 1
    rest = rest[1:] if watched else rest
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in _OF_NAMESPACES:
            rest = rest[2:]
    resource, name, subresource = (*rest, "", "")[:3]
    if watched or (verb == "get" and query.get("watch", "") in ("1", "true")):
        verb = "watch"
    elif not name:
        verb = _COLLECTIONS.get(verb, verb)
    selector = query.get("fieldSelector", "")
    if not name and verb in ("list", "watch", "deletecollection") and selector.startswith(_NAMED):
        name = selector.removeprefix(_NAMED) if "," not in selector else ""
    return Asked(verb, group, resource, subresource, namespace, name)


# The roles that every cluster begins with, as far as users of this one bind them.


_LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
_CLAIM_CONTROLLER: Final = "system:controller:resource-claim-controller"
_READ: Final = ("get", "list", "watch")
_WRITE: Final = ("create", "delete", "deletecollection", "patch", "update")
_DISCOVERY: Final = ("/api", "/api/*", "/apis", "/apis/*", "/openapi", "/openapi/*")
_PUBLIC: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
#: What lives in a namespace, by group.
_WORK: Final = {
    "": (
        *("configmaps", "endpoints", "persistentvolumeclaims", "pods", "pods/log", "pods/status"),
        *("replicationcontrollers", "replicationcontrollers/scale", "serviceaccounts", "services"),
    ),
    "apps": (
        *("controllerrevisions", "daemonsets", "deployments", "deployments/scale", "replicasets", "replicasets/scale"),
        *("statefulsets", "statefulsets/scale"),
    ),
    "autoscaling": ("horizontalpodautoscalers",),
    "batch": ("cronjobs", "jobs"),
    "discovery.k8s.io": ("endpointslices",),
    "networking.k8s.io": ("ingresses", "networkpolicies"),
    "policy": ("poddisruptionbudgets",),
    "resource.k8s.io": ("resourceclaims", "resourceclaimtemplates"),
}


def _rule(verbs: Sequence[str], group: str, resources: Sequence[str]) -> dict[str, Any]:
    return {"verbs": list(verbs), "apiGroups": [group], "resources": list(resources)}


def _viewing() -> list[dict[str, Any]]:
    seen = ("bindings", "events", "limitranges", "namespaces", "resourcequotas")
    return [*(_rule(_READ, group, resources) for group, resources in _WORK.items()), _rule(_READ, "", seen)]


def _editing() -> list[dict[str, Any]]:
    return [
        *_viewing(),
        *(_rule(_WRITE, group, resources) for group, resources in _WORK.items()),
        _rule((*_READ, *_WRITE), "", ("secrets",)),
        _rule(("create",), "", ("pods/eviction", "serviceaccounts/token")),
        _rule(("impersonate",), "", ("serviceaccounts",)),
        _rule((*_READ, *_WRITE), "coordination.k8s.io", ("leases",)),
    ]


def _administration() -> list[dict[str, Any]]:
    return [
        *_editing(),
        _rule((*_READ, *_WRITE), GROUP, ("rolebindings", "roles")),
        _rule(("create",), "authorization.k8s.io", ("localsubjectaccessreviews",)),
    ]


def _basics() -> list[dict[str, Any]]:
    return [
        _rule(("create",), "authorization.k8s.io", ("selfsubjectaccessreviews", "selfsubjectrulesreviews")),
        _rule(("create",), "authentication.k8s.io", ("selfsubjectreviews",)),
    ]


def _allocating() -> list[dict[str, Any]]:
    """What the stock scheduler and the claim controller may do with claims; the rest of their roles is not here."""
    return [
        _rule((*_READ, "create", "delete", "patch", "update"), "resource.k8s.io", ("resourceclaims",)),
        _rule(("patch", "update"), "resource.k8s.io", ("resourceclaims/binding", "resourceclaims/status")),
    ]


def _roles() -> dict[str, list[dict[str, Any]]]:
    everything = [_rule(("*",), "*", ("*",)), {"verbs": ["*"], "nonResourceURLs": ["*"]}]
    return {
        "cluster-admin": everything,
        "admin": _administration(),
        "edit": _editing(),
        "view": _viewing(),
        "system:basic-user": _basics(),
        "system:discovery": [{"verbs": ["get"], "nonResourceURLs": [*_DISCOVERY, *_PUBLIC]}],
        "system:public-info-viewer": [{"verbs": ["get"], "nonResourceURLs": list(_PUBLIC)}],
        "system:kube-scheduler": _allocating(),
        _CLAIM_CONTROLLER: _allocating(),
    }


#: By role, the kind and the name of its subject.
_BOUND: Final = {
    "cluster-admin": ("Group", MASTERS),
    "system:basic-user": ("Group", AUTHENTICATED),
    "system:discovery": ("Group", AUTHENTICATED),
    "system:public-info-viewer": ("Group", AUTHENTICATED),
    "system:kube-scheduler": ("User", "system:kube-scheduler"),
    _CLAIM_CONTROLLER: ("User", CLAIM_CONTROLLER.name),
}


def first_roles() -> Iterator[tuple[str, dict[str, Any]]]:
    """The roles and bindings to begin with, each with its plural."""
    for name, rules in _roles().items():
        yield "clusterroles", {"metadata": {"name": name, "labels": dict(_LABELS)}, "rules": rules}
    for name, (subject, user) in _BOUND.items():
        yield (
            "clusterrolebindings",
            {
                "metadata": {"name": name, "labels": dict(_LABELS)},
                "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
                "subjects": [{"apiGroup": GROUP, "kind": subject, "name": user}],
            },
        )


# RBAC: whether some binding gives a user a role that allows what they ask. Pure but for reading the store.


GROUP: Final = "rbac.authorization.k8s.io"
_PLURALS: Final = {"ClusterRole": "clusterroles", "Role": "roles"}


def decide(store: ObjectStore, user: User, wanted: Asked) -> tuple[bool, str]:
    """Whether the user may, and by what; or why a binding did not help."""
    if user.is_master:
        return True, ""
    problems: list[str] = []
    for binding, subject in _bindings(store, user, wanted.namespace):
        rules, problem = _rules(store, binding)
        if any(allows(rule, wanted) for rule in rules):
            return True, f"RBAC: allowed by {_described(binding, subject)}"
        problems += [problem] if problem else []
    if not problems:
        return False, ""
    told = list(dict.fromkeys(problems))
    return False, f"RBAC: {told[0] if len(told) == 1 else '[' + ', '.join(told) + ']'}"


def rules_of(store: ObjectStore, user: User, namespace: str) -> list[dict[str, Any]]:
    """Every rule that holds for a user in a namespace."""
    if user.is_master:
        verbs = ["*"]
        return [
            {"verbs": verbs, "apiGroups": ["*"], "resources": ["*"]},
            {"verbs": verbs, "nonResourceURLs": ["*"]},
        ]
    return [rule for binding, _ in _bindings(store, user, namespace) for rule in _rules(store, binding)[0]]


def allows(rule: dict[str, Any], wanted: Asked) -> bool:
    """Whether one rule allows it."""
    if not _among(wanted.verb, rule.get("verbs")):
        return False
    if wanted.path:
        return any(_covers(pattern, wanted.path) for pattern in rule.get("nonResourceURLs") or ())
    names = rule.get("resourceNames")
    return (
        _among(wanted.group, rule.get("apiGroups"))
        and _has_resource(rule.get("resources") or (), wanted)
        and (not names or wanted.name in names)
    )


def _among(word: str, words: Sequence[str] | None) -> bool:
    return words is not None and ("*" in words or word in words)


def _covers(pattern: str, path: str) -> bool:
    return path.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == path


def _has_resource(resources: Sequence[str], wanted: Asked) -> bool:
    parts = {"*", wanted.whole} | ({f"*/{wanted.subresource}"} if wanted.subresource else set())
    return not parts.isdisjoint(resources)


def _bindings(store: ObjectStore, user: User, namespace: str) -> Iterator[tuple[Object, dict[str, Any]]]:
    """The bindings that name a user, each with the subject that does."""
    found = store.objects((GROUP, "clusterrolebindings"))
    if namespace:
        found = [*found, *store.objects((GROUP, "rolebindings"), namespace)]
    for binding in found:
        home = binding["metadata"].get("namespace", "")
        for subject in binding.get("subjects") or ():
            if _is_meant(subject, user, home):
                yield binding, subject
                break


def _is_meant(subject: dict[str, Any], user: User, home: str) -> bool:
    name = subject.get("name", "")
    if subject.get("kind") == "ServiceAccount":
        return user.name == account_name(subject.get("namespace") or home, name)
    return name in user.groups if subject.get("kind") == "Group" else name == user.name


def _rules(store: ObjectStore, binding: Object) -> tuple[list[dict[str, Any]], str]:
    """The rules of a binding's role, and what is wrong with it."""
    reference = binding.get("roleRef") or {}
    kind, name = reference.get("kind", ""), reference.get("name", "")
    home = binding["metadata"].get("namespace", "") if kind == "Role" else ""
    role = store.get((GROUP, _PLURALS.get(kind, "")), (home, name))
    if role is None:
        return [], f'{kind.lower()}.{GROUP} "{name}" not found'
    return list(role.get("rules") or ()), ""


def _described(binding: Object, subject: dict[str, Any]) -> str:
    meta, role = binding["metadata"], binding["roleRef"]
    home = meta.get("namespace", "")
    name = f"{meta['name']}/{home}" if home else meta["name"]
    whom = subject["name"]
    if subject["kind"] == "ServiceAccount":
        whom = f"{whom}/{subject.get('namespace') or home}"
    return f'{binding["kind"]} "{name}" of {role["kind"]} "{role["name"]}" to {subject["kind"]} "{whom}"'


# The way in: whose token a request carries, for whom it speaks, and whether that is allowed.


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
