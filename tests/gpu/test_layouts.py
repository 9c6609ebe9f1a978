"""Structures handed to NVML have the sizes and places of its public header (64 bit): a wrong one corrupts memory."""

import ctypes

import pynvml  # type: ignore[import-untyped]
import pytest

LAYOUTS = [
    ("c_nvmlMemory_t", 24, {"total": 0, "free": 8, "used": 16}),
    ("c_nvmlMemory_v2_t", 40, {"version": 0, "total": 8, "reserved": 16, "free": 24, "used": 32}),
    ("nvmlPciInfo_t", 68, {"domain": 16, "bus": 20, "device": 24, "busId": 36}),
    ("c_nvmlUtilization_t", 8, {"gpu": 0, "memory": 4}),
    ("c_nvmlProcessInfo_v3_t", 24, {"pid": 0, "usedGpuMemory": 8, "gpuInstanceId": 16}),
    ("c_nvmlProcessUtilizationSample_t", 32, {"pid": 0, "timeStamp": 8, "smUtil": 16}),
    ("c_nvmlEventData_t", 32, {"device": 0, "eventType": 8, "eventData": 16, "gpuInstanceId": 24}),
    ("c_nvmlDeviceAttributes", 40, {"gpuInstanceSliceCount": 24, "computeInstanceSliceCount": 28, "memorySizeMB": 32}),
    ("c_nvmlFieldValue_t", 40, {"fieldId": 0, "scopeId": 4, "valueType": 24, "nvmlReturn": 28, "value": 32}),
    ("c_nvmlSetMemoryLimits_v1_t", 24, {"nameSpace": 0, "softLimit": 8, "hardLimit": 16}),
    ("c_nvmlGetMemoryLimits_v1_t", 32, {"nameSpace": 0, "softLimit": 8, "hardLimit": 16, "currentUsed": 24}),
]


@pytest.mark.parametrize(("name", "size", "places"), LAYOUTS, ids=[layout[0] for layout in LAYOUTS])
def test_layout(name: str, size: int, places: dict[str, int]) -> None:
    structure = getattr(pynvml, name)
    assert ctypes.sizeof(structure) == size
    assert {field: getattr(structure, field).offset for field in places} == places


def test_versions_and_numbers() -> None:
    assert pynvml.nvmlMemory_v2 == 2 << 24 | 40
    assert pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX == 2**64 - 1
    assert (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH) == (15, 2)
