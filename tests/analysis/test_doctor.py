"""Each check, on clusters with one thing wrong."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from shoal import __version__
from shoal.analysis.doctor.examine import examine
from shoal.analysis.doctor.findings import Finding, Level, some
from shoal.analysis.doctor.installation import Installation
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import Lease
from shoal.kube.objects.pod import ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus
from shoal.metrics.history_wire import Announcement, ExporterStatus
from shoal.model.contract import decisions, gpushare, keti, mechanisms, shoal
from tests.testbed.fake_nodes import node

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


def lease(name: str, *, ago: float = 5, holder: str = "someone") -> Lease:
    renewed = (NOW - timedelta(seconds=ago)).isoformat().replace("+00:00", "Z")
    return msgspec.convert(
        {"metadata": {"name": name}, "spec": {"holderIdentity": holder, "renewTime": renewed}}, Lease
    )


def made(name: str, **changes: Any) -> Node:
    """A node with two cards of 16 GiB, as a healthy agent and kubelet leave it."""
    manifest = node(name, 2)
    info = {"kubeletVersion": "v1.36.3", "containerRuntimeVersion": "containerd://2.4.2"}
    manifest["status"]["nodeInfo"] = info | changes.pop("info", {})
    manifest["metadata"].setdefault("labels", {}).update(changes.pop("labels", {}))
    for resource, amount in changes.pop("allocatable", {}).items():
        manifest["status"]["allocatable"][resource] = amount
    for key, value in changes.pop("annotations", {}).items():
        manifest["metadata"]["annotations"][key] = value
    for key in changes.pop("without", ()):
        del manifest["metadata"]["annotations"][key]
    assert not changes
    return msgspec.convert(manifest, Node)


def pod(name: str, *, on: str = "", units: int = 3, scheduler: str = "gpu-scheduler", age: float = 600) -> Pod:
    manifest: dict[str, Any] = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "creationTimestamp": (NOW - timedelta(seconds=age)).isoformat(),
        },
        "spec": {
            "schedulerName": scheduler,
            "nodeName": on,
            "containers": [{"name": "main", "resources": {"limits": {gpushare.RESOURCE_MEMORY: str(units)}}}],
        },
        "status": {"phase": "Running" if on else "Pending"},
    }
    return msgspec.convert(manifest, Pod)


def placed(name: str, on: str, units: int, index: int = 0) -> Pod:
    """By gpushare's own extender, so that nothing of Shoal's is taken for granted."""
    found = pod(name, on=on, units=units)
    told = {
        gpushare.NAME_INDEX: str(index),
        gpushare.NAME_CARD: "16",
        gpushare.NAME_POD: str(units),
        gpushare.ANNOTATION_ASSIGNED: "true",
        gpushare.ANNOTATION_ASSUME_TIME: "1",
    }
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, annotations=told))


def workload(name: str, tag: str = __version__, **status: int) -> dict[str, Any]:
    containers = [{"name": "main", "image": f"shoal:{tag}"}]
    return {
        "metadata": {"name": name, "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": status,
    }


def policy(name: str, unit: str = "GiB") -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"variables": [{"name": "unit", "expression": f"'{unit}'"}]}}


POLICIES = (
    *(shoal.POLICY_PODS, shoal.POLICY_TEMPLATES, shoal.POLICY_CRON_JOBS),
    *(*decisions.POLICIES_DECISIONS, *decisions.POLICIES_VISIBLE_DEVICES),
    *(decisions.POLICY_EXEMPTIONS, decisions.POLICY_CLAIMS, decisions.POLICY_MADE_CLAIMS),
    *decisions.POLICIES_FENCE,
)

SOUND = Installation(
    version="v1.36.3",
    now=NOW,
    namespace="kube-system",
    nodes=[made("n1"), made("n2")],
    pods=[placed("a", "n1", 3)],
    daemon_sets=[workload(shoal.NAME_AGENT, desiredNumberScheduled=2, numberReady=2)],
    deployments=[workload(shoal.NAME_SCHEDULER, readyReplicas=1)],
    leader=[lease(shoal.NAME_SCHEDULER, holder="shoal-scheduler-1")],
    node_leases=[lease("n1"), lease("n2")],
    extender=[{"endpoints": [{"addresses": ["10.0.0.9"], "conditions": {"ready": True}}]}],
    policies=[policy(name) for name in POLICIES],
    bindings=[{"spec": {"policyName": name, "validationActions": ["Deny"]}} for name in POLICIES],
    granted=[{"metadata": {"name": shoal.NAME_SCHEDULER}}, {"metadata": {"name": shoal.NAME_AGENT}}],
)


def bad(installation: Installation) -> list[Finding]:
    return [finding for finding in examine(installation) if finding.level not in (Level.OK, Level.NOTE)]


def test_a_sound_cluster_has_nothing_wrong() -> None:
    assert bad(SOUND) == []
    assert {finding.check for finding in examine(SOUND) if finding.level is Level.OK} == {
        *("kubernetes", "clocks", "cards", "unit", "cdi"),
        *("agent", "scheduler", "rights", "versions", "admission", "pods"),
    }


def served(name: str, resource: str, mechanism: str, *, asked: bool = False) -> Node:
    """A node that says by which mechanism it serves a name."""
    labels = {mechanisms.label_of(resource): "true"} if asked else {}
    return made(name, annotations={mechanisms.ANNOTATION_MECHANISMS: f'{{"{resource}": "{mechanism}"}}'}, labels=labels)


def by_claim(name: str) -> Pod:
    """A pod on n1 that has its memory by a claim."""
    found = pod(name, on="n1", units=3)
    mapping = ContainerExtendedResourceRequest(
        container_name="main", resource_name=gpushare.RESOURCE_MEMORY, request_name="container-0-request-0"
    )
    made = PodExtendedResourceClaimStatus(resource_claim_name="made", request_mappings=(mapping,))
    return msgspec.structs.replace(
        found, status=msgspec.structs.replace(found.status, extended_resource_claim_status=made)
    )


MIB = {gpushare.RESOURCE_MEMORY: "32768"}
NO_DEVICES = dict.fromkeys((gpushare.RESOURCE_MEMORY, "keti.com/mpsgpu", "nvidia.com/gpu"), "0")


#: What is changed, the check that must say it, how grave it is, and words of it.
def claimant(name: str, on: str) -> Pod:
    """A pod that asks for no GPU and has a record of a card."""
    record = {shoal.ANNOTATION_ALLOCATION: f'{{"version":1,"node":"{on}","containers":[]}}'}
    manifest = {"metadata": {"name": name, "namespace": "default", "uid": name, "annotations": record}}
    return msgspec.convert({**manifest, "spec": {"nodeName": on, "containers": [{"name": "main"}]}}, Pod)


WRONG: tuple[tuple[str, dict[str, Any], str, Level, str], ...] = (
    ("old", {"version": "v1.18.2"}, "kubernetes", Level.FAILED, "v1.18.2 is older than 1.20"),
    ("odd version", {"version": "main"}, "kubernetes", Level.WARNING, "'main'"),
    (
        "the clock here is wrong",
        {"node_leases": [lease("n1", ago=-300), lease("n2", ago=-301)]},
        *("clocks", Level.FAILED, "of this machine is about 300 s behind"),
    ),
    (
        "one clock is wrong",
        {"nodes": [made(f"n{n}") for n in range(3)], "node_leases": [lease("n0"), lease("n1", ago=300), lease("n2")]},
        *("clocks", Level.FAILED, "wrong on n1"),
    ),
    (
        "one clock is ahead",
        {"nodes": [made(f"n{n}") for n in range(3)], "node_leases": [lease("n0"), lease("n1", ago=-60), lease("n2")]},
        *("clocks", Level.FAILED, "wrong on n1"),
    ),
    ("unreadable leases", {"node_leases": None}, "clocks", Level.UNKNOWN, "may not be read"),
    (
        "broken inventory",
        {"nodes": [made("n1", annotations={shoal.ANNOTATION_GPUS: "{"})]},
        *("cards", Level.FAILED, "those of n1 cannot be read"),
    ),
    (
        "no driver",
        {"nodes": [made("n1", annotations={shoal.ANNOTATION_GPUS: shoal.encode_gpus(())})]},
        *("cards", Level.FAILED, "n1: the agent finds no card"),
    ),
    (
        "no agent",
        {"nodes": [made("n1", without=[shoal.ANNOTATION_GPUS], allocatable=NO_DEVICES, labels={"gpushare": "true"})]},
        *("cards", Level.FAILED, "n1: labelled for GPUs, and no agent shows any"),
    ),
    (
        "no cards at all",
        {"nodes": [made("n1", without=[shoal.ANNOTATION_GPUS], allocatable=NO_DEVICES)]},
        *("cards", Level.FAILED, "no node shows any"),
    ),
    (
        "agent away",
        {"nodes": [made("n1", allocatable=NO_DEVICES)]},
        *("agent", Level.FAILED, "n1: cards, but kubelet offers none"),
    ),
    (
        "two units",
        {"nodes": [made("n1"), made("n2", allocatable=MIB)]},
        *("unit", Level.FAILED, "GiB on n1; MiB on n2"),
    ),
    (
        "runtime without CDI",
        {"nodes": [made("n1", info={"containerRuntimeVersion": "containerd://1.6.1"})]},
        *("cdi", Level.WARNING, "containerd://1.6.1 is not known to take CDI"),
    ),
    (
        "agents missing",
        {"daemon_sets": [workload(shoal.NAME_AGENT, desiredNumberScheduled=2, numberReady=1)]},
        *("agent", Level.FAILED, "ready on 1 of 2 nodes"),
    ),
    ("agent nowhere", {"daemon_sets": [workload(shoal.NAME_AGENT)]}, "agent", Level.FAILED, "finds no node"),
    (
        "two plugins",
        {
            "daemon_sets": [
                workload(shoal.NAME_AGENT, desiredNumberScheduled=2, numberReady=2),
                workload(gpushare.PLUGIN_NAME, desiredNumberScheduled=1),
            ]
        },
        *("agent", Level.WARNING, "gpushare-device-plugin-ds may serve the same"),
    ),
    ("no scheduler ready", {"deployments": [workload("shoal-scheduler")]}, "scheduler", Level.FAILED, "no replica"),
    ("no leader", {"leader": []}, "scheduler", Level.FAILED, "nobody leads"),
    ("nobody behind the Service", {"extender": []}, "scheduler", Level.FAILED, "nobody answers behind"),
    (
        "two schedulers of ours",
        {
            "deployments": [
                workload(shoal.NAME_SCHEDULER, readyReplicas=1),
                workload(shoal.NAME_SCHEDULER, readyReplicas=1),
            ]
        },
        *("scheduler", Level.FAILED, "without a common lease"),
    ),
    (
        "two extenders",
        {
            "deployments": [
                workload(shoal.NAME_SCHEDULER, readyReplicas=1),
                workload(gpushare.EXTENDER_NAME),
            ]
        },
        *("scheduler", Level.WARNING, "gpushare-schd-extender places GPU pods too"),
    ),
    ("no rights", {"granted": []}, "rights", Level.FAILED, "shoal-agent, shoal-scheduler: no ClusterRoleBinding"),
    (
        "other release",
        {"deployments": [workload(shoal.NAME_SCHEDULER, "9.9", readyReplicas=1)]},
        *("versions", Level.WARNING, "shoal-scheduler 9.9"),
    ),
    (
        "no policies",
        {"policies": [], "bindings": []},
        "admission",
        Level.WARNING,
        "bad requests are told by events only",
    ),
    ("no guards", {"policies": [], "bindings": []}, "admission", Level.FAILED, "tenants can write what was decided"),
    ("no fence", {"policies": [], "bindings": []}, "admission", Level.FAILED, "an agent can write to any node"),
    ("idle policies", {"bindings": []}, "admission", Level.FAILED, "bound by nothing that denies"),
    (
        "policies of another unit",
        {"policies": [policy(name, "MiB") for name in POLICIES]},
        *("admission", Level.FAILED, "count memory in MiB, the nodes in GiB"),
    ),
    (
        "nobody schedules",
        {"pods": [pod("lost", scheduler="gone-scheduler")]},
        *("pods", Level.FAILED, "default/lost: no scheduler named gone-scheduler"),
    ),
    ("not wired", {"pods": [pod("bare", on="n1")]}, "pods", Level.WARNING, "default/bare: on a node, and nobody wrote"),
    (
        "over-booked",
        {"pods": [placed("a", "n1", 12), placed("b", "n1", 12)]},
        *("pods", Level.FAILED, "GPU0 of n1 (24576 of 16384 MiB)"),
    ),
    (
        "a record for nothing",
        {"pods": [claimant("idle", "n1")]},
        *("pods", Level.WARNING, "default/idle: a record of cards, and no request for any"),
    ),
    (
        "held up on its way to claims",
        {"nodes": [served("n1", gpushare.RESOURCE_MEMORY, "to-claims")], "pods": [placed("a", "n1", 3), by_claim("b")]},
        *("claims", Level.WARNING, "changes to claims when pods with devices have ended: default/a"),
    ),
    (
        "held up on its way back",
        {"nodes": [served("n1", gpushare.RESOURCE_MEMORY, "to-devices")], "pods": [by_claim("b")]},
        *("claims", Level.WARNING, "changes to devices when pods with claims have ended: default/b"),
    ),
    (
        "asked for claims in vain",
        {"nodes": [served("n1", "nvidia.com/gpu", "devices", asked=True)], "pods": []},
        *("claims", Level.WARNING, "has label claims.shoal.dev/nvidia.com_gpu and serves nvidia.com/gpu by devices"),
    ),
    ("wrong index", {"pods": [placed("a", "n1", 3, 7)]}, "pods", Level.FAILED, "cannot be read: default/a"),
)


@pytest.mark.parametrize(("changes", "check", "level", "words"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_is_wrong_is_told(changes: dict[str, Any], check: str, level: Level, words: str) -> None:
    found = bad(replace(SOUND, **changes))
    (told,) = [finding for finding in found if words in finding.says]
    assert (told.check, told.level) == (check, level)
    assert told.fix


# The port for Prometheus


def collector(node: str, **status: Any) -> Announcement:
    made = {"port": 9400, "pod_labels": "auto", "names_pods": True, "network_policy": True, "scraped": True, **status}
    return Announcement(node=node, host="10.0.0.1", port=9401, authority="", exporter=ExporterStatus(**made))


def collectors_set(*, host_network: bool = False) -> dict[str, Any]:
    made = workload("shoal-metrics", desiredNumberScheduled=2, numberReady=2)
    labels = {"app.kubernetes.io/name": "shoal-metrics"}
    made["metadata"]["labels"] = labels
    made["spec"]["template"]["metadata"] = {"labels": labels}
    if host_network:
        made["spec"]["template"]["spec"]["hostNetwork"] = True
    return made


def fence(peers: list[Any] | None, name: str = "shoal-metrics", **spec: Any) -> dict[str, Any]:
    rule: dict[str, Any] = {"ports": [{"port": 9400}], **({} if peers is None else {"from": peers})}
    selector = {"matchLabels": {"app.kubernetes.io/name": "shoal-metrics"}}
    spec = {"podSelector": selector, "policyTypes": ["Ingress"], "ingress": [rule, {"ports": [{"port": 9401}]}], **spec}
    return {"metadata": {"name": name, "namespace": "kube-system"}, "spec": spec}


MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
MEASURED = replace(
    SOUND,
    daemon_sets=[*(SOUND.daemon_sets or ()), collectors_set()],
    collectors=[collector("n1"), collector("n2")],
    network_policies=[fence(MONITORING)],
)


def told_of_metrics(**changes: Any) -> list[tuple[Level, str]]:
    return [(one.level, one.says) for one in examine(replace(MEASURED, **changes)) if one.check == "metrics"]


def test_collectors_that_are_scraped_behind_a_network_policy_are_well() -> None:
    assert told_of_metrics() == [(Level.OK, "2 collector(s) are scraped")]
    assert told_of_metrics(collectors=[]) == []
    new = [collector("n1", scraped=None)]
    assert told_of_metrics(collectors=new) == []


def test_names_of_pods_on_an_open_port_are_told() -> None:
    at_own_word = [collector("n1", network_policy=False, pod_labels="always"), collector("n2")]
    ((level, says),) = told_of_metrics(collectors=at_own_word)
    assert (level, says) == (
        Level.WARNING,
        "n1: everyone who reaches port 9400 reads the names of all pods with GPUs",
    )
    assert told_of_metrics(collectors=[collector("n1", network_policy=False, authenticates=True)])[0][0] is Level.OK


@pytest.mark.parametrize(
    ("policies", "words"),
    [
        ([], "no NetworkPolicy of namespace kube-system covers port 9400"),
        ([fence(MONITORING, policyTypes=["Egress"])], "no NetworkPolicy"),
        ([fence(MONITORING, podSelector={"matchLabels": {"app": "other"}})], "no NetworkPolicy"),
        ([fence(None)], "NetworkPolicy kube-system/shoal-metrics admits every client to port 9400"),
        ([fence([{"namespaceSelector": {}}])], "admits every client"),
        ([fence([{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "prometheus"}}}])], "admits every"),
        ([fence([*MONITORING, {"ipBlock": {"cidr": "0.0.0.0/0"}}])], "admits every client"),
        # Policies add up: one that admits everybody opens what another protects.
        ([fence(MONITORING), fence(None, name="debug")], "NetworkPolicy kube-system/debug admits every client"),
        ([fence(MONITORING, ingress=[{}])], "admits every client"),
        ([fence(MONITORING, ingress=[{"ports": [{"port": 9000, "endPort": 9500}]}])], "admits every client"),
        ([fence(MONITORING, ingress=[{"ports": [{"port": "metrics"}]}])], "admits every client"),
    ],
)
def test_a_network_policy_that_does_not_protect_the_names_is_told(policies: list[Any], words: str) -> None:
    ((level, says),) = told_of_metrics(network_policies=policies)
    assert level is Level.FAILED
    assert words in says


def test_no_network_policy_covers_the_network_of_the_host() -> None:
    ((level, says),) = told_of_metrics(daemon_sets=[collectors_set(host_network=True)])
    assert level is Level.FAILED
    assert "network of the host" in says


def test_names_that_are_withheld_are_told_unless_that_was_chosen() -> None:
    held = {"names_pods": False, "network_policy": False}
    ((level, says),) = told_of_metrics(collectors=[collector("n1", **held)])
    assert (level, says) == (Level.NOTE, "n1: series name no pods, since nothing protects the port")
    assert told_of_metrics(collectors=[collector("n1", pod_labels="never", **held)])[0][0] is Level.OK


def test_nobody_who_scrapes_is_told() -> None:
    none = [collector("n1", scraped=False), collector("n2", scraped=None)]
    assert told_of_metrics(collectors=none) == [(Level.NOTE, "nobody has scraped any collector for ten minutes")]
    ((level, says),) = told_of_metrics(collectors=[collector("n1", scraped=False), collector("n2")])
    assert (level, says[:3]) == (Level.WARNING, "n1:")


@pytest.mark.parametrize("part", ["collectors", "network_policies", "daemon_sets"])
def test_ports_that_may_not_be_read_are_unknown(part: str) -> None:
    assert [level for level, _ in told_of_metrics(**{part: None})] == [Level.UNKNOWN]


def test_ports_of_collectors_that_are_not_installed_are_not_looked_for() -> None:
    assert told_of_metrics(collectors=None, daemon_sets=[]) == []


@pytest.mark.parametrize(
    "part", ["daemon_sets", "deployments", "leader", "extender", "policies", "bindings", "granted", "node_leases"]
)
def test_what_may_not_be_read_is_unknown_and_no_failure(part: str) -> None:
    hidden: dict[str, Any] = {part: None}
    found = bad(replace(SOUND, **hidden))
    assert found
    assert {finding.level for finding in found} == {Level.UNKNOWN}
    assert "deploy/rbac/viewer.yaml" in found[0].fix


def sick(change: Callable[[dict[str, Any]], None]) -> Node:
    manifest = node("n1", 2)
    inventory = msgspec.json.decode(manifest["metadata"]["annotations"][shoal.ANNOTATION_GPUS])
    change(inventory)
    manifest["metadata"]["annotations"][shoal.ANNOTATION_GPUS] = msgspec.json.encode(inventory).decode()
    return msgspec.convert(manifest, Node)


@pytest.mark.parametrize("ages", [(9.5, 9.5, 0.1), (0.1, 0.1, 9.9), (-3, 0, 2)])
def test_leases_of_one_renewal_period_agree(ages: tuple[float, ...]) -> None:
    names = [f"n{number}" for number in range(len(ages))]
    leases = [lease(name, ago=ago) for name, ago in zip(names, ages, strict=True)]
    assert bad(replace(SOUND, nodes=[made(name) for name in names], node_leases=leases, pods=[])) == []


def test_workloads_with_ketis_names_are_known_by_their_labels() -> None:
    """As deploy/keti has them."""

    def renamed(one: dict[str, Any], name: str) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": one["metadata"]["name"]}
        return {**one, "metadata": {**one["metadata"], "name": name, "labels": labels}}

    assert SOUND.daemon_sets
    assert SOUND.deployments
    keti_named = replace(
        SOUND,
        daemon_sets=[renamed(SOUND.daemon_sets[0], keti.PLUGIN_DAEMONSET)],
        deployments=[renamed(SOUND.deployments[0], keti.SCHEDULER_DEPLOYMENT)],
    )
    assert list(examine(keti_named)) == list(examine(SOUND))


def test_names_by_claims_are_no_fault() -> None:
    """Though kubelet counts no devices then."""
    names = ", ".join(f'"{name}": "claims"' for name in NO_DEVICES)
    node = made("n1", annotations={mechanisms.ANNOTATION_MECHANISMS: f"{{{names}}}"}, allocatable=NO_DEVICES)
    sound = replace(SOUND, nodes=[node, made("n2")], pods=[by_claim("b")])
    assert bad(sound) == []
    assert sum(one.check == "claims" for one in examine(sound)) == len(NO_DEVICES)


def test_a_young_pod_is_not_lost_yet() -> None:
    assert bad(replace(SOUND, pods=[pod("new", scheduler="gone-scheduler", age=5)])) == []


def test_bad_cards_are_told_with_their_fault() -> None:
    def fail(inventory: dict[str, Any]) -> None:
        inventory["gpus"][1] |= {"healthy": False, "fault": "XID 79"}

    (told,) = [one for one in bad(replace(SOUND, nodes=[sick(fail)])) if one.check == "health"]
    assert told.says == "GPU1 of n1 is out of use: XID 79"


@pytest.mark.parametrize(
    ("isolation", "words"),
    [
        ("cgroup", []),
        ("mps-namespace", ["n1: MPS namespaces limit compute; their memory limit is a convention"]),
        ("mps", ["n1: MPS limits clients by their environment"]),
        ("none", ["n1: shares are counted, and nothing keeps a container to its own"]),
    ],
)
def test_which_memory_limits_a_tenant_can_lift(isolation: str, words: list[str]) -> None:
    def limit(inventory: dict[str, Any]) -> None:
        for gpu in inventory["gpus"]:
            gpu["isolation"] = isolation

    said = [one.says for one in examine(replace(SOUND, nodes=[sick(limit)])) if one.check == "isolation"]
    assert len(said) == len(words)
    assert all(found.startswith(begin) for found, begin in zip(said, words, strict=True))


def test_lists_of_names_stay_short() -> None:
    assert some(str(number) for number in range(7)) == "0, 1, 2, 3, 4 and 2 more"
    assert some(["a"]) == "a"
