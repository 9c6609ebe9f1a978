"""What is decided about pods, in the words of all families, and who may write it.

The admission policies in `deploy/admission` say the same in CEL: tests hold both together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from shoal.model.allocation import Allocation
from shoal.model.contract import gpushare, keti, shoal
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import NodeGpus

#: The annotations of a pod that the scheduler and the agent write, and nobody else: the record of a decision in the
#: words of each family, how far the pod has come, and what keeps it to its share.
DECISION_ANNOTATIONS: Final = (
    shoal.ANNOTATION_ALLOCATION,
    shoal.ANNOTATION_ISOLATION,
    gpushare.NAME_INDEX,
    gpushare.NAME_CARD,
    gpushare.NAME_POD,
    gpushare.ANNOTATION_ASSIGNED,
    gpushare.ANNOTATION_ASSUME_TIME,
    gpushare.ANNOTATION_ASSIGN_TIME,
    gpushare.ANNOTATION_ALLOCATION,
    gpushare.ANNOTATION_ALLOCATION_ASSIGNED,
    gpushare.ANNOTATION_ALLOCATION_ASSUME_TIME,
    gpushare.ANNOTATION_COMPUTE,
    gpushare.ANNOTATION_TFLOPS,
    keti.ANNOTATION_UUID,
)

#: Those of them that tell which cards a pod has.
RECORD_ANNOTATIONS: Final = (
    shoal.ANNOTATION_ALLOCATION,
    gpushare.ANNOTATION_COMPUTE,
    gpushare.ANNOTATION_ALLOCATION,
    gpushare.NAME_INDEX,
    keti.ANNOTATION_UUID,
)

# Rights without objects: RBAC grants them, admission policies ask for them cluster-wide
VERB_WRITE: Final = "write"
#: On `shoal.dev`: to write `DECISION_ANNOTATIONS`, and to change what a bound pod asks for.
RESOURCE_DECISIONS: Final = "decisions"
#: On `shoal.dev`: to write `EXEMPTION_LABELS`.
RESOURCE_EXEMPTIONS: Final = "exemptions"
ROLE_DECISIONS: Final = "shoal-decisions-writer"
ROLE_EXEMPTIONS: Final = "shoal-exemptions-writer"

#: On a namespace: its containers may say themselves which cards they see.
LABEL_VISIBLE_DEVICES: Final = "shoal.dev/visible-devices"
VISIBLE_DEVICES_ALLOW: Final = "allow"
#: The labels of a namespace that lift a wall for its pods, `shoal.dev/mps` among them: into a tier of MPS whose limits
#: clients can change.
EXEMPTION_LABELS: Final = (shoal.LABEL_ADMISSION, LABEL_VISIBLE_DEVICES, "shoal.dev/mps")

# Admission policies beside those of `shoal`, each with a binding of the same name
POLICY_DECISIONS: Final = "shoal-gpu-decisions"
POLICIES_DECISIONS: Final = tuple(f"{POLICY_DECISIONS}{kind}" for kind in ("", "-bindings", "-templates", "-cronjobs"))
#: Keeps allocations of Shoal's driver to those with Kubernetes' own right to write them.
POLICY_CLAIMS: Final = f"{POLICY_DECISIONS}-claims"
ROLE_CLAIMS: Final = "shoal-claims-allocator"
POLICY_VISIBLE_DEVICES: Final = "shoal-visible-devices"
POLICIES_VISIBLE_DEVICES: Final = tuple(
    f"{POLICY_VISIBLE_DEVICES}{kind}" for kind in ("", "-bindings", "-templates", "-cronjobs")
)
POLICY_EXEMPTIONS: Final = "shoal-exemptions"
#: Keeps tenants from saying that a scheduler made a claim.
POLICY_MADE_CLAIMS: Final = "shoal-made-claims"
#: What keeps an agent to its own node.
POLICIES_FENCE: Final = tuple(f"shoal-agent-own-node{kind}" for kind in ("", "-pods", "-events"))


def encode_decision(
    allocation: Allocation,
    *,
    app_names: Sequence[str],
    node: NodeGpus,
    unit: MemoryUnit,
    now_ns: int,
    replicas: Collection[str] = (),
) -> dict[str, str]:
    """The annotations of a decision; none for a pod without GPUs.

    `app_names` are the pod's containers in their order. Of containers with `replicas` only Shoal's own record tells.
    """
    if not allocation.containers:
        return {}
    theirs = allocation
    if replicas:
        theirs = replace(allocation, containers=tuple(one for one in allocation.containers if one.name not in replicas))
    return {
        **gpushare.encode(theirs, container_names=app_names, node=node, unit=unit, assume_time_ns=now_ns),
        **keti.encode(theirs),
        shoal.ANNOTATION_ALLOCATION: shoal.encode_allocation(allocation),
    }
