from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class NodeMessage(_message.Message):
    __slots__ = ("node_name", "node_totalcpu", "node_cpu", "gpu_count", "node_totalmemory", "node_memory", "node_totalstorage", "node_storage", "gpu_uuid", "max_gpu_memory", "gpu1index", "gpu2index", "lanecount")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_TOTALCPU_FIELD_NUMBER: _ClassVar[int]
    NODE_CPU_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_TOTALMEMORY_FIELD_NUMBER: _ClassVar[int]
    NODE_MEMORY_FIELD_NUMBER: _ClassVar[int]
    NODE_TOTALSTORAGE_FIELD_NUMBER: _ClassVar[int]
    NODE_STORAGE_FIELD_NUMBER: _ClassVar[int]
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_MEMORY_FIELD_NUMBER: _ClassVar[int]
    GPU1INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU2INDEX_FIELD_NUMBER: _ClassVar[int]
    LANECOUNT_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    node_totalcpu: int
    node_cpu: int
    gpu_count: int
    node_totalmemory: int
    node_memory: int
    node_totalstorage: int
    node_storage: int
    gpu_uuid: str
    max_gpu_memory: int
    gpu1index: _containers.RepeatedScalarFieldContainer[str]
    gpu2index: _containers.RepeatedScalarFieldContainer[str]
    lanecount: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, node_name: _Optional[str] = ..., node_totalcpu: _Optional[int] = ..., node_cpu: _Optional[int] = ..., gpu_count: _Optional[int] = ..., node_totalmemory: _Optional[int] = ..., node_memory: _Optional[int] = ..., node_totalstorage: _Optional[int] = ..., node_storage: _Optional[int] = ..., gpu_uuid: _Optional[str] = ..., max_gpu_memory: _Optional[int] = ..., gpu1index: _Optional[_Iterable[str]] = ..., gpu2index: _Optional[_Iterable[str]] = ..., lanecount: _Optional[_Iterable[int]] = ...) -> None: ...

class GPUMessage(_message.Message):
    __slots__ = ("gpu_uuid", "gpu_total", "gpu_used", "gpu_free", "gpu_name", "gpu_index", "gpu_temp", "gpu_power", "mps_count", "gpu_flops", "gpu_arch", "gpu_tpower", "gpu_util")
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    GPU_TOTAL_FIELD_NUMBER: _ClassVar[int]
    GPU_USED_FIELD_NUMBER: _ClassVar[int]
    GPU_FREE_FIELD_NUMBER: _ClassVar[int]
    GPU_NAME_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    GPU_TEMP_FIELD_NUMBER: _ClassVar[int]
    GPU_POWER_FIELD_NUMBER: _ClassVar[int]
    MPS_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_FLOPS_FIELD_NUMBER: _ClassVar[int]
    GPU_ARCH_FIELD_NUMBER: _ClassVar[int]
    GPU_TPOWER_FIELD_NUMBER: _ClassVar[int]
    GPU_UTIL_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    gpu_total: int
    gpu_used: int
    gpu_free: int
    gpu_name: str
    gpu_index: int
    gpu_temp: int
    gpu_power: int
    mps_count: int
    gpu_flops: int
    gpu_arch: int
    gpu_tpower: int
    gpu_util: int
    def __init__(self, gpu_uuid: _Optional[str] = ..., gpu_total: _Optional[int] = ..., gpu_used: _Optional[int] = ..., gpu_free: _Optional[int] = ..., gpu_name: _Optional[str] = ..., gpu_index: _Optional[int] = ..., gpu_temp: _Optional[int] = ..., gpu_power: _Optional[int] = ..., mps_count: _Optional[int] = ..., gpu_flops: _Optional[int] = ..., gpu_arch: _Optional[int] = ..., gpu_tpower: _Optional[int] = ..., gpu_util: _Optional[int] = ...) -> None: ...

class GetNodeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetNodeResponse(_message.Message):
    __slots__ = ("node_message",)
    NODE_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    node_message: NodeMessage
    def __init__(self, node_message: _Optional[_Union[NodeMessage, _Mapping]] = ...) -> None: ...

class GetGPURequest(_message.Message):
    __slots__ = ("gpu_uuid",)
    GPU_UUID_FIELD_NUMBER: _ClassVar[int]
    gpu_uuid: str
    def __init__(self, gpu_uuid: _Optional[str] = ...) -> None: ...

class GetGPUResponse(_message.Message):
    __slots__ = ("gpu_message",)
    GPU_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    gpu_message: GPUMessage
    def __init__(self, gpu_message: _Optional[_Union[GPUMessage, _Mapping]] = ...) -> None: ...

class InitRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InitMessage(_message.Message):
    __slots__ = ("InitNode", "InitGPU")
    INITNODE_FIELD_NUMBER: _ClassVar[int]
    INITGPU_FIELD_NUMBER: _ClassVar[int]
    InitNode: NodeMessage
    InitGPU: _containers.RepeatedCompositeFieldContainer[GPUMessage]
    def __init__(self, InitNode: _Optional[_Union[NodeMessage, _Mapping]] = ..., InitGPU: _Optional[_Iterable[_Union[GPUMessage, _Mapping]]] = ...) -> None: ...
