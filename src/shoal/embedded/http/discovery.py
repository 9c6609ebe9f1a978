"""Discovery: which groups, versions and kinds there are, in the old form and in the aggregated one."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from aiohttp import web

from shoal.embedded.http.answers import answer
from shoal.embedded.kinds import SUBRESOURCE_KINDS, SUBRESOURCE_VERBS, Catalogue, Kind
from shoal.model.contract.shoal import EMBEDDED_VERSION

AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
_PART_VERBS: Final = ("get", "patch", "update")
#: The version of Kubernetes whose answers these are.
VERSION: Final = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": f"v1.36.3{EMBEDDED_VERSION}",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/amd64",
}


def discover(request: web.Request, path: list[str], catalogue: Catalogue, address: str) -> web.Response | None:
    """The answer to a path of discovery; None if it is not one."""
    groups = catalogue.groups()
    aggregated = "as=APIGroupDiscoveryList" in request.headers.get("Accept", "") and "v=v2" in request.headers["Accept"]
    if path == ["api"]:
        if aggregated:
            return _aggregated({"": groups.get("", {})})
        servers = [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]
        return answer({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": servers})
    if path == ["apis"]:
        named = {group: versions for group, versions in groups.items() if group}
        if aggregated:
            return _aggregated(named)
        listed = [_group(group, list(versions)) for group, versions in named.items()]
        return answer({"kind": "APIGroupList", "apiVersion": "v1", "groups": listed})
    if len(path) == 2 and path[0] == "apis" and path[1] in groups:
        return answer({"kind": "APIGroup", "apiVersion": "v1", **_group(path[1], list(groups[path[1]]))})
    group, version = ("", path[-1]) if path[0] == "api" else (path[1] if len(path) > 1 else "", path[-1])
    if len(path) == (2 if path[0] == "api" else 3) and version in groups.get(group, {}):
        return answer(_resources(group, version, groups[group][version]))
    return None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def _resources(group: str, version: str, kinds: list[Kind]) -> dict[str, Any]:
    entries: list[dict[str, Any]] = []
    for kind in kinds:
        entry: dict[str, Any] = {
            "name": kind.plural,
            "singularName": kind.single,
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": kind.verbs,
        }
        if kind.short_names:
            entry["shortNames"] = kind.short_names
        if kind.categories:
            entry["categories"] = kind.categories
        entries.append(entry)
        entries += [_part(kind, name) for name in kind.subresources]
    group_version = f"{group}/{version}" if group else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": entries}


def _part(kind: Kind, name: str) -> dict[str, Any]:
    group, version, shown = SUBRESOURCE_KINDS.get(name, ("", "", kind.kind))
    entry: dict[str, Any] = {"name": f"{kind.plural}/{name}", "singularName": "", "namespaced": kind.namespaced}
    if group:
        entry |= {"group": group, "version": version}
    return {**entry, "kind": shown, "verbs": SUBRESOURCE_VERBS.get(name, _PART_VERBS)}


def _aggregated(groups: dict[str, dict[str, list[Kind]]]) -> web.Response:
    items = []
    for group, versions in groups.items():
        entries = [
            {"version": version, "resources": [_entry(kind) for kind in kinds], "freshness": "Current"}
            for version, kinds in versions.items()
        ]
        items.append({"metadata": {"name": group} if group else {}, "versions": entries})
    body = {"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items}
    # By hand: the parameters are part of the type.
    return web.Response(body=msgspec.json.encode(body), headers={"Content-Type": AGGREGATED})


def _entry(kind: Kind) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": {"group": "", "version": "", "kind": kind.kind},  # empty: as the path says
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.single,
        "verbs": kind.verbs,
    }
    if kind.short_names:
        entry["shortNames"] = kind.short_names
    if kind.categories:
        entry["categories"] = kind.categories
    if kind.subresources:
        entry["subresources"] = [_aggregated_part(kind, name) for name in kind.subresources]
    return entry


def _aggregated_part(kind: Kind, name: str) -> dict[str, Any]:
    group, version, shown = SUBRESOURCE_KINDS.get(name, ("", "", kind.kind))
    response = {"group": group, "version": version, "kind": shown}
    return {"subresource": name, "responseKind": response, "verbs": SUBRESOURCE_VERBS.get(name, _PART_VERBS)}
