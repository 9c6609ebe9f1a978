"""Settings of the operator. Every value is checked when they are made."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.model.contract import nvidia
from shoal.model.contract.operator import NAME_OPERATOR

_Name = Annotated[str, msgspec.Meta(pattern=r"\A[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")]
_NameOrNone = Annotated[str, msgspec.Meta(pattern=r"\A([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?)?\Z")]
_Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class OperatorConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings."""

    #: The operator's own namespace: operands run there. Empty: that of its pod.
    namespace: _NameOrNone = ""
    #: The folder with the manifests of operands, one YAML file each.
    operands: str = "/etc/shoal/operands"
    #: The digest that these manifests must have, `shoal.operator.manifests.digest_of`; empty: any.
    operands_digest: Annotated[str, msgspec.Meta(pattern=r"\A(sha256:[0-9a-f]{64})?\Z")] = ""
    #: How often that folder is looked at.
    operands_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 5.0
    #: The Lease by which one of several replicas leads.
    lease_name: _Name = NAME_OPERATOR
    #: How many writes to nodes and pods are under way at once.
    writers: Annotated[int, msgspec.Meta(ge=1, le=128)] = 32
    #: Changes within so many seconds are seen to together.
    settle_seconds: Annotated[float, msgspec.Meta(ge=0, le=60)] = 0.1
    #: How often it is asked whether the cluster knows NVIDIA's ClusterPolicy.
    nvidia_seconds: Annotated[float, msgspec.Meta(ge=0.1, le=3600)] = 15.0
    #: Events a second, beyond a second's worth at once.
    events_per_second: Annotated[float, msgspec.Meta(gt=0, le=1000)] = 10.0
    #: Where probes and metrics are answered; port 0 takes a free one, null none.
    host: str = "0.0.0.0"
    probe_port: _Port | None = nvidia.PORT_OPERATOR_PROBES
    metrics_port: _Port | None = nvidia.PORT_OPERATOR_METRICS
