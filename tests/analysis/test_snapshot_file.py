"""Snapshots: nothing secret gets into one, what comes out answers the same, and a bad file is told."""

import gzip
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.analysis import snapshot_file
from shoal.analysis.dry_run import DryRun
from shoal.analysis.errors import SnapshotError
from shoal.analysis.snapshot import ClusterSnapshot
from shoal.analysis.snapshot_file import cleaned, load, save
from shoal.analysis.why import explain_pod
from shoal.kube.codec import codec_of
from shoal.kube.objects.node import Node
from shoal.kube.objects.others import ConfigMap
from shoal.kube.objects.pod import Pod
from shoal.kube.objects.storage import PersistentVolume, StorageClass
from tests.analysis.small import TAKEN, Small, shoal
from tests.soak import times
from tests.suites.scheduling import shorthand

SECRET = "hunter2"


def planted() -> ClusterSnapshot:
    """A cluster with a secret in every place that decides nothing."""
    pod = shorthand.pod("p", {"mem": 4, "annotations": {"note": SECRET, "shoal.dev/simulate": SECRET}})
    pod["metadata"] |= {"namespace": "default", "uid": "u", "managedFields": [{"manager": SECRET}]}
    container = pod["spec"]["containers"][0]
    container |= {
        "image": f"{SECRET}/image",
        "env": [{"name": "TOKEN", "value": SECRET}, {"name": "K", "valueFrom": {"secretKeyRef": {"name": SECRET}}}],
        "command": ["sh", "-c", SECRET],
        "args": [SECRET],
        "ports": [{"name": SECRET, "containerPort": 80}],
        "livenessProbe": {"exec": {"command": [SECRET]}},
    }
    pod["spec"] |= {
        "serviceAccountName": SECRET,
        "hostAliases": [{"ip": "1.2.3.4", "hostnames": [SECRET]}],
        "imagePullSecrets": [{"name": SECRET}],
        "volumes": [{"name": SECRET, "secret": {"secretName": SECRET}}, {"name": "d", "configMap": {"name": SECRET}}],
    }
    pod["status"] = {"phase": "Pending", "message": SECRET, "conditions": [{"type": "Ready", "message": SECRET}]}
    node = shorthand.node("n", {"gpus": 1, "annotations": {"token": SECRET}}, mib=False)
    node["spec"] |= {"providerID": SECRET}
    node["status"] |= {"addresses": [{"type": "Hostname", "address": SECRET}], "images": [{"names": [SECRET]}]}
    volume = {
        "metadata": {"name": "v", "annotations": {"x": SECRET}},
        "spec": {"csi": {"volumeAttributes": {"password": SECRET}, "nodePublishSecretRef": {"name": SECRET}}},
    }
    storage = {"metadata": {"name": "s"}, "provisioner": "p", "parameters": {"password": SECRET}}
    policy = {
        "metadata": {"name": "gpu-scheduler-policy", "namespace": "gpu", "annotations": {"last-applied": SECRET}},
        "data": {"gpu-allocate-prefer": "binpack", "unknown": SECRET},
    }
    return ClusterSnapshot(
        nodes=(_read(node, Node),),
        pods=(_read(pod, Pod),),
        volumes=(_read(volume, PersistentVolume),),
        storage_classes=(_read(storage, StorageClass),),
        config_maps=(_read(policy, ConfigMap),),
    )


def _read(manifest: dict[str, Any], kind: Any) -> Any:
    """As it comes from the API server."""
    return codec_of(kind).one(msgspec.json.encode(manifest), asked="test")


def test_no_secret_gets_into_a_file(tmp_path: Path) -> None:
    file = tmp_path / "s.json"
    save(planted(), file, taken=TAKEN, shoal="test")
    text = file.read_text()
    assert SECRET not in text
    assert "aliyun.com/gpu-mem" in text
    assert "gpu-allocate-prefer" in text
    assert file.stat().st_mode & 0o077 == 0


def test_every_planted_secret_would_be_found() -> None:
    kept = msgspec.json.encode(planted()).decode()
    assert kept.count(SECRET) > 10  # so that leaving them out is work that somebody does


def test_a_file_gives_back_what_was_cleaned(tmp_path: Path) -> None:
    small = Small({"a": {"gpus": 2}})
    small.add("p", {"mem": 4, "labels": {"app": "x"}})
    for name in ("s.json", "s.json.gz"):
        path = small.save(tmp_path / name)
        assert load(path).snapshot == cleaned(small.snapshot)
        assert load(path).taken == TAKEN
    assert gzip.decompress((tmp_path / "s.json.gz").read_bytes()) == (tmp_path / "s.json").read_bytes()


SHORTS = st.fixed_dictionaries(
    {"mem": st.integers(1, 20)},
    optional={
        "labels": st.sampled_from([{"app": "x"}, {"app": "y"}]),
        "cpu": st.integers(1, 60),
        "spec": st.sampled_from(
            [
                {"nodeSelector": {"zone": "w"}},
                {"priority": 10},
                {
                    "affinity": {
                        "podAntiAffinity": {
                            "requiredDuringSchedulingIgnoredDuringExecution": [
                                {
                                    "labelSelector": {"matchLabels": {"app": "x"}},
                                    "topologyKey": "kubernetes.io/hostname",
                                }
                            ]
                        }
                    }
                },
                {"containers": [{"name": "c", "ports": [{"hostPort": 80, "containerPort": 80}]}]},
                {"tolerations": [{"operator": "Exists"}]},
            ]
        ),
    },
)
TAINT = {"key": "k", "effect": "NoSchedule"}


@settings(max_examples=times(40))
@given(shorts=st.lists(SHORTS, min_size=1, max_size=8), policy=st.sampled_from(["binpack", "fragmentation"]))
def test_a_cleaned_cluster_answers_the_same(shorts: list[dict[str, Any]], policy: str) -> None:
    nodes: dict[str, Any] = {
        "a": {"gpus": 2, "labels": {"zone": "w"}},
        "b": {"gpus": 1},
        "c": {"gpus": 2, "taints": [TAINT]},
    }
    small = Small(nodes, policy=policy)
    for number, short in enumerate(shorts):
        small.add(f"p{number}", short)
    for pod in small.snapshot.pods:
        told = [
            explain_pod(
                DryRun(snapshot), next(one for one in snapshot.pods if one.metadata.uid == pod.metadata.uid), details=9
            )
            for snapshot in (small.snapshot, cleaned(small.snapshot))
        ]
        assert told[0] == told[1]


UNKNOWN = {"metadata": {"namespace": "a", "name": "p"}, "spec": {"containers": []}}


def known(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "a", "name": name, "uid": "u"}, "spec": {"containers": []}}


def file_of(snapshot: dict[str, Any]) -> bytes:
    return json.dumps({"kind": "ShoalSnapshot", "version": 1, "taken": "", "shoal": "", "facts": snapshot}).encode()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no snapshot"),
        (b"[]", "is no snapshot"),
        (b'{"kind":"Pod"}', "is no snapshot"),
        (b'{"kind":"ShoalSnapshot","version":2}', "has version 2 of the format, this Shoal reads 1"),
        (b'{"kind":"ShoalSnapshot","version":1}', "is no snapshot"),
        (b'{"kind":"ShoalSnapshot","version":1,"taken":"","shoal":"","facts":{"pods":7}}', "$.facts.pods"),
        (b'{"kind":"ShoalSnapshot","version":1,"taken":"","shoal":"","facts":{},"more":1}', "more"),
        (b"\x1f\x8b broken", "cannot be read"),
        (gzip.compress(b"x" * 100, mtime=0)[:-9], "cannot be read"),
        (b"[" * 100_000, "is no snapshot"),
        (b"\xff\xfe", "is no snapshot"),
        (b'{"kind":"ShoalSnapshot","version":1,"taken":"\\ud83d","shoal":"","facts":{}}', "is no snapshot"),
        (file_of({"settings": {"policy": "best"}}), "no policy 'best': choose one of"),
        (file_of({"pods": [UNKNOWN]}), "pod a/p has no metadata.uid"),
        (file_of({"pods": [known("p"), known("q")]}), "pods a/p and a/q have one metadata.uid, 'u'"),
    ],
)
def test_a_bad_file_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "s.json"
    file.write_bytes(content)
    result = shoal("why", "p", "--snapshot", file)
    assert result.exit_code == 1
    assert words in result.stderr
    assert str(file) in result.stderr


def test_what_is_too_large_is_not_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_file, "MAX_BYTES", 1000)
    file = tmp_path / "s.json.gz"
    file.write_bytes(gzip.compress(b" " * 100_000, mtime=0))
    with pytest.raises(SnapshotError, match="holds more than 1000 bytes"):
        load(file)
    with pytest.raises(SnapshotError, match="a snapshot holds at most 1000"):
        Small({f"n{i}": {"gpus": 8} for i in range(9)}).save(file)


def test_a_folder_or_nothing_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        result = shoal("why", "p", "--snapshot", path)
        assert result.exit_code == 1
        assert "cannot be read" in result.stderr
    with pytest.raises(SnapshotError, match="cannot be written"):
        save(ClusterSnapshot(), tmp_path / "no" / "s.json", taken=TAKEN, shoal="test")


def test_what_is_there_stays_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "s.json"
    file.write_text("before")

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(SnapshotError, match="No space left"):
        save(ClusterSnapshot(), file, taken=TAKEN, shoal="test")
    assert [path.name for path in tmp_path.iterdir()] == ["s.json"]
    assert file.read_text() == "before"
