"""Where clusters are read: kubeconfig files and folders, labelled Secrets, ClusterProfiles. Nobody is asked yet.

What cannot be read is an entry too, with the cause and the fix in `problem`; it keeps no other from being read. Files
are the machine's own and may name programs and other files. Secrets are not: a kubeconfig from one is `closed_access`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import closed_access, load_contexts
from shoal.kube.errors import ConfigError
from shoal.kube.objects.others import Secret
from shoal.kube.resources import RawObject, Resource
from shoal.model.contract import clusters
from shoal.model.errors import shown

#: ClusterProfiles (SIG Multicluster's inventory), where their kind is there.
PROFILES: Final[Resource[RawObject]] = Resource(
    "multicluster.x-k8s.io", "v1alpha1", "clusterprofiles", "ClusterProfile", dict, whole=True
)
DEFAULT_NAMESPACE: Final = "kube-system"
#: What kubectl keeps in the folder of kubeconfigs for itself.
_KUBECTL_FOLDERS: Final = ("cache", "http-cache")
_MAX_FILES: Final = 2 * clusters.MAX_CLUSTERS
_MAX_PROPERTIES: Final = 64
_MAX_TEXT: Final = 256
_MAX_WORDS: Final = 700
_KEYS: Final = (clusters.KEY_KUBECONFIG, clusters.KEY_OFFER_AUTHORITY)
_HEAVIEST: Final = 1e6


@dataclass(frozen=True, slots=True)
class ClusterEntry:
    """A cluster as somebody wrote it down. Without access there is a problem."""

    #: Where it was read, in words; no two entries have the same.
    where: str
    name: str
    access: Access | None = field(default=None, repr=False)
    problem: str = ""
    #: Changes with address and credentials.
    digest: str = ""
    #: The identity that it was joined with, empty if nobody wrote it down.
    uid: str = ""
    cost: float = 0.0
    preference: float = 0.0
    #: Where Shoal's scheduler is there.
    namespace: str = DEFAULT_NAMESPACE
    #: The ServiceAccount of dispatched pods there.
    pod_account: str = clusters.DEFAULT_POD_ACCOUNT
    #: A direct way to that scheduler, and the certificates that its own is signed with.
    offer_url: str = ""
    offer_authority: bytes = field(default=b"", repr=False)


def readable(words: str) -> str:
    """Words that may come from anywhere, as one line that a terminal can show."""
    line = "".join(letter if letter.isprintable() else " " for letter in words[:_MAX_WORDS])
    return line + ("…" if len(words) > _MAX_WORDS else "")


# Files


def file_entries(paths: Sequence[Path], *, environ: Mapping[str, str]) -> list[ClusterEntry]:
    """Every context of these files and of the files in these folders."""
    files, found = _files(paths)
    listing = load_contexts(files, environ=environ)
    found += [ClusterEntry(path, "", problem=problem) for path, problem in listing.problems.items()]
    for one in listing.entries:
        where = f"context {one.context!r} of {one.path}"
        problem = one.problem or _bad_name(one.cluster, where, "rename it in `clusters` and `contexts` of the file")
        access = None if problem else one.access
        found.append(ClusterEntry(where, one.cluster, access, problem, one.digest))
    return found


def _files(paths: Sequence[Path]) -> tuple[list[Path], list[ClusterEntry]]:
    """The files that are named or lie in a folder that is; and what of it cannot be used."""
    files: dict[Path, None] = {}
    problems: list[ClusterEntry] = []
    for path in paths:
        try:
            inside = sorted(path.iterdir()) if path.is_dir() else None
        except OSError as error:
            words = f"folder {path} cannot be read: {error.strerror}: correct its mode"
            problems.append(ClusterEntry(str(path), "", problem=words))
            continue
        if inside is None:
            files[path] = None
            continue
        # Mounted Secrets keep their versions in folders whose names begin with dots.
        for one in inside:
            if one.name.startswith(".") or (one.is_dir() and one.name in _KUBECTL_FOLDERS):
                continue
            if one.is_dir():
                words = f"{one} is a folder inside a folder: move its files up, or name it in KUBECONFIG as well"
                problems.append(ClusterEntry(str(one), "", problem=words))
            else:
                files[one] = None
    listed = list(files)
    if len(listed) > _MAX_FILES:
        words = f"{len(listed)} files: at most {_MAX_FILES} are read: move away those that are no kubeconfigs"
        problems.append(ClusterEntry("kubeconfig files", "", problem=words))
    return listed[:_MAX_FILES], problems


# Secrets


def slim(secret: Secret) -> Secret:
    """A Secret with nothing in it but what is read."""
    kept = {key: value for key, value in secret.data.items() if key in _KEYS}
    return msgspec.structs.replace(secret, data=kept, string_data={})


def secret_entries(secrets: Iterable[Secret], *, environ: Mapping[str, str]) -> list[ClusterEntry]:
    """The clusters of labelled Secrets; those that were there first come first."""
    ordered = sorted(secrets, key=lambda one: (one.metadata.creation_timestamp or "", one.metadata.name))
    return [secret_entry(one, environ=environ) for one in ordered]


def secret_entry(secret: Secret, *, environ: Mapping[str, str]) -> ClusterEntry:
    """The cluster of one Secret."""
    meta = secret.metadata
    where = f"Secret {meta.namespace}/{meta.name}"
    name = meta.labels.get(clusters.LABEL_CLUSTER, "")
    try:
        if words := _bad_name(name, where, f"correct its label {clusters.LABEL_CLUSTER}"):
            raise ConfigError(words)
        content = _content(secret, clusters.KEY_KUBECONFIG, where)
        if not content:
            raise ConfigError(f"{where} has no key {clusters.KEY_KUBECONFIG}: shoal clusters join writes one that has")
        return ClusterEntry(
            where,
            name,
            closed_access(content, what=where, environ=environ),
            digest=hashlib.sha256(content).hexdigest(),
            uid=_text(meta.annotations, clusters.ANNOTATION_CLUSTER_UID, ""),
            cost=_weight(meta.annotations, clusters.ANNOTATION_COST, where),
            preference=_weight(meta.annotations, clusters.ANNOTATION_PREFERENCE, where),
            namespace=_text(meta.annotations, clusters.ANNOTATION_SCHEDULER_NAMESPACE, DEFAULT_NAMESPACE),
            pod_account=_text(meta.annotations, clusters.ANNOTATION_POD_ACCOUNT, clusters.DEFAULT_POD_ACCOUNT),
            offer_url=_offer_url(meta.annotations, where),
            offer_authority=_content(secret, clusters.KEY_OFFER_AUTHORITY, where),
        )
    except ConfigError as error:
        return ClusterEntry(where, name, problem=readable(str(error)))


def _content(secret: Secret, key: str, where: str) -> bytes:
    try:
        return base64.b64decode(secret.data.get(key, ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"{where}: {key} is not base64: write the Secret anew") from error


def _offer_url(annotations: Mapping[str, str], where: str) -> str:
    url = _text(annotations, clusters.ANNOTATION_OFFER_URL, "")
    if url and not url.startswith("https://"):
        raise ConfigError(f"{where}: {clusters.ANNOTATION_OFFER_URL} holds {shown(url)}: write https://HOST:PORT")
    return url


def _weight(annotations: Mapping[str, str], key: str, where: str) -> float:
    written = annotations.get(key, "0")
    try:
        weight = float(written[:40])
    except ValueError:
        weight = math.nan
    if not -_HEAVIEST <= weight <= _HEAVIEST:
        raise ConfigError(f"{where}: {key} holds {shown(written)}: write a number, such as 1.5")
    return weight


def _text(annotations: Mapping[str, str], key: str, default: str) -> str:
    return annotations.get(key, "")[:_MAX_TEXT] or default


def _bad_name(name: str, where: str, fix: str) -> str:
    try:
        msgspec.convert(name, clusters.Name)
    except msgspec.ValidationError:
        return f"{where} calls its cluster {shown(name)}, which is no name for one: {fix}; letters, digits, . _ -"
    return ""


# ClusterProfiles


@dataclass(frozen=True, slots=True)
class ClusterProfile:
    """What an inventory says of a cluster. It holds no credentials."""

    where: str
    name: str
    properties: Mapping[str, str]


def profile_of(obj: RawObject) -> ClusterProfile | None:
    """A ClusterProfile; None if it has no name to go by."""
    metadata, status = _part(obj, "metadata"), _part(obj, "status")
    name = metadata.get("name")
    if not isinstance(name, str) or _bad_name(name, "", ""):
        return None
    properties: dict[str, str] = {}
    listed = status.get("properties")
    for one in listed[:_MAX_PROPERTIES] if isinstance(listed, list) else ():
        key, value = (one.get("name"), one.get("value")) if isinstance(one, dict) else (None, None)
        if isinstance(key, str) and isinstance(value, str):
            properties[readable(key[:_MAX_TEXT])] = readable(value[:_MAX_TEXT])
    return ClusterProfile(f"ClusterProfile {metadata.get('namespace', '')}/{name}", name, properties)


def _part(obj: RawObject, key: str) -> dict[str, Any]:
    found = obj.get(key)
    return found if isinstance(found, dict) else {}
