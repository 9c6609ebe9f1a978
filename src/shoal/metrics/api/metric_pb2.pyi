from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MultiMetric(_message.Message):
    __slots__ = ("node_name", "gpu_count", "nvlink_info", "node_metric", "gpu_metrics", "pod_metrics")
    class GpuMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GPUMetric
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GPUMetric, _Mapping]] = ...) -> None: ...
    class PodMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PodMetric
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PodMetric, _Mapping]] = ...) -> None: ...
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    NVLINK_INFO_FIELD_NUMBER: _ClassVar[int]
    NODE_METRIC_FIELD_NUMBER: _ClassVar[int]
    GPU_METRICS_FIELD_NUMBER: _ClassVar[int]
    POD_METRICS_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    gpu_count: int
    nvlink_info: _containers.RepeatedCompositeFieldContainer[NVLink]
    node_metric: NodeMetric
    gpu_metrics: _containers.MessageMap[str, GPUMetric]
    pod_metrics: _containers.MessageMap[str, PodMetric]
    def __init__(self, node_name: _Optional[str] = ..., gpu_count: _Optional[int] = ..., nvlink_info: _Optional[_Iterable[_Union[NVLink, _Mapping]]] = ..., node_metric: _Optional[_Union[NodeMetric, _Mapping]] = ..., gpu_metrics: _Optional[_Mapping[str, GPUMetric]] = ..., pod_metrics: _Optional[_Mapping[str, PodMetric]] = ...) -> None: ...

class NodeMetric(_message.Message):
    __slots__ = ("milli_cpu_total", "milli_cpu_usage", "memory_total", "memory_usage", "storage_total", "storage_usage", "network_rx", "network_tx")
    MILLI_CPU_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MILLI_CPU_USAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USAGE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_TOTAL_FIELD_NUMBER: _ClassVar[int]
    STORAGE_USAGE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_RX_FIELD_NUMBER: _ClassVar[int]
    NETWORK_TX_FIELD_NUMBER: _ClassVar[int]
    milli_cpu_total: int
    milli_cpu_usage: int
    memory_total: int
    memory_usage: int
    storage_total: int
    storage_usage: int
    network_rx: int
    network_tx: int
    def __init__(self, milli_cpu_total: _Optional[int] = ..., milli_cpu_usage: _Optional[int] = ..., memory_total: _Optional[int] = ..., memory_usage: _Optional[int] = ..., storage_total: _Optional[int] = ..., storage_usage: _Optional[int] = ..., network_rx: _Optional[int] = ..., network_tx: _Optional[int] = ...) -> None: ...

class GPUMetric(_message.Message):
    __slots__ = ("index", "gpu_name", "architecture", "max_clock", "cudacore", "bandwidth", "flops", "max_operative_temp", "slowdown_temp", "shutdown_temp", "memory_total", "memory_used", "power_used", "pci_rx", "pci_tx", "temperature", "utilization", "fan_speed", "pod_count", "energy_consumption")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_NAME_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    MAX_CLOCK_FIELD_NUMBER: _ClassVar[int]
    CUDACORE_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_FIELD_NUMBER: _ClassVar[int]
    FLOPS_FIELD_NUMBER: _ClassVar[int]
    MAX_OPERATIVE_TEMP_FIELD_NUMBER: _ClassVar[int]
    SLOWDOWN_TEMP_FIELD_NUMBER: _ClassVar[int]
    SHUTDOWN_TEMP_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    POWER_USED_FIELD_NUMBER: _ClassVar[int]
    PCI_RX_FIELD_NUMBER: _ClassVar[int]
    PCI_TX_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    UTILIZATION_FIELD_NUMBER: _ClassVar[int]
    FAN_SPEED_FIELD_NUMBER: _ClassVar[int]
    POD_COUNT_FIELD_NUMBER: _ClassVar[int]
    ENERGY_CONSUMPTION_FIELD_NUMBER: _ClassVar[int]
    index: int
    gpu_name: str
    architecture: str
    max_clock: int
    cudacore: int
    bandwidth: float
    flops: int
    max_operative_temp: int
    slowdown_temp: int
    shutdown_temp: int
    memory_total: int
    memory_used: int
    power_used: int
    pci_rx: int
    pci_tx: int
    temperature: int
    utilization: int
    fan_speed: int
    pod_count: int
    energy_consumption: int
    def __init__(self, index: _Optional[int] = ..., gpu_name: _Optional[str] = ..., architecture: _Optional[str] = ..., max_clock: _Optional[int] = ..., cudacore: _Optional[int] = ..., bandwidth: _Optional[float] = ..., flops: _Optional[int] = ..., max_operative_temp: _Optional[int] = ..., slowdown_temp: _Optional[int] = ..., shutdown_temp: _Optional[int] = ..., memory_total: _Optional[int] = ..., memory_used: _Optional[int] = ..., power_used: _Optional[int] = ..., pci_rx: _Optional[int] = ..., pci_tx: _Optional[int] = ..., temperature: _Optional[int] = ..., utilization: _Optional[int] = ..., fan_speed: _Optional[int] = ..., pod_count: _Optional[int] = ..., energy_consumption: _Optional[int] = ...) -> None: ...

class PodMetric(_message.Message):
    __slots__ = ("cpu_usage", "memory_usage", "storage_usage", "network_rx", "network_tx", "is_gpu_pod", "pod_gpu_metrics")
    class PodGpuMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: PodGPUMetric
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[PodGPUMetric, _Mapping]] = ...) -> None: ...
    CPU_USAGE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USAGE_FIELD_NUMBER: _ClassVar[int]
    STORAGE_USAGE_FIELD_NUMBER: _ClassVar[int]
    NETWORK_RX_FIELD_NUMBER: _ClassVar[int]
    NETWORK_TX_FIELD_NUMBER: _ClassVar[int]
    IS_GPU_POD_FIELD_NUMBER: _ClassVar[int]
    POD_GPU_METRICS_FIELD_NUMBER: _ClassVar[int]
    cpu_usage: int
    memory_usage: int
    storage_usage: int
    network_rx: int
    network_tx: int
    is_gpu_pod: bool
    pod_gpu_metrics: _containers.MessageMap[str, PodGPUMetric]
    def __init__(self, cpu_usage: _Optional[int] = ..., memory_usage: _Optional[int] = ..., storage_usage: _Optional[int] = ..., network_rx: _Optional[int] = ..., network_tx: _Optional[int] = ..., is_gpu_pod: _Optional[bool] = ..., pod_gpu_metrics: _Optional[_Mapping[str, PodGPUMetric]] = ...) -> None: ...

class PodGPUMetric(_message.Message):
    __slots__ = ("gpu_uuid", "gpu_process_id", "gpu_memory_used")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    GPU_PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_USED_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    gpu_process_id: str
    gpu_memory_used: int
    def __init__(self, gpu_uuid: _Optional[str] = ..., gpu_process_id: _Optional[str] = ..., gpu_memory_used: _Optional[int] = ...) -> None: ...

class NVLink(_message.Message):
    __slots__ = ("gpu1uuid", "gpu2uuid", "lanecount")
    GPU1UUID_FIELD_NUMBER: _ClassVar[int]
    GPU2UUID_FIELD_NUMBER: _ClassVar[int]
    LANECOUNT_FIELD_NUMBER: _ClassVar[int]
    gpu1uuid: str
    gpu2uuid: str
    lanecount: int
    def __init__(self, gpu1uuid: _Optional[str] = ..., gpu2uuid: _Optional[str] = ..., lanecount: _Optional[int] = ...) -> None: ...
