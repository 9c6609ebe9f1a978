"""One API call for each step of a dispatch, with the condition under which it may be done.

Home is written in the version that was seen; a copy is opened and released if it is the one seen, and deleted in the
version seen. Any call may be lost after the server acted on it: done again it changes nothing, or is refused, and the
pods are looked at again. Nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from shoal.clusters.copies import DISPATCHED_PODS, DispatchedPod, copy_of, gates_of, whole
from shoal.clusters.dispatch import Absent
from shoal.clusters.opened import NamespaceTerms, with_terms
from shoal.kube.client import Client
from shoal.kube.errors import (
    AlreadyExistsError,
    BadRequestError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    KubeError,
    NotFoundError,
)
from shoal.model.contract import clusters
from shoal.model.contract.clusters import CopyOrigin, Sent

_REFUSALS: Final = (BadRequestError, ForbiddenError, InvalidError, NotFoundError)


class CallResult(Enum):
    """What came of a call."""

    DONE = "done"
    #: It is not as it was when it was seen.
    CHANGED = "changed"
    #: The server does not take it, and would not if it were sent again.
    REFUSED = "refused"
    #: No answer: it may have been done.
    SILENT = "silent"


@dataclass(frozen=True, slots=True)
class CallAnswer:
    """What came of a call, the object as the server showed it, and the reason where it was not done."""

    result: CallResult
    pod: DispatchedPod | Absent = Absent.UNKNOWN
    why: str = ""


# Reads: from the server itself, since no version is given


async def read(client: Client, namespace: str, name: str) -> CallAnswer:
    """The pod of that name, GONE if there is none."""
    try:
        return CallAnswer(CallResult.DONE, await client.get(DISPATCHED_PODS, name, namespace=namespace))
    except NotFoundError:
        return CallAnswer(CallResult.DONE, Absent.GONE)
    except KubeError as error:
        return CallAnswer(CallResult.SILENT, why=str(error))


# At home


async def write_dispatch(client: Client, home: DispatchedPod, sent: Sent) -> CallAnswer:
    """CLAIM, LEAVE, STAY, UNCLAIM: where the pod was sent, in the version seen."""
    written = clusters.encode(sent, what=clusters.ANNOTATION_DISPATCH)
    return await _write_home(client, home, {"metadata": {"annotations": {clusters.ANNOTATION_DISPATCH: written}}})


async def open_at_home(client: Client, home: DispatchedPod) -> CallAnswer:
    """OPEN_AT_HOME: without gate and finalizer, in the version seen."""
    gates = [{"name": name} for name in gates_of(home) if name != clusters.GATE_HOME]
    patch = {"metadata": {"finalizers": _finalizers(home)}, "spec": {"schedulingGates": gates}}
    return await _write_home(client, home, patch)


async def release_home(client: Client, home: DispatchedPod) -> CallAnswer:
    """RELEASE_HOME: without the finalizer, in the version seen."""
    return await _write_home(client, home, {"metadata": {"finalizers": _finalizers(home)}})


async def write_status(client: Client, home: DispatchedPod, status: Mapping[str, Any]) -> CallAnswer:
    """MIRROR, FINISH: the status, in the version seen."""
    return await _write_home(client, home, {"metadata": {}, "status": dict(status)}, subresource="status")


def _finalizers(home: DispatchedPod) -> list[str]:
    return [name for name in home.metadata.finalizers if name != clusters.FINALIZER_HOME]


async def _write_home(
    client: Client, home: DispatchedPod, patch: dict[str, Any], *, subresource: str = ""
) -> CallAnswer:
    meta = home.metadata
    # The UID too: a version is one of a whole server, and this costs nothing.
    patch["metadata"] |= {"resourceVersion": meta.resource_version, "uid": meta.uid}
    try:
        written = await client.patch(
            DISPATCHED_PODS,
            meta.name,
            patch,
            namespace=meta.namespace,
            kind="strategic" if subresource else "merge",
            subresource=subresource,
        )
        return CallAnswer(CallResult.DONE, written)
    except ConflictError as error:
        return CallAnswer(CallResult.CHANGED, why=str(error))
    except NotFoundError:
        return CallAnswer(CallResult.CHANGED, Absent.GONE)
    except (BadRequestError, ForbiddenError, InvalidError) as error:
        return CallAnswer(CallResult.REFUSED, why=str(error))
    except KubeError as error:
        return CallAnswer(CallResult.SILENT, why=str(error))


# In the member


async def create_copy(
    client: Client, home: DispatchedPod, origin: CopyOrigin, terms: NamespaceTerms, *, pod_account: str
) -> CallAnswer:
    """CREATE_COPY. A pod of that name that is there already is shown as it is: ours is as good as made now."""
    manifest = whole(home)
    assert manifest is not None, "the whole pod is read before"
    meta = home.metadata
    copy = with_terms(copy_of(manifest, origin), terms, home=origin.cluster, pod_account=pod_account)
    try:
        return CallAnswer(CallResult.DONE, await client.create(DISPATCHED_PODS, copy))
    except AlreadyExistsError:
        return await read(client, meta.namespace, meta.name)
    except _REFUSALS as error:
        return CallAnswer(CallResult.REFUSED, why=error.message)
    except ConflictError as error:
        return CallAnswer(CallResult.CHANGED, why=str(error))
    except KubeError as error:
        return CallAnswer(CallResult.SILENT, why=str(error))


async def open_copy(client: Client, copy: DispatchedPod) -> CallAnswer:
    """OPEN_COPY: gate away and finalizer there in one write. A server gives none that is being deleted a finalizer."""
    place = gates_of(copy).index(clusters.GATE_COPY)
    patch: list[dict[str, Any]] = [
        {"op": "test", "path": "/metadata/uid", "value": copy.metadata.uid},
        {"op": "test", "path": f"/spec/schedulingGates/{place}/name", "value": clusters.GATE_COPY},
        {"op": "remove", "path": f"/spec/schedulingGates/{place}"},
    ]
    if copy.metadata.finalizers:
        patch.append({"op": "add", "path": "/metadata/finalizers/-", "value": clusters.FINALIZER_COPY})
    else:
        # Somebody else's finalizer, given since, would be lost.
        patch.append({"op": "test", "path": "/metadata/resourceVersion", "value": copy.metadata.resource_version})
        patch.append({"op": "add", "path": "/metadata/finalizers", "value": [clusters.FINALIZER_COPY]})
    return await _write_copy(client, copy, patch)


async def release_copy(client: Client, copy: DispatchedPod) -> CallAnswer:
    """RELEASE_COPY: without the finalizer, if it is the one seen."""
    place = copy.metadata.finalizers.index(clusters.FINALIZER_COPY)
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": copy.metadata.uid},
        {"op": "test", "path": f"/metadata/finalizers/{place}", "value": clusters.FINALIZER_COPY},
        {"op": "remove", "path": f"/metadata/finalizers/{place}"},
    ]
    answer = await _write_copy(client, copy, patch)
    # The server shows the last finalizer taken from an object that it has removed with that.
    return CallAnswer(CallResult.DONE) if answer.result is CallResult.DONE else answer


async def delete_copy(client: Client, copy: DispatchedPod, *, any_version: bool) -> CallAnswer:
    """DELETE_COPY in the version seen; END_COPY whatever it does, if it is the one seen."""
    meta = copy.metadata
    version = "" if any_version else meta.resource_version
    try:
        await client.delete(
            DISPATCHED_PODS, meta.name, namespace=meta.namespace, uid=meta.uid, resource_version=version
        )
        return CallAnswer(CallResult.DONE)
    except NotFoundError:
        return CallAnswer(CallResult.DONE, Absent.GONE)
    except ConflictError as error:
        return CallAnswer(CallResult.CHANGED, why=str(error))
    except (BadRequestError, ForbiddenError, InvalidError) as error:
        return CallAnswer(CallResult.REFUSED, why=str(error))
    except KubeError as error:
        return CallAnswer(CallResult.SILENT, why=str(error))


async def _write_copy(client: Client, copy: DispatchedPod, patch: Sequence[Mapping[str, Any]]) -> CallAnswer:
    meta = copy.metadata
    try:
        written = await client.patch(DISPATCHED_PODS, meta.name, patch, namespace=meta.namespace, kind="json")
        return CallAnswer(CallResult.DONE, written)
    except NotFoundError:
        return CallAnswer(CallResult.CHANGED, Absent.GONE)
    except (ConflictError, InvalidError) as error:
        # 422 is what a test that fails is answered with.
        return CallAnswer(CallResult.CHANGED, why=str(error))
    except (BadRequestError, ForbiddenError) as error:
        return CallAnswer(CallResult.REFUSED, why=str(error))
    except KubeError as error:
        return CallAnswer(CallResult.SILENT, why=str(error))
