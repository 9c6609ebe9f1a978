"""Manifests from files, ready for the API server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from shoal.kube.resources import RawObject, Resource

#: Kinds that the examples use, with the plurals of their paths.
_KINDS: Final = {
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Pod"): ("pods", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "StatefulSet"): ("statefulsets", True),
    ("batch/v1", "Job"): ("jobs", True),
}


class ManifestError(Exception):
    """A file that holds no manifests."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object of a file, and where it goes."""

    resource: Resource[RawObject]
    namespace: str
    obj: RawObject


def read(path: Path) -> list[Manifest]:
    """The manifests of a file, in its order."""
    try:
        return list(_manifests(yaml.safe_load_all(path.read_text(encoding="utf-8")), path))
    except (OSError, yaml.YAMLError) as error:
        raise ManifestError(f"{path} cannot be read: {error}") from error


def _manifests(documents: Iterator[Any], path: Path) -> Iterator[Manifest]:
    for document in documents:
        if document is None:
            continue
        kind = (document.get("apiVersion"), document.get("kind")) if isinstance(document, dict) else None
        if kind not in _KINDS:
            raise ManifestError(f"{path}: {kind} is not among the kinds of the examples: use kubectl apply")
        plural, namespaced = _KINDS[kind]
        version, _, rest = str(kind[0]).partition("/")
        group, version = (version, rest) if rest else ("", version)
        resource = Resource(group, version, plural, str(kind[1]), dict, namespaced=namespaced, whole=True)
        namespace = document.get("metadata", {}).get("namespace", "default") if namespaced else ""
        yield Manifest(resource, namespace, document)
