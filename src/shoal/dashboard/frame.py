"""What all pages have around them: the views with how many there are of what each shows, who looks, and the stream."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from shoal.dashboard import documents
from shoal.dashboard.answers import Refusal
from shoal.dashboard.api import MAPS, QUESTIONS, WASTE, events_of, overview_of, picture_of
from shoal.dashboard.rendering import HERE, StaticFiles, Templates
from shoal.dashboard.stream import TooManyViewsError
from shoal.dashboard.viewers import Viewer

STATIC: Final = StaticFiles(HERE / "static")
TEMPLATES: Final = Templates(STATIC.root)

#: A count that takes longer is told on the next page: it goes on being asked for.
_COUNT_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Tab:
    """A view in the head of every page, with how many there are of what it shows; None when that is not known."""

    key: str
    path: str
    title: str
    count: int | None = None
    attention: bool = False
    tip: str = ""


async def page(
    request: web.Request, viewer: Viewer, template: str, *, active: str, **values: object
) -> web.StreamResponse:
    """A page for somebody who is signed in."""
    overview = overview_of(request, viewer)
    common = {
        "overview": overview,
        "tabs": await _tabs(request, viewer, overview),
        "active": active,
        # The map begins with all of it; other pages go on from what they show.
        "stream": "" if active == "map" else _now(request, viewer),
    }
    return TEMPLATES.page(template, {**common, **values})


def _now(request: web.Request, viewer: Viewer) -> str:
    """What names the present moment to the stream; empty where there is no room for a view of their own."""
    try:
        shown = request.app[MAPS].of(viewer.view)
    except TooManyViewsError:
        return ""
    return shown.tag(shown.number)


async def _tabs(request: web.Request, viewer: Viewer, overview: documents.Overview) -> list[Tab]:
    waiting = overview.pods.waiting
    tabs = [
        Tab("map", "/", "Map", overview.cards.total, tip="cards on the map"),
        Tab("nodes", "/nodes", "Nodes", overview.nodes.total, tip="nodes with cards"),
        Tab("cards", "/cards", "Cards", overview.cards.total, tip="cards"),
        Tab("pods", "/pods", "Pods", overview.pods.total, tip="pods with cards, or waiting for some"),
        Tab("queue", "/queue", "Queue", waiting, waiting > 0, "waiting pods"),
        Tab("waste", "/waste", "Waste", _unused(request, viewer), tip="cards that pods have and do not use"),
        Tab("events", "/events", "Events", (await events_of(request, viewer)).total, tip="Events of pods and nodes"),
    ]
    return tabs + (await _tabs_of_nodes(request) if viewer.view.nodes else [])


async def _tabs_of_nodes(request: web.Request) -> list[Tab]:
    """Those for who may see all nodes."""
    questions = request.app[QUESTIONS]
    setup = clusters = None
    with contextlib.suppress(TimeoutError, Refusal):
        async with asyncio.timeout(_COUNT_SECONDS):
            setup = await questions.set_up()
            clusters = await questions.clusters()
    late = None if setup is None else sum(bool(node.step) for node in setup.nodes)
    tabs = [Tab("setup", "/setup", "Set-up", late, bool(late), "nodes that do not serve yet")]
    if clusters is not None and clusters.told is not None:
        tabs.append(Tab("clusters", "/clusters", "Clusters", len(clusters.told.clusters), tip="joined clusters"))
    return tabs


def _unused(request: web.Request, viewer: Viewer) -> int:
    """Cards that pods have and do not use, of those that are shown."""
    picture = picture_of(request)
    known = request.app[WASTE].unused.known(picture.time)
    if viewer.view.nodes or not known:
        return len(known)
    shown = {card.gpu.uuid for node in viewer.view.of_nodes(picture) for card in viewer.view.cards(node)}
    return len(shown & known.keys())
