"""Joins a cluster to a home: writes account and policies there with an administrator's rights, and a Secret at home.

Policies come first, then the rights, then a token; the token goes home only after the account has been seen to be
allowed what it needs and to be held by its policies. Joining again is how a token is renewed: the new one stands at
home before the old ones are revoked. Whatever step it ends at, it can be run again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from shoal.clusters.errors import JoinError
from shoal.clusters.join import (
    ACCOUNTS,
    JoinedAs,
    ManagerAccount,
    Placed,
    check_name,
    confinement,
    expected,
    home_secret,
    member_kubeconfig,
    rights,
    secret_name,
    spelled,
    token_secret,
)
from shoal.clusters.members import cluster_uid
from shoal.clusters.opened import NO_TOKEN
from shoal.kube.access.credentials import Access, Inline, StoredCredential
from shoal.kube.client import Client
from shoal.kube.codec import codec_of
from shoal.kube.errors import ForbiddenError, KubeError, NotFoundError
from shoal.kube.objects.others import Secret
from shoal.kube.resources import LEASES, PODS, SECRETS, RawObject, Resource, meta_of
from shoal.model.contract import clusters
from shoal.model.contract.clusters import NAMESPACE_MEMBERS

_PAUSE: Final = 0.2
_REVIEWS: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_PRIORITY_CLASSES: Final[Resource[RawObject]] = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", dict, namespaced=False, whole=True
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JoinWish:
    """What a cluster shall be joined as. `namespace`: the manager's at home."""

    name: str
    namespace: str
    scheduler_namespace: str = "kube-system"
    #: The address at which home reaches it, where that is not the administrator's.
    server: str = ""
    #: The proxy by which home reaches it; may hold a password.
    proxy: str = field(default="", repr=False)
    cost: float = 0.0
    preference: float = 0.0
    #: The ServiceAccount of dispatched pods.
    pod_account: str = clusters.DEFAULT_POD_ACCOUNT
    #: A direct way to its scheduler, and the certificates (PEM) that the scheduler's own is signed with; empty: through
    #: its API server.
    offer_url: str = ""
    offer_authority: bytes = b""
    #: After how many seconds the token ends; 0: never.
    token_seconds: int = 0


@dataclass(frozen=True, slots=True)
class JoinReport:
    """What was joined, and what an administrator should look at."""

    name: str
    uid: str
    home: str
    account: ManagerAccount
    notes: tuple[str, ...] = ()


async def join(
    home: Client, member: Client, wish: JoinWish, *, patience: float = 60.0, say: Say = lambda _: None
) -> JoinReport:
    """Join a cluster. Both clients are administrators'. Raises KubeError."""
    check_name(wish.name)
    check_access(member.access, wish)
    account = ManagerAccount(
        await cluster_uid(home), wish.scheduler_namespace, wish.pod_account, await _default_priority(member)
    )
    uid = await cluster_uid(member)
    check_free(await joined_secrets(home, wish.namespace), wish.name, uid)
    await _apply(member, confinement(account), say)
    await _apply(member, rights(account), say)
    token = await (
        _ending_token(member, account, wish.token_seconds)
        if wish.token_seconds
        else _endless_token(member, account, patience)
    )
    joined = _joined_as(member.access, wish, uid)
    say(f"asking as {account.user}")
    async with Client(_account_access(member.access, joined, token.value)) as own:
        notes = await _verify(own, account, uid, patience)
    await home.apply(SECRETS.raw, home_secret(joined, token.value), force=True)
    say(f"Secret {wish.namespace}/{secret_name(wish.name)} is written at home")
    await _revoke_others(member, account, token.name)
    return JoinReport(wish.name, uid, account.home, account, notes)


async def _default_priority(member: Client) -> str:
    """The PriorityClass that the member's API server gives to pods without one; of several the lowest, as it does."""
    found = [one for one in (await member.list(_PRIORITY_CLASSES)).items if one.get("globalDefault") is True]
    return str(min(found, key=lambda one: int(one.get("value", 0)))["metadata"]["name"]) if found else ""


def check_access(access: Access, wish: JoinWish) -> None:
    """Raise JoinError if the way an administrator reaches a cluster is none for a manager."""
    server = wish.server or access.server
    if not server.startswith("https://"):
        raise JoinError(f"{server} is not https://: a token would be sent in the clear: give another by --server")
    if not access.verify:
        raise JoinError(
            "the context has insecure-skip-tls-verify: a manager takes no server that it cannot know: give "
            "certificate-authority-data in the kubeconfig"
        )
    if wish.offer_url and not wish.offer_url.startswith("https://"):
        raise JoinError(f"{wish.offer_url} is not https://: a token would be sent in the clear: correct --offer-url")


def check_free(found: Iterable[Secret], name: str, uid: str) -> None:
    """Raise JoinError if the name is another cluster's, or the cluster is joined under another name."""
    entries = [
        (
            one.metadata.labels.get(clusters.LABEL_CLUSTER, ""),
            one.metadata.annotations.get(clusters.ANNOTATION_CLUSTER_UID, ""),
            f"Secret {one.metadata.namespace}/{one.metadata.name}",
        )
        for one in found
    ]
    for other, known, where in entries:
        if other == name and known not in ("", uid):
            raise JoinError(
                f"{name} is the name of another cluster (UID {known}, {where}): choose another name, or first "
                f"shoal clusters leave {name}"
            )
    for other, known, where in entries:
        if other != name and known == uid:
            raise JoinError(
                f"that cluster (UID {uid}) is joined as {other} ({where}): go on by that name, or first "
                f"shoal clusters leave {other}"
            )


async def joined_secrets(home: Client, namespace: str) -> list[Secret]:
    """The Secrets at home of joined clusters."""
    return (await home.list(SECRETS, namespace=namespace, labels=clusters.LABEL_CLUSTER)).items


async def _apply(client: Client, objects: Iterable[Placed], say: Say) -> None:
    for one in objects:
        try:
            await client.apply(one.resource, one.manifest, namespace=one.namespace, force=True)
        except NotFoundError as error:
            if one.namespace and one.namespace != NAMESPACE_MEMBERS:
                raise JoinError(
                    f"the cluster has no namespace {one.namespace}: name that of its scheduler by --scheduler-namespace"
                ) from error
            raise JoinError(
                f"the cluster knows no {one.resource.kind} of {one.resource.api_version}, without which the account "
                "could not be kept to its copies: upgrade it to Kubernetes 1.30 or newer"
            ) from error
        say(f"{one.resource.kind} {one.name} is written")


# Tokens


@dataclass(frozen=True, slots=True)
class _IssuedToken:
    name: str
    value: str

    def __repr__(self) -> str:
        return f"_IssuedToken({self.name})"


async def _ending_token(member: Client, account: ManagerAccount, seconds: int) -> _IssuedToken:
    """A token that ends by itself, or with the Secret that it is bound to and is not in."""
    manifest = {**token_secret(account, secrets.token_hex(4)), "type": "Opaque"}
    made = await member.create(SECRETS.raw, manifest, namespace=NAMESPACE_MEMBERS)
    meta = meta_of(made)
    bound = {"apiVersion": "v1", "kind": "Secret", "name": meta.name, "uid": meta.uid}
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": seconds, "boundObjectRef": bound},
    }
    path = ACCOUNTS.path(namespace=NAMESPACE_MEMBERS, name=account.name, subresource="token")
    answer: Any = codec_of(dict).one(await member.request("POST", path, body=body), asked=f"POST {path}")
    token = (answer.get("status") or {}).get("token")
    if not isinstance(token, str) or not token:
        raise JoinError(f"the server gave no token for {account.user}: join without a lifetime")
    return _IssuedToken(meta.name, token)


async def _endless_token(member: Client, account: ManagerAccount, patience: float) -> _IssuedToken:
    """A token in a Secret, which the cluster's controllers fill."""
    made = await member.create(SECRETS.raw, token_secret(account, secrets.token_hex(4)), namespace=NAMESPACE_MEMBERS)
    name = str(made["metadata"]["name"])
    try:
        async with asyncio.timeout(patience):
            while True:
                found = await member.get(SECRETS, name, namespace=NAMESPACE_MEMBERS)
                if written := found.data.get("token"):
                    return _IssuedToken(name, base64.b64decode(written, validate=True).decode("ascii"))
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise JoinError(
            f"Secret {NAMESPACE_MEMBERS}/{name} has no token after {patience:g} s: check that "
            "kube-controller-manager runs there, or give the token a --token-lifetime"
        ) from None
    except (binascii.Error, UnicodeDecodeError) as error:
        raise JoinError(f"Secret {NAMESPACE_MEMBERS}/{name} holds no token: delete it, and join again") from error


async def _revoke_others(member: Client, account: ManagerAccount, kept: str) -> None:
    """Revoke the tokens that were given before."""
    for one in await token_secrets(member, account):
        if one.metadata.name != kept:
            await member.delete(SECRETS, one.metadata.name, namespace=NAMESPACE_MEMBERS, uid=one.metadata.uid)


async def token_secrets(member: Client, account: ManagerAccount) -> list[Secret]:
    """The Secrets with tokens of the account."""
    labels = f"{clusters.LABEL_ORIGIN}={account.home}"
    return (await member.list(SECRETS, namespace=NAMESPACE_MEMBERS, labels=labels)).items


def _joined_as(access: Access, wish: JoinWish, uid: str) -> JoinedAs:
    return JoinedAs(
        name=wish.name,
        uid=uid,
        server=(wish.server or access.server).rstrip("/"),
        namespace=wish.namespace,
        scheduler_namespace=wish.scheduler_namespace,
        authority=None if access.authority is None else access.authority.read(),
        server_name=access.server_name,
        proxy=wish.proxy,
        cost=wish.cost,
        preference=wish.preference,
        pod_account=wish.pod_account,
        offer_url=wish.offer_url,
        offer_authority=wish.offer_authority,
    )


def _account_access(access: Access, joined: JoinedAs, token: str) -> Access:
    """As the account, by the administrator's way: home may see addresses that are not seen from here."""
    authority = None if joined.authority is None else Inline(joined.authority)
    return Access(
        server=access.server,
        credentials=StoredCredential(
            token=Inline(member_kubeconfig(joined, token)["users"][0]["user"]["token"].encode())
        ),
        authority=authority,
        server_name=access.server_name,
        proxy=access.proxy,
    )


# What the new account is seen to be


async def _verify(own: Client, account: ManagerAccount, uid: str, patience: float) -> tuple[str, ...]:
    """Wait until the account has its rights and is held by its policies; what it has beyond them, in words."""
    why = ""
    try:
        async with asyncio.timeout(patience):
            while True:
                why, notes = await _look(own, account, uid)
                if not why:
                    return notes
                await asyncio.sleep(_PAUSE)
    except TimeoutError:
        raise JoinError(f"after {patience:g} s the account {account.user} {why or 'got no answer'}") from None


async def _look(own: Client, account: ManagerAccount, uid: str) -> tuple[str, tuple[str, ...]]:
    """What is still missing, and what is too much."""
    try:
        if (found := await cluster_uid(own)) != uid:
            raise JoinError(f"two clusters answer at one address, {uid} and {found}: give the address of one")
        notes = []
        for attributes, may in expected(account):
            allowed = await may_do(own, attributes)
            if may and not allowed:
                return f"may not {spelled(attributes)}: look for what takes that right away", ()
            if allowed and not may:
                notes.append(
                    f"{account.user} may {spelled(attributes)}, by rights that somebody else gave it: see RBAC"
                )
        if policy := await unconfined(own, account):
            return f"is not held by policy {policy}: look at kubectl get validatingadmissionpolicy -o yaml", ()
    except JoinError:
        raise
    except KubeError as error:
        return f"is not known yet: {error}", ()
    return "", tuple(notes)


async def may_do(client: Client, attributes: RawObject) -> bool:
    """Whether a client's account has a right. Raises KubeError."""
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    return review_allows(await client.request("POST", _REVIEWS, body=body, max_bytes=1 << 20))


def review_allows(answer: bytes) -> bool:
    """What an access review says."""
    status: Any = codec_of(dict).one(answer, asked=f"POST {_REVIEWS}").get("status")
    return isinstance(status, dict) and status.get("allowed") is True


async def unconfined(own: Client, account: ManagerAccount) -> str:
    """The policy that does not hold the account, or of which an earlier version does; empty if all hold.

    Writes that only a policy refuses are tried without effect. Raises KubeError.
    """
    for policy, words, path, body in _forbidden(account):
        try:
            await own.request("POST", path, query={"dryRun": "All"}, body=body)
        except ForbiddenError as error:
            if policy in error.message and words in error.message:
                continue
        return policy
    return ""


def _forbidden(account: ManagerAccount) -> list[tuple[str, str, str, RawObject]]:
    """Writes that only a policy refuses: the policy, words of its message, the path, the object."""
    pod = {
        "metadata": {"name": "shoal-join-check", "namespace": NAMESPACE_MEMBERS},
        "spec": {"serviceAccountName": account.name, "containers": [{"name": "none", "image": "none.invalid/none"}]},
    }
    lease = {"metadata": {"name": "shoal-join-check", "namespace": NAMESPACE_MEMBERS}, "spec": {}}
    return [
        (f"{account.name}-copies", NO_TOKEN, PODS.path(namespace=NAMESPACE_MEMBERS), pod),
        (f"{account.name}-leases", "", LEASES.path(namespace=NAMESPACE_MEMBERS), lease),
    ]
