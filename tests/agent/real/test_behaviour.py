"""The agent's behaviour on a real kubelet with containerd and runc."""

from tests.agent.behaviour import *  # noqa: F403 - the tests themselves
