"""NVIDIA's configuration on a real kubelet with containerd and runc."""

from tests.agent.sharing import *  # noqa: F403 - the tests themselves
