"""The pages of one node, one card and one pod: what it has, why, its past, its Events, and commands to copy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from aiohttp import web

from shoal.analysis.unschedulable import what_helps
from shoal.dashboard import documents
from shoal.dashboard.access import viewer_of
from shoal.dashboard.answers import Refusal
from shoal.dashboard.api import API, card_detail, events_of, explanation, node_detail, picture_of, pod_detail
from shoal.dashboard.bars import LONG, card_bar
from shoal.dashboard.frame import page
from shoal.dashboard.listing import link

#: What a command is for, and the command.
Commands = Sequence[tuple[str, str]]

#: How far back plots go, in seconds.
_RANGES: Final = (("1 h", 3600), ("6 h", 21_600), ("24 h", 86_400), ("7 days", 604_800))
_EVENTS: Final = 20
_NODES_TOLD: Final = 20


@dataclass(frozen=True, slots=True)
class Range:
    """How far back a plot goes."""

    title: str
    href: str
    current: bool


@dataclass(frozen=True, slots=True)
class Plot:
    """A series over time. `level` is a line at a fixed height: what was requested."""

    title: str
    tip: str
    series: str
    unit: str
    src: str
    top: float | None = None
    level: float | None = None


async def node_page(request: web.Request) -> web.StreamResponse:
    """One node."""
    viewer, name = await viewer_of(request), request.match_info["name"]
    last = _last(request)
    detail = await node_detail(request, viewer, name)
    picture = picture_of(request)
    cards = documents.cards(picture, viewer.view, documents.CardQuery(node=name, limit=500)).items
    pods = documents.pods(picture, viewer.view, documents.PodQuery(node=name, limit=500)).items
    events = await events_of(request, viewer, documents.EventQuery(kind="Node", name=name, limit=_EVENTS))
    return await page(
        request,
        viewer,
        "node.html",
        active="nodes",
        node=detail.node,
        setup=detail.setup,
        waits=list(_waits(detail.node)),
        cards=[(card, card_bar(card)) for card in cards],
        pods=pods,
        plots=_plots("node", name, last),
        ranges=_ranges(request, last),
        events=events.items,
        more_events=link("/events", {"kind": "Node", "name": name}),
        commands=_node_commands(name),
    )


def _waits(node: documents.NodeDocument) -> Iterator[str]:
    """What keeps a node from serving or from being measured."""
    if not node.ready:
        yield "kubelet does not say that the node is ready: nothing is started on it."
    if node.cordoned:
        yield "It is cordoned: it takes no new pods."
    if not node.inventory:
        yield "Its agent has told of no cards; shown is what the node offers. See whether shoal-agent runs there."
    if node.pending_mib:
        yield "Pods on it ask for memory of cards of which no card is known yet."
    if node.collector.state == "missing":
        yield f"Nothing is measured: {node.collector.why or 'no collector answers'}."
    if node.collector.state == "stale":
        yield f"Its collector has not answered since {node.collector.since}: {node.collector.why or 'it is silent'}."


async def card_page(request: web.Request) -> web.StreamResponse:
    """One card."""
    viewer, uuid = await viewer_of(request), request.match_info["uuid"]
    last = _last(request)
    card = card_detail(picture_of(request), viewer, uuid)
    return await page(
        request,
        viewer,
        "card.html",
        active="cards",
        card=card,
        drawn=card_bar(card, LONG),
        holders=sorted(card.holders, key=lambda one: one.requested_mib - (one.used_mib or 0)),
        plots=_plots("card", uuid, last, total=card.total_mib, requested=card.requested_mib),
        ranges=_ranges(request, last),
        commands=_card_commands(card),
    )


async def pod_page(request: web.Request) -> web.StreamResponse:
    """One pod."""
    viewer = await viewer_of(request)
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    last = _last(request)
    pod = pod_detail(picture_of(request), viewer, namespace, name)
    query = documents.EventQuery(kind="Pod", namespace=namespace, name=name, limit=_EVENTS)
    events = await events_of(request, viewer, query)
    return await page(
        request,
        viewer,
        "pod.html",
        active="queue" if pod.state == "waiting" else "pods",
        pod=pod,
        why_path=f"{_pod_path(namespace, name)}/why",
        plots=_plots("pod", f"{namespace}/{name}", last, requested=pod.requested_mib),
        ranges=_ranges(request, last),
        events=events.items,
        more_events=link("/events", {"kind": "Pod", "namespace": namespace, "name": name}),
        commands=_pod_commands(namespace, name),
    )


async def why_page(request: web.Request) -> web.StreamResponse:
    """Why a pod waits or is where it is, and what would help; the page of the pod takes a part of it."""
    viewer = await viewer_of(request)
    namespace, name = request.match_info["namespace"], request.match_info["name"]
    answer, trouble = None, ""
    try:
        answer = await explanation(request, viewer, namespace, name, details=_NODES_TOLD)
    except Refusal as refusal:
        if refusal.status != 503:
            raise
        trouble = refusal.message
    return await page(
        request,
        viewer,
        "why.html",
        active="pods" if answer is None or answer.state != "pending" else "queue",
        namespace=namespace,
        name=name,
        path=_pod_path(namespace, name),
        answer=answer,
        trouble=trouble,
        helps=what_helps(answer.unplaced) if answer is not None and answer.unplaced is not None else [],
        most=_NODES_TOLD,
        commands=_why_commands(namespace, name, answer is not None and answer.state == "pending"),
    )


def _pod_path(namespace: str, name: str) -> str:
    return f"/pods/{quote(namespace, safe='')}/{quote(name, safe='')}"


# The past


def _last(request: web.Request) -> int:
    """How far back plots go. Raises Refusal."""
    unknown = set(request.query) - {"last"}
    if unknown:
        raise Refusal(400, f"{min(unknown)[:60]!r} is no parameter of this page: it takes last")
    told = request.query.get("last", "") or str(_RANGES[0][1])
    if told not in {str(seconds) for _, seconds in _RANGES}:
        raise Refusal(400, f"last takes one of {', '.join(str(seconds) for _, seconds in _RANGES)} seconds")
    return int(told)


def _ranges(request: web.Request, last: int) -> list[Range]:
    first = _RANGES[0][1]
    return [
        Range(title, link(request.path, {} if seconds == first else {"last": str(seconds)}), seconds == last)
        for title, seconds in _RANGES
    ]


def _plots(of: str, name: str, last: int, *, total: float | None = None, requested: float | None = None) -> list[Plot]:
    def plot(title: str, tip: str, series: str, unit: str, top: float | None, level: float | None = None) -> Plot:
        src = link(f"{API}/history", {"of": of, "name": name, "series": series, "last": str(last)})
        return Plot(title, tip, series, unit, src, top, level)

    plots = [
        plot("Memory", "Memory in use; the dashed line is what is requested now.", "used", "MiB", total, requested),
        plot("Utilisation", "How much of the time it computed.", "utilisation", "percent", 100),
    ]
    if of != "pod":
        plots += [
            plot("Temperature", "In degrees Celsius.", "temperature", "celsius", 60),
            plot("Power", "What is drawn, in watts.", "power", "watts", 100),
        ]
    return plots


# Commands


def _node_commands(name: str) -> Commands:
    node = shlex.quote(name)
    return (
        ("All that Kubernetes knows of it", f"kubectl describe node {node}"),
        ("Who has how much of its cards", f"kubectl inspect gpushare -d {node}"),
        ("Its pods", f"kubectl get pods -A -o wide --field-selector spec.nodeName={node}"),
        ("What is wrong with the installation", "shoal doctor"),
        ("Take no new pods", f"kubectl cordon {node}"),
        ("Take new pods again", f"kubectl uncordon {node}"),
    )


def _card_commands(card: documents.CardDocument) -> Commands:
    beyond = [one for one in card.holders if one.pod and one.used_mib is not None and one.used_mib > one.requested_mib]
    return (
        ("Who has how much of the cards of its node", f"kubectl inspect gpushare -d {shlex.quote(card.node)}"),
        ("What is used, live", "shoal top"),
        *(
            (
                f"{one.pod} uses more than it requested: why it is here",
                f"shoal why {shlex.quote(one.pod or '')} -n {shlex.quote(one.namespace or '')}",
            )
            for one in beyond[:3]
        ),
    )


def _pod_commands(namespace: str, name: str) -> Commands:
    pod = f"{shlex.quote(name)} -n {shlex.quote(namespace)}"
    return (
        ("Why it waits, or is where it is", f"shoal why {pod}"),
        ("All that Kubernetes knows of it", f"kubectl describe pod {pod}"),
        ("What it says", f"kubectl logs {pod}"),
        ("End it", f"kubectl delete pod {pod}"),
    )


def _why_commands(namespace: str, name: str, waiting: bool) -> Commands:
    pod = f"{shlex.quote(name)} -n {shlex.quote(namespace)}"
    more = (("Who could give way, by priority", "kubectl get pods -A --sort-by=.spec.priority"),) if waiting else ()
    return (("The same in a terminal, with every node", f"shoal why {pod} --all"), *more)
