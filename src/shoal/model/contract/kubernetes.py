"""Kubernetes' own labels, taints and annotations, as far as scheduling reads or writes them."""

from __future__ import annotations

from typing import Final

LABEL_HOSTNAME: Final = "kubernetes.io/hostname"
LABEL_ZONE: Final = "topology.kubernetes.io/zone"
LABEL_REGION: Final = "topology.kubernetes.io/region"
LABEL_OLD_ZONE: Final = "failure-domain.beta.kubernetes.io/zone"
LABEL_OLD_REGION: Final = "failure-domain.beta.kubernetes.io/region"

#: On an EndpointSlice: the Service it belongs to.
LABEL_SERVICE: Final = "kubernetes.io/service-name"
#: What a workload is, on it and on its pods.
LABEL_APP: Final = "app.kubernetes.io/name"
#: What a manifest belongs to.
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"

#: Where every kubelet renews a Lease, named as its node.
NODE_LEASES: Final = "kube-node-lease"

#: The scheduler of pods that name none.
DEFAULT_SCHEDULER: Final = "default-scheduler"

#: The phases of a pod whose containers have ended and do not start again.
FINISHED_PHASES: Final = ("Succeeded", "Failed")

#: On every pod of a Job: the Job, and which of its completions the pod is for.
LABEL_JOB: Final = "batch.kubernetes.io/job-name"
ANNOTATION_COMPLETION_INDEX: Final = "batch.kubernetes.io/job-completion-index"
#: What kubectl keeps of the manifest that it applied.
ANNOTATION_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
#: The volume with a token that the API server adds to every pod, and a part of its own name.
VOLUME_TOKEN_PREFIX: Final = "kube-api-access-"

#: On a node that is cordoned; tolerating it is tolerating the cordon.
TAINT_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"

#: On a claim: the node its volume shall be made for.
ANNOTATION_SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
#: On a claim: claim and volume have found each other for good.
ANNOTATION_BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
#: On a volume: the promise to its claim may be taken back.
ANNOTATION_BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
#: On claims and volumes written before classes had a field.
ANNOTATION_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"

#: The provisioner of classes whose volumes are made by hand.
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

RESOURCE_CPU: Final = "cpu"
RESOURCE_MEMORY: Final = "memory"
RESOURCE_STORAGE: Final = "ephemeral-storage"
RESOURCE_PODS: Final = "pods"
PREFIX_HUGE_PAGES: Final = "hugepages-"
PREFIX_ATTACHABLE: Final = "attachable-volumes-"
PREFIX_QUOTA: Final = "requests."
#: On the pods of a DaemonSet or StatefulSet, and on its ControllerRevisions: which of them a pod was made from.
LABEL_REVISION: Final = "controller-revision-hash"
