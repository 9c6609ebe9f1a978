"""NVIDIA's configuration on the simulated kubelet."""

from tests.agent.sharing import *  # noqa: F403 - the tests themselves
