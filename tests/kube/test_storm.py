"""The reflector misses nothing and invents nothing, whatever happens to server and connections."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from shoal.kube.client import Client
from shoal.kube.reflector import Pace, Reflector
from shoal.kube.resources import CONFIG_MAPS
from shoal.model.backoff import Backoff
from tests.kube.conftest import access_of
from tests.kube.relay import Relay
from tests.kube.storm import Witness, Writer
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer

log = logging.getLogger(__name__)
NAMESPACE = "storm"
RATE = 200.0
PACE = Pace(watch=20, silence=3, reconnect=0.2, backoff=Backoff(0.1, 1.0))


async def _restart(server: ApiServer, *, compact: bool) -> None:
    await asyncio.to_thread(server.kill)
    if compact:
        await asyncio.to_thread(server.compact)
    await asyncio.to_thread(server.start)


async def test_nothing_missed_nothing_invented(
    new_apiserver: Callable[[], ApiServer], record_property: Callable[[str, object], None]
) -> None:
    server = await asyncio.to_thread(new_apiserver)
    server.create_namespace(NAMESPACE)
    direct = access_of(server.kubeconfig())
    witness = Witness()
    async with Relay(server.port) as relay, Client(direct) as writing:
        relayed = replace(direct, server=f"https://127.0.0.1:{relay.port}")
        writer = Writer(writing, NAMESPACE, rate=RATE)
        async with Client(relayed) as watching:
            reflector = Reflector(
                watching,
                CONFIG_MAPS,
                namespace=NAMESPACE,
                consumers=[witness],
                page_size=50,
                pace=PACE,
                rng=random.Random(1),
            )
            async with reflector:
                async with writer.running():
                    await _storm(server, relay, writer, reflector, witness)
                await until(
                    lambda: (
                        {o.metadata.name: (o.metadata.uid, o.metadata.resource_version) for o in reflector.store}
                        == writer.live
                    ),
                    "the store equals what was written",
                )
        fresh = await writing.list(CONFIG_MAPS, namespace=NAMESPACE, limit=50)
    rate = writer.awaited / writer.seconds
    record_property("changes", writer.changes)
    record_property("changes_per_second", round(rate))
    record_property("counters", str(reflector.counters))
    log.info("%d changes, %.0f/s outside outages, %s, %s", writer.changes, rate, writer.kinds, reflector.counters)
    _check(writer, witness)
    assert {o.metadata.name: o for o in fresh.items} == {o.metadata.name: o for o in reflector.store}
    # Both ways back were really taken, and the storm was one.
    assert reflector.counters.relists >= 1
    assert reflector.counters.resumes >= 5
    assert reflector.counters.errors >= 5
    assert reflector.counters.consumer_errors == 0
    assert writer.changes >= 3000
    assert writer.unsure >= 1


async def _storm(server: ApiServer, relay: Relay, writer: Writer, reflector: Reflector, witness: Witness) -> None:
    async with asyncio.timeout(60):
        await reflector.wait_synced()
    async with _every_version(writer, reflector, witness):
        await writer.more(400)
        for _ in range(6):
            await _cut(relay, writer, reflector)
        errors = reflector.counters.errors
        relay.stall()
        await writer.more(300)
        await until(lambda: reflector.counters.errors > errors, "the silent stream is cut")
    await _restart(server, compact=False)
    await writer.more(300)
    await _blackout(server, relay, writer, reflector, witness)
    async with _every_version(writer, reflector, witness):
        for _ in range(3):
            await _cut(relay, writer, reflector)
    await _restart(server, compact=True)
    await writer.more(400)


async def _cut(relay: Relay, writer: Writer, reflector: Reflector) -> None:
    resumes = reflector.counters.resumes
    assert await relay.cut()
    await writer.more(100)
    await until(lambda: reflector.counters.resumes > resumes, "the stream is taken up again")


@asynccontextmanager
async def _every_version(writer: Writer, reflector: Reflector, witness: Witness) -> AsyncIterator[None]:
    """What is written in this block is told version by version: streams are taken up, nothing is listed anew.

    Without this a lost event would go unseen, since a later one of the same object sets the store right.
    """
    since, relists, deletes = int(reflector.resource_version), reflector.counters.relists, set(writer.deleted)
    yield
    written = {(uid, v) for uid, versions in writer.versions.items() for v in versions if int(v) > since}
    gone = writer.deleted - deletes
    await until(lambda: written <= set(witness.told), "every version is told")
    await until(lambda: all(witness.deleted[uid] == 1 for uid in gone), "every delete is told")
    assert len(written) > 100
    assert gone
    assert reflector.counters.relists == relists


async def _blackout(server: ApiServer, relay: Relay, writer: Writer, reflector: Reflector, witness: Witness) -> None:
    """The reflector sees nothing while much happens, and the server forgets it: only a list can tell."""
    await relay.block()
    relists, known = reflector.counters.relists, {uid for uid, _ in witness.live.values()}
    await writer.more(500)
    gone = known & writer.deleted
    assert gone, "nothing was deleted in the blackout"
    assert not any(witness.deleted[uid] for uid in gone), "the reflector was not blind"
    await _restart(server, compact=True)
    relay.unblock()
    await until(lambda: reflector.counters.relists > relists, "the list is read again")
    assert all(witness.deleted[uid] == 1 for uid in gone)
    await writer.more(300)


def _check(writer: Writer, witness: Witness) -> None:
    assert witness.wrong == []
    invented = [identity for identity in witness.told if identity[1] not in writer.versions.get(identity[0], ())]
    assert invented == []
    assert witness.live == writer.live
    seen = {uid for uid, _ in witness.told}
    # What was both made and deleted in a gap may never be seen; all that was seen and is gone was reported, once.
    assert dict.fromkeys(seen & writer.deleted, 1) == dict(witness.deleted)


@pytest.mark.parametrize("form", ["watch", "list"])
async def test_expiry_in_its_forms(new_apiserver: Callable[[], ApiServer], form: str) -> None:
    """A version too old for a watch, and a continue token too old for a list, both end in a whole fresh list."""
    server = await asyncio.to_thread(new_apiserver)
    server.create_namespace(NAMESPACE)
    async with Client(access_of(server.kubeconfig())) as client:
        writer = Writer(client, NAMESPACE, rate=500, workers=4)
        async with writer.running():
            await writer.more(100)
        first = await client.list(CONFIG_MAPS, namespace=NAMESPACE)
        if form == "watch":
            reflector = Reflector(client, CONFIG_MAPS, namespace=NAMESPACE, pace=PACE)
            async with reflector:
                await reflector.wait_synced()
            victim = first.items[0].metadata.name
            await client.delete(CONFIG_MAPS, victim, namespace=NAMESPACE)
            await _more_versions(client)
            await _restart(server, compact=True)
            async with reflector:
                await until(lambda: reflector.counters.relists == 1, "the list is read again")
                assert (NAMESPACE, victim) not in reflector.store
            assert reflector.counters.changes == len(first.items) + 1
        else:
            interrupted = _Interrupted(access_of(server.kubeconfig()), server)
            async with interrupted:
                listing = await interrupted.list(CONFIG_MAPS, namespace=NAMESPACE, limit=5)
            assert interrupted.broken == 1
            assert sorted(o.metadata.name for o in listing.items) == sorted(o.metadata.name for o in first.items)


async def _more_versions(client: Client) -> None:
    """Push the collection's version on, so that the last one is not the newest after a compaction."""
    made = await client.create(CONFIG_MAPS.raw, {"metadata": {"name": "spare"}}, namespace="default")
    await client.delete(CONFIG_MAPS, made["metadata"]["name"], namespace="default")


class _Interrupted(Client):
    """A real client whose server forgets the past between its first and its second page."""

    def __init__(self, access, server: ApiServer) -> None:
        super().__init__(access)
        self._server = server
        self.broken = 0

    async def page(self, resource, **options):
        if options["continue_"] and not self.broken:
            self.broken += 1
            await _more_versions(self)
            await _restart(self._server, compact=True)
        return await super().page(resource, **options)
