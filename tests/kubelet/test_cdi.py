"""CDI specs: what is read, written and refused, and what a container's devices do to it together."""

import json
from pathlib import Path

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.kubelet import cdi
from shoal.kubelet.errors import CdiError, UnresolvableError

GOOD = {
    "cdiVersion": "0.6.0",
    "kind": "example.com/gpu",
    "containerEdits": {"env": ["ALL=1"]},
    "devices": [
        {
            "name": "one",
            "containerEdits": {
                "env": ["CARD=one"],
                "deviceNodes": [{"path": "/dev/nvidia0", "permissions": "rw", "type": "c", "major": 195, "minor": 0}],
                "mounts": [{"hostPath": "/a", "containerPath": "/b", "options": ["ro", "bind"]}],
                "hooks": [{"hookName": "createRuntime", "path": "/bin/hook", "args": ["hook", "x"]}],
            },
        },
        {"name": "two", "containerEdits": {"env": ["CARD=two"]}},
    ],
}


def changed(**parts: object) -> dict:
    return {**GOOD, **parts}


def device(**edits: object) -> list[dict]:
    return [{"name": "one", "containerEdits": edits}]


def put(folder: Path, name: str, content: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("name", ["spec.json", "spec.yaml"])
def test_reads_json_and_yaml(tmp_path: Path, name: str) -> None:
    text = json.dumps(GOOD) if name.endswith("json") else yaml.safe_dump(GOOD)
    spec = cdi.read(put(tmp_path, name, text))
    assert [spec.qualified(one) for one in spec.devices] == ["example.com/gpu=one", "example.com/gpu=two"]
    assert spec.devices[0].container_edits.device_nodes[0].major == 195
    assert json.loads(msgspec.json.encode(spec)) == GOOD


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "failed to parse CDI Spec"),
        ("[]", "failed to parse CDI Spec"),
        ({**GOOD, "devices": 3}, "failed to parse CDI Spec"),
        ({"kind": "example.com/gpu", "devices": []}, "cdiVersion"),
        (changed(cdiVersion=""), "no cdiVersion"),
        (changed(kind="gpu"), "invalid kind 'gpu'"),
        (changed(kind="/gpu"), "invalid kind"),
        (changed(kind="example.com/g.p"), "invalid kind"),
        (changed(devices=[]), "no devices"),
        (changed(devices=[*GOOD["devices"], GOOD["devices"][0]]), "multiple device 'one'"),  # type: ignore[index]
        (changed(devices=[{"name": "-", "containerEdits": {"env": ["A=b"]}}]), "invalid device name '-'"),
        (changed(devices=device()), "empty device edits"),
        (changed(devices=device(env=["A"])), "invalid environment variable 'A'"),
        (changed(devices=device(env=["=b"])), "invalid environment variable"),
        (changed(devices=device(deviceNodes=[{"path": ""}])), "no path"),
        (changed(devices=device(deviceNodes=[{"path": "/dev/x", "type": "z"}])), "type 'z'"),
        (changed(devices=device(deviceNodes=[{"path": "/dev/x", "permissions": "rx"}])), "permissions 'rx'"),
        (changed(devices=device(mounts=[{"hostPath": "", "containerPath": "/b"}])), "a mount needs"),
        (changed(devices=device(hooks=[{"hookName": "before", "path": "/x"}])), "unknown hook 'before'"),
        (changed(devices=device(hooks=[{"hookName": "poststop", "path": ""}])), "has no path"),
    ],
)
def test_refuses(tmp_path: Path, content: object, words: str) -> None:
    path = put(tmp_path, "spec.json", content)
    with pytest.raises(CdiError, match=words) as refused:
        cdi.read(path)
    assert str(path) in str(refused.value)
    found = cdi.load([tmp_path])
    assert found.devices == {}
    assert found.errors == (str(refused.value),), "a broken spec is left out, and said so"


def test_refuses_what_is_too_long_or_not_there(tmp_path: Path) -> None:
    with pytest.raises(CdiError, match="No such file"):
        cdi.read(tmp_path / "none.json")
    with pytest.raises(CdiError, match="longer than"):
        cdi.read(put(tmp_path, "long.json", " " * (cdi.MAX_BYTES + 1)))


def test_writes_whole_files_and_only_good_ones(tmp_path: Path) -> None:
    folder = tmp_path / "made"
    edits = cdi.ContainerEdits(env=("A=1",))
    spec = cdi.Spec(cdi_version=cdi.VERSION, kind="shoal.dev/share", devices=(cdi.Device("x", edits),))
    path = cdi.write(folder, spec, "pod/1")
    assert path.name == "shoal.dev-share-pod-1.json"
    assert cdi.read(path) == spec
    assert [one.name for one in folder.iterdir()] == [path.name]
    assert json.loads(path.read_text()) == {
        "cdiVersion": "0.6.0",
        "kind": "shoal.dev/share",
        "devices": [{"name": "x", "containerEdits": {"env": ["A=1"]}}],
    }
    again = msgspec.structs.replace(spec, devices=(cdi.Device("y", edits),))
    assert cdi.write(folder, again, "pod/1") == path
    assert list(cdi.load([folder]).devices) == ["shoal.dev/share=y"]
    with pytest.raises(CdiError, match="refused to write"):
        cdi.write(folder, msgspec.structs.replace(spec, devices=()), "pod/1")
    (tmp_path / "file").write_text("")
    with pytest.raises(CdiError, match="failed to write"):
        cdi.write(tmp_path / "file", spec, "x")


def test_devices_are_merged_in_the_order_they_are_asked_for(tmp_path: Path) -> None:
    put(tmp_path, "a.json", GOOD)
    edits = cdi.resolve(["example.com/gpu=two", "example.com/gpu=one"], cdi.load([tmp_path]))
    assert edits.env == ("ALL=1", "CARD=two", "CARD=one"), "the spec's own edits come once"
    assert [node.path for node in edits.device_nodes] == ["/dev/nvidia0"]
    assert [hook.path for hook in edits.hooks] == ["/bin/hook"]
    assert edits.environment({"CARD": "mine", "PATH": "/bin"}) == {"CARD": "one", "PATH": "/bin", "ALL": "1"}


def test_names_nobody_knows(tmp_path: Path) -> None:
    put(tmp_path, "a.json", GOOD)
    put(tmp_path, ".draft.json", changed(kind="example.com/draft"))
    put(tmp_path, "readme.txt", "no spec")
    found = cdi.load([tmp_path / "none", tmp_path])
    with pytest.raises(UnresolvableError) as missing:
        cdi.resolve(["example.com/gpu=one", "example.com/gpu=3", "example.com/draft=one"], found)
    assert str(missing.value) == "unresolvable CDI devices example.com/gpu=3, example.com/draft=one"


def test_the_later_folder_wins_and_equal_ones_disagree(tmp_path: Path) -> None:
    put(tmp_path / "etc", "a.json", GOOD)
    put(tmp_path / "run", "a.json", changed(devices=device(env=["CARD=new"])))
    found = cdi.load([tmp_path / "etc", tmp_path / "run"])
    assert cdi.resolve(["example.com/gpu=one"], found).env == ("ALL=1", "CARD=new")
    assert cdi.resolve(["example.com/gpu=two"], found).env == ("ALL=1", "CARD=two")
    put(tmp_path / "run", "b.json", changed(devices=device(env=["CARD=other"])))
    found = cdi.load([tmp_path / "etc", tmp_path / "run"])
    assert "conflicting device 'example.com/gpu=one'" in found.errors[0]
    with pytest.raises(UnresolvableError):
        cdi.resolve(["example.com/gpu=one"], found)


NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,20}[A-Za-z0-9])?", fullmatch=True)
EDITS = st.builds(
    cdi.ContainerEdits,
    env=st.lists(st.from_regex(r"[A-Z]{1,5}=[^\0]{0,10}", fullmatch=True), min_size=1, max_size=3).map(tuple),
    device_nodes=st.lists(
        st.builds(cdi.DeviceNode, path=st.just("/dev/x"), minor=st.none() | st.integers(0, 255)), max_size=2
    ).map(tuple),
    mounts=st.lists(
        st.builds(cdi.Mount, host_path=st.just("/a"), container_path=st.text(min_size=1, max_size=5)), max_size=2
    ).map(tuple),
)


@given(st.lists(st.tuples(NAMES, EDITS), min_size=1, max_size=5, unique_by=lambda pair: pair[0]))
def test_what_is_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, named: list) -> None:
    folder = tmp_path_factory.mktemp("cdi")
    devices = tuple(cdi.Device(name, edits) for name, edits in named)
    spec = cdi.Spec(cdi_version=cdi.VERSION, kind="example.com/gpu", devices=devices)
    assert cdi.read(cdi.write(folder, spec, "x")) == spec
