"""The pure parts of a start: kubelet's record, names, edits, matching without CDI, strategies."""

import base64
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shoal.agent.device_plugin import matching
from shoal.agent.device_plugin.calls import recorded_names
from shoal.agent.device_plugin.decisions import allocation_by
from shoal.agent.device_plugin.edits import NodeContext, answer, choose_strategy, container_edits, given_cards
from shoal.agent.device_plugin.matching import AnsweredCards, Candidate
from shoal.agent.device_plugin.specs import CdiSpecs, device_name, qualified
from shoal.agent.errors import IdentityError
from shoal.agent.node.checkpoint import DeviceRecord, KubeletCheckpoint, decode, holders
from shoal.agent.node.holdings import PodHolding
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.cdi import ContainerEdits, Device, DeviceNode, Spec
from shoal.kubelet.host_paths import HostPaths
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.contract.gpushare import MemoryUnit
from shoal.model.gpu import Gpu, NodeGpus
from shoal.model.request import ContainerRequest, Request, Share

R = gpushare.RESOURCE_MEMORY
STRATEGIES = yaml.safe_load((Path(__file__).parent / "strategies.yaml").read_text())
#: Written by a real kubelet 1.36.3.
REAL = (
    b'{"Data":{"PodDeviceEntries":[{"PodUID":"e4422157-dfbf-4fcf-a97d-de6682929ec2","ContainerName":"main",'
    b'"ResourceName":"shoal.test/d6bffaa1","DeviceIDs":{"-1":["d6bffaa1-2","d6bffaa1-1"]},'
    b'"AllocResp":"Kh0KG3Nob2FsLnRlc3Qvc2hhcmU9ZDZiZmZhYTEtMQ=="}],"RegisteredDevices":{"shoal.test/d6bffaa1":'
    b'["d6bffaa1-0","d6bffaa1-1","d6bffaa1-2","d6bffaa1-3"]}},"Checksum":1958860825}'
)


def record(pod: str, container: str, ids: str, response: api.ContainerAllocateResponse | None = None) -> DeviceRecord:
    raw = (response or api.ContainerAllocateResponse()).SerializeToString()
    return DeviceRecord(pod, container, R, frozenset(ids.split()), base64.b64encode(raw).decode())


# kubelet's record


def test_record_of_a_real_kubelet():
    (found,) = decode(REAL)
    assert (found.container, set(found.ids)) == ("main", {"d6bffaa1-1", "d6bffaa1-2"})
    assert [device.name for device in found.response().cdi_devices] == ["shoal.test/share=d6bffaa1-1"]


def test_record_is_read_again_when_it_is_replaced(tmp_path: Path):
    path = tmp_path / "checkpoint"
    checkpoint = KubeletCheckpoint(path)
    assert checkpoint.records() == ()
    path.write_bytes(REAL)
    assert len(checkpoint.records()) == 1
    draft = tmp_path / "draft"
    draft.write_text(json.dumps({"Data": {"PodDeviceEntries": None}, "Checksum": 1}))
    draft.replace(path)
    assert checkpoint.records() == ()
    path.write_text("{")
    with pytest.raises(IdentityError, match="cannot be read"):
        checkpoint.records()


def test_devices_in_use_are_those_of_pods_that_live(tmp_path: Path):
    path = tmp_path / "checkpoint"
    path.write_bytes(REAL)
    resource = "shoal.test/d6bffaa1"
    checkpoint = KubeletCheckpoint(path)
    assert checkpoint.in_use({"e4422157-dfbf-4fcf-a97d-de6682929ec2"}) == {resource: {"d6bffaa1-1", "d6bffaa1-2"}}
    assert checkpoint.in_use({"another"}) == {}


def test_holders_are_all_containers_with_just_these_devices():
    records = (
        record("a", "init", "m0 m1"),
        record("a", "main", "m0 m1"),
        record("a", "other", "m0 m1 m2"),
        record("b", "main", "m7"),
    )
    assert [one.container for one in holders(records, R, frozenset({"m1", "m0"}))] == ["init", "main"]
    assert [one.pod_uid for one in holders(records, R, frozenset({"m7"}))] == ["b"]
    for nobody in ({"m0"}, {"m9"}, set()):
        with pytest.raises(IdentityError, match="no record"):
            holders(records, R, frozenset(nobody))
    with pytest.raises(IdentityError, match="several pods"):
        holders((*records, record("b", "x", "m0 m1")), R, frozenset({"m0", "m1"}))


# Names and files


def test_each_answer_names_a_device_of_its_own():
    one, other = (device_name(R, ["m1", "m0"], nonce) for nonce in ("aa", "bb"))
    assert one != other
    assert one.split("-")[0] == other.split("-")[0] == device_name(R, ["m0", "m1"], "x").split("-")[0]
    assert device_name(keti.RESOURCE_MPS, ["m0", "m1"], "aa") != one
    response = api.ContainerAllocateResponse()
    response.cdi_devices.add(name=qualified(one))
    response.cdi_devices.add(name="nvidia.com/gpu=0")
    response.annotations[nvidia.ANNOTATION_CDI_PREFIX + "shoal_x"] = f"{qualified(other)},vendor.com/x=y"
    response.annotations["unrelated"] = qualified("not-this")
    assert recorded_names(record("a", "main", "m0", response)) == [one, other]


def test_files_of_names(tmp_path: Path):
    folder = tmp_path / "cdi"
    specs = CdiSpecs(HostPaths(cdi=(tmp_path / "etc", folder)))
    assert specs.names() == set()
    for name in ("a-1", "b-2"):
        specs.write(name, ContainerEdits(env=(f"NAME={name}",)))
    (folder / ".shoal.dev-share-c-3.json.99").write_text("half")
    (folder / "vendor.json").write_text("{}")
    assert specs.names() == {"a-1", "b-2"}
    assert specs.keep_only(["a-1"]) == {"b-2"}
    specs.remove_drafts()
    assert sorted(path.name for path in folder.iterdir()) == ["shoal.dev-share-a-1.json", "vendor.json"]


# What a container gets

CARDS = tuple(Gpu(f"GPU-{index}", index, 16384, minor=9 - index) for index in range(3))
NODE = NodeGpus("n", CARDS)


SHARE = Share(4096)


def entry(*indices: int, share: Share = SHARE, limit: int | None = None) -> ContainerAllocation:
    cards = tuple(CardShare(f"GPU-{index}", index, share) for index in indices)
    return ContainerAllocation("main", cards, memory_limit_mib=limit)


def edits(one: ContainerAllocation, resource: str, **scene: dict) -> ContainerEdits:
    return container_edits(one, Allocation("n", (one,)), resource, NodeContext(NODE, MemoryUnit.GIB, **scene))  # type: ignore[arg-type]


def test_environment_by_family():
    assert edits(entry(1), R).environment({}) == {
        nvidia.ENV_VISIBLE_DEVICES: "GPU-1",
        gpushare.NAME_INDEX: "1",
        gpushare.NAME_POD: "4",
        gpushare.NAME_CARD: "16",
        gpushare.ENV_CONTAINER: "4",
    }
    client = entry(2, share=Share(2048, clients=1), limit=3072)
    assert edits(client, keti.RESOURCE_MPS).environment({}) == {
        nvidia.ENV_VISIBLE_DEVICES: "GPU-2",
        keti.ENV_MEMORY_LIMIT: "0=3072M",
    }
    whole = entry(2, 0, share=Share(exclusive=True))
    assert edits(whole, nvidia.RESOURCE_GPU).environment({}) == {nvidia.ENV_VISIBLE_DEVICES: "GPU-2,GPU-0"}


def test_device_nodes_go_by_minor_and_only_where_the_host_has_them():
    there = {
        "nvidia8": ("/dev/nvidia8", "/root/dev/nvidia8"),
        "nvidia9": ("/dev/nvidia9", ""),
        "nvidiactl": ("/dev/nvidiactl", ""),
    }
    found = edits(entry(1), R, device_nodes=there).device_nodes
    assert found == (
        DeviceNode(path="/dev/nvidia8", host_path="/root/dev/nvidia8", permissions="rw"),
        DeviceNode(path="/dev/nvidiactl", permissions="rw"),
    )


@pytest.mark.parametrize("by", ["uuid", "index"])
def test_vendors_spec_brings_its_edits_and_loses_on_the_environment(by: str):
    devices = tuple(
        Device(
            gpu.uuid if by == "uuid" else str(gpu.index),
            ContainerEdits(device_nodes=(DeviceNode(f"/dev/nvidia{gpu.minor}"),)),
        )
        for gpu in CARDS
    )
    common = ContainerEdits(env=(f"{nvidia.ENV_VISIBLE_DEVICES}=void", "LIBRARIES=there"))
    spec = Spec(cdi_version="0.6.0", kind=nvidia.RESOURCE_GPU, devices=devices, container_edits=common)
    vendor = {spec.qualified(device): (spec, device) for device in devices}
    there = {"nvidia8": ("/dev/nvidia8", "")}
    found = edits(entry(1), R, vendor=vendor, device_nodes=there)
    assert [node.path for node in found.device_nodes] == ["/dev/nvidia8"], "once, and no other card's"
    assert found.environment({})[nvidia.ENV_VISIBLE_DEVICES] == "GPU-1"
    assert found.environment({})["LIBRARIES"] == "there"
    del vendor[spec.qualified(devices[1])]
    assert "LIBRARIES" not in edits(entry(1), R, vendor=vendor).environment({}), "half a spec is none"


# Without CDI


def test_answers_tell_their_cards():
    for by_mounts in (False, True):
        response = answer(entry(2, 0), edits(entry(2, 0), R), by_mounts=by_mounts)
        assert given_cards(response, NODE) == ("GPU-2", "GPU-0")
    assert response.envs[nvidia.ENV_VISIBLE_DEVICES] == nvidia.VISIBLE_DEVICES_DIRECTORY
    assert {mount.host_path for mount in response.mounts} == {"/dev/null"}


# From another plugin

ASKS = PodHolding(Request((ContainerRequest("main", 2, SHARE),)), resources={"main": R})


@pytest.mark.parametrize(
    "response",
    [
        api.ContainerAllocateResponse(envs={nvidia.ENV_VISIBLE_DEVICES: "2,0"}),
        api.ContainerAllocateResponse(envs={nvidia.ENV_VISIBLE_DEVICES: "GPU-2,GPU-0"}),
        api.ContainerAllocateResponse(
            cdi_devices=[api.CDIDevice(name=f"k8s.device-plugin.nvidia.com/gpu={name}") for name in ("GPU-2", "GPU-0")]
        ),
    ],
    ids=["by index", "by UUID", "by CDI"],
)
def test_cards_from_another_plugin_are_those_of_its_answer(response: api.ContainerAllocateResponse):
    given = record("a", "main", "GPU-2 GPU-0", response)
    assert allocation_by([given], ASKS, NODE) == Allocation("n", (entry(2, 0),))


@pytest.mark.parametrize(
    ("ids", "cards"),
    [("m0 m1", "2,0"), ("x y", "2"), ("x y", "2,7"), ("x y", ""), ("x y", "no-gpu-has-3GiB-to-run")],
    ids=["our own devices", "too few", "no such card", "nothing told", "none was given"],
)
def test_what_another_plugin_does_not_tell_is_not_made_up(ids: str, cards: str):
    response = api.ContainerAllocateResponse(envs={nvidia.ENV_VISIBLE_DEVICES: cards})
    assert allocation_by([record("a", "main", ids, response)], ASKS, NODE) is None
    assert allocation_by([], ASKS, NODE) is None


def test_replicas_of_another_plugin_are_not_taken_for_shares():
    response = api.ContainerAllocateResponse(envs={nvidia.ENV_VISIBLE_DEVICES: "2,0"})
    given = record("a", "main", "GPU-2::0 GPU-0::1", response)
    assert allocation_by([given], ASKS, NODE) is None


OFFERS = st.lists(st.sampled_from(["GPU-0", "GPU-1", "GPU-2"]), max_size=6).map(
    lambda cards: [Candidate(f"pod-{n}", "main", (card,)) for n, card in enumerate(cards)]
)


@given(OFFERS, st.randoms(use_true_random=False))
def test_answers_in_any_order_use_every_offer_once(candidates: list[Candidate], rng) -> None:
    """kubelet calls for pods in another order than they were bound, and records each answer for its own pod."""
    callers = list(candidates)
    rng.shuffle(callers)
    given: list[AnsweredCards] = []
    for caller in callers:
        candidate = matching.still_open(candidates, given)[0]
        given.append(AnsweredCards(candidate.cards, caller.uid, caller.container))
    assert sorted(one.cards for one in given) == sorted(candidate.cards for candidate in candidates)
    assert matching.still_open(candidates, given) == []


# Strategies


@pytest.mark.parametrize(("kubelet", "runtime", "strategy"), STRATEGIES)
def test_strategies(kubelet: str, runtime: str, strategy: str):
    chosen = choose_strategy(kubelet, runtime)
    assert chosen.strategy == strategy
    assert chosen.why
