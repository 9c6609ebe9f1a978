"""`shoal clusters release` and `explain`: pure tables, and the commands on an API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.clusters_explain import explain_command, explained, release, shown
from shoal.clusters.member import MemberTable
from shoal.clusters.release import living_manager, release_of, released
from shoal.clusters.siblings import SiblingIndex, group_of, siblings_of
from shoal.kube.client import Client
from shoal.kube.resources import LEASES, PODS
from shoal.model.contract import clusters as contract
from tests.clusters.peer import Peer
from tests.clusters.table import Table
from tests.clusters.test_asking import pod
from tests.kube.conftest import access_of
from tests.suites.embedded import EmbeddedServer

SENT = {contract.ANNOTATION_DISPATCH: '{"attempt":1,"cluster":"west","uid":"u"}'}
BACK = {contract.ANNOTATION_DISPATCH: '{"attempt":1}'}
GATE = "/spec/schedulingGates/1"
FINALIZER = "/metadata/finalizers/0"
NOTE = "/metadata/annotations/shoal.dev~1dispatch"


def held(
    annotations: Mapping[str, str] | None = None,
    *,
    gated: bool = True,
    kept: bool = True,
    phase: str = "Pending",
    deleting: bool = False,
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "namespace": "n",
        "name": "p",
        "resourceVersion": "7",
        "annotations": dict(annotations or {}),
    }
    if kept:
        meta["finalizers"] = [contract.FINALIZER_HOME, "a.b/c"]
    if deleting:
        meta["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    gates = [{"name": "mine"}, {"name": contract.GATE_HOME}]
    return {"metadata": meta, "spec": {"schedulingGates": gates if gated else []}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("manifest", "sent_too", "removes", "words"),
    [
        (held(gated=False, kept=False), False, None, ""),
        (held(), False, [GATE, FINALIZER], "opened"),
        (held(kept=False), False, [GATE], "opened"),
        (held(BACK), False, [GATE, NOTE, FINALIZER], "opened"),
        (held(SENT), False, [], "sent to cluster west"),
        (held({contract.ANNOTATION_DISPATCH: "rubbish"}), False, [], "sent to a cluster"),
        (held(SENT), True, [GATE, NOTE, FINALIZER], "opened"),
        (held(gated=False), False, [FINALIZER], "let go"),
        (held(SENT, gated=False), False, [FINALIZER], "let go"),
        (held(deleting=True), False, [FINALIZER], "let go"),
        (held(SENT, deleting=True), False, [], "sent to cluster west"),
        (held(SENT, deleting=True), True, [FINALIZER], "let go"),
        (held(SENT, phase="Succeeded"), False, [FINALIZER], "let go"),
        (held(phase="Failed", kept=False), False, [], "it is over"),
    ],
)
def test_what_is_released(manifest: dict[str, Any], sent_too: bool, removes: list[str] | None, words: str) -> None:
    found = release_of(manifest, sent_too=sent_too)
    if removes is None:
        assert found is None
        return
    assert found is not None
    assert words in found.words
    assert [step["path"] for step in found.patch if step["op"] == "remove"] == removes
    if found.patch:
        assert found.patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}


def sibling(uid: str, sent: str, *, owner: str = "o", **more: Any) -> dict[str, Any]:
    made = pod(0, owner=owner)
    made["metadata"] |= {"uid": uid, "annotations": {contract.ANNOTATION_DISPATCH: sent}, **more.pop("metadata", {})}
    return {**made, **more}


def test_siblings() -> None:
    west = '{"attempt":1,"cluster":"west","uid":"u"}'
    me = pod(1, owner="o")
    assert siblings_of(me, [me, sibling("a", west)]) == {"west"}
    assert siblings_of(me, [sibling("a", west, owner="other")]) == set()
    assert siblings_of(me, [sibling("uid-1", west)]) == set(), "itself"
    assert siblings_of(me, [sibling("a", '{"attempt":1}'), sibling("b", "rubbish")]) == set()
    assert siblings_of(me, [sibling("a", '{"attempt":1,"cluster":"west","uid":"u","leaving":true}')]) == set()
    assert siblings_of(me, [sibling("a", west, status={"phase": "Failed"})]) == set()
    assert siblings_of(me, [sibling("a", west, metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})]) == set()
    gang = {"shoal.dev/pod-group": "g", "shoal.dev/pod-group-min": "2"}
    one, other = pod(1, labels=gang), sibling("x", west, owner="elsewhere")
    other["metadata"]["labels"] = gang
    assert siblings_of(one, [other]) == {"west"}


def test_siblings_kept_up_by_change_are_those_found_by_looking_at_all() -> None:
    rng = random.Random(7)
    index, now = SiblingIndex(), dict[str, dict[str, Any]]()
    for _ in range(2000):
        uid = f"uid-{rng.randrange(12)}"
        if rng.random() < 0.2:
            index.put(uid, None, "")
            now.pop(uid, None)
        else:
            sent = json.dumps({"attempt": 1, "cluster": rng.choice(["west", "east"]), "leaving": rng.random() < 0.2})
            now[uid] = sibling(uid, sent, owner=rng.choice(["o", "p"]), status={"phase": rng.choice(["", "Failed"])})
            written = json.loads(sent)
            stays = "" if written["leaving"] or now[uid]["status"]["phase"] == "Failed" else written["cluster"]
            index.put(uid, group_of(now[uid]["metadata"]), stays)
        for one in [*now.values(), pod(99, owner="o")]:
            meta = one["metadata"]
            others = [
                json.loads(other["metadata"]["annotations"][contract.ANNOTATION_DISPATCH])
                for key, other in now.items()
                if key != meta["uid"]
                and other["status"]["phase"] != "Failed"
                and other["metadata"]["ownerReferences"][0]["uid"] == meta["ownerReferences"][0]["uid"]
            ]
            assert (
                index.of(meta["uid"], group_of(meta))
                == siblings_of(one, now.values())
                == {sent["cluster"] for sent in others if not sent["leaving"]}
            )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    made = EmbeddedServer(tmp_path_factory.mktemp("home"))
    for name in ("team", "other", "leases"):
        made.create_namespace(name)
    yield made
    made.stop()


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    async with Client(access_of(server.kubeconfig())) as made:
        yield made


def manifest(name: str, annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """A pod as admission makes it."""
    container = {"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    meta = {"name": name, "annotations": dict(annotations or {}), "finalizers": [contract.FINALIZER_HOME]}
    return {"metadata": meta, "spec": {"containers": [container], "schedulingGates": [{"name": contract.GATE_HOME}]}}


async def test_pods_are_opened_and_those_elsewhere_are_not(client: Client, server: EmbeddedServer) -> None:
    await client.create(PODS.raw, manifest("waits"), namespace="team")
    await client.create(PODS.raw, manifest("away", SENT), namespace="team")
    options = ["--kubeconfig", str(server.kubeconfig()), "-n", "team"]

    def run(*more: str) -> str:
        return CliRunner().invoke(release, [*options, *more], catch_exceptions=False).output

    dry = await asyncio.to_thread(run, "--dry-run")
    assert "team/waits: would be opened" in dry
    assert (await client.get(PODS.raw, "waits", namespace="team"))["spec"]["schedulingGates"]
    said = await asyncio.to_thread(run)
    assert "team/waits: opened: it runs here" in said
    assert "team/away: left alone: it was sent to cluster west" in said
    opened = await client.get(PODS.raw, "waits", namespace="team")
    assert not opened["spec"].get("schedulingGates")
    assert not opened["metadata"].get("finalizers")
    assert (await client.get(PODS.raw, "away", namespace="team"))["spec"]["schedulingGates"]
    assert "team/away: opened" in await asyncio.to_thread(run, "--sent")
    assert await asyncio.to_thread(run) == "no pod is held\n"


async def test_a_pod_that_changed_meanwhile_is_left_alone(client: Client) -> None:
    made = await client.create(PODS.raw, manifest("changes"), namespace="other")
    await client.patch(PODS.raw, "changes", {"metadata": {"annotations": SENT}}, namespace="other")
    assert "changed meanwhile" in await released(client, made, sent_too=False)
    assert (await client.get(PODS.raw, "changes", namespace="other"))["spec"]["schedulingGates"]


async def test_a_manager_that_renews_its_lease_is_believed_whatever_clocks_say(
    client: Client, server: EmbeddedServer
) -> None:
    spec = {"holderIdentity": "host-1", "leaseDurationSeconds": 1, "renewTime": "1999-01-01T00:00:00.000000Z"}
    lease = {"metadata": {"name": contract.NAME_MANAGER}, "spec": spec}
    await client.create(LEASES.raw, lease, namespace="leases")
    waited: list[float] = []

    async def renewing(seconds: float) -> None:
        waited.append(seconds)
        patch = {"spec": {"renewTime": "1999-01-01T00:00:01.000000Z"}}
        await client.patch(LEASES.raw, contract.NAME_MANAGER, patch, namespace="leases")

    async def dead(seconds: float) -> None:
        waited.append(seconds)

    try:
        assert "host-1 (Lease shoal-cluster-manager in namespace leases)" in await living_manager(
            client, sleep=renewing
        )
        assert await living_manager(client, sleep=dead) == ""
        assert waited == [2, 2]
        renewer = asyncio.create_task(_renew(client))
        arguments = ["--kubeconfig", str(server.kubeconfig()), "-n", "other"]
        result = await asyncio.to_thread(CliRunner().invoke, release, arguments)
        renewer.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await renewer
        assert result.exit_code == 1
        assert "stop it first, or use --force" in result.output
    finally:
        await client.delete(LEASES.raw, contract.NAME_MANAGER, namespace="leases")


async def _renew(client: Client) -> None:
    for number in range(10**6):
        patch = {"spec": {"renewTime": f"2000-01-01T00:00:00.{number:06d}Z"}}
        await client.patch(LEASES.raw, contract.NAME_MANAGER, patch, namespace="leases")
        await asyncio.sleep(0.05)


async def test_the_table_with_scores_and_reasons(tmp_path: Path) -> None:
    west, east = Peer(5, score=0.4), Peer(0)
    async with west.member(tmp_path, "west") as one, east.member(tmp_path, "east") as two:
        found = await explained(pod(1), [], Table(one, two, problems={"south": "no connection"}))
    text = shown(found)
    lines = text.splitlines()
    assert lines[0] == "pod team/job-1-x7k2p: the choice is west"
    assert [line.split()[:2] for line in lines[2:6]] == [
        ["CLUSTER", "SCORE"],
        ["west", "0.800"],
        ["east", "-"],
        ["south", "-"],
    ]
    assert lines[-1] == "#Best Cluster Is:  {west 80}"
    assert not west.held


async def test_explain_asks_clusters_by_the_pod_at_home(client: Client, server: EmbeddedServer, tmp_path: Path) -> None:
    await client.create(PODS.raw, manifest("asks", {"clusterName": "east"}), namespace="other")
    opened: list[str] = []

    @asynccontextmanager
    async def open_members(home: Client, namespace: str) -> AsyncIterator[MemberTable]:
        opened.append(namespace)
        async with Peer(1).member(tmp_path, "west") as west:
            yield Table(west)

    arguments = ["asks", "-n", "other", "--kubeconfig", str(server.kubeconfig()), "--manager-namespace", "m"]
    command = explain_command(open_members)
    result = await asyncio.to_thread(CliRunner().invoke, command, arguments)
    assert result.exit_code == 0, result.output
    assert "it waits: no cluster is called 'east': known are 'west'" in result.output
    assert opened == ["m"]
    result = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "-o", "json"])
    assert json.loads(result.stdout)["clusters"][0]["name"] == "west"
    result = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "-o", "yaml"])
    assert yaml.safe_load(result.stdout)["choice"] == ""
