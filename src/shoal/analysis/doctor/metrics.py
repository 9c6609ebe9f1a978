"""The collectors' port for Prometheus: who can read names of pods there, and whether anybody scrapes it.

A collector reports its port in its Lease. It cannot see NetworkPolicies, so a policy that its settings rely on is
looked for here. Whether the network plugin enforces policies is not visible to the API server.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from shoal.analysis.doctor.findings import Finding, failed, note, ok, some, unknown, warning
from shoal.analysis.doctor.installation import Installation
from shoal.kube.resources import RawObject
from shoal.kube.selectors import read_label_selector
from shoal.metrics.history_wire import ExporterStatus
from shoal.model.contract import kubernetes, load

_CHECK: Final = "metrics"
_PORT_NAME: Final = "metrics"
_ADMIT: Final = (
    "let only your monitoring in: networkPolicies.metricsFrom of the chart, or network.yaml of deploy/metrics"
)


def scrapes(installation: Installation) -> Iterator[Finding]:
    """Ports that name pods to everyone, ports that name none, and ports that nobody reads."""
    if installation.collectors is None:
        if installation.daemon_sets is None or _daemon_sets(installation):
            yield unknown(_CHECK, "the Leases in which collectors report their ports may not be read")
        return
    ports = {one.node: one.exporter for one in installation.collectors if one.exporter is not None}
    if not ports:
        return
    troubles = [*_exposed(installation, ports), *_unread(ports)]
    yield from troubles
    withheld = [node for node, port in ports.items() if port.pod_labels == "auto" and not port.names_pods]
    if withheld:
        yield note(
            _CHECK,
            f"{some(withheld)}: series name no pods, since nothing protects the port",
            f"{_ADMIT}; or set dcgmExporter.settings.podLabels to always or never",
        )
    elif not troubles and any(port.scraped for port in ports.values()):
        yield ok(_CHECK, f"{len(ports)} collector(s) are scraped")


def _exposed(installation: Installation, ports: Mapping[str, ExporterStatus]) -> Iterator[Finding]:
    """Collectors that name pods on a port that nothing protects."""
    named = {node: port for node, port in ports.items() if port.names_pods and not port.authenticates}
    opened = [node for node, port in named.items() if not port.network_policy]
    if opened:
        yield warning(
            _CHECK,
            f"{some(opened)}: everyone who reaches port {named[opened[0]].port} reads the names of all pods with GPUs",
            f"{_ADMIT}; and set dcgmExporter.settings.podLabels to auto",
        )
    relying = {node: port for node, port in named.items() if port.network_policy}
    if not relying:
        return
    if installation.network_policies is None or installation.daemon_sets is None:
        yield unknown(_CHECK, "whether a NetworkPolicy protects the collectors' port may not be read")
        return
    why = _unprotected(installation, next(iter(relying.values())).port)
    if why:
        yield failed(_CHECK, f"{some(relying)}: names of pods can be read by strangers: {why}", _ADMIT)


def _unprotected(installation: Installation, port: int) -> str:
    """Why no NetworkPolicy keeps the port of the collectors to named clients; empty where one does."""
    for daemon_set in _daemon_sets(installation):
        template = daemon_set["spec"]["template"]
        if template["spec"].get("hostNetwork"):
            return "their pods are in the network of the host, which no NetworkPolicy covers"
        labels = (template.get("metadata") or {}).get("labels") or {}
        namespace = daemon_set["metadata"].get("namespace", "")
        covering = [
            policy
            for policy in installation.network_policies or ()
            if policy["metadata"].get("namespace") == namespace and _covers(policy.get("spec") or {}, labels)
        ]
        if not covering:
            return f"no NetworkPolicy of namespace {namespace} covers port {port}"
        for policy in covering:
            if any(_admits_all(rule, port) for rule in (policy["spec"].get("ingress") or ())):
                return f"NetworkPolicy {namespace}/{policy['metadata']['name']} admits every client to port {port}"
    return ""


def _daemon_sets(installation: Installation) -> list[RawObject]:
    """The DaemonSets of collectors."""
    return [
        one
        for one in installation.daemon_sets or ()
        if (one["metadata"].get("labels") or {}).get(kubernetes.LABEL_APP) == load.NAME_COLLECTOR
    ]


def _covers(spec: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = read_label_selector(spec.get("podSelector") or {})
    return "Ingress" in (spec.get("policyTypes") or ["Ingress"]) and selector.matches(labels)


def _admits_all(rule: RawObject, port: int) -> bool:
    ports = rule.get("ports") or ()
    if ports and not any(_is_port(one, port) for one in ports):
        return False
    peers = rule.get("from") or ()
    return not peers or any(_is_anybody(peer) for peer in peers)


def _is_port(entry: Mapping[str, Any], port: int) -> bool:
    first = entry.get("port")
    if first is None or first == _PORT_NAME:
        return True
    return isinstance(first, int) and first <= port <= int(entry.get("endPort") or first)


def _is_anybody(peer: Mapping[str, Any]) -> bool:
    """All namespaces, also with labels of pods, which tenants choose; or all addresses."""
    namespaces = peer.get("namespaceSelector")
    if namespaces is not None and not namespaces.get("matchLabels") and not namespaces.get("matchExpressions"):
        return True
    return str((peer.get("ipBlock") or {}).get("cidr", "")).endswith("/0")


def _unread(ports: Mapping[str, ExporterStatus]) -> Iterator[Finding]:
    """Collectors whose series nobody reads."""
    silent = [node for node, port in ports.items() if port.scraped is False]
    if not silent:
        return
    if any(port.scraped for port in ports.values()):
        says = f"{some(silent)}: nobody has scraped the collector for ten minutes, and others are scraped"
        yield warning(_CHECK, says, "see the targets of your Prometheus")
        return
    yield note(
        _CHECK,
        "nobody has scraped any collector for ten minutes",
        "if Prometheus should, see its targets, and whether networkPolicies.metricsFrom names its namespace",
    )
