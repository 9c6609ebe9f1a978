"""Names, paths and limits that kubelet has compiled in."""

from pathlib import PurePosixPath
from typing import Final

#: The version of the device plugin API, as a plugin says it when it registers.
DEVICE_PLUGIN_VERSION: Final = "v1beta1"

#: Where plugins put their sockets. kubelet's --root-dir does not move it.
DEVICE_PLUGIN_FOLDER: Final = PurePosixPath("/var/lib/kubelet/device-plugins")
#: Where a plugin registers: kubelet's own socket, a file of that folder. kubelet makes it anew at each start.
REGISTRATION_SOCKET: Final = "kubelet.sock"
#: kubelet's record of which container has which devices, a file of that folder.
CHECKPOINT: Final = "kubelet_internal_checkpoint"

#: Where plugins of other kinds, as DRA drivers, put the sockets by which kubelet finds them, and their other files.
PLUGINS_REGISTRY: Final = PurePosixPath("/var/lib/kubelet/plugins_registry")
PLUGINS_FOLDER: Final = PurePosixPath("/var/lib/kubelet/plugins")

POD_RESOURCES_SOCKET: Final = PurePosixPath("/var/lib/kubelet/pod-resources/kubelet.sock")

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"

#: The largest message kubelet takes, in bytes: the size of a list of devices. It cuts the stream at a larger one.
MAX_MESSAGE_BYTES: Final = 4 * 1024 * 1024
#: How long kubelet waits for PreStartContainer.
PRE_START_SECONDS: Final = 30

#: For channels to kubelet: without it a gRPC client names the socket's path as the authority, which Go servers refuse.
CHANNEL_OPTIONS: Final = (("grpc.default_authority", "localhost"),)
