"""Copies of pods: their manifests, what they name, and how both sides are kept and read."""

from typing import Any

import msgspec
import pytest

from shoal.clusters.copies import (
    MAX_STATUS,
    DispatchedMeta,
    DispatchedPod,
    Reference,
    copy_of,
    gates_of,
    is_held,
    job_of,
    mode_of,
    read_copy,
    read_home,
    references,
    sent_of,
    slim_copy,
    slim_home,
    whole,
)
from shoal.clusters.dispatch import CopyPod, Dispatch, HomePod
from shoal.kube.codec import codec_of
from shoal.model.contract import clusters, gpushare, keti, shoal
from shoal.model.contract.clusters import CopyOrigin, LostMode, Sent
from shoal.model.errors import CodecError

ORIGIN = CopyOrigin(cluster="home-uid", uid="pod-uid", attempt=3)
TOKEN = "kube-api-access-x7k2p"


def raw(**parts: Any) -> dict[str, Any]:
    """A pod as home's server has it."""
    meta = {"name": "one", "namespace": "team", "uid": "pod-uid", "resourceVersion": "7", **parts.pop("metadata", {})}
    return {
        "metadata": meta,
        "spec": {"containers": [{"name": "main", "image": "i"}], **parts.pop("spec", {})},
        **parts,
    }


def read(pod: dict[str, Any]) -> DispatchedPod:
    return codec_of(DispatchedPod).one(msgspec.json.encode(pod), asked="a test")


def test_a_copy_is_what_was_asked_for_behind_the_managers_gate() -> None:
    home = raw(
        metadata={
            "labels": {"app": "web"},
            "annotations": {
                "team": "vision",
                keti.ANNOTATION_CLUSTER: "east",
                keti.ANNOTATION_UUID: "GPU-1",
                shoal.ANNOTATION_ALLOCATION: "{}",
                shoal.ANNOTATION_USE_MODEL: "A100",
                gpushare.ANNOTATION_ASSUME_TIME: "1",
                clusters.ANNOTATION_DISPATCH: "{}",
                "kubectl.kubernetes.io/last-applied-configuration": "{}",
            },
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}],
            "finalizers": [clusters.FINALIZER_HOME, "batch.kubernetes.io/job-tracking"],
        },
        spec={
            "nodeName": "n",
            "schedulingGates": [{"name": clusters.GATE_HOME}, {"name": "other"}],
            "serviceAccountName": "runner",
            "serviceAccount": "runner",
            "priority": 7,
            "priorityClassName": "high",
            "preemptionPolicy": "Never",
            "overhead": {"cpu": "1"},
            "ephemeralContainers": [{"name": "debug"}],
            "nodeSelector": {"zone": "a"},
            "volumes": [{"name": "data", "emptyDir": {}}, {"name": TOKEN, "projected": {"sources": []}}],
            "containers": [
                {"name": "main", "image": "i", "volumeMounts": [{"name": "data"}, {"name": TOKEN, "readOnly": True}]}
            ],
            "initContainers": [{"name": "first", "image": "i", "volumeMounts": [{"name": TOKEN}]}],
        },
        status={"phase": "Pending"},
    )
    before = msgspec.json.encode(home)
    assert copy_of(home, ORIGIN) == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "one",
            "namespace": "team",
            "labels": {"app": "web", clusters.LABEL_ORIGIN: "home-uid"},
            "annotations": {
                "team": "vision",
                shoal.ANNOTATION_USE_MODEL: "A100",
                clusters.ANNOTATION_ORIGIN: '{"cluster":"home-uid","uid":"pod-uid","attempt":3}',
            },
        },
        "spec": {
            "schedulingGates": [{"name": clusters.GATE_COPY}],
            "serviceAccountName": "runner",
            "priorityClassName": "high",
            "nodeSelector": {"zone": "a"},
            "volumes": [{"name": "data", "emptyDir": {}}],
            "containers": [{"name": "main", "image": "i", "volumeMounts": [{"name": "data"}]}],
            "initContainers": [{"name": "first", "image": "i", "volumeMounts": []}],
        },
    }
    assert msgspec.json.encode(home) == before


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({}, []),
        ({"serviceAccountName": "default"}, []),
        ({"serviceAccountName": "runner"}, ["ServiceAccount runner"]),
        ({"imagePullSecrets": [{"name": "pull"}]}, ["Secret pull"]),
        ({"volumes": [{"name": "v", "configMap": {"name": "a"}}]}, ["ConfigMap a"]),
        ({"volumes": [{"name": "v", "configMap": {"name": "a", "optional": True}}]}, []),
        ({"volumes": [{"name": "v", "secret": {"secretName": "s"}}]}, ["Secret s"]),
        ({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, ["PersistentVolumeClaim c"]),
        (
            {
                "volumes": [
                    {"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}, {"configMap": {"name": "a"}}]}}
                ]
            },
            ["ConfigMap a", "Secret s"],
        ),
        ({"volumes": [{"name": TOKEN, "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}]}, []),
        ({"resourceClaims": [{"name": "g", "resourceClaimName": "gpu"}]}, ["ResourceClaim gpu"]),
        ({"resourceClaims": [{"name": "g", "resourceClaimTemplateName": "t"}]}, ["ResourceClaimTemplate t"]),
        (
            {
                "initContainers": [{"name": "i", "envFrom": [{"secretRef": {"name": "s"}}]}],
                "containers": [
                    {
                        "name": "c",
                        "envFrom": [{"configMapRef": {"name": "a"}}],
                        "env": [
                            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                            {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "b", "key": "k"}}},
                            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "o", "key": "k", "optional": True}}},
                            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                            {"name": "E", "value": "x"},
                        ],
                    }
                ],
            },
            ["ConfigMap a", "ConfigMap b", "Secret s"],
        ),
    ],
)
def test_what_a_pod_names(spec: dict[str, Any], named: list[str]) -> None:
    assert [f"{one.kind} {one.name}" for one in references(raw(spec=spec))] == named


def test_a_reference_knows_where_to_look() -> None:
    one = Reference("resource.k8s.io/v1", "resourceclaims", "ResourceClaim", "gpu")
    assert one.resource.path(namespace="team", name="gpu") == (
        "/apis/resource.k8s.io/v1/namespaces/team/resourceclaims/gpu"
    )
    assert Reference("v1", "secrets", "Secret", "s").resource.path(namespace="n", name="s") == (
        "/api/v1/namespaces/n/secrets/s"
    )


HELD = {"schedulingGates": [{"name": clusters.GATE_HOME}]}


def sent(document: Sent) -> dict[str, str]:
    return {clusters.ANNOTATION_DISPATCH: clusters.encode(document, what="it")}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (raw(), HomePod("pod-uid", "7", held=False, kept=False)),
        (
            raw(metadata={"finalizers": [clusters.FINALIZER_HOME]}, spec=HELD),
            HomePod("pod-uid", "7", held=True, kept=True),
        ),
        (
            raw(
                metadata={
                    "finalizers": [clusters.FINALIZER_HOME],
                    "deletionTimestamp": "2026-01-01T00:00:00Z",
                    "annotations": sent(Sent(attempt=2, cluster="east", uid="east-uid", leaving=True)),
                },
                spec=HELD,
                status={"phase": "Failed"},
            ),
            HomePod(
                "pod-uid", "7", held=True, kept=True, deleting=True, over=True, dispatch=Dispatch("east-uid", 2, True)
            ),
        ),
        (
            raw(metadata={"annotations": sent(Sent(attempt=4))}, spec=HELD, status={"phase": "Running"}),
            HomePod("pod-uid", "7", held=True, kept=False, ran=True, dispatch=Dispatch("", 4)),
        ),
    ],
)
def test_a_pod_at_home_is_read_alike_whole_and_slim(pod: dict[str, Any], expected: HomePod) -> None:
    assert read_home(read(pod)) == expected
    if expected.held or expected.kept:
        assert read_home(slim_home(read(pod))) == expected


def origin(document: CopyOrigin) -> dict[str, Any]:
    return {
        "labels": {clusters.LABEL_ORIGIN: document.cluster},
        "annotations": {clusters.ANNOTATION_ORIGIN: clusters.encode(document, what="it")},
    }


GONE = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
ENDED = {"name": "main", "state": {"terminated": {"exitCode": 0}}}
RUNS = {"name": "main", "state": {"running": {}}}


@pytest.mark.parametrize(
    ("meta", "spec", "status", "expected"),
    [
        ({}, {"schedulingGates": [{"name": clusters.GATE_COPY}]}, {}, {"gated": True}),
        ({"finalizers": [clusters.FINALIZER_COPY]}, {}, {}, {"kept": True}),
        ({}, {"nodeName": "n"}, {"phase": "Running"}, {"placed": True}),
        ({}, {"nodeName": "n"}, {"phase": "Succeeded"}, {"placed": True, "over": True}),
        # PodGC fails what is deleted without a node: it has not run.
        (GONE, {}, {"phase": "Failed"}, {"deleting": True}),
        (
            GONE,
            {"nodeName": "n"},
            {"phase": "Running", "containerStatuses": [RUNS]},
            {"placed": True, "deleting": True},
        ),
        (
            GONE,
            {"nodeName": "n"},
            {"phase": "Running", "containerStatuses": [ENDED]},
            {"placed": True, "deleting": True, "over": True},
        ),
        (
            GONE,
            {"nodeName": "n"},
            {"phase": "Running", "containerStatuses": [ENDED, RUNS]},
            {"placed": True, "deleting": True},
        ),
        # Being started, and never started.
        ({**GONE, "deletionGracePeriodSeconds": 30}, {"nodeName": "n"}, {}, {"placed": True, "deleting": True}),
        (
            {**GONE, "deletionGracePeriodSeconds": 0},
            {"nodeName": "n"},
            {},
            {"placed": True, "deleting": True, "over": True},
        ),
        (
            {**GONE, "deletionGracePeriodSeconds": 0},
            {"nodeName": "n"},
            {"initContainerStatuses": [RUNS]},
            {"placed": True, "deleting": True},
        ),
    ],
)
def test_a_copy_is_read_alike_whole_and_slim(
    meta: dict[str, Any], spec: dict[str, Any], status: dict[str, Any], expected: dict[str, bool]
) -> None:
    pod = read(raw(metadata={**origin(ORIGIN), **meta}, spec=spec, status=status))
    wanted = CopyPod("pod-uid", "7", "pod-uid", 3, **{"gated": False, **expected})
    assert read_copy(pod, "home-uid") == wanted
    assert read_copy(slim_copy(pod), "home-uid") == wanted


@pytest.mark.parametrize("meta", [{}, origin(CopyOrigin(cluster="other", uid="pod-uid", attempt=3))])
def test_another_pod_of_that_name_is_not_ours(meta: dict[str, Any]) -> None:
    found = read_copy(read(raw(metadata=meta)), "home-uid")
    assert (found.origin, found.attempt) == ("", 0)


@pytest.mark.parametrize(
    "pod",
    [
        raw(metadata={"labels": {clusters.LABEL_ORIGIN: "home-uid"}}),
        raw(metadata={"finalizers": [clusters.FINALIZER_COPY]}),
        raw(spec={"schedulingGates": [{"name": clusters.GATE_COPY}]}),
        raw(metadata={"annotations": {clusters.ANNOTATION_ORIGIN: "{}"}}),
        raw(metadata={"annotations": {clusters.ANNOTATION_ORIGIN: "["}}),
        {**raw(metadata=origin(ORIGIN)), "spec": {"nodeName": 7}},
        {**raw(metadata=origin(ORIGIN), spec={"nodeName": "n"}), "status": {"phase": []}},
    ],
)
def test_what_somebody_has_edited_is_an_error_in_words_and_slim_all_the_same(pod: dict[str, Any]) -> None:
    for kept in (read(pod), slim_copy(read(pod))):
        with pytest.raises(CodecError):
            read_copy(kept, "home-uid")


def test_an_unreadable_dispatch_is_an_error() -> None:
    pod = slim_home(read(raw(metadata={"annotations": {clusters.ANNOTATION_DISPATCH: '{"attempt":0}'}}, spec=HELD)))
    with pytest.raises(CodecError, match=clusters.ANNOTATION_DISPATCH):
        sent_of(pod)


def test_what_is_kept_is_small() -> None:
    long = {"env": "x" * 100_000}
    foreign = slim_home(read(raw(metadata={"annotations": long})))
    assert not is_held(foreign)
    assert foreign.metadata == DispatchedMeta(name="one", namespace="team", uid="pod-uid", resource_version="7")
    unsent = slim_home(read(raw(metadata={"annotations": {"a": "b"}}, spec=HELD)))
    assert whole(unsent) == {
        "apiVersion": "v1",
        "kind": "Pod",
        **_without_status(raw(metadata={"annotations": {"a": "b"}}, spec=HELD)),
    }
    gone = slim_home(read(raw(metadata={"annotations": {**long, **sent(Sent(attempt=1))}}, spec=HELD)))
    assert whole(gone) is None
    assert gates_of(gone) == (clusters.GATE_HOME,)
    assert len(msgspec.json.encode(gone)) < 500
    written = {"phase": "Running", "message": "x" * MAX_STATUS}
    copy = slim_copy(read(raw(metadata={**origin(ORIGIN)}, spec={"nodeName": "n"}, status=written)))
    assert bytes(copy.status) == b'{"phase":"Running"}'


def _without_status(pod: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in pod.items() if key != "status"}


@pytest.mark.parametrize(
    ("owners", "annotations", "expected"),
    [
        ([], {}, ("", "")),
        ([{"kind": "Job", "uid": "j", "controller": True}], {}, ("j", "")),
        ([{"kind": "Job", "uid": "j"}], {}, ("", "")),
        ([{"kind": "ReplicaSet", "uid": "r", "controller": True}], {}, ("", "")),
        (
            [{"kind": "Job", "uid": "j", "controller": True}],
            {"batch.kubernetes.io/job-completion-index": "4"},
            ("j", "4"),
        ),
    ],
)
def test_whose_pod_it_is(owners: list[Any], annotations: dict[str, str], expected: tuple[str, str]) -> None:
    meta = {"ownerReferences": owners, "annotations": {**annotations, **sent(Sent(attempt=1))}}
    assert job_of(slim_home(read(raw(metadata=meta, spec=HELD)))) == expected


@pytest.mark.parametrize(
    ("owner", "said", "expected"),
    [
        (None, None, LostMode.WAIT),
        ("StatefulSet", None, LostMode.WAIT),
        ("Job", None, LostMode.REPLACE),
        ("ReplicaSet", None, LostMode.REPLACE),
        (None, "replace", LostMode.REPLACE),
        ("StatefulSet", " Replace ", LostMode.REPLACE),
        ("Job", "wait", LostMode.WAIT),
    ],
)
def test_what_becomes_of_a_pod_whose_cluster_is_lost(owner: str | None, said: str | None, expected: LostMode) -> None:
    owners = [] if owner is None else [{"kind": owner, "uid": "u", "controller": True}]
    annotations = {**({} if said is None else {clusters.ANNOTATION_LOST: said}), **sent(Sent(attempt=1))}
    pod = read(raw(metadata={"ownerReferences": owners, "annotations": annotations}, spec=HELD))
    assert mode_of(pod) is expected
    assert mode_of(slim_home(pod)) is expected


def test_another_word_for_it_is_told() -> None:
    with pytest.raises(CodecError, match=r"shoal.dev/lost-cluster holds 'maybe': write wait or replace"):
        clusters.selector_of({clusters.ANNOTATION_LOST: "maybe"})
