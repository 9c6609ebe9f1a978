"""The policies that Shoal ships, as `kubectl apply -k` would send them.

They are written for kustomize. What they use of it is understood here: resources, `nameSuffix`, and JSON patches of
one kind, by name or not. Anything else is refused, so that nothing is left out unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from shoal.embedded.patch.json_patch import apply_json_patch
from shoal.embedded.store import Object
from shoal.model.contract.gpushare import MemoryUnit

#: In C where there is one: these files are our own, and are read at every start.
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_FILE: Final = "kustomization.yaml"
_KNOWN: Final = {"apiVersion", "kind", "resources", "nameSuffix", "patches"}
_FOLDERS: Final = {MemoryUnit.GIB: "admission", MemoryUnit.MIB: "admission-mib"}
#: What keeps an agent to its own node, a worker of discovery, and a collector.
_FENCE: Final = Path("agent") / "own-node.yaml"
_FACTS: Final = Path("discovery") / "own-node.yaml"
_COLLECTORS: Final = tuple(Path("metrics") / name for name in ("live-load.yaml", "own-lease.yaml", "history.yaml"))
_DEVICE_CLASS: Final = Path("agent-claims") / "device-class.yaml"
#: What others stand on comes first, and what puts policies in force last.
_ORDER: Final = ("Namespace", "ClusterRole", "Role")
#: The rights of those who look.
_VIEWER: Final = Path("rbac") / "viewer.yaml"


class ManifestError(Exception):
    """The shipped manifests are not there, or use what is not understood here."""


def shipped(unit: MemoryUnit) -> list[Object]:
    """The policies for clusters that count memory in a unit, the fences of agents and collectors, and roles, those of
    viewers too.

    Roles come first: who may write decisions must be known before anybody is asked.
    """
    folder = _deploy()
    fences = [obj for path in (_FENCE, _FACTS, *_COLLECTORS, _VIEWER) for obj in _documents(folder / path)]
    return sorted([*rendered(folder / _FOLDERS[unit]), *fences], key=_place)


def device_class() -> Object:
    """The class of all cards that agents offer as claims."""
    (found,) = _documents(_deploy() / _DEVICE_CLASS)
    return found


def cluster_manager() -> list[Object]:
    """The cluster manager's namespace, its account with its rights, and the policies by which pods wait for it."""
    folder = _deploy() / "cluster-manager"
    names = ("namespace.yaml", "rbac.yaml", "gates.yaml", "clusters.yaml")
    return sorted((obj for name in names for obj in _documents(folder / name)), key=_place)


def _place(obj: Object) -> tuple[int, bool]:
    kind = obj["kind"]
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), "Binding" in kind


def rendered(folder: Path) -> list[Object]:
    """The objects of a folder with a kustomization."""
    told = yaml.load((folder / _FILE).read_text(), _LOADER)
    unknown = set(told) - _KNOWN
    if unknown:
        raise ManifestError(f"{folder / _FILE} uses {', '.join(sorted(unknown))}: read it with kubectl kustomize")
    objects = [obj for name in told.get("resources") or () for obj in _resource(folder / name)]
    # As kustomize does: first the names, which patches and later folders see.
    objects = [_patched(obj, told.get("patches") or ()) for obj in objects]
    return [_suffixed(obj, told.get("nameSuffix", "")) for obj in objects]


def _resource(path: Path) -> Iterable[Object]:
    return rendered(path) if path.is_dir() else _documents(path)


def _documents(path: Path) -> Iterator[Object]:
    return (obj for obj in yaml.load_all(path.read_text(), _LOADER) if obj)


def _patched(obj: Object, patches: Iterable[dict[str, Any]]) -> Object:
    for patch in patches:
        target = patch.get("target") or {}
        if set(target) - {"kind", "name"}:
            raise ManifestError(f"a patch has the target {target}: only kind and name are understood")
        name = obj["metadata"]["name"]
        if target.get("kind", obj["kind"]) == obj["kind"] and re.fullmatch(target.get("name", ".*"), name):
            obj = apply_json_patch(obj, yaml.load(patch["patch"], _LOADER))
    return obj


def _suffixed(obj: Object, suffix: str) -> Object:
    if not suffix:
        return obj
    metadata = {**obj["metadata"], "name": obj["metadata"]["name"] + suffix}
    spec = obj.get("spec") or {}
    if "policyName" in spec:
        spec = {**spec, "policyName": spec["policyName"] + suffix}
    return {**obj, "metadata": metadata, "spec": spec}


def _deploy() -> Path:
    """Where the manifests are: in the package, or beside it in a checkout."""
    package = Path(__file__).parents[2]
    for folder in (package / "deploy", package.parents[1] / "deploy"):
        if (folder / _FENCE).exists():
            return folder
    raise ManifestError(f"there is no folder deploy in {package}: install shoal again")
