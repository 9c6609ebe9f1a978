"""Home and a member, joined, for the tests of what pods name: with the rights that manager and account really have.

The cases run on embedded clusters in `test_references.py`, on real ones in `test_references_kube.py`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.clusters.copies import DISPATCHED_PODS, DispatchedPod, Reference, whole
from shoal.clusters.join import ManagerAccount, binding_command
from shoal.clusters.member import Member
from shoal.clusters.members import cluster_uid
from shoal.clusters.opened import copied_name, copied_prefix, entry
from shoal.clusters.references import MAX_REFERENCES, ReferenceCopies, SentPod
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.access.kubeconfig import closed_access
from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, ForbiddenError, NotFoundError
from shoal.kube.resources import CONFIG_MAPS, NAMESPACES, SECRETS, RawObject, Resource
from shoal.model.contract import clusters
from tests.clusters.joined import copy_of

RBAC = Path(__file__).parents[2] / "deploy" / "cluster-manager"
PATIENCE = 120.0
MAPS, SECRET_OBJECTS = CONFIG_MAPS.raw, SECRETS.raw
ROLE_BINDINGS: Resource[RawObject] = Resource(
    "rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding", dict, whole=True
)
PRIORITY_CLASSES: Resource[RawObject] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict, namespaced=False, whole=True
)
MAP, SECRET = Reference("v1", "configmaps", "ConfigMap", "settings"), Reference("v1", "secrets", "Secret", "password")
ACCOUNT = Reference("v1", "serviceaccounts", "ServiceAccount", "trainer")
CLAIM = Reference("v1", "persistentvolumeclaims", "PersistentVolumeClaim", "scratch")
#: What is said of a Secret, whatever the server says.
WITHHELD = "the server's message is withheld, it may repeat the secret"
USES = Path(__file__).parent / "uses.yaml"
HIDDEN = base64.b64encode(b"hunter2").decode()


class Referring:
    """A namespace in both clusters, and what may be asked of it. `home`, `there`: as administrators."""

    def __init__(
        self, home: Client, there: Client, manager: Client, account: Client, uids: tuple[str, str], on: str
    ) -> None:
        self.home, self.there = home, there
        self.manager, self.own = manager, account
        self.home_uid = uids[0]
        self.account = ManagerAccount(uids[0])
        self.member = Member("west", uids[1], account)
        self.namespace = f"team-{uuid.uuid4().hex[:8]}"
        self.now = 0.0
        #: Which servers these are: `real` or `embedded`.
        self.on = on
        self.copies = ReferenceCopies(manager, uids[0], clock=lambda: self.now)

    def restarted(self) -> None:
        """A manager that knows nothing."""
        self.copies = ReferenceCopies(self.manager, self.home_uid, clock=lambda: self.now)

    async def later(self, seconds: float = 400.0) -> None:
        """Labels are read anew, and copies looked at."""
        self.now += seconds

    async def bind(self, client: Client, role: str, account: tuple[str, str]) -> None:
        subject = {"kind": "ServiceAccount", "namespace": account[0], "name": account[1]}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
        manifest = {"metadata": {"name": "shoal-references"}, "roleRef": reference, "subjects": [subject]}
        await client.create(ROLE_BINDINGS, manifest, namespace=self.namespace)

    async def bind_there(self) -> None:
        """As `binding_command` says it."""
        words = binding_command(self.account).split()
        role, named = (next(word.partition("=")[2] for word in words if key in word) for key in ("role=", "account="))
        await self.bind(self.there, role, (named.partition(":")[0], named.partition(":")[2]))

        async def may() -> bool:
            try:
                await self.own.get(ACCOUNT.resource, "default", namespace=self.namespace)
            except NotFoundError:
                return True
            except ForbiddenError:
                return False
            return True

        await eventually(may, "the account has the role")

    async def label(self, client: Client, label: str, value: str | None = clusters.ENABLED) -> None:
        await client.patch(NAMESPACES, self.namespace, {"metadata": {"labels": {label: value}}})

    async def open(self, *entries: str) -> None:
        """The member's namespace opens these, and nothing else, to dispatched pods."""
        annotations = {clusters.ANNOTATION_MAY_USE: ",".join(entries) or None}
        await self.there.patch(NAMESPACES, self.namespace, {"metadata": {"annotations": annotations}})
        await self.later()

    def copied(self, one: Reference) -> str:
        """The name of its copy in the member."""
        return copied_name(self.home_uid, one.name)

    async def accept(self) -> None:
        """The member's namespace takes copies of ConfigMaps and Secrets."""
        await self.bind_there()
        await self.label(self.there, clusters.LABEL_ACCEPTS_REFERENCES)

    async def opt_in(self) -> None:
        """All that it takes."""
        await self.accept()
        await self.bind(
            self.home, "shoal-cluster-manager-references", (clusters.NAMESPACE_MANAGER, clusters.NAME_MANAGER)
        )
        await self.label(self.home, clusters.LABEL_COPIES_REFERENCES)

        async def may() -> bool:
            try:
                await self.manager.get(NAMESPACES, self.namespace)
            except ForbiddenError:
                return False
            return True

        await eventually(may, "the manager has the role")

    async def originals(self) -> None:
        """A ConfigMap and a Secret at home."""
        made = {"metadata": {"name": MAP.name, "labels": {"app": "x"}}, "data": {"a": "1", "b": "2"}}
        await self.home.create(MAPS, made | {"binaryData": {"c": HIDDEN}}, namespace=self.namespace)
        secret = {"metadata": {"name": SECRET.name, "annotations": {"x": "y"}}, "data": {"key": HIDDEN}}
        await self.home.create(SECRET_OBJECTS, secret, namespace=self.namespace)

    async def pod(self, name: str, *extra: Any, optional: bool = False) -> tuple[RawObject, DispatchedPod]:
        """A pod at home that names both, and its copy, still behind its gate."""
        spare = {"optional": True} if optional else {}
        container = {
            "name": "main",
            "image": "x",
            "envFrom": [{"configMapRef": {"name": MAP.name, **spare}}, *extra],
            "env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": SECRET.name, "key": "key", **spare}}}],
        }
        spec = {"containers": [container], "automountServiceAccountToken": False}
        made = await self.home.create(
            DISPATCHED_PODS, {"metadata": {"name": name}, "spec": spec}, namespace=self.namespace
        )
        manifest = whole(made)
        assert manifest is not None
        return manifest, await self.copy(name, made.metadata.uid)

    async def copy(self, name: str, origin: str) -> DispatchedPod:
        made = copy_of(self.home_uid, name, origin=origin)
        return await self.own.create(DISPATCHED_PODS, made, namespace=self.namespace)

    def sent(self, pod: RawObject, copy: DispatchedPod) -> SentPod:
        meta = pod["metadata"]
        return SentPod((self.namespace, meta["name"]), meta["uid"], self.member, copy.metadata.uid)

    async def found(self, resource: Resource[RawObject], name: str) -> RawObject | None:
        """An object in the member."""
        try:
            return await self.there.get(resource, name, namespace=self.namespace)
        except NotFoundError:
            return None

    async def lacks(self, *named: Reference) -> list[str]:
        return [await self.copies.lacks(self.member, self.namespace, one) for one in named]


async def eventually(ready: Callable[[], Awaitable[bool]], what: str) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not await ready():  # noqa: ASYNC110 - it is another program's state
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE:g} s: {what}") from None


async def install_manager(home: Client) -> None:
    """The rights of the manager's account at home, as they are shipped."""
    for name in ("namespace", "rbac"):
        for one in yaml.safe_load_all((RBAC / f"{name}.yaml").read_text()):
            group, _, version = one["apiVersion"].rpartition("/")
            plural = one["kind"].lower() + "s"
            namespaced = "namespace" in one["metadata"]
            resource: Resource[RawObject] = Resource(group, version, plural, one["kind"], dict, namespaced, whole=True)
            await home.apply(resource, one, force=True)


async def prepare_member(access: Access) -> None:
    """PriorityClasses of a cluster before it is joined: the one of pods without any, and another."""
    async with Client(access) as member:
        for name, default in (("normal", True), ("urgent", False)):
            made = {"metadata": {"name": name}, "value": 1000, "globalDefault": default}
            await member.create(PRIORITY_CLASSES, made)


def as_token(access: Access, token: str) -> Access:
    return dataclasses.replace(access, credentials=StoredCredential(token=Inline(token.encode())))


@contextlib.asynccontextmanager
async def referring(home: Access, there: Access, namespace: str, *, on: str) -> AsyncIterator[Referring]:
    """A fresh namespace in both clusters, of which the second is joined as `west` in `namespace` of the first."""
    async with contextlib.AsyncExitStack() as stack:
        admins = [await stack.enter_async_context(Client(one)) for one in (home, there)]
        await install_manager(admins[0])
        token = (await admins[0].token(clusters.NAME_MANAGER, namespace=clusters.NAMESPACE_MANAGER)).token
        secret = await admins[0].get(SECRETS, "shoal-cluster-west", namespace=namespace)
        access = closed_access(base64.b64decode(secret.data["kubeconfig"]), what="the Secret", environ={})
        manager = await stack.enter_async_context(Client(as_token(home, token)))
        account = await stack.enter_async_context(Client(access))
        uids = await cluster_uid(admins[0]), await cluster_uid(admins[1])
        made = Referring(admins[0], admins[1], manager, account, uids, on)
        for client in admins:
            await client.create(NAMESPACES, {"metadata": {"name": made.namespace}})
            with contextlib.suppress(AlreadyExistsError):
                await client.create(ACCOUNT.resource.raw, {"metadata": {"name": "default"}}, namespace=made.namespace)
        await made.label(made.there, clusters.LABEL_ACCEPTS)
        yield made
        for client in admins:
            await client.delete(NAMESPACES, made.namespace)


# Looking


async def nobody_looks_where_the_role_is_not_bound(site: Referring) -> None:
    await site.originals()
    await site.open(*map(entry, (MAP, SECRET, ACCOUNT, CLAIM)))
    assert await site.lacks(MAP, SECRET, ACCOUNT, CLAIM) == [""] * 4
    await site.label(site.there, clusters.LABEL_ACCEPTS_REFERENCES)
    await site.label(site.home, clusters.LABEL_COPIES_REFERENCES)
    pod, copy = await site.pod("one")
    assert await site.copies.supply(site.member, pod, copy) == "", "home gave no right: nobody asks for copies"
    assert await site.found(MAPS, site.copied(MAP)) is None
    await site.open()
    assert "ConfigMap 'settings' is not open" in await site.copies.supply(site.member, pod, copy)


async def what_is_not_open_is_named_with_its_fix(site: Referring) -> None:
    await site.bind_there()
    for one, said in zip((MAP, SECRET, ACCOUNT, CLAIM), await site.lacks(MAP, SECRET, ACCOUNT, CLAIM), strict=True):
        assert said == (
            f"{one.kind} '{one.name}' is not open to dispatched pods: add {entry(one)} to annotation "
            f"{clusters.ANNOTATION_MAY_USE} of namespace {site.namespace} there"
        )
    assert await site.lacks(dataclasses.replace(ACCOUNT, name="default")) == [""], "dispatched pods run as it"


async def what_is_there_is_known_and_no_content_is_read(site: Referring) -> None:
    await site.bind_there()
    await site.open(*map(entry, (MAP, SECRET, ACCOUNT, CLAIM)))
    lacking = await site.lacks(MAP, SECRET, ACCOUNT, CLAIM)
    named = "ConfigMap 'settings', Secret 'password', ServiceAccount 'trainer', PersistentVolumeClaim 'scratch'"
    assert lacking == [f"{one} does not exist: create it" for one in named.split(", ")]
    for resource, manifest in (
        (MAPS, {"metadata": {"name": MAP.name}}),
        (SECRET_OBJECTS, {"metadata": {"name": SECRET.name}, "data": {"key": HIDDEN}}),
        (ACCOUNT.resource.raw, {"metadata": {"name": ACCOUNT.name}}),
    ):
        await site.there.create(resource, manifest, namespace=site.namespace)
    assert await site.lacks(MAP, SECRET, ACCOUNT) == [""] * 3
    for one in (MAP, SECRET):
        with pytest.raises(ForbiddenError):
            await site.own.get(one.resource, one.name, namespace=site.namespace)
        with pytest.raises(ForbiddenError):
            await site.own.list(one.resource, namespace=site.namespace)
    assert (await site.found(MAPS, "settings") or {}).get("data") is None


# Copying


async def content_is_copied_followed_and_removed(site: Referring) -> None:
    await site.originals()
    await site.opt_in()
    assert await site.lacks(MAP, SECRET) == ["", ""]
    first, second = await site.pod("one"), await site.pod("two")
    assert await site.copies.supply(site.member, *first) == ""
    made, secret = await site.found(MAPS, site.copied(MAP)), await site.found(SECRET_OBJECTS, site.copied(SECRET))
    assert made is not None
    assert secret is not None
    assert (made["data"], made["binaryData"]) == ({"a": "1", "b": "2"}, {"c": HIDDEN})
    assert (secret["data"], secret["type"]) == ({"key": HIDDEN}, "Opaque")
    for one in (made, secret):
        meta = one["metadata"]
        assert meta["labels"] == {clusters.LABEL_ORIGIN: site.home_uid}
        assert "annotations" not in meta
        assert [owner["uid"] for owner in meta["ownerReferences"]] == [first[1].metadata.uid]
    change = {"data": {"a": "3", "b": None}, "binaryData": None}
    await site.home.patch(MAPS, MAP.name, change, namespace=site.namespace)
    assert await site.copies.supply(site.member, *second) == ""
    made = await site.found(MAPS, site.copied(MAP))
    assert made is not None
    assert made["data"] == {"a": "3"}, "a pod that came after a change sees it"
    assert "binaryData" not in made or not made["binaryData"]
    assert len(made["metadata"]["ownerReferences"]) == 2
    await site.home.patch(MAPS, MAP.name, {"data": {"a": "4"}}, namespace=site.namespace)
    site.restarted()
    sent = [site.sent(*first), site.sent(*second)]
    await site.copies.keep_up(sent)
    assert ((await site.found(MAPS, site.copied(MAP))) or {})["data"] == {"a": "4"}, (
        "also by a manager that knew nothing"
    )
    await site.there.delete(MAPS, site.copied(MAP), namespace=site.namespace)
    await site.later()
    await site.copies.keep_up(sent)
    again = await site.found(MAPS, site.copied(MAP))
    assert again is not None, "it is made again while pods use it"
    for _, copy in (first, second):
        assert await site.found(MAPS, site.copied(MAP)) is not None
        await site.there.delete(DISPATCHED_PODS, copy.metadata.name, namespace=site.namespace, grace_seconds=0)

    async def gone() -> bool:
        return (
            await site.found(MAPS, site.copied(MAP)) is None
            and await site.found(SECRET_OBJECTS, site.copied(SECRET)) is None
        )

    await eventually(gone, "the garbage collector has removed them with their last pod")


async def what_is_not_ours_is_left_alone(site: Referring) -> None:
    await site.originals()
    await site.opt_in()
    theirs = {"metadata": {"name": MAP.name, "labels": {"theirs": "yes"}}, "data": {"z": "9"}}
    await site.there.create(MAPS, theirs, namespace=site.namespace)
    other = {"metadata": {"name": site.copied(SECRET), "labels": {clusters.LABEL_ORIGIN: "another-home"}}}
    await site.there.create(SECRET_OBJECTS, other, namespace=site.namespace)

    async def standing() -> tuple[RawObject | None, RawObject | None]:
        return await site.found(MAPS, MAP.name), await site.found(SECRET_OBJECTS, site.copied(SECRET))

    before = await standing()
    pod, copy = await site.pod("one")
    assert await site.copies.supply(site.member, pod, copy) == ""
    await site.later()
    await site.copies.keep_up([site.sent(pod, copy)])
    assert before == await standing()
    made = await site.found(MAPS, site.copied(MAP))
    assert made is not None
    assert made["data"] == {"a": "1", "b": "2"}, "an object of the same name takes no copy's place"
    # And so where an administrator's kubeconfig is used, for whom no policy holds.
    site.restarted()
    member = dataclasses.replace(site.member, client=site.there)
    assert await site.copies.supply(member, pod, copy) == ""
    assert before == await standing()


async def what_is_open_is_used_as_it_is(site: Referring) -> None:
    await site.originals()
    await site.opt_in()
    await site.open(entry(SECRET))
    pod, copy = await site.pod("one")
    assert await site.copies.supply(site.member, pod, copy) == ""
    assert await site.found(MAPS, site.copied(MAP)) is not None
    assert await site.found(SECRET_OBJECTS, site.copied(SECRET)) is None, "the member's own is used, and nothing sent"


async def what_cannot_be_copied_is_said(site: Referring) -> None:
    await site.opt_in()
    pod, copy = await site.pod("one")
    assert await site.copies.supply(site.member, pod, copy) == "ConfigMap 'settings': is not at home either: create it"
    spare, there = await site.pod("spare", optional=True)
    assert await site.copies.supply(site.member, spare, there) == "", "it can do without"
    await site.originals()
    kinds: list[tuple[RawObject, str]] = [
        ({"metadata": {"name": "boot"}, "type": "bootstrap.kubernetes.io/token"}, "never copied"),
        ({"metadata": {"name": "joined", "labels": {clusters.LABEL_CLUSTER: "x"}}}, "credentials of a cluster"),
    ]
    for manifest, words in kinds:
        await site.home.create(SECRET_OBJECTS, manifest, namespace=site.namespace)
        name = manifest["metadata"]["name"]
        pod, copy = await site.pod(f"of-{name}", {"secretRef": {"name": name}})
        assert words in await site.copies.supply(site.member, pod, copy)
        assert await site.found(SECRET_OBJECTS, copied_name(site.home_uid, name)) is None
    many = [{"configMapRef": {"name": f"m{number}"}} for number in range(MAX_REFERENCES)]
    pod, copy = await site.pod("many", *many)
    assert "put them into fewer" in await site.copies.supply(site.member, pod, copy)
    # One side no longer wants it: nothing new is copied, nothing is changed.
    await site.label(site.home, clusters.LABEL_COPIES_REFERENCES, None)
    await site.later()
    pod, copy = await site.pod("late")
    assert "ConfigMap 'settings' is not open" in await site.copies.supply(site.member, pod, copy)
    made = await site.found(MAPS, site.copied(MAP))
    assert made is not None
    assert copy.metadata.uid not in str(made["metadata"]["ownerReferences"])
    await site.label(site.home, clusters.LABEL_COPIES_REFERENCES)
    await site.label(site.there, clusters.LABEL_ACCEPTS_REFERENCES, None)
    await site.later()
    late = dataclasses.replace(MAP, name="late")
    await site.home.create(MAPS, {"metadata": {"name": "late"}}, namespace=site.namespace)
    assert "ConfigMap 'late' is not open" in (await site.lacks(late))[0]


async def many_pods_at_once_share_a_copy(site: Referring) -> None:
    await site.originals()
    await site.opt_in()
    pods = [await site.pod(f"burst-{number}") for number in range(20)]
    answers = await asyncio.gather(*(site.copies.supply(site.member, *one) for one in pods))
    assert set(answers) == {""}
    for resource, one in ((MAPS, MAP), (SECRET_OBJECTS, SECRET)):
        made = await site.found(resource, site.copied(one))
        assert made is not None
        owners = {owner["uid"] for owner in made["metadata"]["ownerReferences"]}
        assert owners == {copy.metadata.uid for _, copy in pods}


# The account, as somebody would use it who has its token


def content(site: Referring, name: str, copy: DispatchedPod, **changes: Any) -> RawObject:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": copy.metadata.name, "uid": copy.metadata.uid}
    name = copied_name(site.home_uid, name)
    meta = {"name": name, "labels": {clusters.LABEL_ORIGIN: site.home_uid}, "ownerReferences": [owner]}
    return {"metadata": {**meta, **changes.pop("metadata", {})}, **changes}


async def refusal(call: Awaitable[Any]) -> str:
    """What the server forbids of a write; empty if nothing."""
    try:
        await call
    except ForbiddenError as error:
        return error.message
    return ""


async def the_account_writes_its_own_copies_only(site: Referring) -> None:
    _, copy = await site.pod("one")
    where = site.namespace
    assert "cannot create" in await refusal(site.own.create(MAPS, content(site, "x", copy), namespace=where))
    await site.bind_there()
    said = await refusal(site.own.create(MAPS, content(site, "x", copy), namespace=where))
    assert f"kubectl label namespace {where} {clusters.LABEL_ACCEPTS_REFERENCES}={clusters.ENABLED}" in said
    await site.label(site.there, clusters.LABEL_ACCEPTS_REFERENCES)

    async def accepted() -> bool:
        return not await refusal(site.own.create(MAPS, content(site, "good", copy), namespace=where))

    await eventually(accepted, "the label is known to admission")
    other = {"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "1"}
    controller = {"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "1", "controller": True}
    label = {clusters.LABEL_ORIGIN: site.home_uid}
    account = {"kubernetes.io/service-account.name": "default"}
    forbidden: list[tuple[RawObject, str]] = [
        ({"metadata": {"labels": {}}}, "has the label"),
        ({"metadata": {"labels": {clusters.LABEL_ORIGIN: "other"}}}, "has the label"),
        ({"metadata": {"labels": {**label, "grafana_dashboard": "1"}}}, "has the label"),
        ({"metadata": {"annotations": account}}, "has the label"),
        ({"metadata": {"finalizers": ["x.dev/y"]}}, "has the label"),
        ({"metadata": {"name": "plain"}}, f"begins with {copied_prefix(site.home_uid)}"),
        ({"metadata": {"name": "shoal-copied.other.x"}}, f"begins with {copied_prefix(site.home_uid)}"),
        ({"metadata": {"ownerReferences": []}}, "is owned by the pods that name it"),
        ({"metadata": {"ownerReferences": [other]}}, "owned by pods alone"),
        ({"metadata": {"ownerReferences": [controller]}}, "owned by pods alone"),
    ]
    for change, words in forbidden:
        made = content(site, "bad", copy, **change)
        said = await refusal(site.own.create(MAPS, made, namespace=where))
        assert words in said, (change, said)
        assert await refusal(site.own.create(SECRET_OBJECTS, made, namespace=where)) == WITHHELD
    token, bootstrap = clusters.UNCOPIED_SECRET_TYPES
    for type_, more in ((token, {"metadata": {"annotations": account}}), (bootstrap, {})):
        bad = content(site, "token", copy, type=type_, **more)
        assert await refusal(site.own.create(SECRET_OBJECTS, bad, namespace=where)) == WITHHELD
    assert not await refusal(site.own.create(SECRET_OBJECTS, content(site, "good", copy), namespace=where))


async def the_account_sees_and_changes_nothing_of_others(site: Referring) -> None:
    _, copy = await site.pod("one")
    await site.accept()
    where = site.namespace
    theirs = {"metadata": {"name": "theirs"}, "data": {"key": HIDDEN}}
    for resource in (MAPS, SECRET_OBJECTS):
        await site.there.create(resource, theirs, namespace=where)

    async def accepted() -> bool:
        return not await refusal(site.own.create(MAPS, content(site, "ours", copy), namespace=where))

    await eventually(accepted, "the label is known to admission")
    ours = copied_name(site.home_uid, "ours")
    mine = {"metadata": {"labels": {clusters.LABEL_ORIGIN: site.home_uid}}}
    for patch in ({}, mine, {"data": {"key": None}}, {"metadata": {"finalizers": ["x.dev/y"]}}):
        said = await refusal(site.own.patch(MAPS, "theirs", patch, namespace=where))
        assert "sees and changes its own copies" in said, (patch, said)
        assert await refusal(site.own.patch(SECRET_OBJECTS, "theirs", patch, namespace=where)) == WITHHELD
    for words, change in (
        ("changes the owners only", {"metadata": {"labels": {"a": "b"}}}),
        ("changes the owners only", {"metadata": {"annotations": {"a": "b"}}}),
        ("changes the owners only", {"metadata": {"finalizers": ["x.dev/y"]}}),
        ("changes the owners only", {"metadata": {"labels": {clusters.LABEL_ORIGIN: None}}}),
    ):
        assert words in await refusal(site.own.patch(MAPS, ours, change, namespace=where))
    for name in ("theirs", ours):
        assert await refusal(site.own.delete(MAPS, name, namespace=where))
    found = await site.found(SECRET_OBJECTS, "theirs")
    assert found is not None
    assert (found["data"], found["metadata"].get("labels")) == ({"key": HIDDEN}, None)


# Dispatched pods


async def dispatched_pods_use_what_is_open_to_them(site: Referring) -> None:
    """Every row of `uses.yaml`: refused by name and with the fix, accepted where the namespace opens it."""
    prefix = copied_prefix(site.home_uid).rstrip(".")
    table = yaml.safe_load(USES.read_text().replace("COPIED", prefix))
    rows = [row for row in table if row.get("servers", site.on) == site.on]
    accounts = ACCOUNT.resource.raw
    for name, more in (("trainer", {}), ("puller", {"imagePullSecrets": [{"name": "pulls"}]})):
        await site.there.create(accounts, {"metadata": {"name": name}, **more}, namespace=site.namespace)
    also = sorted({row["also"] for row in rows if "also" in row})
    await site.open(*also)

    async def said(row: RawObject, name: str = "row") -> str:
        made = copy_of(site.home_uid, name)
        made["spec"] |= row["spec"]
        path = DISPATCHED_PODS.path(namespace=site.namespace)
        return await refusal(site.own.request("POST", path, query={"dryRun": "All"}, body=made))

    by_case = {row["case"]: row for row in rows}

    async def also_known() -> bool:
        return "secrets/theirs" in await said(by_case["the Secret of a CSI driver"])

    await eventually(also_known, "the annotation is known to admission")
    fix = f"kubectl annotate --overwrite namespace {site.namespace} {clusters.ANNOTATION_MAY_USE}={','.join(also)}"
    for row in rows:
        words = await said(row)
        if "opens" in row:
            assert words.endswith(f"{fix},{row['opens']}"), (row["case"], words)
            assert row.get("words", f"{row['opens']} is not open to dispatched pods") in words, (row["case"], words)
        elif "refused" in row:
            assert row["refused"] in words, (row["case"], words)
        else:
            assert words == "", (row["case"], words)
    await site.open(*sorted({row["opens"] for row in rows if "opens" in row} | set(also)))

    async def opened() -> bool:
        return await said(by_case["a volume claim"]) == ""

    await eventually(opened, "the annotation is known to admission")
    for row in rows:
        assert ("refused" in row) == bool(await said(row)), (row["case"], await said(row))


CASES: tuple[Callable[[Referring], Awaitable[None]], ...] = (
    nobody_looks_where_the_role_is_not_bound,
    what_is_not_open_is_named_with_its_fix,
    what_is_there_is_known_and_no_content_is_read,
    content_is_copied_followed_and_removed,
    what_is_not_ours_is_left_alone,
    what_is_open_is_used_as_it_is,
    what_cannot_be_copied_is_said,
    many_pods_at_once_share_a_copy,
    the_account_writes_its_own_copies_only,
    the_account_sees_and_changes_nothing_of_others,
    dispatched_pods_use_what_is_open_to_them,
)
