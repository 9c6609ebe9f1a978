"""The agent's behaviour on the simulated kubelet."""

from tests.agent.behaviour import *  # noqa: F403 - the tests themselves
