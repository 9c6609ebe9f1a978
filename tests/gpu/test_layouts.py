"""nvidia-ml-py's structures are laid out as NVIDIA's header has them: a wrong one corrupts memory.

The compiler tells where the header's fields are; its version marks and limits are compared the same way.
"""

import ctypes
import subprocess
from pathlib import Path

import pynvml  # type: ignore[import-untyped]
import pytest

from tests.testbed.nvml.shim import compile_c

#: Structures that calls of Shoal's hand over: in nvidia-ml-py, in the header.
STRUCTURES = {
    "c_nvmlMemory_t": "nvmlMemory_t",
    "c_nvmlMemory_v2_t": "nvmlMemory_v2_t",
    "nvmlPciInfo_t": "nvmlPciInfo_t",
    "c_nvmlUtilization_t": "nvmlUtilization_t",
    "c_nvmlProcessInfo_v2_t": "nvmlProcessInfo_v2_t",
    "c_nvmlProcessInfo_v3_t": "nvmlProcessInfo_t",
    "c_nvmlProcessUtilizationSample_t": "nvmlProcessUtilizationSample_t",
    "c_nvmlEventData_t": "nvmlEventData_t",
    "c_nvmlDeviceAttributes": "nvmlDeviceAttributes_t",
    "c_nvmlFieldValue_t": "nvmlFieldValue_t",
    "c_nvmlGpmMetric_t": "nvmlGpmMetric_t",
    "c_nvmlGpmMetricsGet_t": "nvmlGpmMetricsGet_t",
    "c_nvmlGpmSupport_t": "nvmlGpmSupport_t",
    "c_nvmlSetMemoryLimits_v1_t": "nvmlSetMemoryLimits_v1_t",
    "c_nvmlGetMemoryLimits_v1_t": "nvmlGetMemoryLimits_v1_t",
}
NUMBERS = (
    *("nvmlMemory_v2", "NVML_DEVICE_MEMORY_LIMIT_MAX", "NVML_FI_DEV_MEMORY_TEMP", "NVML_NVLINK_MAX_LINKS"),
    *(
        "NVML_ERROR_GPU_IS_LOST",
        "NVML_ERROR_FUNCTION_NOT_FOUND",
        "NVML_ERROR_DRIVER_NOT_LOADED",
        "NVML_ERROR_NOT_FOUND",
    ),
    *(f"NVML_FI_DEV_PERF_POLICY_{name}" for name in ("POWER", "THERMAL", "SYNC_BOOST", "BOARD_LIMIT", "RELIABILITY")),
    *(f"NVML_FI_DEV_ECC_{name}_TOTAL" for name in ("SBE_VOL", "DBE_VOL", "SBE_AGG", "DBE_AGG")),
    *(f"NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_{name}" for name in ("TX", "RX")),
    *(f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL" for name in ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")),
    *("NVML_FI_DEV_RETIRED_PENDING", "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG"),
    *("NVML_GPM_METRICS_GET_VERSION", "NVML_GPM_SUPPORT_VERSION", "NVML_GPM_METRIC_MAX"),
    *("NVML_GPM_METRIC_ANY_TENSOR_UTIL", "NVML_GPM_METRIC_PCIE_TX_PER_SEC", "NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC"),
    *("NVML_NVLINK_DEVICE_TYPE_SWITCH", "NVML_COMPUTEMODE_EXCLUSIVE_PROCESS", "NVML_AFFINITY_SCOPE_NODE"),
    *("nvmlEventTypeXidCriticalError", "nvmlEventTypeSingleBitEccError", "nvmlEventTypeDoubleBitEccError"),
)


def test_structures_and_numbers_are_those_of_the_header(tmp_path: Path) -> None:
    ours: dict[str, int] = {number: getattr(pynvml, number) for number in NUMBERS}
    lines = [f'printf("{number} %llu\\n", (unsigned long long){number});' for number in NUMBERS]
    for name, there in STRUCTURES.items():
        structure = getattr(pynvml, name)
        ours[there] = ctypes.sizeof(structure)
        lines.append(f'printf("{there} %zu\\n", sizeof({there}));')
        for field, *_ in structure._fields_:
            ours[f"{there}.{field}"] = getattr(structure, field).offset
            lines.append(f'printf("{there}.{field} %zu\\n", offsetof({there}, {field}));')
    source, program = tmp_path / "layouts.c", tmp_path / "layouts"
    body = "\n    ".join(lines)
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include <nvml.h>\nint main(void) {{\n    {body}\n}}\n"
    )
    try:
        compile_c(program, source)
    except FileNotFoundError as missing:
        pytest.skip(f"{missing} is not here to ask the compiler: `make test` as root installs it")
    told = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert {key: int(value) for key, value in map(str.split, told.splitlines())} == ours
