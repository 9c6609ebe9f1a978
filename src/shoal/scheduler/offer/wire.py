"""An offer as it travels: JSON in and out, bounded and strictly read. What the pod says of itself is a stranger's."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.pod import Pod
from shoal.model.contract.clusters import Offer, OfferRequest
from shoal.scheduler.errors import WireError

#: Longest request: a pod of the size that the API server takes, and a little.
MAX_BODY: Final = 2 << 20
#: What a decision reads of a pod, annotations aside: ten times that of a large one. More would take seconds to decide.
MAX_SPEC: Final = 32 << 10
#: Longest `why`: what the contract lets through.
MAX_WHY: Final = 4096

_decoder = msgspec.json.Decoder(OfferRequest)
_encode = msgspec.json.Encoder().encode


def read(body: bytes) -> tuple[OfferRequest, Pod]:
    """What is asked, and the pod. Raises WireError."""
    try:
        asked = _decoder.decode(body)
        pod = msgspec.convert(asked.pod, Pod)
        read_of_it = len(_encode((pod.spec, pod.metadata.labels)))
    except RecursionError:
        raise WireError("the request is nested too deeply: send a pod as the API server has it") from None
    except (msgspec.MsgspecError, UnicodeError) as error:
        # msgspec names the place and the types, never the value.
        why = str(error) if isinstance(error, msgspec.MsgspecError) else "it is no UTF-8"
        raise WireError(f"the request cannot be read: {why}: send pod, count, origin and hold as JSON") from None
    if read_of_it > MAX_SPEC:
        raise WireError(
            f"the pod has {read_of_it} bytes of containers, selectors, affinity and volumes, at most {MAX_SPEC} are "
            "looked at: make it smaller"
        )
    return asked, pod


def write(offer: Offer) -> bytes:
    """The answer."""
    if len(offer.why) > MAX_WHY:
        offer = msgspec.structs.replace(offer, why=offer.why[: MAX_WHY - 1] + "…")
    return _encode(offer)


def asked_pod(pod: Pod, uid: str) -> Pod:
    """The pod as it would be here, under another UID: nothing of where it is at home, nor what keeps it there.

    Claims that come with the pod are left out: they are made when the pod is.
    """
    meta, spec = pod.metadata, pod.spec
    return Pod(
        metadata=ObjectMeta(
            name=meta.name, namespace=meta.namespace, uid=uid, labels=meta.labels, annotations=meta.annotations
        ),
        spec=msgspec.structs.replace(
            spec,
            node_name="",
            scheduling_gates=(),
            volumes=tuple(volume for volume in spec.volumes if volume.ephemeral is None),
        ),
    )


def again(pod: Pod, uid: str) -> Pod:
    """One more such pod."""
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, uid=uid))
