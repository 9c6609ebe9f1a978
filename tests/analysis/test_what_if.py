"""`shoal what-if` on small clusters: one pod, workloads, counts, and what cannot be placed."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from shoal.analysis.manifests import MAX_PODS, workloads
from shoal.analysis.snapshot import ClusterSnapshot, PriorityClass
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.policy import PodDisruptionBudget
from shoal.kube.objects.storage import PersistentVolume, StorageClass
from tests.analysis.small import Small, shoal
from tests.suites.scheduling import shorthand

FITS = """\
Policy binpack (the test).

Pod x fits: 1 pod; it asks for 3072 MiB of 1 card.

POD         NODE   CARDS   SHARE      POLICY
default/x   n1     GPU1    3072 MiB   binpack
"""

SOME_FIT = """\
Policy binpack (the test).

Pod x: 3 of 5 pods fit; each asks for 3072 MiB of 1 card.

POD           NODE   CARDS   SHARE      POLICY
default/x-1   n1     GPU1    3072 MiB   binpack
default/x-2   n1     GPU0    3072 MiB   binpack
default/x-3   n1     GPU0    3072 MiB   binpack

The next one fits on no node:

NODE   CARD   FREE             WHY NOT
n1                             NodeResourcesFit: Insufficient aliyun.com/gpu-mem
       GPU0   0/16384 MiB      0 MiB free of 16384, 3072 wanted
       GPU1   1024/16384 MiB   1024 MiB free of 16384, 3072 wanted

What would help:
  With 1024 MiB per card or less it would fit now.
  Were default/b gone, it would fit on n1; the scheduler sends nobody away.
"""


@pytest.fixture
def small() -> Small:
    one = Small({"n1": {"gpus": 2}})
    one.add("a", {"mem": 10})
    one.add("b", {"mem": 12})
    return one


def test_manifests_go_to_one_namespace(small: Small, tmp_path: Path) -> None:
    result = shoal("what-if", "-f", "-", "-A", "--snapshot", small.save(tmp_path / "s"), stdin="")
    assert result.exit_code == 2
    assert "give it with -n instead of -A" in result.stderr


def what_if(small: Small, path: Path, *manifests: dict[str, Any], options: tuple[str, ...] = ()) -> Any:
    """The answer to a file of manifests."""
    text = yaml.safe_dump_all(manifests)
    return shoal("what-if", "-f", "-", "--snapshot", small.save(path / "s"), *options, stdin=text)


def answer(small: Small, path: Path, *manifests: dict[str, Any], options: tuple[str, ...] = ()) -> dict[str, Any]:
    """The same for programs."""
    found: dict[str, Any] = json.loads(what_if(small, path, *manifests, options=("-o", "json", *options)).stdout)
    return found


def of(kind: str, name: str, short: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A workload of pods like this."""
    pod = shorthand.pod(name, short)
    template = {"metadata": pod["metadata"], "spec": pod["spec"]}
    return {"kind": kind, "metadata": {"name": name}, "spec": {"template": template, **spec}}


def test_it_fits(small: Small, tmp_path: Path) -> None:
    result = what_if(small, tmp_path, shorthand.pod("x", {"mem": 3}))
    assert (result.stdout, result.exit_code) == (FITS, 0)


def test_how_many_more_fit(small: Small, tmp_path: Path) -> None:
    result = what_if(small, tmp_path, shorthand.pod("x", {"mem": 3}), options=("--count", "5"))
    assert (result.stdout, result.exit_code) == (SOME_FIT, 1)


def test_what_was_placed_before_in_the_file_counts(small: Small, tmp_path: Path) -> None:
    told = answer(small, tmp_path, shorthand.pod("x", {"mem": 6}), shorthand.pod("y", {"mem": 6}))
    assert [one["fits"] for one in told["workloads"]] == [1, 0]
    assert not told["fits"]
    assert told["policy"] == "binpack"


def test_the_largest_share_that_fits_is_told_and_not_taken(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1}})
    small.add("a", {"mem": 12})
    small.add("b", {"mem": 10})
    too_large, next_one = answer(small, tmp_path, shorthand.pod("x", {"mem": 8}), shorthand.pod("y", {"mem": 6}))[
        "workloads"
    ]
    assert too_large["unplaced"]["wouldFitMib"] == 6144
    assert next_one["fits"] == 1


def test_a_bad_request_is_told_as_admission_tells_it(small: Small, tmp_path: Path) -> None:
    result = what_if(small, tmp_path, shorthand.pod("x", {"mem": "10G"}))
    assert result.exit_code == 1
    assert "Pod x would not be placed: container 'main' asks for 10G of aliyun.com/gpu-mem" in result.stdout


def test_the_policy_that_is_asked_for_decides(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1}})
    small.add("a", {"mem": 2})
    nodes = [
        answer(small, tmp_path, shorthand.pod("x", {"mem": 2}), options=("--policy", policy))["workloads"][0]["placed"]
        for policy in ("binpack", "spread")
    ]
    assert [placed[0]["node"] for placed in nodes] == ["n1", "n2"]
    assert [placed[0]["policy"] for placed in nodes] == ["binpack", "spread"]


def test_the_least_important_give_way(small: Small, tmp_path: Path) -> None:
    small.add("important", {"mem": 5, "spec": {"priority": 1}})
    pod = shorthand.pod("x", {"mem": 6, "spec": {"priority": 100}})
    told = answer(small, tmp_path, pod)["workloads"][0]["unplaced"]
    assert told["preempts"] == {"node": "n1", "pods": ["default/b"]}
    assert "clearing" not in told
    assert "The scheduler makes room on n1: default/b must give way." in what_if(small, tmp_path, pod).stdout


def test_a_broken_disruption_budget_is_counted(tmp_path: Path) -> None:
    budget = {
        "metadata": {"name": "keep", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "x"}}},
        "status": {"disruptionsAllowed": 0},
    }
    small = Small({"n1": {"gpus": 1}}, budgets=(msgspec.convert(budget, PodDisruptionBudget),))
    small.add("kept", {"mem": 16, "labels": {"app": "x"}})
    pod = shorthand.pod("x", {"mem": 6, "spec": {"priority": 100}})
    told = answer(small, tmp_path, pod)["workloads"][0]["unplaced"]["preempts"]
    assert told == {"node": "n1", "pods": ["default/kept"], "breaksBudgets": 1}


def test_cards_that_gpushare_lists_as_unhealthy_take_nothing(small: Small, tmp_path: Path) -> None:
    meta = ObjectMeta(name="unhealthy-gpu-n1", namespace="kube-system")
    small.snapshot = msgspec.structs.replace(
        small.snapshot, config_maps=(ConfigMap(metadata=meta, data={"gpus": "1"}),)
    )
    told = answer(small, tmp_path, shorthand.pod("x", {"mem": 3}))
    assert [card["index"] for card in told["workloads"][0]["placed"][0]["cards"]] == [0]


def test_preferences_of_the_pod_come_before_the_policy(tmp_path: Path) -> None:
    small = Small({"n1": {"gpus": 1}, "n2": {"gpus": 1, "labels": {"zone": "w"}}})
    small.add("a", {"mem": 2})
    wish = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [wish]}}
    told = answer(small, tmp_path, shorthand.pod("x", {"mem": 2, "spec": {"affinity": affinity}}))
    assert told["workloads"][0]["placed"][0]["node"] == "n2"


def test_a_pod_of_a_priority_class_has_its_value() -> None:
    classes = (
        PriorityClass(metadata=ObjectMeta(name="high"), value=7, preemption_policy="Never"),
        PriorityClass(metadata=ObjectMeta(name="usual"), value=3, global_default=True),
    )
    snapshot = ClusterSnapshot(priority_classes=classes)
    named = shorthand.pod("a", {"mem": 1, "spec": {"priorityClassName": "high"}})
    text = yaml.safe_dump_all([named, shorthand.pod("b", {"mem": 1})]).encode()
    high, usual = (one.pods[0].spec for one in workloads(text, namespace="default", snapshot=snapshot))
    assert (high.priority, high.preemption_policy) == (7, "Never")
    assert (usual.priority, usual.preemption_policy) == (3, None)


@pytest.mark.parametrize(
    ("manifest", "names"),
    [
        (of("Deployment", "d", {"mem": 1}, replicas=2), ["d-1", "d-2"]),
        (of("ReplicaSet", "r", {"mem": 1}), ["r-1"]),
        (of("StatefulSet", "s", {"mem": 1}, replicas=2), ["s-0", "s-1"]),
        (of("Job", "j", {"mem": 1}, parallelism=3, completions=2), ["j-1", "j-2"]),
        (of("Job", "j", {"mem": 1}), ["j-1"]),
        ({**of("CronJob", "c", {}), "spec": {"jobTemplate": of("Job", "j", {"mem": 1})}}, ["c-1"]),
        ({"kind": "List", "items": [shorthand.pod("p", {"mem": 1})]}, ["p"]),
        (of("Deployment", "none", {"mem": 1}, replicas=0), []),
    ],
)
def test_pods_of_a_workload(manifest: dict[str, Any], names: list[str]) -> None:
    found = workloads(yaml.safe_dump(manifest).encode(), namespace="here", snapshot=ClusterSnapshot())
    assert [pod.metadata.name for one in found for pod in one.pods] == names
    assert {pod.metadata.namespace for one in found for pod in one.pods} <= {"here"}
    assert len({pod.metadata.uid for one in found for pod in one.pods}) == len(names)


def test_other_kinds_are_passed_over(small: Small, tmp_path: Path) -> None:
    service = {"kind": "Service", "metadata": {"name": "s"}}
    assert len(answer(small, tmp_path, service, shorthand.pod("x", {"mem": 1}))["workloads"]) == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no pods: give a Pod, Deployment"),
        ("kind: Service", "holds no pods"),
        ("a: [", "is no YAML"),
        ("- 1", "holds a list: write Kubernetes objects"),
        ("{kind: Pod, metadata: 7}", "metadata holds a int"),
        ("{kind: Pod, metadata: {name: x}}", "has a pod without containers"),
        ("{kind: Pod, metadata: {name: x}, spec: {containers: 7}}", "Pod 'x' holds no pod"),
        ("{kind: Deployment, metadata: {name: x}, spec: {replicas: many}}", "replicas holds 'many'"),
        (f"{{kind: Deployment, metadata: {{name: x}}, spec: {{replicas: {MAX_PODS + 1}}}}}", "give a --count"),
        ("[" * 3000, "is no YAML"),
        ("{kind: Pod, metadata: {creationTimestamp: 2026-13-45}}", "is no YAML"),
        (r'{"kind": "Pod", "metadata": {"name": "\U00110000"}}', "is no YAML"),
        (r'{"kind": "Pod", "metadata": {"name": "\ud83d\ude00"}}', "Pod '\U0001f600' has a pod without containers"),
    ],
)
def test_a_file_without_pods_is_told(small: Small, tmp_path: Path, text: str, words: str) -> None:
    result = shoal("what-if", "-f", "-", "--snapshot", small.save(tmp_path / "s"), stdin=text)
    assert result.exit_code == 1
    assert words in result.stderr


@pytest.mark.parametrize(
    ("written", "read"), [(r"\ud83d\ude00", "\U0001f600"), (r"\ud83d", "\ufffd"), (r"\ude00x", "\ufffdx")]
)
@pytest.mark.parametrize("form", ["json", "yaml", None])
@pytest.mark.parametrize("place", ["name", "namespace", "annotation", "amount", "selector"])
def test_a_character_of_two_escapes_is_one(
    small: Small, tmp_path: Path, written: str, read: str, form: str | None, place: str
) -> None:
    pod = shorthand.pod("x", {"mem": 3})
    limits, mark = pod["spec"]["containers"][0]["resources"]["limits"], "@mark@"
    if place in ("name", "namespace"):
        pod["metadata"][place] = mark
    elif place == "annotation":
        pod["metadata"]["annotations"] = {"shoal.dev/policy": mark}
    elif place == "amount":
        limits["aliyun.com/gpu-mem"] = mark
    else:
        pod["spec"]["nodeSelector"] = {"zone": mark}
    options = () if form is None else ("-o", form)
    text = json.dumps(pod).replace(mark, written)
    result = shoal("what-if", "-f", "-", "--snapshot", small.save(tmp_path / "s"), *options, stdin=text)
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == (0 if place in ("name", "namespace") else 1)
    if place in ("name", "namespace"):
        assert read in result.stdout


def test_a_stateful_set_brings_its_claims(tmp_path: Path) -> None:
    local = StorageClass(
        metadata=ObjectMeta(name="local"),
        provisioner="kubernetes.io/no-provisioner",
        volume_binding_mode="WaitForFirstConsumer",
    )
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", "operator": "In", "values": ["w"]}]}]}
    volume = {
        "metadata": {"name": "v"},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "nodeAffinity": {"required": affinity},
        },
        "status": {"phase": "Available"},
    }
    nodes: dict[str, Any] = {"n1": {"gpus": 1}, "n2": {"gpus": 1, "labels": {"zone": "w"}}}
    volumes = (msgspec.convert(volume, PersistentVolume),)
    small = Small(nodes, storage_classes=(local,), volumes=volumes)
    claim = {
        "metadata": {"name": "data"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "local",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }
    told = answer(small, tmp_path, of("StatefulSet", "s", {"mem": 1}, replicas=2, volumeClaimTemplates=[claim]))
    (one,) = told["workloads"]
    assert [placed["node"] for placed in one["placed"]] == ["n2"]
    assert "didn't find available persistent volumes to bind" in one["unplaced"]["message"]  # it had but one


GROUP = {"shoal.dev/pod-group": "g", "shoal.dev/pod-group-min": "3"}


@pytest.mark.parametrize(
    ("mem", "replicas", "words"),
    [
        (6, 3, "pod group g: 1 of 3 pods fit at once: none is placed"),
        (2, 2, "pod group g: 2 of 3 pods are there"),
        (2, 3, ""),
    ],
)
def test_a_group_goes_together_or_not_at_all(small: Small, tmp_path: Path, mem: int, replicas: int, words: str) -> None:
    group = of("Deployment", "d", {"mem": mem, "labels": GROUP}, replicas=replicas)
    told = answer(small, tmp_path, group, shorthand.pod("after", {"mem": 6}))["workloads"]
    assert told[0]["refused"] == words
    assert told[0]["fits"] == (0 if words else replicas)
    assert told[1]["fits"] == (1 if words else 0)  # what was only tried is free again


def test_what_to_ask_must_be_said(small: Small, tmp_path: Path) -> None:
    file = small.save(tmp_path / "s")
    assert "give a manifest with -f, or a policy" in shoal("what-if", "--snapshot", file).stderr
    assert "--count is for pods" in shoal("what-if", "--policy", "spread", "--count", "2", "--snapshot", file).stderr
    assert "leave out --memory-unit" in shoal("policy", "show", "--memory-unit", "GiB", "--snapshot", file).stderr
    result = what_if(small, tmp_path, shorthand.pod("x", {"mem": 1}), options=("--policy", "best"))
    assert result.exit_code == 2
    assert "choose one of" in result.stderr
