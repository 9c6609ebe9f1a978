"""The text of a snapshot: dcgm-exporter's names, labels and order, and Shoal's own series."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu.protocol import MigSample, Sample
from shoal.metrics.attribution import UseSource
from shoal.metrics.exporter.counters_csv import SERVED, CounterList, parse
from shoal.metrics.exporter.fields import BY_NAME, FIELDS
from shoal.metrics.exporter.render import SnapshotText, pci_bus_id
from shoal.metrics.exporter.settings import ExporterSettings, HostnameLabel, SharedSeries
from shoal.metrics.snapshot import CardSnapshot, ContainerName, ContainerSnapshot, Snapshot
from tests.metrics.exporter.snapshots import GIB, MIB, card_of, card_snapshot, container_of, renamed, snapshot_of
from tests.metrics.exporter.text_format import Family, read

_DEVICE = """
SM_CLOCK MEM_CLOCK MEMORY_TEMP GPU_TEMP POWER_USAGE TOTAL_ENERGY_CONSUMPTION PCIE_REPLAY_COUNTER GPU_UTIL MEM_COPY_UTIL
ENC_UTIL DEC_UTIL XID_ERRORS FB_FREE FB_USED FB_RESERVED NVLINK_BANDWIDTH_TOTAL UNCORRECTABLE_REMAPPED_ROWS
CORRECTABLE_REMAPPED_ROWS ROW_REMAP_FAILURE
"""
_PROFILE = "GR_ENGINE_ACTIVE PIPE_TENSOR_ACTIVE DRAM_ACTIVE PCIE_TX_BYTES PCIE_RX_BYTES"
_MORE_DEVICE = """
POWER_VIOLATION THERMAL_VIOLATION SYNC_BOOST_VIOLATION BOARD_LIMIT_VIOLATION LOW_UTIL_VIOLATION RELIABILITY_VIOLATION
ECC_SBE_VOL_TOTAL ECC_DBE_VOL_TOTAL ECC_SBE_AGG_TOTAL ECC_DBE_AGG_TOTAL RETIRED_SBE RETIRED_DBE RETIRED_PENDING
NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL NVLINK_CRC_DATA_ERROR_COUNT_TOTAL NVLINK_REPLAY_ERROR_COUNT_TOTAL
NVLINK_RECOVERY_ERROR_COUNT_TOTAL
"""
_MORE_PROFILE = "SM_ACTIVE SM_OCCUPANCY PIPE_FP64_ACTIVE PIPE_FP32_ACTIVE PIPE_FP16_ACTIVE"


def _names(device: str, profile: str) -> set[str]:
    return {f"DCGM_FI_DEV_{name}" for name in device.split()} | {f"DCGM_FI_PROF_{name}" for name in profile.split()}


#: dcgm-exporter 4.5.3-4.8.2's own list, and what is commented out there and read here.
DEFAULTS = _names(_DEVICE, _PROFILE)
OBTAINABLE = _names(_MORE_DEVICE, _MORE_PROFILE) | {"DCGM_EXP_XID_ERRORS_COUNT", "DCGM_EXP_CLOCK_EVENTS_COUNT"}
COUNTERS = {
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
}


def families(
    snapshot: Snapshot, counters: CounterList = SERVED, *, names_pods: bool = True, **settings: object
) -> dict[str, Family]:
    writer = SnapshotText(ExporterSettings(**settings))  # type: ignore[arg-type]
    return read("\n".join([*writer.lines(snapshot, counters, names_pods=names_pods), ""]))


def one(family: Family) -> tuple[dict[str, str], float]:
    (series,) = family.series.items()
    return dict(series[0]), series[1]


def test_every_field_of_dcgm_exporter_is_served_with_its_type() -> None:
    served = families(snapshot_of([card_snapshot(0)]))
    assert {name for name in served if name.startswith("DCGM")} == DEFAULTS | OBTAINABLE
    for name in DEFAULTS:
        assert served[name].kind == ("counter" if name in COUNTERS else "gauge"), name
    assert BY_NAME["DCGM_FI_DEV_VGPU_LICENSE_STATUS"].served  # known; nothing that Shoal reads tells it


def test_numbers_have_dcgms_units() -> None:
    served = families(snapshot_of([card_snapshot(3, [container_of(1, 5 * GIB + MIB)], unattributed=GIB)]))
    expected = {
        "SM_CLOCK": "1413",
        "MEM_CLOCK": "1593",
        "GPU_TEMP": "63",
        "MEMORY_TEMP": "73",
        "POWER_USAGE": "104.500000",
        "TOTAL_ENERGY_CONSUMPTION": "1000003",
        "GPU_UTIL": "53",
        "FB_USED": str(6 * 1024 + 1),
        "FB_FREE": str(73 * 1024 - 1),
        "FB_RESERVED": "1024",
        "XID_ERRORS": "31",
        "NVLINK_BANDWIDTH_TOTAL": "6",
        "THERMAL_VIOLATION": "20",
        "ECC_SBE_VOL_TOTAL": "7",
        "RETIRED_PENDING": "1",
        "ROW_REMAP_FAILURE": "0",
    }
    assert {name: next(iter(served[f"DCGM_FI_DEV_{name}"].texts.values())) for name in expected} == expected
    assert one(served["DCGM_FI_PROF_GR_ENGINE_ACTIVE"])[1] == 0.5
    assert one(served["DCGM_FI_PROF_PCIE_TX_BYTES"])[1] == 1000
    assert one(served["DCGM_FI_PROF_PCIE_RX_BYTES"])[1] == 2001


def test_labels_stand_in_dcgms_order() -> None:
    card = card_snapshot(1, [container_of(1, GIB)])
    served = families(snapshot_of([card]), pod_uid=True)
    ((labels, _),) = served["DCGM_FI_DEV_XID_ERRORS"].series.items()
    assert labels == (
        ("gpu", "1"),
        ("UUID", card.card.uuid),
        ("pci_bus_id", "00000000:3C:00.0"),
        ("device", "nvidia1"),
        ("modelName", "NVIDIA A100-SXM4-80GB"),
        ("Hostname", "gpu-1"),
        ("DCGM_FI_DRIVER_VERSION", "550.54.15"),
        ("container", "main"),
        ("err_code", "31"),
        ("err_msg", "GPU memory page fault"),
        ("namespace", "team-a"),
        ("pod", "train-1"),
        ("pod_uid", "uid-1"),
    )
    assert [name for name, _ in next(iter(served["DCGM_EXP_XID_ERRORS_COUNT"].series))][5:] == [
        "Hostname",
        "DCGM_FI_DRIVER_VERSION",
        "window_size_in_ms",
        "xid",
        "container",
        "namespace",
        "pod",
        "pod_uid",
    ]


@pytest.mark.parametrize(
    ("settings", "there", "away"),
    [
        ({}, {"Hostname", "UUID", "pod"}, {"hostname", "pod_uid", "uuid"}),
        ({"hostname_label": HostnameLabel.LOWER}, {"hostname"}, {"Hostname"}),
        ({"hostname_label": HostnameLabel.NONE}, {"UUID"}, {"Hostname", "hostname"}),
        ({"names_pods": False, "pod_uid": True}, {"UUID"}, {"pod", "namespace", "container", "pod_uid"}),
        ({"old_labels": True}, {"uuid", "pod_name", "pod_namespace", "container_name"}, {"UUID", "pod", "container"}),
    ],
)
def test_settings_choose_labels(settings: dict[str, object], there: set[str], away: set[str]) -> None:
    served = families(snapshot_of([card_snapshot(0, [container_of(1, GIB)])]), SERVED, **settings)  # type: ignore[arg-type]
    names = one(served["DCGM_FI_DEV_GPU_TEMP"])[0].keys()
    assert there <= names
    assert not away & names


def test_blanks_of_the_model_can_be_replaced() -> None:
    served = families(snapshot_of([card_snapshot(0)]), replace_blanks_in_model_name=True)
    assert one(served["DCGM_FI_DEV_GPU_TEMP"])[0]["modelName"] == "NVIDIA-A100-SXM4-80GB"


def test_a_card_carries_a_pod_when_one_container_has_it_and_none_when_several_do() -> None:
    booked = ContainerSnapshot(ContainerName("b", "idle", "main", "u"), requested_bytes=GIB)
    shared = [container_of(1, GIB), container_of(2, GIB)]
    served = families(snapshot_of([card_snapshot(0), card_snapshot(1, [booked]), card_snapshot(2, shared)]))
    for family in (served["DCGM_FI_DEV_POWER_USAGE"], served["DCGM_FI_DEV_FB_USED"]):
        assert family.by("gpu", "pod").keys() == {("0", ""), ("1", "idle"), ("2", "")}
        assert len(family.series) == 3


def test_copies_per_pod_as_dcgm_exporter_writes_them() -> None:
    unknown = replace(container_of(3, 0), used_bytes=None, utilisation=None)
    card = card_snapshot(0, [container_of(1, GIB), container_of(2, 2 * GIB), unknown])
    served = families(snapshot_of([card]), shared_series=SharedSeries.DCGM)
    assert served["DCGM_FI_DEV_POWER_USAGE"].by("pod", "vgpu") == {
        ("train-1", "0"): 100.0,
        ("train-2", "1"): 100.0,
        ("train-3", "2"): 100.0,
    }
    assert served["DCGM_FI_DEV_FB_USED"].by("pod", "vgpu") == {
        ("", ""): 3072,
        ("train-1", "0"): 1024,
        ("train-2", "1"): 2048,
    }
    assert served["DCGM_FI_DEV_GPU_UTIL"].by("pod") == {("",): 50, ("train-1",): 1, ("train-2",): 2}


def test_memory_of_a_card_with_instances_is_told_per_instance_and_the_rest_once() -> None:
    instances = (
        MigSample("MIG-a", "3g.40gb", 1, 40 * GIB, 10 * GIB, 29 * GIB, GIB),
        MigSample("MIG-b", "3g.40gb", 2, 40 * GIB, None, None, None),
    )
    plain = card_snapshot(0)
    assert plain.sample is not None
    holder = replace(container_of(1, 10 * GIB), mig_uuid="MIG-a")
    card = replace(plain, sample=replace(plain.sample, mig=instances, utilisation=None), containers=(holder,))
    served = families(snapshot_of([card]))
    labels, value = one(served["DCGM_FI_DEV_FB_USED"])
    assert value == 10 * 1024
    assert list(labels)[4:8] == ["modelName", "GPU_I_PROFILE", "GPU_I_ID", "Hostname"]
    assert (labels["GPU_I_PROFILE"], labels["GPU_I_ID"], labels["pod"]) == ("3g.40gb", "1", "train-1")
    labels, _ = one(served["DCGM_FI_DEV_POWER_USAGE"])
    assert "GPU_I_ID" not in labels
    assert "pod" not in labels
    assert "DCGM_FI_DEV_GPU_UTIL" not in served
    assert one(served["shoal_container_memory_used_bytes"])[0]["GPU_I_ID"] == "1"


def test_what_is_not_known_has_no_series() -> None:
    silent = card_snapshot(0, [replace(container_of(1, 0), used_bytes=None, limit_bytes=None, source=None)])
    silent = replace(silent, sample=Sample(temperature_c=40), used_bytes=None, unattributed_bytes=None, last_xid=None)
    served = families(snapshot_of([silent]))
    assert {name for name in served if name.startswith("DCGM_FI")} == {"DCGM_FI_DEV_GPU_TEMP"}
    assert "shoal_container_memory_used_bytes" not in served
    assert "shoal_container_memory_limit_bytes" not in served
    assert "shoal_container_attribution_info" not in served
    assert "shoal_card_memory_unattributed_bytes" not in served
    assert one(served["shoal_container_memory_requested_bytes"])[1] == 4 * GIB


def test_a_card_that_does_not_answer_is_down_and_measures_nothing() -> None:
    lost = card_snapshot(1, sampled=False)
    served = families(snapshot_of([card_snapshot(0), replace(lost, card=replace(lost.card, lost=True))]))
    assert served["shoal_card_up"].by("gpu") == {("0",): 1, ("1",): 0}
    assert served["DCGM_FI_DEV_GPU_TEMP"].by("gpu").keys() == {("0",)}
    assert served["shoal_card_xid_total"].by("gpu", "xid")[("1", "79")] == 1


def test_windows_are_zero_without_a_label_when_nothing_happened() -> None:
    quiet = replace(card_snapshot(0), recent_xids={}, recent_clock_events={})
    served = families(snapshot_of([quiet, card_snapshot(1)]))
    assert served["DCGM_EXP_XID_ERRORS_COUNT"].by("gpu", "xid") == {("0", ""): 0, ("1", "31"): 2}
    events = served["DCGM_EXP_CLOCK_EVENTS_COUNT"].by("gpu", "clock_event", "window_size_in_ms")
    assert events == {("0", "", "300000"): 0, ("1", "power_cap", "300000"): 3, ("1", "sw_thermal", "300000"): 1}


def test_requested_limit_and_used_stand_side_by_side_and_add_up() -> None:
    over = container_of(2, 6 * GIB)
    served = families(snapshot_of([card_snapshot(0, [container_of(1, GIB), over], unattributed=3 * MIB)]))
    key = ("team-a", "train-2", "main", "0", card_of(0).uuid)
    at = ("namespace", "pod", "container", "gpu", "UUID")
    for name, value in {
        "shoal_container_memory_requested_bytes": 4 * GIB,
        "shoal_container_memory_limit_bytes": 4 * GIB,
        "shoal_container_memory_used_bytes": 6 * GIB,
        "shoal_container_utilisation_percent": 2,
        "shoal_container_overuse_seconds_total": 12.5,
    }.items():
        assert served[name].by(*at)[key] == value
    assert served["shoal_container_attribution_info"].by("pod", "source").keys() == {
        ("train-1", "process"),
        ("train-2", "process"),
    }
    used = sum(served["shoal_container_memory_used_bytes"].series.values())
    unattributed = one(served["shoal_card_memory_unattributed_bytes"])[1]
    assert used + unattributed == one(served["shoal_card_memory_used_bytes"])[1]
    assert one(served["shoal_sample_failures_total"]) == ({"call": "nvmlDeviceGetFanSpeed"}, 3)


def test_a_list_chooses_fields_their_type_and_words_and_labels() -> None:
    counters = parse(
        'DCGM_FI_DEV_FB_TOTAL, counter,"a \\ b, c"\nDCGM_FI_DEV_FAN_SPEED, gauge, fan\n'
        "DCGM_FI_DEV_NAME, label, name\nDCGM_FI_CUDA_DRIVER_VERSION, label, cuda"
    )
    served = families(snapshot_of([card_snapshot(0)]), counters)
    assert [name for name in served if name.startswith("DCGM")] == ["DCGM_FI_DEV_FB_TOTAL", "DCGM_FI_DEV_FAN_SPEED"]
    assert served["DCGM_FI_DEV_FB_TOTAL"].kind == "counter"
    assert served["DCGM_FI_DEV_FB_TOTAL"].what == "a \\\\ b, c"
    labels = one(served["DCGM_FI_DEV_FAN_SPEED"])[0]
    assert list(labels)[5:] == ["Hostname", "DCGM_FI_CUDA_DRIVER_VERSION", "DCGM_FI_DEV_NAME"]
    assert labels["DCGM_FI_CUDA_DRIVER_VERSION"] == "12040"


def test_all_fields_can_be_listed() -> None:
    counters = parse("".join(f"{field.name}, gauge, words\n" for field in FIELDS))
    served = families(snapshot_of([card_snapshot(0)]), counters)
    assert {field.name for field in FIELDS} - served.keys() == {"DCGM_FI_DEV_VGPU_LICENSE_STATUS"}


@pytest.mark.parametrize(
    ("pci", "written"),
    [("0000:3b:00.0", "00000000:3B:00.0"), ("00000001:af:00.0", "00000001:AF:00.0"), ("", ""), ("odd", "odd")],
)
def test_bus_addresses_are_written_as_dcgm_does(pci: str, written: str) -> None:
    assert pci_bus_id(pci) == written


_TEXT = st.one_of(
    st.text(alphabet=st.characters(), max_size=40),
    st.sampled_from(
        (
            *("a\u2028b 1", "\x85\x9b", "\x1b[2J", 'a"b', "a\\", 'x"} 1\nDCGM_FI_DEV_GPU_TEMP{gpu="9'),
            *("\n\n", "\0", "\ud800", "é" * 300, "\r\n# HELP x"),
        )
    ),
    st.integers(0, 255).map(lambda byte: chr(byte) * (64 << 10)),
)


@given(model=_TEXT, uuid=_TEXT, node=_TEXT, names=st.lists(st.tuples(_TEXT, _TEXT, _TEXT), max_size=3, unique=True))
def test_whatever_names_hold_the_text_is_right(
    model: str, uuid: str, node: str, names: list[tuple[str, str, str]]
) -> None:
    containers = [
        renamed(container_of(number, GIB), namespace=namespace, pod=f"{number}{pod}", container=container)
        for number, (namespace, pod, container) in enumerate(names)
    ]
    card = card_snapshot(0, containers)
    card = replace(card, card=replace(card.card, model=model, uuid=uuid, pci=model))
    snapshot = replace(snapshot_of([card, card_snapshot(1)]), node=node, failures={model: 1})
    for shared in SharedSeries:
        served = families(snapshot, shared_series=shared)
        assert len(served["shoal_container_memory_used_bytes"].series) == len(containers) if containers else True
        temperatures = served["DCGM_FI_DEV_GPU_TEMP"]
        assert set(temperatures.by("gpu")) == {("0",), ("1",)}
        assert all(len(value) <= 256 for labels in temperatures.series for _, value in labels)


def test_short_names_come_back_as_they_are_and_long_ones_stay_apart() -> None:
    hostile = 'quote " backslash \\ line\nend'
    long = "x" * (64 << 10)
    containers = [
        renamed(container_of(1, GIB), pod=hostile),
        renamed(container_of(2, GIB), pod=f"{long}a"),
        renamed(container_of(3, GIB), pod=f"{long}b"),
    ]
    pods = [
        pod
        for (pod,) in families(snapshot_of([card_snapshot(0, containers)]))["shoal_container_memory_used_bytes"].by(
            "pod"
        )
    ]
    assert pods[0] == hostile
    assert len(set(pods)) == 3
    assert all(re.fullmatch(r"x{243}…[0-9a-f]{12}", pod) for pod in pods[1:])


def test_the_source_of_each_use_is_told() -> None:
    containers = [replace(container_of(number, GIB), source=source) for number, source in enumerate(UseSource)]
    served = families(snapshot_of([card_snapshot(0, containers)]))
    assert {source for (source,) in served["shoal_container_attribution_info"].by("source")} == set(UseSource)


def test_a_node_without_cards_has_no_series_of_cards() -> None:
    assert families(snapshot_of([])).keys() == {"shoal_sample_failures_total"}
    assert families(snapshot_of([CardSnapshot(card_of(0))])).keys() >= {"shoal_card_up"}
