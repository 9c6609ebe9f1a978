"""Settings of the validator. Every value is checked when they are made."""

from __future__ import annotations

from typing import Annotated

import msgspec

from shoal.model.contract import nvidia

_Name = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
#: Of plain letters: these paths are written into a file that shells read.
_Path = Annotated[str, msgspec.Meta(pattern=r"^/([A-Za-z0-9._+@-]+/?)*$", max_length=512)]
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=86400)]


class ValidatorConfig(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """All settings, of the validator of a node and of the one under the runtime class."""

    #: The node it runs on; the one under the runtime class need not know.
    node_name: _Name | None = None
    #: The folder of the files of readiness, of which the node and its pods have the same.
    validations: str = nvidia.VALIDATIONS_DIRECTORY
    #: Where this process sees the node's root, and which folder of the node that is (hostPaths.rootFS).
    host_root: str = "/host"
    root_path: _Path = "/"
    #: Where this process sees the root that a driver container has put on the node, and where that is on the node
    #: (hostPaths.driverInstallDir).
    driver_root: str = "/run/nvidia/driver"
    driver_install_dir: _Path = "/run/nvidia/driver"
    #: A driver there counts only while its container says that it is ready (`.driver-ctr-ready`). Without this, for
    #: drivers that another program has put there.
    driver_container: bool = True
    #: Ask libcuda too.
    cuda: bool = True
    #: How often a step that is ready is looked at again.
    interval_seconds: _Seconds = 60.0
    #: How long an answer of the driver may take.
    answer_seconds: _Seconds = 60.0
    #: How long a step that was ready must fail before it is not. What a driver container takes back is gone at once.
    grace_seconds: Annotated[float, msgspec.Meta(ge=0, le=86400)] = 60.0
    #: Under the runtime class: after so long without success the process ends, since a runtime brings its libraries
    #: when a container starts.
    restart_seconds: _Seconds = 120.0
    #: Where probes are answered; no port, no probes.
    host: str = "0.0.0.0"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    #: Take away the files of readiness on the way out.
    remove_on_exit: bool = False
