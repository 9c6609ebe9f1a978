"""Takes a cluster out: what a manager has in it is removed, and pods at home that were sent there are told so.

`leave` needs an administrator of both. The account loses its rights first: from then on no manager, however late, can
open a copy there, so that a copy without a node has not run and never will. `forget` needs home alone, for a cluster
that is not there any more; that nothing of it runs is then an administrator's word.

Pods at home go on held, and their manager sends them elsewhere, unless they ran: those are over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from shoal.clusters.errors import JoinError
from shoal.clusters.join import (
    ACCOUNTS,
    CLUSTER_BINDINGS,
    CLUSTER_ROLES,
    NAMESPACES,
    POLICIES,
    POLICY_BINDINGS,
    ROLE_BINDINGS,
    ROLES,
    ManagerAccount,
)
from shoal.clusters.joining import Say, joined_secrets, review_allows, token_secrets
from shoal.clusters.members import cluster_uid
from shoal.kube.client import Client
from shoal.kube.errors import ConflictError, NotFoundError
from shoal.kube.objects.others import Secret
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import LEASES, PODS, SECRETS, RawObject, Resource, meta_of
from shoal.model.contract import clusters
from shoal.model.contract.clusters import NAMESPACE_MEMBERS, Sent
from shoal.model.contract.kubernetes import FINISHED_PHASES
from shoal.model.errors import CodecError

_PAUSE: Final = 0.2
_ROUNDS: Final = 5
_REASON: Final = "ClusterLeft"
#: What a manager has in a member, in the order in which it goes: rights before policies.
_KINDS: Final = (CLUSTER_BINDINGS, ROLE_BINDINGS, CLUSTER_ROLES, ROLES, ACCOUNTS, POLICY_BINDINGS, POLICIES)
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class CopyFate(StrEnum):
    """What becomes of a copy in a cluster that is left."""

    #: It has no node: it is deleted, has not run, and its pod is sent elsewhere.
    UNDONE = "undone"
    #: It was over before.
    OVER = "over"
    #: It runs: deleted, or left to run without anybody at home who follows it.
    ENDED = "ended"
    LEFT = "left"


@dataclass
class LeaveReport:
    """How many copies and pods, and what else was done, in words."""

    copies: dict[CopyFate, int] = field(default_factory=dict)
    #: Pods at home that are nowhere again, those that are over, and those that were left as they are.
    unclaimed: int = 0
    over: int = 0
    untouched: list[str] = field(default_factory=list)


def fate_of(copy: Pod, *, end_running: bool) -> CopyFate:
    """What becomes of a copy once no manager can open it."""
    if not copy.spec.node_name:
        return CopyFate.UNDONE
    if copy.status.phase in FINISHED_PHASES:
        return CopyFate.OVER
    return CopyFate.ENDED if end_running else CopyFate.LEFT


def stripped(copy: Pod) -> RawObject:
    """A patch that frees a copy of its manager, if it is as it was read: without finalizer, and without its Lease."""
    meta = copy.metadata
    owners = [one for one in meta.owner_references if one.kind != LEASES.kind]
    return {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "finalizers": [one for one in meta.finalizers if one != clusters.FINALIZER_COPY] or None,
            "ownerReferences": msgspec.to_builtins(owners) or None,
        }
    }


# At home


def sent_to(pod: Pod, *, name: str, uid: str) -> Sent | None:
    """Where a pod was sent, if that is this cluster."""
    written = pod.metadata.annotations.get(clusters.ANNOTATION_DISPATCH)
    if written is None:
        return None
    try:
        sent = clusters.decode(Sent, written, what=clusters.ANNOTATION_DISPATCH)
    except CodecError:
        return None  # not the manager's writing
    there = sent.uid == uid if sent.uid and uid else sent.cluster == name
    # What was given up is over, whatever is there.
    return sent if sent.cluster and there and not sent.lost else None


def unclaimed(pod: Pod, sent: Sent) -> RawObject:
    """A patch that says that a pod is nowhere, if it is as it was read."""
    return _says(pod, Sent(sent.attempt))


def unfenced(pod: Pod, sent: Sent) -> RawObject:
    """A patch that says that nobody removes a pod's copy, so that it is never given up, if it is as it was read."""
    return _says(pod, msgspec.structs.replace(sent, fence=0))


def _says(pod: Pod, sent: Sent) -> RawObject:
    written = clusters.encode(sent, what=clusters.ANNOTATION_DISPATCH)
    meta = pod.metadata
    return {
        "metadata": {
            "uid": meta.uid,
            "resourceVersion": meta.resource_version,
            "annotations": {clusters.ANNOTATION_DISPATCH: written},
        }
    }


def final_status(pod: Pod, phase: str, words: str, now: str) -> RawObject | None:
    """A patch that says that a pod is over; None if it says so already."""
    if pod.status.phase in FINISHED_PHASES:
        return None
    status: dict[str, Any] = {"phase": phase}
    if phase == "Failed":
        condition = {
            "type": "DisruptionTarget",
            "status": "True",
            "reason": _REASON,
            "message": words,
            "lastTransitionTime": now,
        }
        status |= {"reason": _REASON, "message": words, "conditions": [condition]}
    return {"metadata": {"uid": pod.metadata.uid}, "status": status}


@dataclass(frozen=True, slots=True)
class _Ending:
    """What a pod at home is told: its phase if it is over, nothing if it is nowhere again.

    `if_started`: only if home knows that it had started.
    """

    phase: str = ""
    words: str = ""
    if_started: bool = False


class _AtHome:
    """Tells pods at home that the cluster they were sent to is gone."""

    def __init__(self, home: Client, name: str, uid: str, now: str, report: LeaveReport) -> None:
        self._home = home
        self._name = name
        self._uid = uid
        self._now = now
        self._report = report

    async def sent(self) -> list[tuple[Pod, Sent]]:
        """The pods that were sent there."""
        pods = (await self._home.list(PODS)).items
        found = ((pod, sent_to(pod, name=self._name, uid=self._uid)) for pod in pods)
        return [(pod, sent) for pod, sent in found if sent is not None]

    async def tell(self, endings: Mapping[str, _Ending | None], default: _Ending | None) -> None:
        """Each pod by its UID; None leaves it as it is. A manager that writes at the same time is outlasted."""
        untouched: list[str] = []
        for _ in range(_ROUNDS):
            untouched = []
            again = False
            for pod, sent in await self.sent():
                ending = endings.get(pod.metadata.uid, default)
                if ending is None:
                    untouched.append(f"{pod.metadata.namespace}/{pod.metadata.name}")
                    again |= bool(sent.fence) and not await self._write(pod, unfenced(pod, sent))
                else:
                    again |= not await self._tell(pod, sent, ending)
            if not again:
                break
            await asyncio.sleep(_PAUSE)
        self._report.untouched = untouched

    async def _write(self, pod: Pod, patch: RawObject) -> bool:
        """False if it has changed meanwhile."""
        try:
            await self._home.patch(PODS, pod.metadata.name, patch, namespace=pod.metadata.namespace)
        except NotFoundError:
            return True
        except ConflictError:
            return False
        return True

    async def _tell(self, pod: Pod, sent: Sent, ending: _Ending) -> bool:
        """False if it has changed meanwhile."""
        name, namespace = pod.metadata.name, pod.metadata.namespace
        started = pod.status.phase != "Pending" or bool(pod.status.container_statuses)
        ran = ending.phase and (started or not ending.if_started)
        status = final_status(pod, ending.phase, ending.words, self._now) if ran else None
        try:
            if status is not None:
                pod = await self._home.patch(
                    PODS, name, status, namespace=namespace, kind="strategic", subresource="status"
                )
            await self._home.patch(PODS, name, unclaimed(pod, sent), namespace=namespace)
        except NotFoundError:
            return True
        except ConflictError:
            return False
        self._report.over += status is not None
        self._report.unclaimed += status is None
        return True


# Leaving


async def leave(
    home: Client,
    member: Client,
    name: str,
    *,
    namespace: str,
    now: str,
    end_running: bool = False,
    patience: float = 60.0,
    say: Say = lambda _: None,
) -> LeaveReport:
    """Take a cluster out, with administrators' rights at both. Can be run again. Raises KubeError."""
    found = [one for one in await joined_secrets(home, namespace) if _named(one, name)]
    uid = await cluster_uid(member)
    for one in found:
        known = one.metadata.annotations.get(clusters.ANNOTATION_CLUSTER_UID, "")
        if known not in ("", uid):
            raise JoinError(
                f"{name} is cluster {known} and the kubeconfig leads to {uid}: give that of {name}, or, if it is not "
                f"there any more, shoal clusters forget {name}"
            )
    account = ManagerAccount(await cluster_uid(home))
    await _remove_secrets(home, found, say)
    await _disarm(member, account, patience)
    say(f"{account.user} has no rights any more")
    report = LeaveReport()
    endings = await _free_copies(member, account, report, end_running=end_running)
    await _remove_objects(member, account, say)
    # Where no copy was found there is none: nobody could make one since.
    await _AtHome(home, name, uid, now, report).tell(endings, _Ending())
    return report


def _named(secret: Secret, name: str) -> bool:
    return secret.metadata.labels.get(clusters.LABEL_CLUSTER) == name


async def _remove_secrets(home: Client, found: Iterable[Secret], say: Say) -> None:
    for one in found:
        meta = one.metadata
        await _gone(home, SECRETS, meta.name, meta.namespace)
        say(f"Secret {meta.namespace}/{meta.name} at home is deleted")


async def _gone(client: Client, resource: Resource[Any], name: str, namespace: str = "") -> bool:
    """Delete what may be there."""
    try:
        await client.delete(resource, name, namespace=namespace)
    except NotFoundError:
        return False
    return True


async def _disarm(member: Client, account: ManagerAccount, patience: float) -> None:
    """Take the account's rights, and wait until the server knows."""
    await _remove_kinds(member, account, (CLUSTER_BINDINGS, ROLE_BINDINGS), lambda _: None)
    for one in (await member.list(ROLE_BINDINGS)).items:
        # Those that namespaces made by hand.
        if (one.get("roleRef") or {}).get("name") == account.references_role:
            key = meta_of(one)
            await _gone(member, ROLE_BINDINGS, key.name, key.namespace)
    groups = ["system:authenticated", "system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE_MEMBERS}"]
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": account.user, "groups": groups, "resourceAttributes": {"resource": "pods", "verb": "patch"}},
    }
    try:
        async with asyncio.timeout(patience):
            while review_allows(await member.request("POST", _REVIEWS, body=body, max_bytes=1 << 20)):  # noqa: ASYNC110
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise JoinError(
            f"{account.user} may patch pods by rights that somebody else gave it: find them by kubectl get "
            "clusterrolebindings,rolebindings -A -o wide, remove them, and run this again"
        ) from None


async def _free_copies(
    member: Client, account: ManagerAccount, report: LeaveReport, *, end_running: bool
) -> dict[str, _Ending | None]:
    """Free every copy; what its pod at home is told, by the UID of that."""
    endings: dict[str, _Ending | None] = {}
    counted: set[str] = set()
    for _ in range(_ROUNDS):
        again = False
        for copy in (await member.list(PODS, labels=f"{clusters.LABEL_ORIGIN}={account.home}")).items:
            fate = fate_of(copy, end_running=end_running)
            if fate is CopyFate.LEFT and not _bound_to_manager(copy):
                endings.update(_ending(copy, fate))
                continue  # freed before
            try:
                await _free(member, copy, fate)
            except NotFoundError:
                continue
            except ConflictError:
                again = True
                continue
            if copy.metadata.uid not in counted:
                report.copies[fate] = report.copies.get(fate, 0) + 1
            counted.add(copy.metadata.uid)
            endings.update(_ending(copy, fate))
        if not again:
            break
        await asyncio.sleep(_PAUSE)
    else:
        raise JoinError("copies change all the time: stop the manager, and run this again")
    return endings


def _bound_to_manager(copy: Pod) -> bool:
    patch = stripped(copy)["metadata"]
    meta = copy.metadata
    return (patch["finalizers"] or []) != list(meta.finalizers) or len(patch["ownerReferences"] or ()) != len(
        meta.owner_references
    )


async def _free(member: Client, copy: Pod, fate: CopyFate) -> None:
    meta = copy.metadata
    version = meta.resource_version
    if _bound_to_manager(copy):
        version = (
            await member.patch(PODS, meta.name, stripped(copy), namespace=meta.namespace)
        ).metadata.resource_version
    if fate is CopyFate.UNDONE:
        # In the version without a node: a scheduler may be about to bind one that was opened.
        await member.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version)
    elif fate is not CopyFate.LEFT and not meta.deletion_timestamp:
        await member.delete(PODS, meta.name, namespace=meta.namespace, uid=meta.uid)


def _ending(copy: Pod, fate: CopyFate) -> dict[str, _Ending | None]:
    written = copy.metadata.annotations.get(clusters.ANNOTATION_ORIGIN, "")
    try:
        origin = clusters.decode(clusters.CopyOrigin, written, what=clusters.ANNOTATION_ORIGIN)
    except CodecError:
        return {}
    match fate:
        case CopyFate.LEFT:
            return {origin.uid: None}
        case CopyFate.UNDONE:
            return {origin.uid: _Ending()}
        case CopyFate.OVER:
            return {origin.uid: _Ending(copy.status.phase, f"it ended as {copy.status.phase} in a cluster that left")}
        case CopyFate.ENDED:
            return {origin.uid: _Ending("Failed", "its cluster left, and it was deleted there")}


async def _remove_objects(member: Client, account: ManagerAccount, say: Say) -> None:
    """Leases, tokens, account, roles and policies; the namespace if nobody else has an account there."""
    for lease in (await member.list(LEASES, fields=f"metadata.name={account.fence}")).items:
        await _gone(member, LEASES, account.fence, lease.metadata.namespace)
    for secret in await token_secrets(member, account):
        await _gone(member, SECRETS, secret.metadata.name, NAMESPACE_MEMBERS)
    await _remove_kinds(member, account, _KINDS, say)
    others = (await member.list(ACCOUNTS, namespace=NAMESPACE_MEMBERS)).items
    if all(one["metadata"]["name"] == "default" for one in others) and await _gone(
        member, NAMESPACES, NAMESPACE_MEMBERS
    ):
        say(f"Namespace {NAMESPACE_MEMBERS} is deleted")


async def _remove_kinds(
    member: Client, account: ManagerAccount, kinds: Iterable[Resource[RawObject]], say: Say
) -> None:
    """Delete what carries the label of the account's home, in whichever namespace it is."""
    for kind in kinds:
        for one in (await member.list(kind, labels=f"{clusters.LABEL_ORIGIN}={account.home}")).items:
            key = meta_of(one)
            if await _gone(member, kind, key.name, key.namespace):
                say(f"{kind.kind} {key.name} is deleted")


# Forgetting


async def forget(
    home: Client, name: str, *, namespace: str, now: str, dead: bool, say: Say = lambda _: None
) -> LeaveReport:
    """Take a cluster out without asking it. Raises JoinError while pods are there, unless it is said to be dead."""
    found = [one for one in await joined_secrets(home, namespace) if _named(one, name)]
    uids = {one.metadata.annotations.get(clusters.ANNOTATION_CLUSTER_UID, "") for one in found}
    report = LeaveReport()
    at_home = _AtHome(home, name, uids.pop() if len(uids) == 1 else "", now, report)
    sent = await at_home.sent()
    if not found and not sent:
        known = ", ".join(sorted(_names(await joined_secrets(home, namespace)))) or "none"
        raise JoinError(
            f"no Secret in {namespace} names a cluster {name}, and no pod was sent to it: known are {known}"
        )
    if sent and not dead:
        shown = ", ".join(f"{pod.metadata.namespace}/{pod.metadata.name}" for pod, _ in sent[:3])
        raise JoinError(
            f"pods were sent to {name} and may run there, {len(sent)} in all: {shown}: take it out by shoal clusters "
            f"leave {name}; or, if nothing runs there any more, shoal clusters forget {name} --dead"
        )
    await _remove_secrets(home, found, say)
    await at_home.tell({}, _Ending("Failed", f"cluster {name} is dead, by the word of an administrator", True))
    return report


def _names(found: Iterable[Secret]) -> Iterable[str]:
    return (one.metadata.labels.get(clusters.LABEL_CLUSTER, "") for one in found)
