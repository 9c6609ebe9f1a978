"""Who may write what: one table, asked of the embedded cluster and of a real kube-apiserver.

A line is somebody, a request, and the words of the policy that refuses it; none if it is let through. In paths `{ns}`
is a namespace in which the tenant may do everything. Pods there: `waiting`, `placed` on the agent's node, and `far` on
another.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from shoal.model.contract import decisions, dra, shoal
from shoal.model.pod import ANNOTATIONS_READ, LABELS_READ
from tests.admission.guarded import (
    FAR,
    LEASES,
    NODE,
    RBAC,
    SYSTEM,
    Guarded,
    Object,
    binding,
    claim,
    cron_job,
    deployment,
    event,
    lease,
    pod,
    refusals,
)
from tests.testbed.waiting import wait_for

PODS = "/api/v1/namespaces/{ns}/pods"
APPS = "/apis/apps/v1/namespaces/{ns}"
JOBS = "/apis/batch/v1/namespaces/{ns}/cronjobs"
SPACE = "/api/v1/namespaces/{ns}"
EVENTS = "/api/v1/namespaces/{ns}/events"
NODES = "/api/v1/nodes"
GPU = {"aliyun.com/gpu-mem": "12"}
#: Good values, so that one policy alone has something to say: which of two is heard first is open.
GOOD = {"aliyun.com/gpu-count": "2", "ack.gpushare.placement": "require-whole-device"}

Line = tuple[str, str, str, str, Any, str]


def annotate(**annotations: str | None) -> Object:
    return {"metadata": {"annotations": annotations}}


def noted(key: str, value: str | None) -> Object:
    return {"metadata": {"annotations": {key: value}}}


def labelled(key: str, value: str | None) -> Object:
    return {"metadata": {"labels": {key: value}}}


def visible(value: str) -> list[Object]:
    return [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]


def mounting(path: str) -> Object:
    made = pod("new", volumes=[{"name": "v", "emptyDir": {}}])
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "v", "mountPath": path}]
    return made


def several(count: int) -> Object:
    made = pod("new")
    limits = {"aliyun.com/gpu-mem": "1"}
    made["spec"]["containers"] = [
        {"name": f"c{i}", "image": "x", "resources": {"limits": limits}} for i in range(count)
    ]
    return made


def other_image() -> Object:
    return {"spec": {"containers": [{"name": "main", "image": "y"}]}}


def status(**parts: Any) -> Object:
    return {"status": parts}


def template(annotations: Object) -> Object:
    spec = {"metadata": {"annotations": annotations}, "spec": claim({})["spec"]}
    return {**claim({}), "kind": "ResourceClaimTemplate", "metadata": {"name": "new"}, "spec": spec}


CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{ns}/resourceclaims"
TEMPLATES = f"{CLAIMS[:-1]}templates"
MADE = {dra.ANNOTATION_EXTENDED_RESOURCE: "true"}
MADE_BY = (
    f"{decisions.POLICY_MADE_CLAIMS}: only a scheduler says for which pod a claim was made: leave annotation "
    f"{dra.ANNOTATION_EXTENDED_RESOURCE} as it is"
)
#: In the status of a pod: the claim that serves its container `main`.
MAPPED = {
    "resourceClaimName": "made",
    "requestMappings": [{"containerName": "main", "resourceName": "aliyun.com/gpu-mem", "requestName": "gpu"}],
}
ALLOCATION = "shoal.dev/allocation"
_ONLY = "only the scheduler and the agent write what was decided about a pod: "
_D = decisions.POLICY_DECISIONS
REMOVE = f"{_D}: {_ONLY}remove annotation "
LEAVE = f"{_D}: {_ONLY}leave annotation "
PLACE = f"{_D}: the pod has its place by what it asked for: leave "
OWN = "shoal-agent-own-node: "
OWN_PODS = "shoal-agent-own-node-pods: "
OWN_EVENTS = "shoal-agent-own-node-events: "
_V = decisions.POLICY_VISIBLE_DEVICES
_ASK = "remove it, and ask for GPUs by resources"
CHOOSES = f"container 'main' sets NVIDIA_VISIBLE_DEVICES, and so would choose cards itself: {_ASK}"
MOUNTS = f"container 'main' mounts a folder named nvidia-container-devices, and so would choose cards itself: {_ASK}"
DEVICES = f"annotation cdi.k8s.io/x would choose devices for CDI: {_ASK}"
#: By which runtimes and their plugins let a pod name devices: any prefix of the toolkit's configuration, NVIDIA's NRI
#: plugin (of one container, of all, and the short form), and the device injector of the NRI project.
CDI_KEYS = (
    "nvidia.cdi.k8s.io/container.main",
    "nvidia.cdi.k8s.io/pod",
    "nvidia.cdi.k8s.io",
    "cdi-devices.noderesource.dev/container.main",
    "cdi-devices.nri.io/pod",
    "devices.noderesource.dev/pod",
    "devices.nri.io",
)
LABEL = (
    "shoal-exemptions: namespace label {} may be changed only by who may write exemptions of shoal.dev: ask a cluster "
    "administrator"
)

ABOUT_DECISIONS: list[Line] = [
    *(
        (f"a pod made with {key}", "tenant", "POST", PODS, pod("new", annotations={key: "x"}), f"{REMOVE}{key}")
        for key in decisions.DECISION_ANNOTATIONS
    ),
    *(
        (f"a waiting pod gets {key}", "tenant", "PATCH", f"{PODS}/waiting", noted(key, "x"), f"{REMOVE}{key}")
        for key in decisions.DECISION_ANNOTATIONS
    ),
    (
        "a copy of a pod with its record, straight to a node",
        *("tenant", "POST", PODS),
        pod("new", annotations={"UUID": "x", ALLOCATION: "{}", "note": "a"}, limits=GPU, nodeName=NODE),
        f"{REMOVE}{ALLOCATION}, UUID",
    ),
    (
        "a record is changed",
        "tenant",
        "PATCH",
        f"{PODS}/placed",
        noted(ALLOCATION, "[]"),
        f"{LEAVE}{ALLOCATION} as it is",
    ),
    (
        "a record is removed",
        "tenant",
        "PATCH",
        f"{PODS}/placed",
        noted(ALLOCATION, None),
        f"{LEAVE}{ALLOCATION} as it is",
    ),
    (
        "a record is changed by the status",
        *("tenant", "PATCH", f"{PODS}/placed/status", noted(ALLOCATION, "[]")),
        f"{LEAVE}{ALLOCATION} as it is",
    ),
    ("a record comes by the status", "tenant", "PATCH", f"{PODS}/waiting/status", noted("UUID", "x"), f"{REMOVE}UUID"),
    (
        "a record comes with a binding",
        *("tenant", "POST", f"{PODS}/waiting/binding", binding("waiting", {ALLOCATION: "{}"})),
        f"{REMOVE.replace(':', '-bindings:', 1)}{ALLOCATION}",
    ),
    (
        "a record comes with a binding of the older kind",
        *("tenant", "POST", f"{SPACE}/bindings", binding("waiting", {ALLOCATION: "{}"})),
        f"{REMOVE.replace(':', '-bindings:', 1)}{ALLOCATION}",
    ),
    (
        "a record in a Deployment",
        *("tenant", "POST", f"{APPS}/deployments", deployment({ALLOCATION: "{}"})),
        f"{REMOVE.replace(':', '-templates:', 1)}{ALLOCATION}",
    ),
    (
        "a record in a CronJob",
        *("tenant", "POST", JOBS, cron_job({ALLOCATION: "{}"})),
        f"{REMOVE.replace(':', '-cronjobs:', 1)}{ALLOCATION}",
    ),
    (
        "a reporter writes no record",
        "reporter",
        "PATCH",
        f"{PODS}/placed",
        noted(ALLOCATION, "[]"),
        f"{LEAVE}{ALLOCATION} as it is",
    ),
    (
        "a reporter makes no pod with one",
        "reporter",
        "POST",
        PODS,
        pod("new", annotations={"UUID": "x"}),
        f"{REMOVE}UUID",
    ),
    *(
        (
            f"label {key} of a placed pod",
            *("tenant", "PATCH", f"{PODS}/placed", labelled(key, GOOD[key])),
            f"{PLACE}label {key} as it is, or make a new pod",
        )
        for key in LABELS_READ
    ),
    *(
        (
            f"annotation {key} of a placed pod",
            *("tenant", "PATCH", f"{PODS}/placed/status", noted(key, "x")),
            f"{PLACE}annotation {key} as it is, or make a new pod",
        )
        for key in ANNOTATIONS_READ
    ),
    (
        "a claim for its resources",
        *("tenant", "PATCH", f"{PODS}/placed/status", status(extendedResourceClaimStatus=MAPPED)),
        f"{_D}: only a scheduler writes which claim serves a pod: leave status.extendedResourceClaimStatus as it is",
    ),
    # ---- let through ----
    (
        "the scheduler names the claim it made",
        *("shoal-scheduler", "PATCH", f"{PODS}/placed/status", status(extendedResourceClaimStatus=MAPPED)),
        "",
    ),
    (
        "kube-scheduler does, and kubelets report whole statuses",
        *("reporter", "PATCH", f"{PODS}/placed/status", status(extendedResourceClaimStatus=MAPPED)),
        "",
    ),
    ("another part of the status", "tenant", "PATCH", f"{PODS}/placed/status", status(message="a"), ""),
    ("a binding without a record", "tenant", "POST", f"{PODS}/waiting/binding", binding("waiting"), ""),
    ("a binding of the older kind without one", "tenant", "POST", f"{SPACE}/bindings", binding("waiting"), ""),
    ("an ordinary pod", "tenant", "POST", PODS, pod("new", annotations={"note": "a"}, limits=GPU), ""),
    ("a pod straight to a node", "tenant", "POST", PODS, pod("new", limits=GPU, nodeName=NODE), ""),
    ("another annotation", "tenant", "PATCH", f"{PODS}/placed", annotate(note="b", more="c"), ""),
    ("another label", "tenant", "PATCH", f"{PODS}/placed", labelled("app", "b"), ""),
    ("another image", "tenant", "PATCH", f"{PODS}/placed", other_image(), ""),
    ("a finalizer", "tenant", "PATCH", f"{PODS}/placed", {"metadata": {"finalizers": ["example.com/hold"]}}, ""),
    ("the request of a waiting pod", "tenant", "PATCH", f"{PODS}/waiting", labelled("aliyun.com/gpu-count", "3"), ""),
    ("an ordinary Deployment", "tenant", "POST", f"{APPS}/deployments", deployment({"note": "a"}), ""),
    ("a report of a placed pod", "reporter", "PATCH", f"{PODS}/placed/status", {"status": {"phase": "Running"}}, ""),
    ("a finalizer by a reporter", "reporter", "PATCH", f"{PODS}/placed", {"metadata": {"finalizers": ["a.b/c"]}}, ""),
    (
        "the scheduler binds with a record",
        "shoal-scheduler",
        "POST",
        f"{PODS}/waiting/binding",
        binding("waiting", {ALLOCATION: "{}"}),
        "",
    ),
    ("an administrator may", "admin", "PATCH", f"{PODS}/placed", noted(ALLOCATION, None), ""),
]

ABOUT_CLAIMS: list[Line] = [
    ("a claim that says it was made", "tenant", "POST", CLAIMS, claim(MADE), MADE_BY),
    ("a template that says so of its claims", "tenant", "POST", TEMPLATES, template(MADE), MADE_BY),
    ("a claim of a reporter", "reporter", "POST", CLAIMS, claim(MADE), MADE_BY),
    ("an ordinary claim", "tenant", "POST", CLAIMS, claim({"note": "a"}), ""),
    ("an ordinary template", "tenant", "POST", TEMPLATES, template({"note": "a"}), ""),
    ("the scheduler makes a claim", "shoal-scheduler", "POST", CLAIMS, claim(MADE), ""),
    ("another scheduler makes one", "binder", "POST", CLAIMS, claim(MADE), ""),
]

ABOUT_NAMESPACES: list[Line] = [
    *(
        (f"{part} gets {key}", "tenant", "PATCH", f"{SPACE}{part}", labelled(key, "allow"), LABEL.format(key))
        for key in decisions.EXEMPTION_LABELS
        for part in ("", "/status")
    ),
    ("a namespace gets another label", "tenant", "PATCH", SPACE, labelled("team", "a"), ""),
    ("an administrator labels it", "admin", "PATCH", SPACE, labelled("shoal.dev/mps", "allow"), ""),
]

ABOUT_CARDS: list[Line] = [
    ("all cards", "tenant", "POST", PODS, pod("new", env=visible("all")), f"{_V}: {CHOOSES}"),
    ("one card, with a request", "tenant", "POST", PODS, pod("new", env=visible("0"), limits=GPU), f"{_V}: {CHOOSES}"),
    (
        "cards by reference",
        *("tenant", "POST", PODS),
        pod("new", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
        f"{_V}: {CHOOSES}",
    ),
    (
        "an init container chooses",
        *("tenant", "POST", PODS),
        pod("new", initContainers=[{"name": "first", "image": "x", "env": visible("all")}]),
        f"{_V}: {CHOOSES.replace('main', 'first')}",
    ),
    (
        "cards in a Deployment",
        "tenant",
        "POST",
        f"{APPS}/deployments",
        deployment(env=visible("all")),
        f"{_V}-templates: {CHOOSES}",
    ),
    ("cards in a CronJob", "tenant", "POST", JOBS, cron_job(env=visible("all")), f"{_V}-cronjobs: {CHOOSES}"),
    (
        "cards by mounts",
        *("tenant", "POST", PODS),
        mounting("/var/run/nvidia-container-devices/all"),
        f"{_V}: {MOUNTS}",
    ),
    (
        "devices by annotation",
        *("tenant", "POST", PODS, pod("new", annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"})),
        f"{_V}: {DEVICES}",
    ),
    (
        "devices by annotation later",
        *("tenant", "PATCH", f"{PODS}/waiting", noted("cdi.k8s.io/x", "nvidia.com/gpu=all")),
        f"{_V}: {DEVICES}",
    ),
    *(
        (
            f"CDI devices by annotation {key}",
            *("tenant", "POST", PODS, pod("new", annotations={key: "nvidia.com/gpu=all"})),
            f"{_V}: annotation {key} would choose devices for CDI: {_ASK}",
        )
        for key in CDI_KEYS
    ),
    (
        "CDI devices by a pod's own Binding",
        *("tenant", "POST", f"{PODS}/waiting/binding"),
        binding("waiting", {"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"}),
        f"{_V}-bindings: annotation nvidia.cdi.k8s.io/pod would choose devices for CDI: {_ASK}",
    ),
    (
        "CDI devices by a Binding",
        *("tenant", "POST", "/api/v1/namespaces/{ns}/bindings"),
        binding("waiting", {"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
        f"{_V}-bindings: {DEVICES}",
    ),
    (
        "CDI devices by the status",
        *("tenant", "PATCH", f"{PODS}/waiting/status", noted("nvidia.cdi.k8s.io/pod", "nvidia.com/gpu=all")),
        f"{_V}: annotation nvidia.cdi.k8s.io/pod would choose devices for CDI: {_ASK}",
    ),
    (
        "CDI devices in a Deployment",
        *("tenant", "POST", f"{APPS}/deployments", deployment({"nvidia.cdi.k8s.io/pod": "nvidia.com/gpu=all"})),
        f"{_V}-templates: annotation nvidia.cdi.k8s.io/pod would choose devices for CDI: {_ASK}",
    ),
    ("GPUs in as many containers as can have them", "tenant", "POST", PODS, several(32), ""),
    (
        "GPUs in one container too many",
        *("tenant", "POST", PODS, several(33)),
        "shoal-gpu-requests: 33 containers ask for GPUs, and at most 32 of a pod can: make several pods",
    ),
    (
        "an annotation that chooses no device",
        "tenant",
        "POST",
        PODS,
        pod("new", annotations={"a.io/cdi.k8s.io": "x"}),
        "",
    ),
    (
        "no cards",
        "tenant",
        "POST",
        PODS,
        pod("new", env=[*visible("none"), {"name": "CUDA_VISIBLE_DEVICES", "value": "0"}]),
        "",
    ),
    ("void", "tenant", "POST", PODS, pod("new", env=visible("void")), ""),
    ("a component in kube-system", "admin", "POST", f"{SYSTEM}/pods?dryRun=All", pod("new", env=visible("all")), ""),
]


def _about(kind: str, ns: str, name: str) -> Object:
    return {"kind": kind, "apiVersion": "v1", "namespace": ns, "name": name}


def _told(**changes: Any) -> Object:
    return event("told", "{ns}", _about("Pod", "{ns}", "placed"), **changes)


AGENT = "shoal-agent"
OF_A_POD = f"{OWN_PODS}the agent changes annotations of a pod only"
OF_A_NODE = f"{OWN}the agent changes annotations and the node's resources only"
OF_STATUS = f"{OWN}the agent changes capacity and allocatable of a node's status only"
ELSEWHERE = "the agent writes to its own node and the pods on it only"
IN_ITS_NAME = f"{OWN_EVENTS}the agent writes events in its own name and its node's only"
ABOUT_OWN = f"{OWN_EVENTS}the agent writes events about its own node and about pods only"
BARE = f"{OWN_EVENTS}the agent writes events without labels, annotations, finalizers or owners"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "waiting", "uid": "1"}

ABOUT_THE_AGENT: list[Line] = [
    ("its pod's decision", AGENT, "PATCH", f"{PODS}/placed", noted(ALLOCATION, "[]"), ""),
    ("its pod's marks", AGENT, "PATCH", f"{PODS}/placed", noted("ALIYUN_COM_GPU_MEM_ASSIGNED", "true"), ""),
    ("its node's cards", AGENT, "PATCH", f"{NODES}/{NODE}", noted("shoal.dev/gpus", "{}"), ""),
    ("what its node holds", AGENT, "PATCH", f"{NODES}/{NODE}", noted("shoal.dev/held", "{}"), ""),
    (
        "its node's totals",
        *(AGENT, "PATCH", f"{NODES}/{NODE}/status"),
        {
            "status": {
                part: {"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "8"} for part in ("capacity", "allocatable")
            }
        },
        "",
    ),
    ("an event about its pod", AGENT, "POST", EVENTS, _told(), ""),
    (
        "an event about its node",
        *(AGENT, "POST", "/api/v1/namespaces/default/events?dryRun=All"),
        event("told", "default", {"kind": "Node", "apiVersion": "v1", "name": NODE}, reason="GPUUnhealthy"),
        "",
    ),
    # ---- refused ----
    ("another node's pod", AGENT, "PATCH", f"{PODS}/far", noted(ALLOCATION, "[]"), f"{OWN_PODS}{ELSEWHERE}"),
    ("a pod on no node", AGENT, "PATCH", f"{PODS}/waiting", noted(ALLOCATION, "[]"), f"{OWN_PODS}{ELSEWHERE}"),
    ("a label of its pod", AGENT, "PATCH", f"{PODS}/placed", labelled("a", "b"), OF_A_POD),
    ("a finalizer of its pod", AGENT, "PATCH", f"{PODS}/placed", {"metadata": {"finalizers": ["a.b/c"]}}, OF_A_POD),
    ("an owner of its pod", AGENT, "PATCH", f"{PODS}/placed", {"metadata": {"ownerReferences": [OWNER]}}, OF_A_POD),
    ("the image of its pod", AGENT, "PATCH", f"{PODS}/placed", other_image(), OF_A_POD),
    ("the deadline of its pod", AGENT, "PATCH", f"{PODS}/placed", {"spec": {"activeDeadlineSeconds": 1}}, OF_A_POD),
    (
        "another annotation of its pod",
        AGENT,
        "PATCH",
        f"{PODS}/placed",
        noted("note", "b"),
        f"{OWN_PODS}annotation note of a pod is not for the agent to write",
    ),
    (
        "an annotation of its pod goes",
        AGENT,
        "PATCH",
        f"{PODS}/placed",
        noted("note", None),
        f"{OWN_PODS}annotation note of a pod is not for the agent to write",
    ),
    ("another node", AGENT, "PATCH", f"{NODES}/{FAR}", noted("shoal.dev/gpus", "{}"), f"{OWN}{ELSEWHERE}"),
    (
        "another node's totals",
        AGENT,
        "PATCH",
        f"{NODES}/{FAR}/status",
        status(capacity={"aliyun.com/gpu-count": "8"}),
        f"{OWN}{ELSEWHERE}",
    ),
    ("a label of its node", AGENT, "PATCH", f"{NODES}/{NODE}", labelled("a", "b"), OF_A_NODE),
    ("a label of its node by the status", AGENT, "PATCH", f"{NODES}/{NODE}/status", labelled("a", "b"), OF_A_NODE),
    (
        "a taint of its node",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}",
        {"spec": {"taints": [{"key": "a", "effect": "NoExecute"}]}},
        OF_A_NODE,
    ),
    ("its node is cordoned", AGENT, "PATCH", f"{NODES}/{NODE}", {"spec": {"unschedulable": True}}, OF_A_NODE),
    ("a finalizer of its node", AGENT, "PATCH", f"{NODES}/{NODE}", {"metadata": {"finalizers": ["a.b/c"]}}, OF_A_NODE),
    ("an owner of its node", AGENT, "PATCH", f"{NODES}/{NODE}", {"metadata": {"ownerReferences": [OWNER]}}, OF_A_NODE),
    (
        "another annotation of its node",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}",
        noted("a", "b"),
        f"{OWN}annotation a of a node is not for the agent to write",
    ),
    (
        "a condition",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(conditions=[{"type": "Ready", "status": "True"}]),
        OF_STATUS,
    ),
    (
        "an address",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(addresses=[{"type": "InternalIP", "address": "10.0.0.1"}]),
        OF_STATUS,
    ),
    (
        "an image",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(images=[{"names": ["a"], "sizeBytes": 1}]),
        OF_STATUS,
    ),
    (
        "the port of kubelet",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(daemonEndpoints={"kubeletEndpoint": {"Port": 1}}),
        OF_STATUS,
    ),
    (
        "the version of kubelet",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(nodeInfo={"kubeletVersion": "v1.0.0"}),
        OF_STATUS,
    ),
    (
        "its node's processors",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(capacity={"cpu": "96"}),
        f"{OWN}resource cpu of a node is not for the agent to count",
    ),
    (
        "its node's pods",
        AGENT,
        "PATCH",
        f"{NODES}/{NODE}/status",
        status(allocatable={"pods": "0"}),
        f"{OWN}resource pods of a node is not for the agent to count",
    ),
    (
        "a token of no node, to a node",
        "homeless",
        "PATCH",
        f"{NODES}/{NODE}",
        noted("shoal.dev/gpus", "{}"),
        f"{OWN}the agent's token does not say on which node it runs",
    ),
    (
        "a token of no node, to a pod",
        "homeless",
        "PATCH",
        f"{PODS}/placed",
        noted(ALLOCATION, "[]"),
        f"{OWN_PODS}the agent's token does not say on which node it runs",
    ),
    (
        "a token of no node, to an event",
        "homeless",
        "POST",
        EVENTS,
        _told(),
        f"{OWN_EVENTS}the agent's token does not say on which node it runs",
    ),
    ("an event of another", AGENT, "POST", EVENTS, _told(source={"component": "kubelet", "host": NODE}), IN_ITS_NAME),
    ("an event from elsewhere", AGENT, "POST", EVENTS, _told(source={"component": AGENT, "host": FAR}), IN_ITS_NAME),
    ("an event reported by another", AGENT, "POST", EVENTS, _told(reportingComponent="kubelet"), IN_ITS_NAME),
    ("an event reported from elsewhere", AGENT, "POST", EVENTS, _told(reportingInstance=FAR), IN_ITS_NAME),
    ("an event about a secret", AGENT, "POST", EVENTS, _told(involvedObject=_about("Secret", "{ns}", "a")), ABOUT_OWN),
    (
        "an event about another node",
        *(AGENT, "POST", "/api/v1/namespaces/default/events?dryRun=All"),
        event("told", "default", {"kind": "Node", "apiVersion": "v1", "name": FAR}),
        ABOUT_OWN,
    ),
    (
        "an event about something else",
        AGENT,
        "POST",
        EVENTS,
        _told(reason="FailedMount"),
        f"{OWN_EVENTS}the agent writes events about GPUs only",
    ),
    (
        "an event with a label",
        AGENT,
        "POST",
        EVENTS,
        _told(metadata={"name": "told", "namespace": "{ns}", "labels": {"a": "b"}}),
        BARE,
    ),
    (
        "an event with an annotation",
        AGENT,
        "POST",
        EVENTS,
        _told(metadata={"name": "told", "namespace": "{ns}", "annotations": {"a": "b"}}),
        BARE,
    ),
    (
        "an event with a finalizer",
        AGENT,
        "POST",
        EVENTS,
        _told(metadata={"name": "told", "namespace": "{ns}", "finalizers": ["a.b/c"]}),
        BARE,
    ),
    ("another's event", AGENT, "PATCH", f"{EVENTS}/foreign", {"count": 9}, IN_ITS_NAME),
    (
        "another's event taken over",
        AGENT,
        "PATCH",
        f"{EVENTS}/foreign",
        {
            "count": 9,
            "source": {"component": AGENT, "host": NODE},
            "reportingComponent": AGENT,
            "reportingInstance": NODE,
            "reason": "GpuRefused",
        },
        IN_ITS_NAME,
    ),
    ("its event counts on", AGENT, "PATCH", f"{EVENTS}/own", {"count": 9, "lastTimestamp": "2026-01-01T00:00:09Z"}, ""),
    (
        "its event says something else",
        AGENT,
        "PATCH",
        f"{EVENTS}/own",
        {"message": "else"},
        f"{OWN_EVENTS}the agent changes how often an event came only",
    ),
]

COLLECTOR = "shoal-metrics"
OWN_LEASE = "shoal-metrics-own-lease: "
ITS_LEASE = f"{OWN_LEASE}a collector writes the Lease of its own node only"
PLAIN = f"{OWN_LEASE}the Lease has no labels and no finalizers, and its node alone as owner"
NEW_LEASE = f"{LEASES}?dryRun=All"


def _owner(kind: str, name: str) -> Object:
    return {"ownerReferences": [{"apiVersion": "v1", "kind": kind, "name": name, "uid": "1"}]}


ABOUT_THE_COLLECTOR: list[Line] = [
    ("its node's load", COLLECTOR, "POST", NEW_LEASE, lease(NODE), ""),
    (
        "its node's load, which goes with the node",
        COLLECTOR,
        "POST",
        NEW_LEASE,
        lease(NODE, **_owner("Node", NODE)),
        "",
    ),
    (
        "its node's load anew",
        COLLECTOR,
        "PATCH",
        f"{LEASES}/{NODE}",
        noted("shoal.dev/load", '{"version":1,"cpu":9}'),
        "",
    ),
    ("as much as a digest may have", COLLECTOR, "POST", NEW_LEASE, lease(NODE, "x" * 65536), ""),
    ("an administrator mends a load", "admin", "PATCH", f"{LEASES}/{NODE}", noted("shoal.dev/load", "{}"), ""),
    # ---- refused ----
    ("another node's load", "far-metrics", "POST", NEW_LEASE, lease(NODE), ITS_LEASE),
    ("another node's load anew", "far-metrics", "PATCH", f"{LEASES}/{NODE}", noted("shoal.dev/load", "{}"), ITS_LEASE),
    ("the load of no node", COLLECTOR, "POST", NEW_LEASE, lease("elsewhere"), ITS_LEASE),
    (
        "a load by a token of no node",
        *("homeless-metrics", "POST", NEW_LEASE, lease(NODE)),
        f"{OWN_LEASE}the collector's token does not say on which node it runs",
    ),
    (
        "a load by somebody with rights to Leases",
        *("lease-writer", "POST", NEW_LEASE, lease(NODE)),
        f"{OWN_LEASE}only the collectors of Shoal write what is used of cards",
    ),
    (
        "another annotation of the Lease",
        *(COLLECTOR, "PATCH", f"{LEASES}/{NODE}", noted("a", "b")),
        f"{OWN_LEASE}annotation a is not for a collector to write",
    ),
    (
        "a digest that is too long",
        *(COLLECTOR, "POST", NEW_LEASE, lease(NODE, "x" * 65537)),
        f"{OWN_LEASE}annotation shoal.dev/load has more than 65536 characters",
    ),
    ("a label of the Lease", COLLECTOR, "PATCH", f"{LEASES}/{NODE}", labelled("a", "b"), PLAIN),
    ("a finalizer of the Lease", COLLECTOR, "POST", NEW_LEASE, lease(NODE, finalizers=["a.b/c"]), PLAIN),
    ("another owner of the Lease", COLLECTOR, "POST", NEW_LEASE, lease(NODE, **_owner("Node", FAR)), PLAIN),
    (
        "another holder",
        *(COLLECTOR, "PATCH", f"{LEASES}/{NODE}", {"spec": {"holderIdentity": FAR}}),
        f"{OWN_LEASE}the holder of the Lease is its node",
    ),
]

LINES = [*ABOUT_DECISIONS, *ABOUT_CLAIMS, *ABOUT_NAMESPACES, *ABOUT_CARDS, *ABOUT_THE_AGENT, *ABOUT_THE_COLLECTOR]


def in_namespace(told: Any, namespace: str) -> Any:
    """The same with the namespace filled in."""
    if isinstance(told, str):
        return told.replace("{ns}", namespace)
    if isinstance(told, dict):
        return {key: in_namespace(value, namespace) for key, value in told.items()}
    return [in_namespace(value, namespace) for value in told] if isinstance(told, list) else told


@pytest.mark.parametrize("line", [pytest.param(line, id=line[0]) for line in LINES])
def test_writes(line: Line, guarded: Guarded, room: str) -> None:
    _, who, method, path, body, refused = line
    path, body = in_namespace(path, room), in_namespace(body, room)
    if "/events/" in path:
        events = in_namespace(EVENTS, room)
        about = _about("Pod", room, "placed")
        foreign = event(
            "foreign", room, about, source={"component": "kubelet"}, reportingComponent="", reportingInstance=""
        )
        guarded.must("POST", events, foreign)
        guarded.must("POST", events, event("own", room, about))
    if path == NEW_LEASE:
        guarded.ask("admin", "DELETE", f"{LEASES}/{NODE}")
    elif path == f"{LEASES}/{NODE}":
        guarded.ask("admin", "POST", LEASES, lease(NODE))
    before = None if method == "POST" else guarded.must("GET", path)
    answer = guarded.ask(who, method, path, body)
    if not refused:
        assert answer.status in (200, 201), answer.body
        return
    policy, _, words = refused.partition(": ")
    assert answer.status == (422 if policy.startswith(("shoal-agent", COLLECTOR)) else 403), answer.body
    assert list(refusals(answer)) == [
        f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: {words}"
    ]
    if before is not None:
        after = guarded.must("GET", path)
        assert without_reports(after) == without_reports(before)


def test_others_have_no_right_to_live_load(guarded: Guarded, room: str) -> None:
    """Who may do everything in its own namespace, and components of Shoal that only read, are refused before."""
    for who in ("tenant", "shoal-agent", "shoal-scheduler"):
        answer = guarded.ask(who, "POST", NEW_LEASE, lease(NODE))
        assert answer.status == 403
        assert 'cannot create resource "leases"' in answer.body["message"]
    assert guarded.ask("tenant", "GET", LEASES).status == 403
    assert guarded.ask("shoal-scheduler", "GET", LEASES).status == 200
    assert guarded.ask(COLLECTOR, "GET", LEASES).status == 403
    assert guarded.ask(COLLECTOR, "DELETE", f"{LEASES}/{NODE}").status == 403
    # A Lease of that name elsewhere is no node's load.
    own = lease(NODE)
    own["metadata"]["namespace"] = room
    assert guarded.ask("tenant", "POST", f"/apis/coordination.k8s.io/v1/namespaces/{room}/leases", own).status == 201


def without_reports(obj: Object) -> Object:
    """An object without what controllers write meanwhile."""
    kept = {key: value for key, value in obj.items() if key != "status"}
    return {
        **kept,
        "metadata": {k: v for k, v in obj["metadata"].items() if k not in ("resourceVersion", "managedFields")},
    }


def test_names_are_unique() -> None:
    assert len({line[0] for line in LINES}) == len(LINES)


def test_a_namespace_that_is_ignored_is_guarded_all_the_same(guarded: Guarded, room: str) -> None:
    guarded.must("PATCH", in_namespace(SPACE, room), labelled(shoal.LABEL_ADMISSION, shoal.ADMISSION_IGNORE))
    pods = in_namespace(PODS, room)
    bad = pod("bad", limits={"aliyun.com/gpu-mem": "10G"})
    wait_for(lambda: guarded.ask("tenant", "POST", f"{pods}?dryRun=All", bad).status == 201, "ignored")
    assert guarded.ask("tenant", "POST", pods, pod("new", annotations={"UUID": "x"})).status == 403
    assert guarded.ask("tenant", "POST", pods, pod("new", env=visible("all"))).status == 403
    off = labelled(shoal.LABEL_ADMISSION, None)
    assert guarded.ask("tenant", "PATCH", in_namespace(SPACE, room), off).status == 403


def test_a_namespace_can_be_let_see_cards(guarded: Guarded, room: str) -> None:
    label = labelled(decisions.LABEL_VISIBLE_DEVICES, decisions.VISIBLE_DEVICES_ALLOW)
    guarded.must("PATCH", in_namespace(SPACE, room), label)
    pods = f"{in_namespace(PODS, room)}?dryRun=All"
    wait_for(lambda: guarded.ask("tenant", "POST", pods, pod("new", env=visible("all"))).status == 201, "let off")


def test_components_of_another_stack_can_be_given_the_right(guarded: Guarded, room: str) -> None:
    """And by a binding in the namespace they are not."""
    change = ("PATCH", f"{in_namespace(PODS, room)}/placed", noted("ALIYUN_COM_GPU_MEM_ASSIGNED", "true"))
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": decisions.ROLE_DECISIONS}
    subject = {"kind": "ServiceAccount", "name": "tenant", "namespace": room}
    grant = {"metadata": {"name": room}, "roleRef": role, "subjects": [subject]}
    guarded.must("POST", f"{RBAC}/namespaces/{room}/rolebindings", grant)
    assert guarded.ask("tenant", *change).status == 403
    guarded.must("POST", f"{RBAC}/clusterrolebindings", grant)
    wait_for(lambda: guarded.ask("tenant", *change).status == 200, "given the right")


def test_a_controller_is_no_way_around(guarded: Guarded, room: str) -> None:
    """The template of an administrator, who may, makes no pods: their controller may not."""
    sets = in_namespace(f"{APPS}/replicasets", room)
    guarded.must("POST", sets, deployment({ALLOCATION: "{}"}, replicas=1))

    def failures() -> list[str]:
        conditions = guarded.must("GET", f"{sets}/web").get("status", {}).get("conditions", [])
        return [one["message"] for one in conditions if one["type"] == "ReplicaFailure"]

    wait_for(lambda: bool(failures()), "told that it cannot make pods")
    assert re.search(rf"'{_D}' denied request: {_ONLY}remove annotation {ALLOCATION}$", failures()[0])
    names = {one["metadata"]["name"] for one in guarded.must("GET", in_namespace(PODS, room))["items"]}
    assert names == {"waiting", "placed", "far"}


def test_ephemeral_containers(guarded: Guarded, room: str) -> None:
    if not guarded.real:
        pytest.skip("the embedded API server has no ephemeral containers")
    path = f"{in_namespace(PODS, room)}/placed/ephemeralcontainers"

    def add(name: str, value: str) -> Object:
        return {"spec": {"ephemeralContainers": [{"name": name, "image": "x", "env": visible(value)}]}}

    answer = guarded.ask("tenant", "PATCH", path, add("debug", "all"))
    assert answer.status == 403
    assert next(refusals(answer)).endswith(CHOOSES.replace("main", "debug"))
    assert guarded.ask("tenant", "PATCH", path, add("debug", "none")).status == 200
    assert guarded.ask("tenant", "PATCH", path, noted(ALLOCATION, "[]")).status in (200, 403)
    stored = guarded.must("GET", f"{in_namespace(PODS, room)}/placed")
    assert stored["metadata"]["annotations"][ALLOCATION] == "{}"
