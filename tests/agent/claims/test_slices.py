"""Clusters that cannot do claims: the agent says why, and writes nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from shoal.agent.claims.slices import SlicePublisher, remove_slices
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.claims_api import V1, V1BETA1, ClaimsVersion
from shoal.kube.client import Client
from shoal.kube.errors import KubeError

PATH = "/apis/resource.k8s.io/{version}/resourceslices"
Answer = Callable[[web.Request], Awaitable[web.Response]]


@contextlib.asynccontextmanager
async def cluster(answer: Answer) -> AsyncIterator[Client]:
    app = web.Application()
    app.router.add_get("/apis/resource.k8s.io", group)
    app.router.add_post(PATH, answer)
    app.router.add_get(PATH, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with Client(Access(f"http://127.0.0.1:{runner.addresses[0][1]}", StoredCredential())) as client:
            yield client
    finally:
        await runner.cleanup()


async def group(request: web.Request) -> web.Response:
    return web.json_response({"versions": [{"version": "v1"}]})


def failing(code: int, reason: str) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": reason}
        return web.json_response(body, status=code)

    return answer


async def older(request: web.Request) -> web.Response:
    """A server without the gate: it takes the slice and drops what it does not know."""
    assert request.query["dryRun"] == "All"
    body = await request.json()
    for device in body["spec"]["devices"]:
        del device["allowMultipleAllocations"]
    return web.json_response(body, status=201)


async def beta(request: web.Request) -> web.Response:
    """A server whose devices nobody can share."""
    assert request.match_info["version"] == "v1beta1"
    body = await request.json()
    assert body["apiVersion"] == "resource.k8s.io/v1beta1"
    assert body["spec"]["devices"] == [{"name": "probe", "basic": {}}]
    return web.json_response(body, status=201)


@pytest.mark.parametrize(
    ("version", "answer", "words"),
    [
        (V1, failing(404, "NotFound"), "has no ResourceSlices in resource.k8s.io/v1"),
        (V1, failing(403, "Forbidden"), "may not write ResourceSlices"),
        (V1, failing(422, "Invalid"), "takes no slice of a shared device"),
        (V1, older, "DRAConsumableCapacity"),
        (V1BETA1, failing(422, "Invalid"), "takes no slice of a device"),
    ],
)
async def test_what_is_missing_is_named(version: ClaimsVersion, answer: Answer, words: str):
    async with cluster(answer) as client:
        assert words in await SlicePublisher(client, "n", lambda: None, version).unavailable()


async def test_an_older_cluster_takes_whole_devices():
    async with cluster(beta) as client:
        assert await SlicePublisher(client, "n", lambda: None, V1BETA1).unavailable() == ""


async def test_a_server_in_trouble_is_asked_again():
    async with cluster(failing(500, "InternalError")) as client:
        with pytest.raises(KubeError):
            await SlicePublisher(client, "n", lambda: None).unavailable()


@pytest.mark.parametrize(("code", "reason"), [(404, "NotFound"), (403, "Forbidden"), (500, "InternalError")])
async def test_clean_up_where_there_are_none(code: int, reason: str):
    async with cluster(failing(code, reason)) as client:
        await remove_slices(client, "n")
