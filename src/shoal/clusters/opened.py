"""What a dispatched pod may use in a member: the rules of the admission policy, and a pod written to follow them. Pure.

The author of a source pod has no rights in the member. So a dispatched pod runs as one ServiceAccount, without a
token, and uses only what its namespace there lists in `ANNOTATION_MAY_USE`, as PLURAL/NAME, and the manager's own
copies of ConfigMaps and Secrets. An admission policy sees the pod alone and not what it names: copies therefore have
names of their own (`copied_name`), which nothing else in the namespace has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shoal.clusters.copies import Reference
from shoal.kube.resources import RawObject
from shoal.model.contract import clusters

_LONGEST_NAME: Final = 253
_KEPT_NAME: Final = 100
#: Words by which `shoal clusters join` knows that these rules are in force.
NO_TOKEN: Final = "dispatched pods mount no token"
#: The certificate of the member's API server, which every namespace has.
_PUBLIC: Final = f"configmaps/{clusters.UNCOPIED_CONFIG_MAP}"
#: Volumes without data of the namespace. hostPath and nfs are left to Pod Security.
_FREE_VOLUMES: Final = ("emptyDir", "hostPath", "nfs", "downwardAPI", "image")
#: Volumes that name objects, of which the rules below say which.
_NAMING_VOLUMES: Final = ("configMap", "secret", "projected", "persistentVolumeClaim", "ephemeral", "csi")


@dataclass(frozen=True, slots=True)
class NamespaceTerms:
    """What a namespace of a member lets dispatched pods use."""

    #: PLURAL/NAME, from `ANNOTATION_MAY_USE`.
    may_use: frozenset[str] = frozenset()
    #: Whether ConfigMaps and Secrets are copied with the pods: both namespaces say so.
    copies: bool = False

    def opens(self, entry: str) -> bool:
        """Whether dispatched pods may use what is there under this name."""
        return entry in self.may_use or entry == _PUBLIC


def may_use(annotations: Mapping[str, str]) -> frozenset[str]:
    """The entries of `ANNOTATION_MAY_USE`."""
    entries = (one.strip() for one in annotations.get(clusters.ANNOTATION_MAY_USE, "").split(","))
    return frozenset(one for one in entries if one)


def entry(one: Reference) -> str:
    """What a namespace lists to open an object to dispatched pods."""
    return f"{one.plural}/{one.name}"


def copied_name(home: str, name: str) -> str:
    """The name in a member of a copy of a ConfigMap or Secret; `home` is the identity of the cluster it is from."""
    prefix = copied_prefix(home)
    if len(prefix) + len(name) <= _LONGEST_NAME:
        return prefix + name
    return f"{prefix}{name[:_KEPT_NAME].rstrip('-.')}.{hashlib.sha256(name.encode()).hexdigest()}"


def copied_prefix(home: str) -> str:
    """How the names of all copies from a cluster begin. The identity has no dots, so no prefix begins another."""
    return f"{clusters.NAME_COPIED_PREFIX}{home.lower()}."


# The pod


def with_terms(copy: RawObject, terms: NamespaceTerms, *, home: str, pod_account: str) -> RawObject:
    """The manifest of a dispatched pod, so that it uses what it may in that namespace.

    A ConfigMap or Secret that is copied gets the name of its copy. So does an optional one that is neither opened nor
    copied: the pod finds none. What is left is for the policy to refuse.
    """
    spec = dict(copy["spec"])
    account = spec.get("serviceAccountName") or clusters.DEFAULT_POD_ACCOUNT
    spec["serviceAccountName"] = account = pod_account if account == clusters.DEFAULT_POD_ACCOUNT else account
    if not terms.opens(f"serviceaccounts/{account}"):
        spec["automountServiceAccountToken"] = False

    def named(plural: str, source: Mapping[str, Any], key: str = "name") -> dict[str, Any]:
        name = str(source.get(key) or "")
        kept = terms.opens(f"{plural}/{name}") or not (terms.copies or source.get("optional"))
        return dict(source) if kept or not name else {**source, key: copied_name(home, name)}

    if spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [named("secrets", one) for one in spec["imagePullSecrets"]]
    for group in ("containers", "initContainers"):
        if spec.get(group):
            spec[group] = [_container(one, named) for one in spec[group]]
    if spec.get("volumes"):
        spec["volumes"] = [_volume(one, named) for one in spec["volumes"]]
    return {**copy, "spec": spec}


def _container(container: Mapping[str, Any], named: Any) -> dict[str, Any]:
    made = dict(container)
    if made.get("env"):
        made["env"] = [
            {**one, "valueFrom": _sources(one["valueFrom"], named, "configMapKeyRef", "secretKeyRef")}
            if one.get("valueFrom")
            else one
            for one in made["env"]
        ]
    if made.get("envFrom"):
        made["envFrom"] = [_sources(one, named, "configMapRef", "secretRef") for one in made["envFrom"]]
    return made


def _volume(volume: Mapping[str, Any], named: Any) -> dict[str, Any]:
    made = _sources(volume, named, "configMap", "secret", secret_key="secretName")
    projected = made.get("projected")
    if projected and projected.get("sources"):
        sources = [_sources(one, named, "configMap", "secret") for one in projected["sources"]]
        made["projected"] = {**projected, "sources": sources}
    return made


def _sources(
    holder: Mapping[str, Any], named: Any, config_map: str, secret: str, *, secret_key: str = "name"
) -> dict[str, Any]:
    made = dict(holder)
    if made.get(config_map):
        made[config_map] = named("configmaps", made[config_map])
    if made.get(secret):
        made[secret] = named("secrets", made[secret], secret_key)
    return made


# The policy


def variables(pod_account: str, default_priority: str) -> dict[str, str]:
    """The variables of the rules.

    `pod_account`: the ServiceAccount of dispatched pods. `default_priority`: the member's PriorityClass with
    globalDefault, which its API server gives to pods without one; may be empty.
    """
    annotation = f"namespaceObject.metadata.?annotations[?'{clusters.ANNOTATION_MAY_USE}'].orValue('')"
    classes = ", ".join(f"'{name}'" for name in dict.fromkeys(("", default_priority)))
    kinds = " : ".join(f"has(s.{kind}) ? '{kind}'" for kind in _SOURCES)
    sources = "v.?projected.?sources.orValue([])"
    return {
        "mayUse": f"{annotation}.split(',').map(one, one.trim()).filter(one, one != '')",
        "containers": "object.spec.containers + object.spec.?initContainers.orValue([])",
        "volumes": "object.spec.?volumes.orValue([])",
        "account": "object.spec.?serviceAccountName.orValue('default')",
        "accountOpen": "('serviceaccounts/' + variables.account) in variables.mayUse",
        "sources": _flat("variables.volumes", "v", f"{sources}.map(s, {kinds} : 'unknown')"),
        "named": " + ".join(
            (
                f"(variables.account == '{pod_account}' ? [] : ['serviceaccounts/' + variables.account])",
                f"(object.spec.?priorityClassName.orValue('') in [{classes}] ? []"
                " : ['priorityclasses/' + object.spec.priorityClassName])",
                _each("object.spec.?imagePullSecrets.orValue([])", "secrets", ".?name"),
                *(
                    _flat("variables.containers", "c", _each("c.?env.orValue([])", plural, path))
                    for plural, path in (
                        ("secrets", ".?valueFrom.?secretKeyRef.?name"),
                        ("configmaps", ".?valueFrom.?configMapKeyRef.?name"),
                    )
                ),
                *(
                    _flat("variables.containers", "c", _each("c.?envFrom.orValue([])", plural, path))
                    for plural, path in (("secrets", ".?secretRef.?name"), ("configmaps", ".?configMapRef.?name"))
                ),
                *(_each("variables.volumes", plural, path) for plural, path in _VOLUME_NAMES),
                *(_flat("variables.volumes", "v", _each(sources, plural, path)) for plural, path in _SOURCE_NAMES),
                *(
                    _each("object.spec.?resourceClaims.orValue([])", plural, path)
                    for plural, path in (
                        ("resourceclaims", ".?resourceClaimName"),
                        ("resourceclaimtemplates", ".?resourceClaimTemplateName"),
                    )
                ),
            )
        ),
    }


#: Projected sources; one that Kubernetes adds later is refused.
_SOURCES: Final = (
    "configMap",
    "secret",
    "downwardAPI",
    "clusterTrustBundle",
    "serviceAccountToken",
    "podCertificate",
)
_IDENTITIES: Final = ("serviceAccountToken", "podCertificate")
_VOLUME_NAMES: Final = (
    ("secrets", ".?secret.?secretName"),
    ("configmaps", ".?configMap.?name"),
    ("persistentvolumeclaims", ".?persistentVolumeClaim.?claimName"),
    ("csidrivers", ".?csi.?driver"),
    ("secrets", ".?csi.?nodePublishSecretRef.?name"),
)
_SOURCE_NAMES: Final = (
    ("secrets", ".?secret.?name"),
    ("configmaps", ".?configMap.?name"),
    ("clustertrustbundles", ".?clusterTrustBundle.?name"),
    ("clustertrustbundles", ".?clusterTrustBundle.?signerName"),
)


def _each(items: str, plural: str, path: str) -> str:
    """A list of PLURAL/NAME for the items that have this path."""
    return f"{items}.filter(one, one{path}.hasValue()).map(one, '{plural}/' + one{path}.orValue(''))"


def _flat(items: str, item: str, words: str) -> str:
    """One list of the words of each item. A name with a space, which would become two, is no name of an object."""
    return f"{items}.map({item}, {words}.join(' ')).join(' ').split(' ').filter(one, one != '')"


def validations(home: str, making: str) -> list[RawObject]:
    """The rules, each with the offending value and the fix in its message. `making`: the condition for creations."""
    prefix = copied_prefix(home)
    copied = " || ".join(f"one.startsWith('{plural}/{prefix}')" for plural in ("secrets", "configmaps"))
    refused = f"variables.named.filter(one, !(one in variables.mayUse || one == '{_PUBLIC}' || {copied}))"
    annotate = f"'kubectl annotate --overwrite namespace ' + request.namespace + ' {clusters.ANNOTATION_MAY_USE}=' + "
    opening = f"{annotate}(variables.mayUse + [%s]).join(',')"
    token = "'serviceaccounts/' + variables.account"
    identities = ", ".join(f"'{kind}'" for kind in _IDENTITIES)
    volumes = " || ".join(f"has(v.{kind})" for kind in (*_FREE_VOLUMES, *_NAMING_VOLUMES))
    fresh = "v.?ephemeral.?volumeClaimTemplate.?spec"
    return [
        _rule(
            f"{making}object.spec.?automountServiceAccountToken.orValue(true) == false || variables.accountOpen",
            f"{NO_TOKEN} of a ServiceAccount: set automountServiceAccountToken: false",
            f"'{NO_TOKEN} of ServiceAccount ' + variables.account + ': set automountServiceAccountToken: false, or "
            f"open the account with its token: ' + {opening % token}",
        ),
        _rule(
            f"{making}!variables.sources.exists(one, one in [{identities}]) || variables.accountOpen",
            "a projected serviceAccountToken or podCertificate is not open to dispatched pods: remove the source",
            "'a projected ' + variables.sources.filter(one, one in "
            f"[{identities}])[0] + ' of ServiceAccount ' + variables.account + ' is not open to dispatched pods: remove"
            f" the source, or open the account with its token: ' + {opening % token}",
        ),
        _rule(
            f"{making}!variables.sources.exists(one, one == 'unknown')",
            "a projected volume has a source that dispatched pods may not use: remove it; they may use "
            + ", ".join(kind for kind in _SOURCES if kind not in _IDENTITIES),
        ),
        _rule(
            f"{making}variables.volumes.all(v, {volumes})",
            "a volume has a type that dispatched pods may not use: use a persistentVolumeClaim that the namespace "
            "opens",
            f"'volume ' + variables.volumes.filter(v, !({volumes}))[0].name + ' has a type that dispatched pods may not"
            " use: use a persistentVolumeClaim that the namespace opens'",
        ),
        _rule(
            f"{making}variables.volumes.all(v, !({fresh}.?dataSource.hasValue() || {fresh}.?dataSourceRef.hasValue()"
            f" || {fresh}.?volumeName.hasValue()))",
            "an ephemeral volume of a dispatched pod begins empty: remove dataSource, dataSourceRef and volumeName "
            "from its volumeClaimTemplate",
        ),
        _rule(
            f"{making}{refused}.size() == 0",
            f"the pod uses something that is not open to dispatched pods: list it as PLURAL/NAME in annotation "
            f"{clusters.ANNOTATION_MAY_USE} of the namespace",
            f"{refused}[0] + ' is not open to dispatched pods: ' + {opening % f'{refused}[0]'}",
        ),
    ]


def _rule(expression: str, message: str, spoken: str = "") -> RawObject:
    made: RawObject = {"expression": expression, "message": message, "reason": "Forbidden"}
    # The server takes the plain message where this one is too long.
    return {**made, "messageExpression": spoken} if spoken else made
