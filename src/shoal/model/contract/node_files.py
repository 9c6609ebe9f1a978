"""Names of files that Shoal's services have on nodes, beside those of other stacks. Uninstalling removes these."""

from __future__ import annotations

from typing import Final

# Sockets of the agent in kubelet's folder of device plugins, beside those that have the names of other plugins
SOCKET_SLOT: Final = "shoal-gpu.sock"
#: With this the sockets of MIG partitions and replicas begin.
SOCKET_NVIDIA_PREFIX: Final = "shoal-nvidia-"

# In /run/shoal
LIMIT_SOCKET: Final = "limit.sock"
#: What containers have been given, a file for each pod.
GIVEN_FOLDER: Final = "given"
GIVEN_SUFFIX: Final = ".json"
#: There until the machine restarts.
BOOTED: Final = "booted"
#: What the MPS daemon and its clients share, as deploy/agent-mps sets it up.
SHARED_MEMORY_FOLDER: Final = "shm"

# In /run/nvidia/validations, beside NVIDIA's files
#: What the validator under the runtime class has found.
VALIDATION_FINDINGS: Final = ".shoal-runtime"

# In /var/lib/shoal
#: The hook that limits cgroups.
LIMIT_PROGRAM: Final = "shoal-limit"
#: The claims that are prepared, a file for each.
CLAIMS_FOLDER: Final = "claims"
CLAIMS_SUFFIX: Final = ".json"
HISTORY_FOLDER: Final = "history"
HISTORY_LEVELS: Final = ("raw", "minutes")
HISTORY_SUFFIX: Final = ".history"
