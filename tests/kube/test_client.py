"""Calls against the real API server."""

import asyncio
import contextlib

import msgspec
import pytest

from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.client import Client
from shoal.kube.errors import (
    AlreadyExistsError,
    AnswerError,
    ApiError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
    TooManyRequestsError,
    UnauthorizedError,
    UnreachableError,
)
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap, Secret
from shoal.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, PODS, SECRETS, Resource, manifest_of
from tests.kube.conftest import access_of
from tests.kube.objects import config_map, node, pod
from tests.testbed.apiserver import ApiServer


async def test_version_and_raw_request(client: Client) -> None:
    version = await client.version()
    assert version.git_version.startswith("v1.")
    assert b'"gitVersion"' in await client.request("GET", "/version")


async def test_an_object_through_its_life(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a", namespace, value="1"))
    assert (made.metadata.name, made.data) == ("a", {"value": "1"})
    assert made.metadata.uid
    assert await client.get(CONFIG_MAPS, "a", namespace=namespace) == made
    changed = await client.replace(CONFIG_MAPS, msgspec.structs.replace(made, data={"value": "2"}))
    assert changed.metadata.resource_version != made.metadata.resource_version
    with pytest.raises(ConflictError, match="read the object again"):
        await client.replace(CONFIG_MAPS, made)
    with pytest.raises(AlreadyExistsError):
        await client.create(CONFIG_MAPS, config_map("a", namespace))
    await client.delete(CONFIG_MAPS, "a", namespace=namespace)
    with pytest.raises(NotFoundError, match=r"GET /api/v1/namespaces/.*/configmaps/a: 404 NotFound") as caught:
        await client.get(CONFIG_MAPS, "a", namespace=namespace)
    assert (caught.value.status, caught.value.reason) == (404, "NotFound")


async def test_three_kinds_of_patch(client: Client, namespace: str) -> None:
    await client.create(PODS, pod("p", namespace, tolerations=[{"key": "a", "operator": "Exists"}]))
    merged = await client.patch(PODS, "p", {"metadata": {"labels": {"x": "1"}}}, namespace=namespace)
    assert merged.metadata.labels == {"x": "1"}
    strategic = {"spec": {"containers": [{"name": "app", "image": "other:1"}]}}
    patched = await client.patch(PODS, "p", strategic, namespace=namespace, kind="strategic")
    assert [container.image for container in patched.spec.containers] == ["other:1"]
    patched = await client.patch(
        PODS, "p", [{"op": "remove", "path": "/metadata/labels/x"}], namespace=namespace, kind="json"
    )
    assert patched.metadata.labels == {}
    with pytest.raises(InvalidError, match="correct the named field"):
        await client.patch(PODS, "p", {"spec": {"nodeName": "elsewhere"}}, namespace=namespace)
    with pytest.raises(InvalidError, match="Invalid value"):
        await client.patch(PODS, "p", {"spec": {"containers": 7}}, namespace=namespace)


async def test_apply_owns_fields(client: Client, namespace: str) -> None:
    first = await client.apply(CONFIG_MAPS, config_map("a", namespace, value="1"), field_manager="one")
    assert first.data == {"value": "1"}
    with pytest.raises(ConflictError, match="one"):
        await client.apply(CONFIG_MAPS, config_map("a", namespace, value="2"), field_manager="two")
    forced = await client.apply(CONFIG_MAPS, config_map("a", namespace, value="2"), field_manager="two", force=True)
    assert forced.data == {"value": "2"}


async def test_status_is_a_part_of_its_own(client: Client, namespace: str) -> None:
    await client.create(PODS, pod("p", namespace))
    patched = await client.patch(
        PODS, "p", {"status": {"nominatedNodeName": "n1"}}, namespace=namespace, subresource="status"
    )
    assert patched.status.nominated_node_name == "n1"
    assert (await client.get(PODS, "p", namespace=namespace, subresource="status")).status == patched.status


async def test_a_slim_object_is_not_written_back(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("p", namespace))
    with pytest.raises(KubeError, match="would lose fields"):
        await client.replace(PODS, made)
    whole = await client.get(PODS.raw, "p", namespace=namespace)
    whole["metadata"]["labels"] = {"kept": "all"}
    again = await client.replace(PODS.raw, whole)
    assert again["metadata"]["labels"] == {"kept": "all"}
    assert again["spec"]["containers"][0]["image"] == "busybox:1"


async def test_lists_in_pages_and_by_selector(client: Client, namespace: str) -> None:
    for number in range(7):
        parity = "even" if number % 2 == 0 else "odd"
        await client.create(CONFIG_MAPS, config_map(f"c{number}", namespace, labels={"parity": parity}))
    page = await client.page(CONFIG_MAPS, namespace=namespace, limit=3)
    assert len(page.items or ()) == 3
    assert page.metadata.continue_
    listing = await client.list(CONFIG_MAPS, namespace=namespace, limit=3)
    assert [item.metadata.name for item in listing.items] == [f"c{number}" for number in range(7)]
    assert int(listing.resource_version) > 0
    odd = await client.list(CONFIG_MAPS, namespace=namespace, labels="parity=odd")
    assert [item.metadata.name for item in odd.items] == ["c1", "c3", "c5"]
    one = await client.list(CONFIG_MAPS, namespace=namespace, fields="metadata.name=c4")
    assert [item.metadata.name for item in one.items] == ["c4"]


async def test_delete_checks_who_it_is(client: Client, namespace: str) -> None:
    made = await client.create(CONFIG_MAPS, config_map("a", namespace))
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "a", namespace=namespace, uid="00000000-0000-0000-0000-000000000000")
    with pytest.raises(ConflictError):
        await client.delete(CONFIG_MAPS, "a", namespace=namespace, resource_version="1")
    await client.delete(
        CONFIG_MAPS, "a", namespace=namespace, uid=made.metadata.uid, grace_seconds=0, propagation="Background"
    )
    with pytest.raises(NotFoundError):
        await client.get(CONFIG_MAPS, "a", namespace=namespace)


async def test_bind_writes_node_and_annotations_at_once(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("p", namespace))
    events: list[tuple[str, str, dict[str, str]]] = []
    await client.bind(made, "n1", annotations={"shoal.dev/allocation": "{}"})
    async with (
        asyncio.timeout(60),
        contextlib.aclosing(
            client.watch(PODS, namespace=namespace, resource_version=made.metadata.resource_version)
        ) as stream,
    ):
        async for event in stream:
            if event.type != "BOOKMARK":
                seen = event.object
                events.append((event.type, seen.spec.node_name, seen.metadata.annotations))
                break
    assert events == [("MODIFIED", "n1", {"shoal.dev/allocation": "{}"})]
    with pytest.raises(ConflictError, match="already assigned"):
        await client.bind(made, "n2")


@pytest.mark.min_kube("1.35")
async def test_bind_writes_labels_too(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("p", namespace))
    await client.bind(made, "n1", labels={"x": "y"})
    assert (await client.get(PODS, "p", namespace=namespace)).metadata.labels == {"x": "y"}


async def test_bind_refuses_another_pod_of_that_name(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("p", namespace))
    await client.delete(PODS, "p", namespace=namespace, grace_seconds=0)
    await client.create(PODS, pod("p", namespace))
    with pytest.raises(ConflictError):
        await client.bind(made, "n1")


async def test_eviction_answers_to_budgets(client: Client, namespace: str) -> None:
    await client.create(PODS, pod("p", namespace, labels={"app": "a"}))
    await client.patch(PODS, "p", _READY, namespace=namespace, subresource="status")
    budgets = Resource("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", dict)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "a"}}}
    await client.create(budgets, {"metadata": {"name": "b"}, "spec": spec}, namespace=namespace)
    with pytest.raises(TooManyRequestsError):
        await client.evict("p", namespace=namespace)
    await client.delete(budgets, "b", namespace=namespace)
    await client.evict("p", namespace=namespace, grace_seconds=0)
    with pytest.raises(NotFoundError):
        await client.get(PODS, "p", namespace=namespace)


_READY = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}


async def test_a_log_that_cannot_be_had(client: Client, namespace: str) -> None:
    await client.create(PODS, pod("p", namespace))
    # Not scheduled: the server itself answers with nothing.
    assert await client.log("p", namespace=namespace, container="app", tail_lines=5) == ""
    with pytest.raises(BadRequestError, match="other"):
        await client.log("p", namespace=namespace, container="other")


async def test_a_token_of_a_service_account(apiserver: ApiServer, client: Client, namespace: str) -> None:
    token = await client.token("default", namespace=namespace)
    assert token.token not in repr(token)
    access = Access(
        server=apiserver.url,
        credentials=StoredCredential(token=Inline(token.token.encode())),
        authority=Inline(apiserver.ca.read_bytes()),
    )
    async with Client(access) as pod_client:
        with pytest.raises(ForbiddenError, match=f"system:serviceaccount:{namespace}:default"):
            await pod_client.list(PODS, namespace=namespace)


async def test_cluster_wide_kinds_and_untyped_ones(client: Client, namespace: str) -> None:
    name = f"n-{namespace}"
    await client.create(NODES, node(name))
    await client.patch(NODES, name, {"status": {"capacity": {"nvidia.com/gpu": "8"}}}, subresource="status")
    found = await client.get(NODES, name)
    assert found.status.capacity == {"nvidia.com/gpu": "8"}
    assert (await client.get(NODES.raw, name))["status"]["capacity"] == {"nvidia.com/gpu": "8"}
    await client.delete(NODES, name)
    assert (await client.get(NAMESPACES, namespace)).status.phase == "Active"


async def test_secrets_do_not_show(client: Client, namespace: str) -> None:
    secret = Secret(metadata=ObjectMeta(name="s", namespace=namespace), string_data={"password": "hunter2"})
    made = await client.create(SECRETS, secret)
    assert made.data == {"password": "aHVudGVyMg=="}
    assert "aHVudGVyMg" not in repr(made)
    assert "hunter2" not in f"{secret!r} {secret}"
    assert "password" in repr(made)
    # The real server's message repeats the whole object here.
    with pytest.raises(InvalidError) as caught:
        await client.patch(SECRETS, "s", {"data": 7}, namespace=namespace)
    assert "aHVudGVyMg" not in f"{caught.value} {caught.value.message}"


async def test_names_cannot_leave_their_place(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError):
        await client.get(CONFIG_MAPS, "../secrets/x", namespace=namespace)
    with pytest.raises(KubeError, match="is no name"):
        await client.get(CONFIG_MAPS, "..", namespace=namespace)
    with pytest.raises(KubeError, match="give namespace="):
        await client.get(CONFIG_MAPS, "a")


async def test_a_user_without_rights(apiserver: ApiServer, namespace: str) -> None:
    async with Client(access_of(apiserver.kubeconfig("nobody"))) as client:
        with pytest.raises(ForbiddenError, match="Role"):
            await client.list(PODS, namespace=namespace)


async def test_nobody_in_particular(apiserver: ApiServer) -> None:
    access = Access(
        server=apiserver.url,
        credentials=StoredCredential(token=Inline(b"not-a-token")),
        authority=Inline(apiserver.ca.read_bytes()),
    )
    async with Client(access) as client:
        with pytest.raises(UnauthorizedError, match="log in again") as caught:
            await client.list(PODS)
    assert "not-a-token" not in str(caught.value)


async def test_a_server_signed_by_somebody_else(apiserver: ApiServer) -> None:
    async with Client(Access(server=apiserver.url, credentials=StoredCredential())) as client:
        with pytest.raises(UnreachableError, match="certificate-authority"):
            await client.version()
    trusting = Access(server=apiserver.url, credentials=StoredCredential(), verify=False)
    async with Client(trusting) as client:
        assert (await client.version()).major == "1"


async def test_the_name_in_the_certificate_may_be_another(apiserver: ApiServer) -> None:
    authority = Inline(apiserver.ca.read_bytes())
    for name, holds in (("localhost", True), ("elsewhere.example", False)):
        access = Access(server=apiserver.url, credentials=StoredCredential(), authority=authority, server_name=name)
        async with Client(access) as client:
            if holds:
                assert (await client.version()).major == "1"
            else:
                with pytest.raises(UnreachableError, match="tls-server-name"):
                    await client.version()


async def test_manifests_of_structs_keep_their_names(client: Client, namespace: str) -> None:
    made = await client.create(PODS, pod("p", namespace))
    manifest = manifest_of(made)
    assert manifest["metadata"]["resourceVersion"] == made.metadata.resource_version
    assert manifest["spec"]["containers"][0]["name"] == "app"


async def test_a_watch_from_nowhere_is_refused(client: Client, namespace: str) -> None:
    with pytest.raises(ApiError):
        async for _ in client.watch(CONFIG_MAPS, namespace=namespace, resource_version="not-a-version"):
            pass


async def test_an_answer_of_another_kind(client: Client, namespace: str) -> None:
    wrong = Resource("", "v1", "namespaces", "Namespace", list, namespaced=False)
    with pytest.raises(AnswerError, match="cannot be read"):
        await client.get(wrong, namespace)
    assert isinstance(config_map("a", "b"), ConfigMap)
