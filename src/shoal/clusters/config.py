"""Settings of the cluster manager. Every value is checked when they are made."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from shoal.clusters.keti_grpc import KetiClusterSettings
from shoal.model.contract import nvidia
from shoal.model.contract.clusters import FENCE_GRACES, NAME_MANAGER
from shoal.model.contract.gpushare import MemoryUnit

#: The key of the ConfigMap that deploy/cluster-manager mounts.
KEY_SETTINGS: Final = "cluster-manager.yaml"

_LEAST_MARGIN: Final = 5.0
_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")]
_NameOrNone = Annotated[str, msgspec.Meta(pattern=r"\A([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z")]
_ClusterNameOrNone = Annotated[str, msgspec.Meta(pattern=r"\A([a-z0-9A-Z]([a-z0-9A-Z._-]{0,251}[a-z0-9A-Z])?)?\Z")]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=86400)]


class ClusterManagerConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings."""

    #: The manager's own namespace: its Lease is there. Empty: that of its pod.
    namespace: _NameOrNone = ""
    #: The Lease by which one of several replicas leads.
    lease_name: _Name = NAME_MANAGER
    #: Another replica takes over when the leader has not renewed its Lease for so long. Whole seconds.
    lease_seconds: Annotated[int, msgspec.Meta(ge=2, le=3600)] = 15
    #: What home is called among the clusters; empty: it takes no pods itself.
    cluster_name: _ClusterNameOrNone = "home"
    #: A direct way to home's scheduler, https://HOST:PORT, and a file with the certificates that its own is signed by;
    #: empty: through the API server.
    offer_url: str = ""
    offer_ca: str = ""
    #: The namespace of home's scheduler; empty: that of the manager.
    scheduler_namespace: _NameOrNone = ""
    #: Files with kubeconfigs, and folders of such, beside the Secrets of the namespace: every context is a cluster.
    kubeconfigs: tuple[str, ...] = ()
    #: What 1 of aliyun.com/gpu-mem means, the same in all clusters.
    memory_unit: MemoryUnit = MemoryUnit.GIB
    #: Where KETI's clients are answered; null: nowhere.
    keti: KetiClusterSettings | None = None
    #: How many pods are seen to at once.
    workers: Annotated[int, msgspec.Meta(ge=1, le=512)] = 64
    #: The status of one pod is written at most once in so many seconds, the last one always.
    mirror_seconds: _Seconds = 0.25
    #: A member that does not answer a call for so long is left alone until it does.
    member_seconds: Annotated[float, msgspec.Meta(gt=0, le=300)] = 10.0
    #: A copy without a node for so long is taken back, if another cluster would take the pod.
    place_seconds: _Seconds = 30.0
    #: A cluster that refused a pod, or where it found no node, is not tried again for it before.
    refused_seconds: _Seconds = 60.0
    #: Copies are compared with home at least this often, whatever the watches say.
    sweep_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 20.0
    #: A member removes copies of mode Replace when they were not renewed for so long; and their pods fail at home when
    #: it was silent for so long, to be replaced.
    fence_seconds: Annotated[int, msgspec.Meta(ge=4, le=43200)] = 240
    replace_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 300.0
    #: Copies of ConfigMaps and Secrets are compared with home this often, as kubelet does it with volumes.
    reference_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 30.0
    #: Events a second, beyond a second's worth at once.
    events_per_second: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 10.0
    #: Where probes and metrics are answered; port 0 takes a free one, null none.
    host: str = "0.0.0.0"
    probe_port: _Port | None = nvidia.PORT_OPERATOR_PROBES
    metrics_port: _Port | None = nvidia.PORT_OPERATOR_METRICS

    def __post_init__(self) -> None:
        """Refuse times by which a pod would run twice."""
        least = least_replace_seconds(self.fence_seconds)
        if self.replace_seconds < least:
            raise ValueError(
                f"replaceSeconds is {self.replace_seconds:g} and fenceSeconds {self.fence_seconds}: a pod must not be "
                f"replaced before its copy has ended, so that replaceSeconds must be {least:g} at least"
            )


def least_replace_seconds(fence: float) -> float:
    """The earliest time at which a pod may be replaced whose copy is removed after so many seconds.

    An eighth of the fence is the longest grace period of what is removed, another one is for looks that come late,
    for clocks and for kubelet.
    """
    return fence + max(_LEAST_MARGIN, 2 * fence / FENCE_GRACES)
