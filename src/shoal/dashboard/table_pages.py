"""The pages with one table each: nodes, cards, pods, the queue, Events."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from shoal.dashboard import documents
from shoal.dashboard.access import viewer_of
from shoal.dashboard.api import events_of, picture_of
from shoal.dashboard.bars import card_bar, node_bar
from shoal.dashboard.frame import page
from shoal.dashboard.listing import TableColumn, asked, listing

_YES_NO: Final = (("", "all"), ("true", "yes"), ("false", "no"))
_MEASURED: Final = (("", "all"), ("measured", "measured now"), ("stale", "stale"), ("missing", "no data"))
_STATES: Final = (
    ("", "all"),
    ("running", "running"),
    ("waiting", "waiting"),
    ("starting", "starting"),
    ("ending", "ending"),
    ("gone", "gone"),
    ("elsewhere", "in another cluster"),
)
_NODE_COLUMNS: Final = (
    TableColumn("Node", "", "name"),
    TableColumn("State", "Whether it is ready, and takes new pods."),
    TableColumn("Models", "The models of its cards, as its agent tells."),
    TableColumn("Cards", "How many cards it has, and how many are broken.", number=True),
    TableColumn("Memory", "All its cards together: above requested, below used."),
    TableColumn("Requested", "Memory that pods have been given.", "requested", number=True),
    TableColumn("Used", "Memory that is really in use, by its collector.", "used", number=True),
    TableColumn("Total", "Memory of all its cards.", number=True),
    TableColumn("Utilisation", "How much of the time its cards computed, on the average.", "utilisation", number=True),
    TableColumn("Pods", "Pods on its cards that you may read.", "pods", number=True),
    TableColumn("Measured", "Whether its collector answers."),
)
_CARD_COLUMNS: Final = (
    TableColumn("Card", "Node and number of the card.", "node"),
    TableColumn("State", "Whether it is good, and how it is held."),
    TableColumn("Memory", "Above requested, a block for each pod; below used."),
    TableColumn("Requested", "Memory that pods have been given.", "requested", number=True),
    TableColumn("Used", "Memory that is really in use.", "used", number=True),
    TableColumn("Total", "Memory of the card.", number=True),
    TableColumn("Utilisation", "How much of the time it computed.", "utilisation", number=True),
    TableColumn("Temperature", "Temperature of the card.", "temperature", number=True),
    TableColumn("Power", "What it draws now.", "power", number=True),
    TableColumn("Pods", "Who has part of it; marked are those that use more than they requested."),
)
_POD_COLUMNS: Final = (
    TableColumn("Pod", "Namespace and name.", "name"),
    TableColumn("State", "Waiting pods have no card yet.", "state"),
    TableColumn("Cards", "The node and the numbers of its cards.", "node"),
    TableColumn("Requested", "Memory it has been given, or asks for while it waits.", "requested", number=True),
    TableColumn("Used", "Memory it really uses.", "used", number=True),
    TableColumn("Since", "When it was made.", "created"),
    TableColumn("Why it waits", "The scheduler's last word on it."),
)
_EVENT_COLUMNS: Final = (
    TableColumn("Last seen", "When it was last said."),
    TableColumn("Type", "Warnings are about what went wrong."),
    TableColumn("Of", "The pod or the node."),
    TableColumn("Reason", "In one word."),
    TableColumn("Message", "In words."),
)


async def nodes_page(request: web.Request) -> web.StreamResponse:
    """Nodes with cards."""
    viewer = await viewer_of(request)
    query = asked(documents.NodeQuery, request.query)
    found = documents.nodes(picture_of(request), viewer.view, query)
    filters = (("ready", "Ready", _YES_NO), ("cordoned", "Cordoned", _YES_NO), ("measured", "Measured", _MEASURED))
    around = listing(
        "/nodes", request.query, found, columns=_NODE_COLUMNS, sort=query.sort, filters=filters, what="nodes"
    )
    return await page(
        request,
        viewer,
        "nodes.html",
        active="nodes",
        heading="Nodes",
        about="Nodes with cards.",
        placeholder="name, address, model",
        nothing="No node with cards that you may see.",
        listing=around,
        rows=[(node, node_bar(node)) for node in found.items],
    )


async def cards_page(request: web.Request) -> web.StreamResponse:
    """Cards: the map's equal."""
    viewer = await viewer_of(request)
    query = asked(documents.CardQuery, request.query)
    found = documents.cards(picture_of(request), viewer.view, query)
    health = (("", "all"), ("good", "good"), ("broken", "broken"), ("unknown", "not known"))
    filters = (("health", "Health", health), ("held", "Held by pods", _YES_NO), ("measured", "Measured", _MEASURED))
    around = listing(
        "/cards", request.query, found, columns=_CARD_COLUMNS, sort=query.sort, filters=filters, what="cards"
    )
    return await page(
        request,
        viewer,
        "cards.html",
        active="cards",
        heading="Cards",
        about="The map as a table.",
        placeholder="node, model, UUID, namespace/pod",
        nothing="No cards that you may see.",
        listing=around,
        rows=[(card, card_bar(card)) for card in found.items],
    )


async def pods_page(request: web.Request) -> web.StreamResponse:
    """Running and waiting pods in one list."""
    viewer = await viewer_of(request)
    query = asked(documents.PodQuery, request.query)
    found = documents.pods(picture_of(request), viewer.view, query)
    around = listing(
        "/pods",
        request.query,
        found,
        columns=_POD_COLUMNS,
        sort=query.sort,
        filters=(("state", "State", _STATES),),
        what="pods",
    )
    return await page(
        request,
        viewer,
        "pods.html",
        active="pods",
        heading="Pods",
        about="Pods with cards and pods that wait for some, in one list.",
        placeholder="namespace/name, node",
        nothing="No pod that you may read has cards or asks for any.",
        listing=around,
        rows=found.items,
    )


async def queue_page(request: web.Request) -> web.StreamResponse:
    """Waiting pods alone."""
    viewer = await viewer_of(request)
    query = asked(documents.PodQuery, request.query, state="waiting")
    found = documents.pods(picture_of(request), viewer.view, query)
    around = listing("/queue", request.query, found, columns=_POD_COLUMNS, sort=query.sort, what="waiting pods")
    return await page(
        request,
        viewer,
        "pods.html",
        active="queue",
        heading="Queue",
        about="Pods that wait for cards, and why. Open one to see what would help.",
        placeholder="namespace/name",
        nothing="Nobody waits.",
        listing=around,
        rows=found.items,
    )


async def events_page(request: web.Request) -> web.StreamResponse:
    """Events of pods and nodes with cards."""
    viewer = await viewer_of(request)
    found = await events_of(request, viewer, asked(documents.EventQuery, request.query))
    filters = (
        ("type", "Type", (("", "all"), ("Warning", "warnings"), ("Normal", "normal"))),
        ("kind", "Of", (("", "all"), ("Pod", "pods"), ("Node", "nodes"))),
    )
    around = listing(
        "/events", request.query, found, columns=_EVENT_COLUMNS, sort="-time", filters=filters, what="Events"
    )
    return await page(
        request,
        viewer,
        "events.html",
        active="events",
        heading="Events",
        about="What was said of pods and nodes with cards, the newest first."
        + ("" if found.complete else " There were more than are kept: the oldest are left out."),
        placeholder="reason, message, name",
        nothing="No Events. The API server keeps them for an hour unless told otherwise.",
        listing=around,
        rows=found.items,
    )
