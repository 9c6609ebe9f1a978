"""The configuration of NVIDIA's device plugin, as the agent's settings place it: its events are about the node.

`replicas` and `partitions` have what is served by it.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.agent.config import AgentConfig
from shoal.agent.node.object import NodeObject
from shoal.kube.client import Client
from shoal.kube.events import EventType, Recorder, reference_to
from shoal.kube.plugin_config import ConfigPlace, ConfigSource
from shoal.kube.resources import NODES
from shoal.model.contract.plugin_config import NvidiaConfig


def config_source(
    config: AgentConfig,
    client: Client,
    node: NodeObject,
    recorder: Recorder,
    *,
    last: NvidiaConfig | None,
    changed: Callable[[], None],
) -> ConfigSource:
    """The source that the settings name. `last` is the last good configuration before a reload."""

    def tell(kind: EventType, reason: str, message: str) -> None:
        if node.node is not None:
            recorder.record(reference_to(NODES, node.node), kind, reason, message)

    return ConfigSource(
        ConfigPlace(config.nvidia_config, config.nvidia_config_map, config.nvidia_config_default, config.mig_strategy),
        client,
        labels=lambda: node.labels,
        last=last,
        changed=changed,
        tell=tell,
        unknown="NVIDIA's resources are not offered",
    )
