"""Joining on real API servers: what the account may, what its policies refuse, live Secrets, what leaving leaves."""

import asyncio
import base64
import contextlib
import copy
import dataclasses
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.clusters.entries import ClusterEntry
from shoal.clusters.join import expected, spelled
from shoal.clusters.joining import may_do
from shoal.clusters.member import Health
from shoal.clusters.members import OWN, Members, ProbePace
from shoal.kube.access.credentials import Inline, StoredCredential
from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client, PatchType
from shoal.kube.errors import ApiError, ForbiddenError, UnauthorizedError
from shoal.kube.resources import LEASES, PODS
from shoal.model.backoff import Backoff
from shoal.model.contract import clusters
from tests.clusters.joined import NAME, NAMESPACE, Joined, Object, admin, copy_of, inline, uid_of
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer
from tests.testbed.control_plane import own_control_plane
from tests.testbed.processes import Run
from tests.testbed.waiting import wait_for

PACE = ProbePace(every=0.2, backoff=Backoff(first=0.1, longest=0.5), files=0.2, profiles=0.5, drain=0.5)


@pytest.fixture(scope="module")
def pair(testbed_run: Run) -> Iterator[Joined]:
    """Two clusters; nothing is joined yet."""
    home = ApiServer(testbed_run, "join-home")
    with own_control_plane(testbed_run, "join-member") as plane:
        made = Joined(home, plane.api)
        made.prepare()
        yield made
    home.stop()


@pytest.fixture
def joined(pair: Joined) -> Joined:
    """The member is joined as `NAME`."""
    if pair.home.try_request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/shoal-cluster-{NAME}")[0] == 404:
        pair.join()
    return pair


@pytest.fixture
async def account(joined: Joined) -> AsyncIterator[Client]:
    """The member, as the manager's account sees it."""
    async with Client(joined.access()) as client:
        yield client


@pytest.fixture
async def home(pair: Joined) -> AsyncIterator[Client]:
    async with Client(admin(pair.home)) as client:
        yield client


@contextlib.asynccontextmanager
async def watching(home: Client, **options: Any) -> AsyncIterator[Members]:
    async with Members(home, namespace=NAMESPACE, pace=PACE, environ={}, **options) as members:
        await members.settled()
        yield members


async def write(call: Callable[[], Any]) -> str:
    """What the server says against a write; empty if nothing."""
    try:
        await call()
    except ApiError as error:
        return error.message
    return ""


# The account


async def test_the_account_has_what_it_needs_and_nothing_of_a_listed_rest(joined: Joined, account: Client) -> None:
    rights = expected(joined.account)
    assert {spelled(one): await may_do(account, one) for one, _ in rights} == {spelled(one): may for one, may in rights}
    assert {may for _, may in rights} == {True, False}


@pytest.mark.parametrize("fence", [0, 240, 86400])
async def test_a_copy_is_made_opened_and_deleted_by_the_account(joined: Joined, account: Client, fence: int) -> None:
    made = await account.create(PODS, copy_of(joined.account.home, "whole", fence=fence), namespace=joined.open)
    uid = made.metadata.uid
    opening: list[Object] = [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "remove", "path": "/spec/schedulingGates"},
        {"op": "add", "path": "/metadata/finalizers", "value": [clusters.FINALIZER_COPY]},
    ]
    opened = await account.patch(PODS, "whole", opening, namespace=joined.open, kind="json")
    assert opened.metadata.finalizers == (clusters.FINALIZER_COPY,)
    await account.delete(PODS, "whole", namespace=joined.open, uid=uid)
    await account.patch(PODS, "whole", {"metadata": {"uid": uid, "finalizers": None}}, namespace=joined.open)
    assert joined.member.try_request("GET", f"/api/v1/namespaces/{joined.open}/pods/whole")[0] == 404


async def test_the_account_has_its_lease_where_copies_are_accepted(joined: Joined, account: Client) -> None:
    fence = joined.account.fence

    def lease(name: str, **metadata: Any) -> Object:
        return {"metadata": {"name": name, **metadata}, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 240}}

    await account.create(LEASES.raw, lease(fence), namespace=joined.open)
    renewed = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
    await account.patch(LEASES, fence, renewed, namespace=joined.open)
    for name, namespace, words in (
        (fence, joined.closed, "accepts no copies"),
        ("other", joined.open, f"writes the Lease {fence} only"),
        ("kube-scheduler", "kube-system", f"writes the Lease {fence} only"),
    ):
        assert words in await write(lambda: account.create(LEASES.raw, lease(name), namespace=namespace))  # noqa: B023
    with pytest.raises(ForbiddenError):
        await account.patch(LEASES, "kube-scheduler", renewed, namespace="kube-system")
    await account.delete(LEASES, fence, namespace=joined.open)


def changed(name: str, home: str, change: Callable[[Object], Any]) -> Object:
    made = copy.deepcopy(copy_of(home, name))
    change(made)
    return made


def _label(pod: Object, value: str) -> None:
    pod["metadata"]["labels"][clusters.LABEL_ORIGIN] = value


def _origin(pod: Object, value: str) -> None:
    pod["metadata"]["annotations"][clusters.ANNOTATION_ORIGIN] = value


#: What the account may not make, and what the policy says.
FORBIDDEN_COPIES: dict[str, tuple[Callable[[Object], Any], str]] = {
    "no label": (lambda pod: pod["metadata"].pop("labels"), "a manager makes copies only"),
    "another home's label": (lambda pod: _label(pod, "other"), "a manager makes copies only"),
    "no origin": (lambda pod: pod["metadata"].pop("annotations"), "names its pod in annotation"),
    "another home's origin": (
        lambda pod: _origin(pod, '{"cluster":"other","uid":"u","attempt":1}'),
        "names its pod in annotation",
    ),
    "an origin with more in it": (
        lambda pod: _origin(pod, pod["metadata"]["annotations"][clusters.ANNOTATION_ORIGIN] + "x"),
        "names its pod in annotation",
    ),
    "an origin with an odd fence": (
        lambda pod: _origin(pod, pod["metadata"]["annotations"][clusters.ANNOTATION_ORIGIN][:-1] + ',"fence":-1}'),
        "names its pod in annotation",
    ),
    "no gate": (lambda pod: pod["spec"].pop("schedulingGates"), "begins behind the scheduling gate"),
    "another gate": (
        lambda pod: pod["spec"].update(schedulingGates=[{"name": "x.dev/y"}]),
        "begins behind the scheduling gate",
    ),
    "a foreign finalizer": (
        lambda pod: pod["metadata"].update(finalizers=["x.dev/y"]),
        "has no finalizer but",
    ),
    "a foreign owner": (
        lambda pod: pod["metadata"].update(
            ownerReferences=[{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}]
        ),
        "no owner but the Lease",
    ),
}


@pytest.mark.parametrize("what", FORBIDDEN_COPIES)
async def test_the_account_makes_nothing_but_copies(joined: Joined, account: Client, what: str) -> None:
    change, words = FORBIDDEN_COPIES[what]
    made = changed("forbidden", joined.account.home, change)
    assert words in await write(lambda: account.create(PODS, made, namespace=joined.open))


async def test_the_account_makes_copies_only_where_they_are_accepted(joined: Joined, account: Client) -> None:
    made = copy_of(joined.account.home, "misplaced")
    for namespace in (joined.closed, "kube-system", clusters.NAMESPACE_MEMBERS):
        said = await write(lambda: account.create(PODS, made, namespace=namespace))  # noqa: B023
        assert f"kubectl label namespace {namespace} {clusters.LABEL_ACCEPTS}={clusters.ENABLED}" in said


#: What the account may not change of its own copy.
FORBIDDEN_CHANGES: dict[str, tuple[Object | list[Object], str]] = {
    "the label": ({"metadata": {"labels": {clusters.LABEL_ORIGIN: "other"}}}, "copy's metadata"),
    "the label away": ({"metadata": {"labels": {clusters.LABEL_ORIGIN: None}}}, "copy's metadata"),
    "the origin": ({"metadata": {"annotations": {clusters.ANNOTATION_ORIGIN: "x"}}}, "copy's metadata"),
    "another label": ({"metadata": {"labels": {"app": "x"}}}, "copy's metadata"),
    "another annotation": ({"metadata": {"annotations": {"x": "y"}}}, "copy's metadata"),
    "a finalizer": ({"metadata": {"finalizers": ["x.dev/y"]}}, "copy's metadata"),
    "an owner": (
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1"}]}},
        "copy's metadata",
    ),
    "the image": ({"spec": {"containers": [{"name": "main", "image": "evil"}]}}, "copy's spec"),
    "tolerations": (
        [{"op": "add", "path": "/spec/tolerations/-", "value": {"operator": "Exists"}}],
        "copy's spec",
    ),
    "the node selector": ({"spec": {"nodeSelector": {"a": "b"}}}, "copy's spec"),
    "a deadline": ({"spec": {"activeDeadlineSeconds": 5}}, "copy's spec"),
}


@pytest.mark.parametrize("what", FORBIDDEN_CHANGES)
async def test_the_account_changes_gate_and_finalizer_only(joined: Joined, account: Client, what: str) -> None:
    change, words = FORBIDDEN_CHANGES[what]
    name = "own-" + what.replace(" ", "-")
    await account.create(PODS, copy_of(joined.account.home, name), namespace=joined.open)
    kind: PatchType = "json" if isinstance(change, list) else "strategic"
    said = await write(lambda: account.patch(PODS, name, change, namespace=joined.open, kind=kind))
    assert words in said, said
    await account.delete(PODS, name, namespace=joined.open)


async def test_another_gate_stays(joined: Joined, account: Client) -> None:
    made = copy_of(joined.account.home, "two-gates")
    made["spec"]["schedulingGates"].append({"name": "quota.example/held"})
    await account.create(PODS, made, namespace=joined.open)
    everything = [{"op": "remove", "path": "/spec/schedulingGates"}]
    said = await write(lambda: account.patch(PODS, "two-gates", everything, namespace=joined.open, kind="json"))
    assert "copy's spec" in said
    await account.patch(
        PODS, "two-gates", [{"op": "remove", "path": "/spec/schedulingGates/0"}], namespace=joined.open, kind="json"
    )
    await account.delete(PODS, "two-gates", namespace=joined.open)


async def test_the_account_leaves_the_pods_of_others_alone(joined: Joined, account: Client) -> None:
    foreign: Object = {"metadata": {"name": "foreign"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    other: Object = copy_of("11111111-2222-3333-4444-555555555555", "other-home")
    pods = f"/api/v1/namespaces/{joined.open}/pods"
    for pod in (foreign, other):
        joined.member.request("POST", pods, pod)
        name = pod["metadata"]["name"]
        for call in (
            lambda: account.delete(PODS, name, namespace=joined.open),  # noqa: B023
            lambda: account.patch(
                PODS,
                name,  # noqa: B023
                {"metadata": {"finalizers": [clusters.FINALIZER_COPY]}},
                namespace=joined.open,
            ),
            lambda: account.patch(
                PODS,
                name,  # noqa: B023
                {"metadata": {"labels": {clusters.LABEL_ORIGIN: joined.account.home}}},
                namespace=joined.open,
            ),
        ):
            assert "its own copies only" in await write(call)
        joined.member.request("DELETE", f"{pods}/{name}?gracePeriodSeconds=0")


def test_the_server_finds_nothing_wrong_with_the_policies(joined: Joined) -> None:
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> list[Object]:
        mine = [one for one in joined.member.request("GET", path)["items"] if joined.account.home in str(one)]
        return [one["status"] for one in mine if "typeChecking" in one.get("status", {})]

    wait_for(lambda: len(checked()) == 5, "checked")
    assert [status["typeChecking"] for status in checked()] == [{}] * 5


async def test_a_member_holds_nothing_that_home_takes(joined: Joined) -> None:
    """What an administrator of the member reads of the join does not lead to home, and does not open it."""
    for kind in ("secrets", "configmaps", "serviceaccounts"):
        held = joined.member.request("GET", f"/api/v1/namespaces/{clusters.NAMESPACE_MEMBERS}/{kind}")
        assert joined.home.url not in json.dumps(held)
    (secret,) = joined.member.request("GET", f"/api/v1/namespaces/{clusters.NAMESPACE_MEMBERS}/secrets")["items"]
    token = base64.b64decode(secret["data"]["token"])
    assert token.decode() == joined.token()
    stolen = dataclasses.replace(admin(joined.home), credentials=StoredCredential(token=Inline(token)))
    async with Client(stolen) as client:
        for resource in (PODS, LEASES):
            with pytest.raises(UnauthorizedError):
                await client.list(resource)


# Others


@pytest.fixture
async def tenant(joined: Joined) -> AsyncIterator[Client]:
    """Somebody who may do everything in the namespace that accepts copies."""
    where = f"/api/v1/namespaces/{joined.open}/serviceaccounts/tenant"
    if joined.member.try_request("GET", where)[0] == 404:
        joined.tenant(joined.open)
    answer = joined.member.request("POST", f"{where}/token", {"spec": {"expirationSeconds": 3600}})
    credentials = StoredCredential(token=Inline(answer["status"]["token"].encode()))
    async with Client(dataclasses.replace(joined.access(), credentials=credentials)) as client:
        yield client


async def test_others_make_no_copies_and_open_none(joined: Joined, account: Client, tenant: Client) -> None:
    where = joined.open
    made = copy_of(joined.account.home, "guarded")
    unlabelled = changed("claims", joined.account.home, lambda pod: pod["metadata"].pop("labels"))
    for pod in (made, unlabelled):
        said = await write(lambda: tenant.create(PODS, pod, namespace=where))  # noqa: B023
        assert "only the manager of cluster" in said
    await account.create(PODS, made, namespace=where)
    plain = {"metadata": {"name": "plain"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
    await tenant.create(PODS, plain, namespace=where)
    claim = {"metadata": {"labels": {clusters.LABEL_ORIGIN: joined.account.home}}}
    for name, change, kind in (
        ("guarded", [{"op": "remove", "path": "/spec/schedulingGates"}], "json"),
        ("guarded", {"metadata": {"labels": {clusters.LABEL_ORIGIN: None}}}, "merge"),
        ("guarded", {"metadata": {"annotations": {clusters.ANNOTATION_ORIGIN: None}}}, "merge"),
        ("guarded", {"metadata": {"finalizers": [clusters.FINALIZER_COPY]}}, "merge"),
        ("plain", claim, "merge"),
    ):
        said = await write(lambda: tenant.patch(PODS, name, change, namespace=where, kind=kind))  # type: ignore[arg-type] # noqa: B023
        assert "are its manager's: leave them" in said, (name, change, said)
        if isinstance(change, dict):
            said = await write(lambda: tenant.patch(PODS, name, change, namespace=where, subresource="status"))  # noqa: B023
            assert "are its manager's: leave them" in said or "finalizers" in change["metadata"], (name, change, said)
    await tenant.patch(PODS, "guarded", {"metadata": {"labels": {"app": "x"}}}, namespace=where)
    binding = {
        "metadata": {"name": "plain", "annotations": {clusters.ANNOTATION_ORIGIN: "x"}},
        "target": {"kind": "Node", "name": "n"},
    }
    path = PODS.path(namespace=where, name="plain", subresource="binding")
    assert "does not say whose copy" in await write(lambda: tenant.request("POST", path, body=binding))
    lease = {"metadata": {"name": joined.account.fence}, "spec": {}}
    assert "leave it as it is" in await write(lambda: tenant.create(LEASES.raw, lease, namespace=where))
    # An administrator may, and who deletes a copy may.
    joined.member.request(
        "PATCH",
        f"/api/v1/namespaces/{where}/pods/guarded",
        [{"op": "remove", "path": "/spec/schedulingGates"}],
        "application/json-patch+json",
    )
    for name in ("guarded", "plain"):
        await tenant.delete(PODS, name, namespace=where, grace_seconds=0)


# Live


async def test_a_secret_is_taken_live(joined: Joined, home: Client) -> None:
    content = _kubeconfig(joined)
    calls: list[int] = []
    joined.delete_secret(f"shoal-cluster-{NAME}")
    async with watching(home) as members:
        members.on_change(lambda: calls.append(len(members.members)))
        assert dict(members.members) == {}
        joined.write_secret("mine", "east", content, **{clusters.ANNOTATION_COST: "3"})
        await until(lambda: "east" in members.members, "joined")
        east = members.members["east"]
        assert (east.uid, east.own, east.cost) == (uid_of(joined.member), False, 3.0)
        assert members.states["east"].version.startswith("v1.")
        joined.write_secret("rubbish", "bad", {"clusters": []})
        await until(lambda: "Secret shoal/rubbish" in members.problems, "told")
        assert members.members["east"] is east  # whoever follows it goes on
        joined.delete_secret("mine")
        await until(lambda: not members.members, "gone")
        joined.delete_secret("rubbish")
        await until(lambda: not members.problems, "no problem any more")
    assert 1 in calls
    assert calls[-1] == 0


def _kubeconfig(joined: Joined) -> Object:
    """The account's kubeconfig, as the Secret at home has it."""
    made: Object = json.loads(base64.b64decode(joined.secret()["data"]["kubeconfig"]))
    return made


async def test_credentials_are_renewed_and_revoked(joined: Joined, home: Client) -> None:
    async with watching(home) as members:
        assert set(members.members) == {NAME}
        client, old = members.members[NAME].client, joined.token()
        await asyncio.to_thread(joined.join)
        assert joined.token() != old
        # The same client goes on by the new token, and nobody had to let go.
        await until(lambda: members.members.get(NAME) is not None and members.members[NAME].client is client, "joined")

        for _ in range(6000):
            if (await client.access.credentials.current()).token != old:
                break
            await asyncio.sleep(0.05)
        assert (await client.access.credentials.current()).token == joined.token()
        await client.list(PODS, namespace=joined.open)
        secrets = f"/api/v1/namespaces/{clusters.NAMESPACE_MEMBERS}/secrets"
        tokens = joined.member.request("GET", secrets)["items"]
        assert len(tokens) == 1  # the earlier one is revoked
        joined.member.request("DELETE", f"{secrets}/{tokens[0]['metadata']['name']}")
        await until(lambda: NAME not in members.members, "refused")
        state = members.states[NAME]
        assert (state.health, state.uid) == (Health.REFUSED, uid_of(joined.member))
        assert "Unauthorized" in members.problems[NAME]
        await asyncio.to_thread(joined.join)
        await until(lambda: NAME in members.members, "joined again")


async def test_a_silent_cluster_is_told_and_comes_back(joined: Joined, home: Client) -> None:
    async with watching(home, own=ClusterEntry(OWN, "home", home.access)) as members:
        assert set(members.members) == {NAME, "home"}
        assert members.members["home"].own
        joined.member.kill()
        try:
            await until(lambda: NAME not in members.members, "silent")
            state = members.states[NAME]
            assert (state.health, state.uid) == (Health.SILENT, uid_of_known(joined))
            assert state.silent_for is not None
            assert state.silent_for > 0
            assert "no connection" in members.problems[NAME]
            assert set(members.members) == {"home"}
        finally:
            joined.member.start()  # by this thread: it ends with the one that started it
        await until(lambda: NAME in members.members, "back")
        assert members.states[NAME].silent_for is None
        assert dict(members.problems) == {}


def uid_of_known(joined: Joined) -> str:
    """The identity that was written down when it was joined."""
    return str(joined.secret()["metadata"]["annotations"][clusters.ANNOTATION_CLUSTER_UID])


async def test_one_cluster_under_two_names_is_joined_once(joined: Joined, home: Client) -> None:
    joined.write_secret("alias", "alias", _kubeconfig(joined))
    try:
        async with watching(home) as members:
            assert set(members.members) == {NAME}
            assert f"is the cluster {NAME}" in members.problems["alias"]
    finally:
        joined.delete_secret("alias")


async def test_two_clusters_under_one_name_are_refused(joined: Joined, home: Client) -> None:
    async with watching(home) as members:
        assert set(members.members) == {NAME}
        joined.write_secret("rival", NAME, inline(joined.home))
        await until(lambda: NAME not in members.members, "refused")
        await until(lambda: "names 2 clusters" in members.problems.get(NAME, ""), "told")
        joined.delete_secret("rival")
        await until(lambda: NAME in members.members, "joined")


async def test_another_cluster_in_its_place_is_not_taken(joined: Joined, home: Client) -> None:
    annotations = {clusters.ANNOTATION_CLUSTER_UID: "11111111-2222-3333-4444-555555555555"}
    joined.write_secret("moved", "moved", _kubeconfig(joined), **annotations)
    try:
        async with watching(home) as members:
            assert set(members.members) == {NAME}
            assert f"was joined and {uid_of(joined.member)} answers" in members.problems["moved"]
    finally:
        joined.delete_secret("moved")


async def test_files_and_the_own_cluster(joined: Joined, home: Client, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(json.dumps(inline(joined.home)))
    (tmp_path / "rubbish").write_text("a: [")
    async with watching(home, files=[tmp_path], own=ClusterEntry(OWN, "ignored", home.access)) as members:
        assert set(members.members) == {NAME, "test"}
        assert (members.members["test"].own, members.members[NAME].own) == (True, False)
        assert list(members.problems) == [str(tmp_path / "rubbish")]
        (tmp_path / "config").unlink()
        await until(lambda: set(members.members) == {NAME, "ignored"}, "the file is gone")


# Commands


def test_list_tells_clusters_room_and_problems(joined: Joined) -> None:
    where = "/api/v1/namespaces/kube-system/configmaps"
    model = {"model": "A100", "cards": 8, "free": 3, "largest_mib": 81920, "free_mib": 300000}
    room = {"version": 1, "serial": 1, "nodes": 2, "queue": 0, "models": [model]}
    joined.member.request("POST", where, {"metadata": {"name": clusters.NAME_ROOM}, "data": {"room": json.dumps(room)}})
    result = joined.at_home("list", "-o", "json")
    assert result.exit_code == 0, result.output
    own, row = sorted(json.loads(result.stdout)["clusters"], key=lambda one: str(one["name"]) == NAME)
    assert (own["name"], own["uid"], own["state"]) == ("home", uid_of(joined.home), "answers")
    assert (row["name"], row["uid"], row["state"]) == (NAME, uid_of(joined.member), "answers")
    assert (row["nodes"], row["cards"], row["free"]) == (2, 8, 3)
    table = joined.at_home("list").stdout.splitlines()
    assert table[0].split() == ["NAME", "UID", "VERSION", "STATE", "NODES", "CARDS", "FREE", "SILENT", "SINCE"]
    assert row_of(NAME, table)[3:] == ["answers", "2", "8", "3", "-"]
    assert row_of("home", table)[1] == "(own)"
    joined.merge(joined.member, f"{where}/{clusters.NAME_ROOM}", {"data": {"room": '{"version":7}'}})
    joined.write_secret("rubbish", "bad", {})
    try:
        result = joined.at_home("list")
        assert result.exit_code == 1
        assert "Secret shoal/rubbish: " in result.stdout
        assert row_of(NAME, result.stdout.splitlines())[3:] == ["answers", "-", "-", "-", "-"]
    finally:
        joined.delete_secret("rubbish")
        joined.member.request("DELETE", f"{where}/{clusters.NAME_ROOM}")


def test_list_tells_since_when_a_manager_hears_nothing(joined: Joined) -> None:
    """The manager writes it on the Lease by which it leads, which it may."""
    silence = {"name": NAME, "since": "2026-01-02T03:04:05Z", "fenced": True}
    record = json.dumps({"clusters": {uid_of(joined.member): silence}})
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
    meta = {"name": clusters.NAME_MANAGER, "annotations": {clusters.ANNOTATION_SILENT: record}}
    joined.home.request("POST", leases, {"metadata": meta})
    try:
        assert row_of(NAME, joined.at_home("list").stdout.splitlines())[-1] == silence["since"]
        rows = json.loads(joined.at_home("list", "-o", "json").stdout)["clusters"]
        (row,) = [one for one in rows if one["name"] == NAME]
        assert (row["silentSince"], row["fenced"]) == (silence["since"], True)
        joined.merge(
            joined.home,
            f"{leases}/{clusters.NAME_MANAGER}",
            {"metadata": {"annotations": {clusters.ANNOTATION_SILENT: "rubbish"}}},
        )
        assert row_of(NAME, joined.at_home("list").stdout.splitlines())[-1] == "-"
    finally:
        joined.home.request("DELETE", f"{leases}/{clusters.NAME_MANAGER}")


def row_of(name: str, table: list[str]) -> list[str]:
    (row,) = [line.split() for line in table if line.startswith(f"{name} ")]
    return row


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("join", "Not A Name"), "is no name for a cluster"),
        (("join", "second"), f"is joined as {NAME}"),
        (("join", NAME, "--server", "http://x"), "is not https://"),
        (("join", NAME, "--scheduler-namespace", "nowhere"), "has no namespace nowhere"),
    ],
)
def test_a_join_that_cannot_be_is_refused_with_the_fix(joined: Joined, arguments: tuple[str, ...], words: str) -> None:
    result = joined.command(*arguments)
    assert result.exit_code == 1
    assert words in result.output


def test_a_name_of_another_cluster_is_not_taken(joined: Joined) -> None:
    annotations = {clusters.ANNOTATION_CLUSTER_UID: "11111111-2222-3333-4444-555555555555"}
    joined.write_secret("taken", "taken", {}, **annotations)
    try:
        result = joined.command("join", "taken")
        assert result.exit_code == 1
        assert "is the name of another cluster" in result.output
        result = joined.command("leave", "taken")
        assert "give that of taken" in result.output
    finally:
        joined.delete_secret("taken")


def test_leaving_leaves_nothing(joined: Joined) -> None:
    """Gated, opened, running and ended copies; and what their pods at home are told."""
    for name in ("gated", "opened", "running", "over", "uncopied"):
        made = joined.home_pod(name, phase="" if name in ("gated", "opened", "uncopied") else "Running")
        if name != "uncopied":
            joined.copy(
                name,
                origin=made["metadata"]["uid"],
                node="somewhere" if name in ("running", "over") else "",
                kept=name != "gated",
            )
    pods = f"/api/v1/namespaces/{joined.open}/pods"
    joined.member.request(
        "PATCH",
        f"{pods}/opened",
        [{"op": "remove", "path": "/spec/schedulingGates"}],
        "application/json-patch+json",
    )
    joined.merge(joined.member, f"{pods}/over/status", {"status": {"phase": "Succeeded"}})
    fence = {"metadata": {"name": joined.account.fence}, "spec": {}}
    joined.member.request("POST", f"/apis/coordination.k8s.io/v1/namespaces/{joined.open}/leases", fence)
    role, account = joined.account.references_role, f"{clusters.NAMESPACE_MEMBERS}:{joined.account.name}"
    bind = ("create", "rolebinding", "by-hand", f"--clusterrole={role}", f"--serviceaccount={account}")
    joined.member.kubectl("-n", joined.open, *bind)
    result = joined.command("leave", NAME)
    assert result.exit_code == 0, result.output
    bindings = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{joined.open}/rolebindings"
    assert joined.member.try_request("GET", f"{bindings}/by-hand")[0] == 404
    assert joined.member.try_request("GET", f"{pods}/gated")[0] == 404
    assert joined.member.try_request("GET", f"{pods}/opened")[0] == 404
    running = joined.member.request("GET", f"{pods}/running")["metadata"]
    assert "finalizers" not in running
    assert "deletionTimestamp" not in running
    for name in ("gated", "opened", "uncopied"):
        assert joined.sent(name) == ({"attempt": 2}, "Pending")
    assert joined.sent("over") == ({"attempt": 2}, "Succeeded")
    assert joined.sent("running")[0]["cluster"] == NAME
    assert "fence" not in joined.sent("running")[0], "nobody removes it any more: it must not be replaced"
    assert "pods that still run in west: team/running" in result.output
    joined.wait_gone()
    # Again, and to the end.
    result = joined.command("leave", NAME, "--delete-running")
    assert result.exit_code == 0, result.output
    assert joined.sent("running") == ({"attempt": 2}, "Failed")
    wait_for(lambda: _ending(joined, f"{pods}/running"), "deleted")
    for name in ("gated", "opened", "running", "over", "uncopied"):
        joined.merge(joined.home, f"/api/v1/namespaces/team/pods/{name}", {"metadata": {"finalizers": None}})
        joined.home.request("DELETE", f"/api/v1/namespaces/team/pods/{name}?gracePeriodSeconds=0")


def _ending(joined: Joined, path: str) -> bool:
    status, answer = joined.member.try_request("GET", path)
    return status == 404 or "deletionTimestamp" in answer["metadata"]


def test_a_dead_cluster_is_forgotten_by_an_administrators_word_only(pair: Joined) -> None:
    gone = "11111111-2222-3333-4444-555555555555"
    pair.write_secret("dead", "dead", {}, **{clusters.ANNOTATION_CLUSTER_UID: gone})
    for name, phase in (("waiting", ""), ("ran", "Running")):
        pair.home_pod(name, cluster="dead", uid=gone, phase=phase)
    result = pair.at_home("forget", "dead")
    assert result.exit_code == 1
    assert "2 in all" in result.output
    assert "forget dead --dead" in result.output
    assert pair.sent("ran")[0]["cluster"] == "dead"
    result = pair.at_home("forget", "dead", "--dead")
    assert result.exit_code == 0, result.output
    assert pair.sent("waiting") == ({"attempt": 2}, "Pending")
    assert pair.sent("ran") == ({"attempt": 2}, "Failed")
    assert pair.home.try_request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/dead")[0] == 404
    result = pair.at_home("forget", "dead")
    assert result.exit_code == 1
    assert "names a cluster dead" in result.output


async def test_files_are_used_although_secrets_cannot_be_read(pair: Joined, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(json.dumps(inline(pair.member)))
    grant = {
        "metadata": {"name": "reads-namespaces"},
        "rules": [{"apiGroups": [""], "resources": ["namespaces"], "verbs": ["get"]}],
    }
    pair.home.request("POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles", grant)
    pair.home.kubectl("create", "clusterrolebinding", "poor", "--clusterrole=reads-namespaces", "--user=poor")
    access = load_access(environ={}, home=Path("/"), kubeconfig=pair.home.kubeconfig("poor"))
    async with Client(access) as client, watching(client, files=[tmp_path]) as members:
        assert set(members.members) == {"test"}
        assert "secrets" in members.problems["Secrets"]
    poor = str(pair.home.kubeconfig("poor"))
    result = await asyncio.to_thread(
        CliRunner().invoke, main, ["clusters", "list", "--kubeconfig", poor, "-n", NAMESPACE]
    )
    assert result.exit_code == 1
    assert "403 Forbidden" in result.output


def test_a_cluster_that_makes_no_tokens_gives_one_that_ends(pair: Joined) -> None:
    """Home has no controllers. It is joined to itself, and leaving takes all of it away."""
    alone = Joined(pair.home, pair.home)
    result = alone.command("join", "itself", "--timeout", "1")
    assert result.exit_code == 1
    assert "check that kube-controller-manager runs there" in result.output
    alone.join("itself", "--token-lifetime", "3600")
    listed = json.loads(alone.at_home("list", "-o", "json").stdout)["clusters"]
    assert [one["own"] for one in listed if one["name"] == "itself"] == [True]
    assert alone.command("leave", "itself").exit_code == 0
    assert [one for one in alone.left_behind() if not one.endswith(clusters.NAMESPACE_MEMBERS)] == []


async def test_profiles_without_credentials_are_told(joined: Joined, home: Client) -> None:
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "clusterprofiles.multicluster.x-k8s.io",
            "annotations": {"api-approved.kubernetes.io": "unapproved, a test"},
        },
        "spec": {
            "group": "multicluster.x-k8s.io",
            "scope": "Namespaced",
            "names": {"kind": "ClusterProfile", "plural": "clusterprofiles", "singular": "clusterprofile"},
            "versions": [
                {
                    "name": "v1alpha1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }
    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    profiles = "/apis/multicluster.x-k8s.io/v1alpha1/namespaces/team/clusterprofiles"
    async with watching(home) as members:  # the kind is not there yet
        joined.home.request("POST", crds, definition)
        wait_for(lambda: joined.home.try_request("GET", profiles)[0] == 200, "served")
        for name in (NAME, "unknown"):
            profile = {
                "apiVersion": "multicluster.x-k8s.io/v1alpha1",
                "kind": "ClusterProfile",
                "metadata": {"name": name},
                "status": {"properties": [{"name": "region", "value": "eu"}]},
            }
            joined.home.request("POST", profiles, profile)
        await until(lambda: "ClusterProfile team/unknown" in members.problems, "told")
        assert "shoal clusters join unknown" in members.problems["ClusterProfile team/unknown"]
        await until(lambda: dict(members.states[NAME].properties) == {"region": "eu"}, "its properties")
        assert set(members.members) == {NAME}
