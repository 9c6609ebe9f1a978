"""Which nodes have cards, and the labels that say which operands run there; the start-up taint.

A node with cards has every `nvidia.com/gpu.deploy.*` label, so that an administrator sees the names that can be set. A
value that is not empty is somebody's word and stays: `false` of an administrator, `pre-installed` and the pauses of
NVIDIA's driver manager, which restores them itself. Where cards are gone, or `gpu.deploy.operands=false` is set, labels
that programs wrote go; an administrator's `false` waits for the cards to come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from shoal.kube.objects.node import Node
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.operator import LABEL_CLEANUP, TAINT_STARTING, Step
from shoal.operator.actions import PatchNode
from shoal.operator.validation import STEPS, is_validated

#: What Shoal's operands and NVIDIA's driver and toolkit are chosen by; `client` is on all that keep the driver open.
DEPLOYED: Final = (
    "driver",
    "container-toolkit",
    "device-plugin",
    "gpu-feature-discovery",
    "dcgm-exporter",
    "operator-validator",
    "client",
)
LABELS_DEPLOY: Final = tuple(nvidia.deploy_label(name) for name in DEPLOYED)
DEPLOY: Final = "true"
#: How values begin or end that NVIDIA's driver manager writes while it replaces a driver.
PAUSED: Final = "paused-for-driver-upgrade"
#: Its word for a driver that the machine itself has.
PRE_INSTALLED: Final = "pre-installed"


def is_gpu_node(labels: Mapping[str, str]) -> bool:
    """Whether a node is meant to serve cards: discovery says so, or whoever labels nodes for gpushare or KETI."""
    return (
        labels.get(nvidia.LABEL_PRESENT) == "true"
        or labels.get(gpushare.LABEL_NODE) == "true"
        or labels.get(keti.LABEL_NODE) == keti.LABEL_NODE_VALUE
    )


def is_paused(value: str) -> bool:
    """Whether NVIDIA's driver manager keeps an operand away for the moment."""
    return value == PAUSED or value.endswith(f"_{PAUSED}")


def deploy_labels(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The changes that a node's deploy labels need; None removes one."""
    if is_gpu_node(labels) and labels.get(nvidia.LABEL_DEPLOY_OPERANDS) != "false":
        return {key: DEPLOY for key in LABELS_DEPLOY if not labels.get(key)}
    return removed_labels(labels)


def removed_labels(labels: Mapping[str, str]) -> dict[str, str | None]:
    """The changes that take away the deploy labels that programs wrote."""
    return {key: None for key in LABELS_DEPLOY if key in labels and _is_written_by_programs(labels[key])}


def _is_written_by_programs(value: str) -> bool:
    return value in ("", DEPLOY, PRE_INSTALLED) or is_paused(value)


def is_nvidias(labels: Mapping[str, str]) -> bool:
    """Whether NVIDIA's operator labels a node, where it runs: it looks at what NFD found."""
    return nvidia.LABEL_PRESENT in labels or any(labels.get(key) == "true" for key in nvidia.LABELS_PCI_PRESENT)


def plan(
    nodes: Iterable[Node], *, beside_nvidia: bool = False, lift: bool = True, steps: tuple[Step, ...] = STEPS
) -> Iterator[PatchNode]:
    """The writes that nodes need: labels, and without the start-up taint for those that have taken all `steps`.

    `beside_nvidia`: NVIDIA's operator labels its nodes itself. `lift`: whether the taint is the operator's to lift.
    """
    for node in nodes:
        meta = node.metadata
        if meta.deletion_timestamp is not None:
            continue
        labels = {} if beside_nvidia and is_nvidias(meta.labels) else deploy_labels(meta.labels)
        if LABEL_CLEANUP in meta.labels:  # of an uninstall that did not come to its end
            labels[LABEL_CLEANUP] = None
        lifted = lift and node.spec.taints and _is_started(node, steps)
        if labels or lifted:
            taints = (TAINT_STARTING,) if lifted else ()
            yield PatchNode(meta.name, meta.uid, labels=labels, remove_taints=taints)


def _is_started(node: Node, steps: tuple[Step, ...]) -> bool:
    """Whether a node has the start-up taint and needs it no more."""
    if not any(taint.key == TAINT_STARTING for taint in node.spec.taints):
        return False
    return is_gpu_node(node.metadata.labels) and is_validated(node, steps)
