"""Asks one cluster's scheduler whether it has room for a pod.

The way in is the address that the member names, or its API server's `services/proxy` on the Service `shoal-offer`; that
drops the header Authorization, so the token travels in one of ours, and in no other request. What comes back is a
stranger's word: bounded, read strictly, and a problem in words when it is no offer. A cluster that has no such Service
has no Shoal: a pod is tried there.

What is asked of a pod is what placement looks at. Its environment, commands and data stay at home: most of those asked
do not get the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from shoal.clusters.choice import Unasked, clipped
from shoal.clusters.member import Member
from shoal.kube.access.credentials import Access, Inline
from shoal.kube.client import Client
from shoal.kube.errors import ApiError, ForbiddenError, KubeError, NotFoundError, UnavailableError
from shoal.kube.resources import RawObject
from shoal.model.contract import clusters as contract
from shoal.model.contract import keti, kubernetes
from shoal.model.contract.clusters import Offer, OfferRequest
from shoal.model.errors import CodecError

#: An offer is some hundred bytes.
MAX_ANSWER: Final = 16 << 10
ASK_SECONDS: Final = 2.0
_PORT: Final = f"https:{contract.NAME_OFFER_SERVICE}:{contract.OFFER_PORT}"

Answer = Offer | Unasked | str

#: Parts of a pod's spec that placement does not look at, or that are each pod's own.
_NOT_ASKED: Final = frozenset(
    {"schedulingGates", "nodeName", "hostname", "hostAliases", "imagePullSecrets", "dnsConfig", "subdomain"}
)
_OF_CONTAINER: Final = frozenset({"name", "image", "resources", "ports", "restartPolicy"})
#: Of volumes only claims matter to where a pod can run.
_OF_VOLUME: Final = frozenset({"name", "persistentVolumeClaim", "ephemeral"})
#: What controllers write on each pod; no affinity can name it before the pod is there.
_OWN_LABELS: Final = frozenset(
    {
        "batch.kubernetes.io/controller-uid",
        kubernetes.LABEL_JOB,
        kubernetes.ANNOTATION_COMPLETION_INDEX,
        "controller-uid",
        "job-name",
        "pod-template-hash",
        "controller-revision-hash",
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
    }
)
#: What home has read, and copies do not carry.
_OWN_ANNOTATIONS: Final = frozenset(
    {
        contract.ANNOTATION_DISPATCH,
        contract.ANNOTATION_CLUSTERS,
        contract.ANNOTATION_AVOID_CLUSTERS,
        contract.ANNOTATION_SPREAD,
        contract.ANNOTATION_LOST,
        keti.ANNOTATION_CLUSTER,
        kubernetes.ANNOTATION_LAST_APPLIED,
        kubernetes.ANNOTATION_COMPLETION_INDEX,
    }
)
_CONTAINERS: Final = ("initContainers", "containers")


def asked_pod(pod: RawObject) -> RawObject:
    """The pod as it is shown to the clusters that are asked: equal for pods of one template."""
    meta, spec = _mapping(pod.get("metadata")), _mapping(pod.get("spec"))
    shown = {key: value for key, value in spec.items() if key not in _NOT_ASKED}
    for kind in _CONTAINERS:
        if kind in shown:
            shown[kind] = [
                {key: value for key, value in _mapping(one).items() if key in _OF_CONTAINER}
                for one in _list(spec[kind])
            ]
    if "volumes" in shown:
        volumes = [_only(_mapping(one), _OF_VOLUME) for one in _list(spec["volumes"])]
        shown["volumes"] = [
            one for one in volumes if not str(one.get("name", "")).startswith(kubernetes.VOLUME_TOKEN_PREFIX)
        ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": meta.get("namespace", ""),
            "labels": _without(_mapping(meta.get("labels")), _OWN_LABELS),
            "annotations": _without(_mapping(meta.get("annotations")), _OWN_ANNOTATIONS),
        },
        "spec": shown,
    }


def _only(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key in names}


def _without(values: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


class OfferClient:
    """Asks members for offers. Use it in `async with`."""

    def __init__(self, *, seconds: float = ASK_SECONDS) -> None:
        """`seconds`: within which a member has to answer."""
        self._seconds = seconds
        #: Clients of members that are asked directly, by what they are made of.
        self._direct: dict[tuple[str, str, bytes, int], Client] = {}
        self._open = contextlib.AsyncExitStack()

    async def __aenter__(self) -> OfferClient:
        await self._open.__aenter__()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._direct.clear()
        await self._open.aclose()

    async def ask(self, member: Member, request: OfferRequest) -> Answer:
        """The member's offer, that it has no Shoal, or the problem in words. It does not raise."""
        try:
            body = contract.encode(request, what="the pod").encode()
            async with asyncio.timeout(self._seconds):
                return _read(await self._answer(member, body))
        except TimeoutError:
            return f"no answer within {self._seconds:g} s: check the network to it, and its scheduler"
        except CodecError as error:
            return clipped(f"cannot be asked, or answered with something else than an offer: {error}")
        except NotFoundError as error:
            return _not_found(error)
        except ForbiddenError as error:
            return clipped(f"the manager may not ask it: join it again with shoal clusters join: {error.message}")
        except UnavailableError as error:
            return clipped(f"its scheduler does not answer: check that shoal-scheduler runs there: {error.message}")
        except KubeError as error:
            return clipped(str(error))

    async def _answer(self, member: Member, body: bytes) -> bytes:
        if member.offer_url:
            client = await self._client_of(member)
            return await _post(client, contract.PATH_OFFER, body, self._seconds, {})
        token = (await member.client.access.credentials.current()).token
        secure = member.client.access.server.startswith("https://")
        if not token or not secure:
            lacks = "a token, and its kubeconfig has a certificate" if secure else "TLS"
            raise CodecError(f"asking needs {lacks}: join it with shoal clusters join")
        resource = f"/api/v1/namespaces/{member.namespace}/services/{_PORT}/proxy{contract.PATH_OFFER}"
        return await _post(member.client, resource, body, self._seconds, {contract.HEADER_TOKEN: token})

    async def _client_of(self, member: Member) -> Client:
        """The client of a direct address, which signs with the member's credentials."""
        if not member.offer_url.startswith("https://"):
            raise CodecError(f"{contract.ANNOTATION_OFFER_URL} is {member.offer_url!r}: write https://HOST:PORT")
        credentials = member.client.access.credentials
        key = (member.uid, member.offer_url, member.offer_authority, id(credentials))
        found = self._direct.get(key)
        if found is None:
            authority = Inline(member.offer_authority) if member.offer_authority else None
            client = Client(Access(member.offer_url.rstrip("/"), credentials, authority=authority))
            found = self._direct[key] = await self._open.enter_async_context(client)
        return found


async def _post(client: Client, path: str, body: bytes, seconds: float, headers: Mapping[str, str]) -> bytes:
    # Twice is as good as once: a hold belongs to the pod's UID. The caller's time limit, which holds for all attempts
    # together, comes first.
    return await client.request(
        "POST", path, body=body, headers=headers, repeatable=True, seconds=2 * seconds, max_bytes=MAX_ANSWER
    )


def _read(answer: bytes) -> Offer:
    try:
        written = answer.decode()
    except UnicodeDecodeError as error:
        raise CodecError("the answer is no text") from error
    return contract.decode(Offer, written, what="the answer")


def _not_found(error: ApiError) -> Answer:
    """The API server knows no such Service; a 404 of somebody behind it carries no reason of Kubernetes."""
    return Unasked.TRIAL if error.reason == "NotFound" else clipped(f"nobody answers there: {error.message}")
