"""What a manager is given in a cluster that joins: an account, its rights, and the policies that keep it to its copies.

Pure: objects out, nothing is written here (`shoal.clusters.joining` does). RBAC cannot tell one pod from another: the
account may write pods, and admission policies say which: those that carry its home's identity, made behind a gate, in
namespaces that accept copies, using what those open to them (`shoal.clusters.opened`); of these it takes the gate and
sets or takes the finalizer, and nothing else. Others may
not make pods that claim to be its copies, nor open them, unless they may `write` the resource `copies` of `shoal.dev`
in the whole cluster, which administrators may. What it reads cannot be narrowed like this: it can read all pods.

One set of objects for each home, all of one name, so that one manager can leave without another being touched.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shoal.clusters import opened
from shoal.clusters.errors import JoinError
from shoal.kube.resources import RawObject, Resource
from shoal.model.contract import clusters
from shoal.model.contract.clusters import NAMESPACE_MEMBERS
from shoal.model.contract.kubernetes import LABEL_PART_OF
from shoal.model.contract.shoal import PART_OF

_RBAC: Final = "rbac.authorization.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"


def _raw(group: str, version: str, plural: str, kind: str, *, namespaced: bool = True) -> Resource[RawObject]:
    return Resource(group, version, plural, kind, dict, namespaced, whole=True)


NAMESPACES: Final = _raw("", "v1", "namespaces", "Namespace", namespaced=False)
ACCOUNTS: Final = _raw("", "v1", "serviceaccounts", "ServiceAccount")
CLUSTER_ROLES: Final = _raw(_RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDINGS: Final = _raw(_RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ROLES: Final = _raw(_RBAC, "v1", "roles", "Role")
ROLE_BINDINGS: Final = _raw(_RBAC, "v1", "rolebindings", "RoleBinding")
POLICIES: Final = _raw(_ADMISSION, "v1", "validatingadmissionpolicies", "ValidatingAdmissionPolicy", namespaced=False)
POLICY_BINDINGS: Final = _raw(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", namespaced=False
)
TOKEN_TYPE: Final = "kubernetes.io/service-account-token"
ANNOTATION_ACCOUNT: Final = "kubernetes.io/service-account.name"
#: Names that are the name of an object and the value of a label at once.
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,48}[a-z0-9])?", re.ASCII).fullmatch
_UID: Final = re.compile(r"[A-Za-z0-9-]{1,64}", re.ASCII).fullmatch
#: Names of ServiceAccounts and PriorityClasses.
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?", re.ASCII).fullmatch


@dataclass(frozen=True, slots=True)
class ManagerAccount:
    """The account of a home's manager in a member. `namespace`: where Shoal's scheduler is there."""

    home: str
    namespace: str = "kube-system"
    #: The ServiceAccount of dispatched pods.
    pod_account: str = clusters.DEFAULT_POD_ACCOUNT
    #: The member's PriorityClass with globalDefault: its API server gives it to pods without one. Empty: there is none.
    default_priority: str = ""

    def __post_init__(self) -> None:
        # It becomes part of names and of CEL.
        if not _UID(self.home):
            raise JoinError(f"{self.home[:80]!r} is no UID of a cluster: see kubectl get namespace kube-system -o yaml")
        if not _OBJECT_NAME(self.pod_account):
            raise JoinError(
                f"{self.pod_account[:80]!r} is not the name of a ServiceAccount: correct --pod-account, such as default"
            )
        if self.default_priority and not _OBJECT_NAME(self.default_priority):
            raise JoinError(f"{self.default_priority[:80]!r} is not the name of a PriorityClass: delete it there")

    @property
    def name(self) -> str:
        """Of the account, and of all that belongs to it."""
        return clusters.account_name(self.home)

    @property
    def user(self) -> str:
        """As API servers name it."""
        return clusters.account_user(self.home)

    @property
    def fence(self) -> str:
        """Its Lease in each namespace with copies."""
        return clusters.fence_name(self.home)

    @property
    def references_role(self) -> str:
        """The ClusterRole that a namespace binds to it to have what pods name checked, and copied."""
        return f"{self.name}{clusters.ROLE_REFERENCES_SUFFIX}"

    @property
    def labels(self) -> dict[str, str]:
        """On all that belongs to it."""
        return {LABEL_PART_OF: PART_OF, clusters.LABEL_ORIGIN: self.home}


@dataclass(frozen=True, slots=True)
class Placed:
    """An object and its kind."""

    resource: Resource[RawObject]
    manifest: RawObject

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.manifest["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Its namespace, empty for kinds that have none."""
        return str(self.manifest["metadata"].get("namespace", ""))


def confinement(account: ManagerAccount) -> list[Placed]:
    """The policies that keep the account to its copies. They come before any right does."""
    policies = [_pods_of_account(account), _pods_of_others(account), _bindings(account), _leases(account)]
    policies.append(_references(account))
    placed = []
    for policy in policies:
        name = policy["metadata"]["name"]
        binding = {"metadata": policy["metadata"], "spec": {"policyName": name, "validationActions": ["Deny"]}}
        placed += [Placed(POLICIES, policy), Placed(POLICY_BINDINGS, binding)]
    return placed


def rights(account: ManagerAccount) -> list[Placed]:
    """The account and what it may do; the bindings last."""
    meta = {"name": account.name, "labels": account.labels}
    there = {**meta, "namespace": account.namespace}
    subjects = _subjects(account)
    return [
        Placed(NAMESPACES, {"metadata": {"name": NAMESPACE_MEMBERS, "labels": {LABEL_PART_OF: PART_OF}}}),
        Placed(
            ACCOUNTS,
            {"metadata": {**meta, "namespace": NAMESPACE_MEMBERS}, "automountServiceAccountToken": False},
        ),
        Placed(CLUSTER_ROLES, {"metadata": meta, "rules": cluster_rules(account)}),
        Placed(CLUSTER_ROLES, {"metadata": {**meta, "name": account.references_role}, "rules": reference_rules()}),
        Placed(ROLES, {"metadata": there, "rules": scheduler_rules()}),
        Placed(
            CLUSTER_BINDINGS,
            {"metadata": meta, "roleRef": _role("ClusterRole", account.name), "subjects": subjects},
        ),
        Placed(ROLE_BINDINGS, {"metadata": there, "roleRef": _role("Role", account.name), "subjects": subjects}),
    ]


def cluster_rules(account: ManagerAccount) -> list[RawObject]:
    """What the account may do in all namespaces."""
    return [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"]},
        # What is told of a copy there is told of its pod at home.
        {"apiGroups": [""], "resources": ["events"], "verbs": ["list", "watch"]},
        # RBAC cannot say which name is created: a policy does.
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [account.fence],
            "verbs": ["get", "update", "patch", "delete"],
        },
        {"apiGroups": [clusters.OFFER_GROUP], "resources": [clusters.OFFER_RESOURCE], "verbs": ["create"]},
    ]


def scheduler_rules() -> list[RawObject]:
    """What it may do where Shoal's scheduler is: read the room, and ask for offers through the API server."""
    service, port = clusters.NAME_OFFER_SERVICE, clusters.OFFER_PORT
    # A request's name is what stands in its path: scheme, Service and port, as the caller writes them.
    names = [service, *(f"https:{service}:{one}" for one in ("", port, "offer", "https"))]
    return [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": [clusters.NAME_ROOM],
            "verbs": ["get", "list", "watch"],
        },
        {"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": names, "verbs": ["create"]},
    ]


def reference_rules() -> list[RawObject]:
    """What it may do in a namespace that binds this role: look for what pods name, and make copies of content.

    It does not read ConfigMaps and Secrets: `create` without effect tells whether one is there, and `patch` shows its
    own copies alone, since a policy refuses it of others. The garbage collector deletes them.
    """
    return [
        {"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["create", "patch"]},
        {"apiGroups": [""], "resources": ["serviceaccounts", "persistentvolumeclaims"], "verbs": ["get"]},
        {
            "apiGroups": ["resource.k8s.io"],
            "resources": ["resourceclaims", "resourceclaimtemplates"],
            "verbs": ["get"],
        },
    ]


def references_binding(account: ManagerAccount, namespace: str) -> Placed:
    """That role, bound by a namespace."""
    meta = {"name": f"{PART_OF}{clusters.ROLE_REFERENCES_SUFFIX}", "namespace": namespace}
    role = _role("ClusterRole", account.references_role)
    return Placed(ROLE_BINDINGS, {"metadata": meta, "roleRef": role, "subjects": _subjects(account)})


def binding_command(account: ManagerAccount) -> str:
    """How somebody binds it by hand."""
    return (
        f"kubectl -n NAMESPACE create rolebinding {PART_OF}{clusters.ROLE_REFERENCES_SUFFIX} "
        f"--clusterrole={account.references_role} --serviceaccount={NAMESPACE_MEMBERS}:{account.name}"
    )


def _subjects(account: ManagerAccount) -> list[RawObject]:
    return [{"kind": "ServiceAccount", "name": account.name, "namespace": NAMESPACE_MEMBERS}]


def _role(kind: str, name: str) -> RawObject:
    return {"apiGroup": _RBAC, "kind": kind, "name": name}


# Policies


_PODS: Final = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
_PARTS: Final = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
_MAY_WRITE: Final = (
    f"authorizer.group('{clusters.OFFER_GROUP}').resource('{clusters.COPIES_RESOURCE}').check('write').allowed()"
)
_LABEL: Final = f".metadata.?labels[?'{clusters.LABEL_ORIGIN}'].orValue('')"
_ORIGIN: Final = f".metadata.?annotations[?'{clusters.ANNOTATION_ORIGIN}']"
_ACCEPTS: Final = f"namespaceObject.metadata.?labels[?'{clusters.LABEL_ACCEPTS}'].orValue('') == '{clusters.ENABLED}'"
_NOT_ACCEPTED: Final = (
    "'namespace ' + request.namespace + ' accepts no copies: kubectl label namespace ' + request.namespace + "
    f"' {clusters.LABEL_ACCEPTS}={clusters.ENABLED}'"
)
#: What servers let change in the spec of a pod, beside its gates.
_CHANGEABLE: Final = (
    "containers",
    "initContainers",
    "tolerations",
    "nodeSelector",
    "affinity",
    "activeDeadlineSeconds",
    "terminationGracePeriodSeconds",
)


def _policy(
    account: ManagerAccount,
    suffix: str,
    rules: Sequence[Mapping[str, Any]],
    conditions: Mapping[str, str],
    validations: Sequence[RawObject],
    variables: Mapping[str, str] | None = None,
) -> RawObject:
    return {
        "metadata": {"name": f"{account.name}-{suffix}", "labels": account.labels},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [dict(rule) for rule in rules]},
            "matchConditions": [{"name": name, "expression": text} for name, text in conditions.items()],
            "variables": [{"name": name, "expression": text} for name, text in (variables or {}).items()],
            "validations": list(validations),
        },
    }


def _says(expression: str, message: str) -> RawObject:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _pods_of_account(account: ManagerAccount) -> RawObject:
    """The account makes copies behind a gate, opens them, and deletes them."""
    making, changing = "request.operation != 'CREATE' || ", "request.operation != 'UPDATE' || "
    written = (
        rf'^\\{{"cluster":"{account.home}","uid":"[A-Za-z0-9-]{{1,64}}","attempt":[1-9][0-9]{{0,9}}'
        rf'(,"fence":[1-9][0-9]{{0,4}})?\\}}$'  # as `encode`
    )
    others = f"filter(one, one.name != '{clusters.GATE_COPY}')"
    gates = ".spec.?schedulingGates.orValue([])"
    finalizers = f".metadata.?finalizers.orValue([]).filter(one, one != '{clusters.FINALIZER_COPY}')"
    same = " && ".join(f"object.spec.?{name} == oldObject.spec.?{name}" for name in _CHANGEABLE)
    return _policy(
        account,
        "copies",
        [{**_PODS, "operations": ["CREATE", "UPDATE", "DELETE"]}],
        {"account": f"request.userInfo.username == '{account.user}'"},
        [
            # First: of several refusals a server shows the first, and `join` looks for this one.
            *opened.validations(account.home, making),
            {
                "expression": f"{making}{_ACCEPTS}",
                "messageExpression": _NOT_ACCEPTED,
                "reason": "Forbidden",
            },
            _says(
                f"{making}object{_LABEL} == '{account.home}'",
                f"a manager makes copies only, with label {clusters.LABEL_ORIGIN}={account.home}",
            ),
            _says(
                f"{making}object{_ORIGIN}.orValue('').matches('{written}')",
                f"a copy names its pod in annotation {clusters.ANNOTATION_ORIGIN}, of cluster {account.home}",
            ),
            _says(
                f"{making}object{gates}.exists(one, one.name == '{clusters.GATE_COPY}')",
                f"a copy begins behind the scheduling gate {clusters.GATE_COPY}",
            ),
            _says(
                f"{making}object{finalizers}.size() == 0 && object.metadata.?ownerReferences.orValue([])"
                f".all(one, one.kind == 'Lease' && one.name == '{account.fence}')",
                f"a copy has no finalizer but {clusters.FINALIZER_COPY}, and no owner but the Lease {account.fence}",
            ),
            _says(
                f"request.operation == 'CREATE' || oldObject{_LABEL} == '{account.home}'",
                "a manager changes and deletes its own copies only",
            ),
            _says(
                f"{changing}object.metadata.?labels == oldObject.metadata.?labels"
                " && object.metadata.?annotations == oldObject.metadata.?annotations"
                " && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
                f" && object{finalizers} == oldObject{finalizers}",
                f"of a copy's metadata a manager changes the finalizer {clusters.FINALIZER_COPY} only",
            ),
            _says(
                f"{changing}object{gates}.{others} == oldObject{gates}.{others} && {same}",
                f"of a copy's spec a manager takes the scheduling gate {clusters.GATE_COPY} only",
            ),
        ],
        opened.variables(account.pod_account, account.default_priority),
    )


def _pods_of_others(account: ManagerAccount) -> RawObject:
    """Others neither make pods that claim to be copies, nor open copies, nor let them vanish."""
    gated = f".spec.?schedulingGates.orValue([]).exists(one, one.name == '{clusters.GATE_COPY}')"
    kept = f".metadata.?finalizers.orValue([]).exists(one, one == '{clusters.FINALIZER_COPY}')"
    claims = f"object{_ORIGIN}.orValue('').contains('\"{account.home}\"')"
    return _policy(
        account,
        "guard",
        [{**_PODS, "resources": _PARTS, "operations": ["CREATE", "UPDATE"]}],
        {
            "others": f"request.userInfo.username != '{account.user}'",
            "copies": (
                f"object{_LABEL} == '{account.home}' || {claims}"
                f" || (oldObject != null && oldObject{_LABEL} == '{account.home}')"
            ),
        },
        [
            _says(
                "oldObject == null || !("
                f"object{_LABEL} != oldObject{_LABEL} || object{_ORIGIN} != oldObject{_ORIGIN}"
                f" || object{gated} != oldObject{gated} || object{kept} != oldObject{kept})"
                f" || {_MAY_WRITE}",
                f"label {clusters.LABEL_ORIGIN}, annotation {clusters.ANNOTATION_ORIGIN}, scheduling gate "
                f"{clusters.GATE_COPY} and finalizer {clusters.FINALIZER_COPY} of a copy are its manager's: leave them "
                "as they are, or delete the pod",
            ),
            _says(
                f"oldObject != null || {_MAY_WRITE}",
                f"only the manager of cluster {account.home} makes copies of its pods: remove label "
                f"{clusters.LABEL_ORIGIN} and annotation {clusters.ANNOTATION_ORIGIN}",
            ),
        ],
    )


def _bindings(account: ManagerAccount) -> RawObject:
    """The annotations and labels of a Binding become the pod's, without the pod being looked at."""
    return _policy(
        account,
        "bindings",
        [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE"],
                "resources": ["bindings", "pods/binding"],
            }
        ],
        {
            "origin": f"object.metadata.?annotations[?'{clusters.ANNOTATION_ORIGIN}'].hasValue()"
            f" || object.metadata.?labels[?'{clusters.LABEL_ORIGIN}'].hasValue()"
        },
        [_says(_MAY_WRITE, "a Binding does not say whose copy a pod is: remove label and annotation from it")],
    )


def _leases(account: ManagerAccount) -> RawObject:
    """The account has one Lease in a namespace, and nobody else keeps its copies alive by it."""
    ours = f"request.userInfo.username == '{account.user}'"
    return _policy(
        account,
        "leases",
        [
            {
                "apiGroups": ["coordination.k8s.io"],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE"],
                "resources": ["leases"],
            }
        ],
        {"fence": f"{ours} || object.metadata.name == '{account.fence}'"},
        [
            _says(
                f"!({ours}) || object.metadata.name == '{account.fence}'",
                f"a manager writes the Lease {account.fence} only",
            ),
            {
                "expression": f"!({ours}) || request.operation != 'CREATE' || {_ACCEPTS}",
                "messageExpression": _NOT_ACCEPTED,
                "reason": "Forbidden",
            },
            _says(
                f"!({ours}) || (!has(object.metadata.finalizers) && !has(object.metadata.ownerReferences))",
                "the Lease of a manager has no finalizers and no owners",
            ),
            _says(
                f"{ours} || {_MAY_WRITE}",
                f"the Lease {account.fence} is the manager's of cluster {account.home}: leave it as it is",
            ),
        ],
    )


def _references(account: ManagerAccount) -> RawObject:
    """The account writes copies of ConfigMaps and Secrets for its pods where they are accepted, and no others."""
    making, changing = "request.operation != 'CREATE' || ", "request.operation != 'UPDATE' || "
    for_show = "request.?dryRun.orValue(false)"
    accepts = f"namespaceObject.metadata.?labels[?'{clusters.LABEL_ACCEPTS_REFERENCES}'].orValue('')"
    owners = "object.metadata.?ownerReferences.orValue([])"
    types = ", ".join(f"'{name}'" for name in clusters.UNCOPIED_SECRET_TYPES)
    return _policy(
        account,
        "references",
        [
            {
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "operations": ["CREATE", "UPDATE", "DELETE"],
                "resources": ["configmaps", "secrets"],
            }
        ],
        {"account": f"request.userInfo.username == '{account.user}'"},
        [
            {
                # Without effect it only learns whether there is one.
                "expression": f"{making}{for_show} || {accepts} == '{clusters.ENABLED}'",
                "messageExpression": "'namespace ' + request.namespace + ' accepts no ConfigMaps and Secrets: "
                f"kubectl label namespace ' + request.namespace + ' {clusters.LABEL_ACCEPTS_REFERENCES}"
                f"={clusters.ENABLED}'",
                "reason": "Forbidden",
            },
            _says(
                f"{making}(object{_LABEL} == '{account.home}' && object.metadata.labels.size() == 1"
                " && !has(object.metadata.annotations) && !has(object.metadata.finalizers))",
                f"a copy of a ConfigMap or Secret has the label {clusters.LABEL_ORIGIN}={account.home}, no other, no "
                "annotation and no finalizer",
            ),
            _says(
                f"{making}{for_show} || object.metadata.name.startsWith('{opened.copied_prefix(account.home)}')",
                f"the name of a copy of a ConfigMap or Secret begins with {opened.copied_prefix(account.home)}",
            ),
            _says(
                f"{making}({for_show} || {owners}.size() > 0)",
                "a copy of a ConfigMap or Secret is owned by the pods that name it",
            ),
            _says(
                f"request.operation == 'DELETE' || {owners}.all(one, one.apiVersion == 'v1' && one.kind == 'Pod'"
                " && !one.?controller.orValue(false) && !one.?blockOwnerDeletion.orValue(false))",
                "a copy of a ConfigMap or Secret is owned by pods alone, and controlled by none",
            ),
            _says(
                f"request.operation == 'DELETE' || !(dyn(object).?type.orValue('') in [{types}])",
                "tokens are not copied",
            ),
            _says(
                f"request.operation == 'CREATE' || oldObject{_LABEL} == '{account.home}'",
                "a manager sees and changes its own copies of ConfigMaps and Secrets only",
            ),
            _says(
                f"{changing}(object.metadata.?labels == oldObject.metadata.?labels"
                " && object.metadata.?annotations == oldObject.metadata.?annotations"
                " && object.metadata.?finalizers == oldObject.metadata.?finalizers)",
                "of the metadata of a copy of a ConfigMap or Secret a manager changes the owners only",
            ),
        ],
    )


# Tokens, and the Secret at home


def token_secret(account: ManagerAccount, serial: str) -> RawObject:
    """A Secret that the cluster fills with a token of the account. Deleting it revokes the token."""
    return {
        "metadata": {
            "name": f"{account.name}-{serial}",
            "namespace": NAMESPACE_MEMBERS,
            "labels": account.labels,
            "annotations": {ANNOTATION_ACCOUNT: account.name},
        },
        "type": TOKEN_TYPE,
    }


@dataclass(frozen=True, slots=True)
class JoinedAs:
    """How a cluster is written down at home."""

    name: str
    uid: str
    server: str
    #: The namespace at home in which the manager is.
    namespace: str
    scheduler_namespace: str = "kube-system"
    authority: bytes | None = None
    server_name: str = ""
    proxy: str = ""
    cost: float = 0.0
    preference: float = 0.0
    #: The ServiceAccount of dispatched pods.
    pod_account: str = clusters.DEFAULT_POD_ACCOUNT
    #: A direct way to its scheduler, and the certificates (PEM) that the scheduler's own is signed with.
    offer_url: str = ""
    offer_authority: bytes = b""


def check_name(name: str) -> None:
    """Raise JoinError if that cannot be the name of a cluster that is joined."""
    if not _NAME(name):
        raise JoinError(
            f"{name[:80]!r} is no name for a cluster: up to 50 small letters, digits, - and ., such as cluster2"
        )


def secret_name(name: str) -> str:
    """The Secret at home of a cluster."""
    return f"shoal-cluster-{name}"


def home_secret(joined: JoinedAs, token: str) -> RawObject:
    """The Secret by which home's manager finds the cluster."""
    check_name(joined.name)
    content = msgspec.json.encode(member_kubeconfig(joined, token))
    direct = {clusters.ANNOTATION_OFFER_URL: joined.offer_url} if joined.offer_url else {}
    held = {clusters.KEY_KUBECONFIG: content}
    if joined.offer_authority:
        held[clusters.KEY_OFFER_AUTHORITY] = joined.offer_authority
    return {
        "metadata": {
            "name": secret_name(joined.name),
            "namespace": joined.namespace,
            "labels": {LABEL_PART_OF: PART_OF, clusters.LABEL_CLUSTER: joined.name},
            "annotations": {
                clusters.ANNOTATION_CLUSTER_UID: joined.uid,
                clusters.ANNOTATION_SCHEDULER_NAMESPACE: joined.scheduler_namespace,
                clusters.ANNOTATION_COST: f"{joined.cost:g}",
                clusters.ANNOTATION_PREFERENCE: f"{joined.preference:g}",
                clusters.ANNOTATION_POD_ACCOUNT: joined.pod_account,
                **direct,
            },
        },
        "type": "Opaque",
        "data": {key: base64.b64encode(value).decode() for key, value in held.items()},
    }


def member_kubeconfig(joined: JoinedAs, token: str) -> RawObject:
    """A kubeconfig of the account: one cluster, one user, one context, and nothing outside of it."""
    cluster: RawObject = {"server": joined.server}
    if joined.authority is not None:
        cluster["certificate-authority-data"] = base64.b64encode(joined.authority).decode()
    if joined.server_name:
        cluster["tls-server-name"] = joined.server_name
    if joined.proxy:
        cluster["proxy-url"] = joined.proxy
    name = joined.name
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }


# What is asked of the account once it is there


def expected(account: ManagerAccount) -> list[tuple[RawObject, bool]]:
    """Attributes for access reviews, and whether the account may: what it needs, and what it must not have."""
    needed = [
        *({"resource": "pods", "verb": verb} for verb in ("get", "list", "watch", "create", "patch", "delete")),
        *({"resource": "namespaces", "verb": verb} for verb in ("get", "list")),
        {"group": "coordination.k8s.io", "resource": "leases", "verb": "create"},
        {"group": "coordination.k8s.io", "resource": "leases", "verb": "update", "name": account.fence},
        {"group": clusters.OFFER_GROUP, "resource": clusters.OFFER_RESOURCE, "verb": "create"},
        {
            "resource": "configmaps",
            "verb": "get",
            "name": clusters.NAME_ROOM,
            "namespace": account.namespace,
        },
        {
            "resource": "services",
            "subresource": "proxy",
            "verb": "create",
            "name": f"https:{clusters.NAME_OFFER_SERVICE}:{clusters.OFFER_PORT}",
            "namespace": account.namespace,
        },
    ]
    denied = [
        {"resource": "pods", "subresource": "status", "verb": "patch"},
        {"resource": "pods", "subresource": "exec", "verb": "create"},
        {"resource": "pods", "subresource": "binding", "verb": "create"},
        {"resource": "pods", "verb": "update"},
        {"resource": "pods", "verb": "deletecollection"},
        {"resource": "secrets", "verb": "get"},
        {"resource": "secrets", "verb": "list"},
        {"resource": "configmaps", "verb": "get"},
        *(
            {"resource": resource, "verb": verb}
            for resource in ("configmaps", "secrets")
            for verb in ("create", "patch", "delete")
        ),
        {"resource": "services", "subresource": "proxy", "verb": "create"},
        {"resource": "nodes", "verb": "list"},
        {"resource": "namespaces", "verb": "patch"},
        {"resource": "serviceaccounts", "subresource": "token", "verb": "create"},
        {"group": "coordination.k8s.io", "resource": "leases", "verb": "update"},
        {"group": "rbac.authorization.k8s.io", "resource": "clusterrolebindings", "verb": "create"},
        {"group": _ADMISSION, "resource": "validatingadmissionpolicies", "verb": "delete"},
        {"group": clusters.OFFER_GROUP, "resource": clusters.COPIES_RESOURCE, "verb": "write"},
        {"group": clusters.OFFER_GROUP, "resource": "decisions", "verb": "write"},
    ]
    return [*((one, True) for one in needed), *((one, False) for one in denied)]


def spelled(attributes: Mapping[str, str]) -> str:
    """A right in words, as kubectl auth can-i takes it."""
    resource = attributes["resource"] + ("." + attributes["group"] if attributes.get("group") else "")
    name = f"/{attributes['name']}" if attributes.get("name") else ""
    part = f"/{attributes['subresource']}" if attributes.get("subresource") else ""
    return f"{attributes['verb']} {resource}{part}{name}"
