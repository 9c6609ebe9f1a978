"""The pages about the whole: waste, the operator's progress, joined clusters."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from shoal.dashboard import documents
from shoal.dashboard.access import viewer_of
from shoal.dashboard.answers import Refusal
from shoal.dashboard.api import API, WASTE, clusters_of, picture_of, setup_of
from shoal.dashboard.detail_pages import Plot
from shoal.dashboard.frame import page
from shoal.dashboard.queries import Query, query_of

#: Cards of each cause that are named.
_SHOWN: Final = 100
_CAUSES: Final = {
    "free": ("Free", "Nothing is requested of them, and a pod could have them."),
    "closed": ("On closed nodes", "Nothing is requested, and their node takes no pods: it is cordoned or not ready."),
    "broken": ("Broken", "They do not work."),
    "unused": ("Requested and unused", "Pods have them and have used none of their memory for a while."),
    "unmeasured": ("Not measured", "Pods have them, and nobody measures whether they use them."),
    "remainder": ("Too small a rest", "The rest of a card that is too small for every pod there is."),
}


async def waste_page(request: web.Request) -> web.StreamResponse:
    """Fragmentation over time, and idle cards by cause."""
    viewer = await viewer_of(request)
    query = query_of(WastePageQuery, request.query)
    told = documents.waste(picture_of(request), viewer.view, request.app[WASTE], documents.WasteQuery(shown=_SHOWN))
    chosen = next((one for one in told.idle if one.cause == query.cause), None)
    if query.cause and chosen is None:
        raise Refusal(400, f"cause takes one of {', '.join(_CAUSES)}")
    plots = [
        Plot(
            "Fragmentation",
            "The part of what is free that a pod like those there cannot use.",
            "percent",
            "percent",
            f"{API}/waste?shown=0",
            10,
        ),
        Plot(
            "Memory",
            "Free and requested memory of all cards, and what is used of it.",
            "freeMiB,requestedMiB,usedMiB",
            "MiB",
            f"{API}/waste?shown=0",
        ),
        Plot("Free cards", "Cards of which nothing is requested.", "freeCards", "number", f"{API}/waste?shown=0", 4),
    ]
    return await page(
        request,
        viewer,
        "waste.html",
        active="waste",
        waste=told,
        causes=_CAUSES,
        chosen=chosen,
        plots=plots if told.now is not None else [],
    )


class WastePageQuery(Query, frozen=True, kw_only=True):
    """Parameters of the page: the cause whose cards are listed."""

    cause: str = ""


async def setup_page(request: web.Request) -> web.StreamResponse:
    """The operator's progress by node."""
    viewer = await viewer_of(request)
    query_of(Query, request.query)
    told = await setup_of(request, viewer)
    return await page(request, viewer, "setup.html", active="setup", setup=told, late=[n for n in told.nodes if n.step])


async def clusters_page(request: web.Request) -> web.StreamResponse:
    """Joined clusters."""
    viewer = await viewer_of(request)
    query_of(Query, request.query)
    return await page(request, viewer, "clusters.html", active="clusters", told=await clusters_of(request, viewer))


async def cluster_page(request: web.Request) -> web.StreamResponse:
    """One joined cluster."""
    viewer = await viewer_of(request)
    query_of(Query, request.query)
    told = await clusters_of(request, viewer)
    found = next((one for one in told.items if one.name == request.match_info["name"]), None)
    if found is None:
        raise Refusal(404, "no cluster of this name is joined")
    return await page(request, viewer, "cluster.html", active="clusters", cluster=found)
