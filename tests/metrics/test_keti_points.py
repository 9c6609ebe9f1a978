"""KETI's rows: names to the letter, numbers as the cards show them, nothing where nothing is known."""

from dataclasses import replace

from shoal.gpu.protocol import Sample
from shoal.metrics.attribution import UseSource
from shoal.metrics.influx import InfluxPoint
from shoal.metrics.keti_points import points
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, Snapshot
from tests.metrics.measured import LOAD, MIB, MeasuredNode


def rows(snapshot: Snapshot, measurement: str) -> list[InfluxPoint]:
    return [point for point in points(snapshot) if point.measurement == measurement]


def busy_node() -> MeasuredNode:
    node = MeasuredNode()
    node.run(0, "train", mib=3000, percent=40)
    node.run(0, "serve", mib=500, percent=10)
    node.run(1, "train", mib=7000, percent=90)
    node.run(1, None, mib=250)
    return node


def test_a_node_has_ketis_fields() -> None:
    snapshot = busy_node().snapshot()
    (point,) = rows(snapshot, "nodemetric")
    first, second = (card.card.uuid for card in snapshot.cards)
    assert point.tags == {"node": "node-1"}
    assert point.time == snapshot.time
    assert point.fields == {
        "NodeName": "node-1",
        "NodeCPU": 4_000,
        "NodeMemory": 16 << 30,
        "NodeStorage": 500 << 30,
        "NodeNetworkRX": LOAD.network_received_bytes,
        "NodeNetworkTX": LOAD.network_sent_bytes,
        "Count": 2,
        "totalpod": 3,
        "uuid": f"[{first} {second}]",
    }


def test_a_card_has_ketis_fields() -> None:
    node = busy_node()
    snapshot = node.snapshot()
    card, other = rows(snapshot, "gpumetric")
    sample = snapshot.cards[0].sample
    assert sample is not None
    assert card.tags == {"node": "node-1", "UUID": snapshot.cards[0].card.uuid, "gpu": "0"}
    assert card.fields == {
        "Index": 0,
        "GPUName": "NVIDIA A100-SXM4-40GB",
        "memory(total)": sample.memory_total_bytes,
        "memory(free)": sample.memory_free_bytes,
        "memory(used)": 3500 * MIB,
        "utilization": 50,
        "Power": sample.power_mw,
        "temperature": sample.temperature_c,
        "Podnum": 2,
    }
    assert "FanSpeed" not in card.fields  # the card has no fan
    assert other.fields["memory(used)"] == 7250 * MIB
    assert isinstance(card.fields["temperature"], int)


def test_a_fan_is_told_where_there_is_one() -> None:
    (card,) = rows(MeasuredNode("1xRTX-4090").snapshot(), "gpumetric")
    assert isinstance(card.fields["FanSpeed"], int)


def test_a_container_has_ketis_fields() -> None:
    snapshot = busy_node().snapshot()
    serve, train, elsewhere = rows(snapshot, "podmetric")
    assert serve.tags == {
        "node": "node-1",
        "UUID": snapshot.cards[0].card.uuid,
        "gpu": "0",
        "namespace": "userpod",
        "pod": "serve",
        "container": "main",
        "mig": "",
    }
    assert serve.fields == {
        "gpu_mps_memory": 500 * MIB,
        "gpu_mps_pod": "serve",
        "gpu_mps_uid": "uid-userpod-serve",
        "gpu_mps_cpu": 1500.0,
        "gpu_mps_nodememory": 100 * MIB,
        "gpu_mps_storage": 200 * MIB,
        "gpu_mps_networkrx": 3000,
        "gpu_mps_networktx": 4000,
    }
    assert (train.fields["gpu_mps_memory"], elsewhere.fields["gpu_mps_memory"]) == (3000 * MIB, 7000 * MIB)
    assert elsewhere.tags["gpu"] == "1"


def test_what_is_not_known_is_left_out() -> None:
    node = MeasuredNode()
    node.load = None
    bare = node.snapshot()
    name = ContainerName("userpod", "train", "main", "uid")
    card = replace(
        bare.cards[0],
        sample=Sample(),
        used_bytes=None,
        containers=(ContainerSnapshot(name, source=None), ContainerSnapshot(name, source=UseSource.MPS)),
    )
    snapshot = replace(bare, cards=(card,), pods=())
    (row,) = rows(snapshot, "nodemetric")
    assert set(row.fields) == {"NodeName", "Count", "totalpod", "uuid"}
    (row,) = rows(snapshot, "gpumetric")
    assert row.fields == {"Index": 0, "GPUName": "NVIDIA A100-SXM4-40GB", "Podnum": 1}
    (row,) = rows(snapshot, "podmetric")
    assert row.fields == {"gpu_mps_pod": "train", "gpu_mps_uid": "uid"}


def test_a_card_that_does_not_answer_has_no_row() -> None:
    node = busy_node()
    node.snapshot()
    node.nvml.lose(node.cards[0].uuid)
    snapshot = node.snapshot()
    assert [row.tags["gpu"] for row in rows(snapshot, "gpumetric")] == ["1"]
    assert {row.tags["gpu"] for row in rows(snapshot, "podmetric")} == {"1"}
    (row,) = rows(snapshot, "nodemetric")
    assert row.fields["Count"] == 2
    assert "totalpod" not in row.fields


def test_two_runs_of_one_pod_are_one_pod() -> None:
    node = MeasuredNode("1xA30")
    snapshot = node.snapshot()
    names = [ContainerName("a", "p", f"c{n}", "uid") for n in range(3)]
    card = CardSnapshot(
        snapshot.cards[0].card,
        snapshot.cards[0].sample,
        0,
        0,
        tuple(ContainerSnapshot(name, used_bytes=0, source=UseSource.MPS) for name in names),
    )
    (row,) = rows(replace(snapshot, cards=(card,)), "gpumetric")
    assert row.fields["Podnum"] == 1
