"""The parts of an agent on a node whose API server and kubelet are silent: pods and records come from the test."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.agent.config import AgentConfig
from shoal.agent.device_plugin.calls import DevicePluginCalls
from shoal.agent.device_plugin.decisions import Decisions
from shoal.agent.device_plugin.edits import DeviceListStrategy
from shoal.agent.device_plugin.matching import MatchByAmount
from shoal.agent.device_plugin.serving import DevicePlugins
from shoal.agent.device_plugin.specs import CdiSpecs, qualified
from shoal.agent.device_plugin.start_check import StartCheck
from shoal.agent.health.node_health import NodeHealth
from shoal.agent.limits import NO_LIMITS
from shoal.agent.node.annotations import PodAnnotations
from shoal.agent.node.cards import NodeCards
from shoal.agent.node.cgroups import PodCgroups
from shoal.agent.node.checkpoint import KubeletCheckpoint
from shoal.agent.node.given import GivenFiles
from shoal.agent.node.object import NodeObject
from shoal.agent.node.pods import NodePods
from shoal.agent.nvidia.config import config_source
from shoal.agent.nvidia.partitions import PartitionStarts
from shoal.agent.reconcile import Reconciler
from shoal.gpu.describe import parse_cards
from shoal.gpu.simulated import SimulatedNvml
from shoal.kube.access.credentials import Access, StoredCredential
from shoal.kube.client import Client
from shoal.kube.events import Recorder
from shoal.kube.objects.pod import Pod
from shoal.kube.store import Change, ChangeType
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.host_paths import HostPaths
from shoal.kubelet.pod_resources import PodResourcesClient
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus
from shoal.model.request import Share

UNIT = MemoryUnit.GIB


class Scene:
    """The parts that follow pods, on a node whose API server and kubelet are silent."""

    def __init__(self, folder: Path, cards: object = "8xA100-80G") -> None:
        config = AgentConfig(node_name="n")
        self.paths = paths = HostPaths(
            device_plugins=folder,
            pod_resources=folder / "s",
            cdi=(folder / "cdi",),
            dev=folder,
            run=folder / "run",
            pod_cgroups=folder / "cgroups",
        )
        client = Client(Access("http://127.0.0.1:1", StoredCredential()))
        recorder = Recorder(client, "test")
        driver = NodeCards(lambda: SimulatedNvml(parse_cards(cards), clock=lambda: 1.0))
        driver.open()
        self.node = NodeObject(client, "n")
        source = config_source(config, client, self.node, recorder, last=None, changed=lambda: None)
        health = NodeHealth(driver, self.node, recorder, config.health_rules(), now=time.time, changed=lambda: None)
        self.pods = NodePods(
            client,
            NodeGpus("n", driver.gpus(config, {})),
            unit=UNIT,
            files=GivenFiles(paths.given),
            runs=PodCgroups(paths.pod_cgroups).runs,
        )
        self.checkpoint = KubeletCheckpoint(paths.checkpoint)
        self.specs = CdiSpecs(paths)
        check = StartCheck(self.pods, self.specs, unit=UNIT, limits=NO_LIMITS, isolated=lambda: True)
        decisions = Decisions(client, self.pods, self.checkpoint, unit=UNIT, chooses=True, now_ns=time.time_ns)
        pod_resources = PodResourcesClient(paths.pod_resources)
        self.calls = DevicePluginCalls(
            recorder,
            self.pods,
            self.specs,
            self.checkpoint,
            pod_resources,
            check,
            decisions,
            MatchByAmount(client, self.pods, self.checkpoint, check, decisions, by_mounts=False, clock=time.monotonic),
            PartitionStarts(self.pods, self.specs, unit=UNIT, by_mounts=False),
            strategy=DeviceListStrategy.CDI_CRI,
            nonce=lambda: "0",
        )
        self.serving = DevicePlugins(
            paths,
            allocate=self.calls.allocate,
            pre_start=self.calls.pre_start,
            let_go=pod_resources.wait_let_go,
        )
        self.follow = Reconciler(
            config,
            self.pods,
            self.checkpoint,
            self.node,
            source,
            health,
            self.serving,
            self.calls,
            NO_LIMITS,
            PodAnnotations(client, self.pods, recorder, self.calls.isolation, self.calls.record),
            wake=asyncio.Event(),
            trouble=lambda words: None,
        )

    def put(self, name: str, *, card: int, status: Mapping[str, Any] | None = None) -> None:
        """A pod with 2 GiB of a card is bound, or has another status."""
        uuid = self.pods.node.gpus[card].uuid
        entry = ContainerAllocation("main", (CardShare(uuid, card, Share(2048)),))
        manifest = {
            "metadata": {
                "name": name,
                "namespace": "d",
                "uid": name,
                "annotations": {shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(Allocation("n", (entry,)))},
            },
            "spec": {
                "nodeName": "n",
                "containers": [{"name": "main", "resources": {"limits": {gpushare.RESOURCE_MEMORY: "2"}}}],
            },
            "status": status or {"phase": "Pending"},
        }
        known = self.pods.get(name)
        old = None if known is None else known.pod
        kind = ChangeType.ADDED if old is None else ChangeType.MODIFIED
        self.pods.on_pod(Change(kind, old, msgspec.convert(manifest, Pod)))

    def drop(self, name: str) -> None:
        """A pod is gone."""
        known = self.pods.get(name)
        assert known is not None
        self.pods.on_pod(Change(ChangeType.DELETED, known.pod, None))

    def record(self, devices: Mapping[str, Sequence[str]], names: Mapping[str, str] | None = None) -> None:
        """kubelet's record: by pod, the devices of its one container, and the CDI device that its answer names."""
        entries = [
            {
                "PodUID": uid,
                "ContainerName": "main",
                "ResourceName": gpushare.RESOURCE_MEMORY,
                "DeviceIDs": {"-1": list(ids)},
                "AllocResp": _answer((names or {}).get(uid)),
            }
            for uid, ids in devices.items()
        ]
        self.paths.checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": entries}}))

    def act(self) -> None:
        """Act on all that was told."""
        self.follow.act(self.pods.news())


def _answer(name: str | None) -> str:
    response = api.ContainerAllocateResponse()
    if name is not None:
        response.cdi_devices.add(name=qualified(name))
    return base64.b64encode(response.SerializeToString()).decode()
