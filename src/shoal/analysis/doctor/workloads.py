"""Shoal's own workloads: the agents, the scheduler, their rights and versions; and others that do the same job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from shoal import __version__
from shoal.analysis.doctor.findings import Finding, failed, note, ok, some, unknown, warning
from shoal.analysis.doctor.installation import Installation
from shoal.kube.resources import RawObject
from shoal.model.contract import gpushare, keti, kubernetes, nvidia, shoal

#: Other stacks' workloads that serve the same resources, or place the same pods.
_PLUGINS: Final = (gpushare.PLUGIN_NAME, keti.PLUGIN_DAEMONSET, *nvidia.PLUGIN_DAEMONSETS)
_SCHEDULERS: Final = (gpushare.EXTENDER_NAME, keti.SCHEDULER_DEPLOYMENT)


def agents(installation: Installation) -> Iterator[Finding]:
    """The DaemonSet of the agent, and other device plugins."""
    if installation.daemon_sets is None:
        yield unknown("agent", "DaemonSets may not be read")
        return
    own = [one for one in installation.daemon_sets if _name(one) == shoal.NAME_AGENT]
    for one in own:
        status = one.get("status") or {}
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if not wanted:
            yield failed("agent", "its DaemonSet finds no node", "label the nodes with cards gpushare=true")
        elif ready < wanted:
            yield failed(
                "agent",
                f"ready on {ready} of {wanted} nodes",
                f"kubectl -n {one['metadata']['namespace']} get pods -l {kubernetes.LABEL_APP}={shoal.NAME_AGENT}",
            )
        else:
            yield ok("agent", f"ready on {ready} node(s)")
    if not own:
        yield note("agent", "has no DaemonSet here", "kubectl apply -k deploy/agent, unless it is started otherwise")
    others = sorted({_name(one) for one in installation.daemon_sets if _name(one) in _PLUGINS and _wanted(one)})
    if own and others:
        yield warning(
            "agent",
            f"{some(others)} may serve the same resources on the same nodes",
            "remove it there, or leave its resources out in the agent's settings",
        )


def scheduler(installation: Installation) -> Iterator[Finding]:
    """The Deployment of the scheduler, its leader, and the Service by which kube-scheduler finds it."""
    if installation.deployments is None:
        yield unknown("scheduler", "Deployments may not be read")
        return
    own = [one for one in installation.deployments if _name(one) == shoal.NAME_SCHEDULER]
    if not own:
        yield note(
            "scheduler", "has no Deployment here", "kubectl apply -k deploy/scheduler, unless it is started otherwise"
        )
    for one in own:
        status = one.get("status") or {}
        if not status.get("readyReplicas"):
            yield failed(
                "scheduler",
                "no replica is ready",
                f"kubectl -n {one['metadata']['namespace']} logs -l {kubernetes.LABEL_APP}={shoal.NAME_SCHEDULER}",
            )
    if len(own) > 1:
        places = sorted(one["metadata"]["namespace"] for one in own)
        yield failed(
            "scheduler", f"runs in {some(places)}, without a common lease", "remove all but one: cards get over-booked"
        )
    if own:
        yield from _leader(installation)
        yield from _service(installation)
    others = sorted({_name(one) for one in installation.deployments if _name(one) in _SCHEDULERS})
    if own and others:
        yield warning(
            "scheduler", f"{some(others)} places GPU pods too", "remove it, so that cards have one bookkeeper"
        )


def _leader(installation: Installation) -> Iterator[Finding]:
    lease = installation.leader
    if lease is None:
        yield unknown("scheduler", f"Lease {shoal.NAME_SCHEDULER} may not be read")
    elif not lease or not lease[0].spec.holder_identity:
        yield failed("scheduler", "nobody leads", "see the logs of its replicas; they need to write their Lease")
    else:
        yield ok("scheduler", f"{lease[0].spec.holder_identity} leads")


def _service(installation: Installation) -> Iterator[Finding]:
    if installation.extender is None:
        yield unknown("scheduler", "EndpointSlices may not be read")
        return
    ready = sum(
        (endpoint.get("conditions") or {}).get("ready") is not False
        for one in installation.extender
        for endpoint in one.get("endpoints") or ()
    )
    if not ready:
        yield failed(
            "scheduler",
            f"nobody answers behind the Service {gpushare.EXTENDER_NAME}",
            "the leader must be ready, and the Service's selector must find its pod",
        )


def rights(installation: Installation) -> Iterator[Finding]:
    """Whether the services may do their work."""
    running = {
        name
        for one in (*(installation.daemon_sets or ()), *(installation.deployments or ()))
        if (name := _name(one)) in (shoal.NAME_AGENT, shoal.NAME_SCHEDULER)
    }
    if not running:
        return
    if installation.granted is None:
        yield unknown("rights", "ClusterRoleBindings may not be read")
        return
    missing = sorted(running - {_name(one) for one in installation.granted})
    if missing:
        folders = " and ".join(f"deploy/{name.removeprefix('shoal-')}" for name in missing)
        yield failed("rights", f"{some(missing)}: no ClusterRoleBinding of that name", f"kubectl apply -k {folders}")
    else:
        yield ok("rights", f"{some(sorted(running))} have their ClusterRoleBinding")


def versions(installation: Installation) -> Iterator[Finding]:
    """Whether all images are of the release of this command."""
    tags: dict[str, str] = {}
    for one in (*(installation.daemon_sets or ()), *(installation.deployments or ())):
        if _name(one) in (shoal.NAME_AGENT, shoal.NAME_SCHEDULER):
            image = str(_containers(one)[0].get("image", "")) if _containers(one) else ""
            tags[_name(one)] = image.rpartition("/")[2].partition("@")[0].partition(":")[2] or "latest"
    odd = {name: tag for name, tag in tags.items() if tag != __version__}
    if odd:
        says = ", ".join(f"{name} {tag}" for name, tag in sorted(odd.items()))
        yield warning("versions", f"{says}; this command is {__version__}", "use one release everywhere")
    elif tags:
        yield ok("versions", f"{some(sorted(tags))} {__version__}, as this command")


def _name(one: RawObject) -> str:
    """The name, of Shoal's own workloads by their label: deploy/keti gives them KETI's names."""
    label = (one["metadata"].get("labels") or {}).get(kubernetes.LABEL_APP)
    return label if label in (shoal.NAME_AGENT, shoal.NAME_SCHEDULER) else str(one["metadata"]["name"])


def _wanted(one: RawObject) -> int:
    return int((one.get("status") or {}).get("desiredNumberScheduled", 0))


def _containers(one: RawObject) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = one.get("spec", {}).get("template", {}).get("spec", {}).get("containers") or []
    return found
