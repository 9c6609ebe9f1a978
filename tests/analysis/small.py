"""Small clusters as snapshot and as snapshot files: nodes and pods in the short forms of the scheduling suite."""

from pathlib import Path
from typing import Any

import msgspec
from click.testing import CliRunner, Result

from shoal.analysis.dry_run import DryRun
from shoal.analysis.snapshot import ClusterSnapshot, SchedulerSettings
from shoal.analysis.snapshot_file import save
from shoal.cli.main import main
from shoal.kube.objects.node import Node
from shoal.kube.objects.pod import Pod
from shoal.scheduler.binder import annotations_of
from tests.suites.scheduling import shorthand

TAKEN = "2026-01-01T12:00:00Z"


class Small:
    """A cluster that grows pod by pod; those that fit are placed by the scheduler's own code."""

    def __init__(self, nodes: dict[str, dict[str, Any]], *, policy: str = "binpack", **snapshot: Any) -> None:
        made = (msgspec.convert(shorthand.node(name, short, mib=False), Node) for name, short in nodes.items())
        settings = SchedulerSettings(policy=policy, policy_from="the test")
        self.snapshot = ClusterSnapshot(settings=settings, nodes=tuple(made), **snapshot)

    def add(self, name: str, short: dict[str, Any], *, place: bool = True, **status: Any) -> Pod:
        """A pod that comes a second after the last one."""
        manifest = shorthand.pod(name, short)
        second = len(self.snapshot.pods)
        manifest["metadata"] |= {
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": f"2026-01-01T11:{second // 60:02}:{second % 60:02}Z",
        }
        manifest["status"] = {"phase": "Pending", **status}
        pod = msgspec.convert(manifest, Pod)
        if place:
            pod = self._placed(pod)
        self.snapshot = msgspec.structs.replace(self.snapshot, pods=(*self.snapshot.pods, pod))
        return pod

    def save(self, path: Path) -> Path:
        """The snapshot of the cluster."""
        save(self.snapshot, path, taken=TAKEN, shoal="test")
        return path

    def _placed(self, pod: Pod) -> Pod:
        dry_run = DryRun(self.snapshot)
        allocation = dry_run.place(pod)
        if allocation is None:
            return pod
        node = dry_run.engine.ledger.node(allocation.node)
        assert node is not None
        assert node.inventory is not None
        annotations = annotations_of(
            pod, allocation, inventory=node.inventory, unit=self.snapshot.settings.memory_unit, now_ns=1
        )
        meta = msgspec.structs.replace(pod.metadata, annotations={**pod.metadata.annotations, **annotations})
        spec = msgspec.structs.replace(pod.spec, node_name=allocation.node)
        return msgspec.structs.replace(
            pod, metadata=meta, spec=spec, status=msgspec.structs.replace(pod.status, phase="Running")
        )


def shoal(*arguments: str | Path, stdin: str | None = None) -> Result:
    """A command as a user runs it, in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], input=stdin)
