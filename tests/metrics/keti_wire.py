"""KETI's messages as its own .proto files have them, made here apart from ours: what its clients read of our bytes."""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_TYPES = {
    "int32": descriptor_pb2.FieldDescriptorProto.TYPE_INT32,
    "int64": descriptor_pb2.FieldDescriptorProto.TYPE_INT64,
    "uint64": descriptor_pb2.FieldDescriptorProto.TYPE_UINT64,
    "float": descriptor_pb2.FieldDescriptorProto.TYPE_FLOAT,
    "bool": descriptor_pb2.FieldDescriptorProto.TYPE_BOOL,
    "string": descriptor_pb2.FieldDescriptorProto.TYPE_STRING,
}
#: Package, message, then name:type=number. `*` repeats; `map:` has a string as its key.
_MESSAGES = """
metric Request
metric NVLink gpu1uuid:string=1 gpu2uuid:string=2 lanecount:int32=3
metric PodGPUMetric gpu_uuid:string=1 gpu_process_id:string=2 gpu_memory_used:int64=3
metric PodMetric cpu_usage:int64=1 memory_usage:int64=2 storage_usage:int64=3 network_rx:int64=4 network_tx:int64=5 \
is_gpu_pod:bool=6 pod_gpu_metrics:map:PodGPUMetric=7
metric GPUMetric index:int32=1 gpu_name:string=2 architecture:string=3 max_clock:int64=4 cudacore:int64=5 \
bandwidth:float=6 flops:int64=7 max_operative_temp:int64=8 slowdown_temp:int64=9 shutdown_temp:int64=10 \
memory_total:int64=11 memory_used:int64=12 power_used:int64=13 pci_rx:int64=14 pci_tx:int64=15 temperature:int64=16 \
utilization:int64=17 fan_speed:int64=18 pod_count:int64=19 energy_consumption:int64=20
metric NodeMetric milli_cpu_total:int64=1 milli_cpu_usage:int64=2 memory_total:int64=3 memory_usage:int64=4 \
storage_total:int64=5 storage_usage:int64=6 network_rx:int64=7 network_tx:int64=8
metric MultiMetric node_name:string=1 gpu_count:int64=2 nvlink_info:*NVLink=3 node_metric:NodeMetric=4 \
gpu_metrics:map:GPUMetric=5 pod_metrics:map:PodMetric=6
score Request
score GPUScore gpu_score:float=1 pod_count:int32=2
score NodeScore node_score:float=1 gpu_scores:map:GPUScore=2
score AnalysisScore scores:map:NodeScore=1
v1.user NodeMessage node_name:string=1 node_totalcpu:int64=2 node_cpu:int64=3 gpu_count:int64=4 \
node_totalmemory:int64=5 node_memory:int64=6 node_totalstorage:int64=7 node_storage:int64=8 gpu_uuid:string=9 \
max_gpu_memory:int64=10 gpu1index:*string=11 gpu2index:*string=12 lanecount:*int32=13
v1.user GPUMessage gpu_uuid:string=1 gpu_total:uint64=2 gpu_used:uint64=3 gpu_free:uint64=4 gpu_name:string=5 \
gpu_index:int64=6 gpu_temp:int64=7 gpu_power:int64=8 mps_count:int64=9 gpu_flops:int64=10 gpu_arch:int64=11 \
gpu_tpower:int64=12 gpu_util:int64=13
v1.user GetNodeRequest
v1.user GetNodeResponse node_message:NodeMessage=1
v1.user GetGPURequest gpu_uuid:string=1
v1.user GetGPUResponse gpu_message:GPUMessage=1
v1.user InitRequest
v1.user InitMessage InitNode:NodeMessage=1 InitGPU:*GPUMessage=2
"""


def _field(message: descriptor_pb2.DescriptorProto, package: str, text: str) -> None:
    left, _, number = text.partition("=")
    name, _, kind = left.partition(":")
    field = message.field.add(name=name, number=int(number))
    field.label = descriptor_pb2.FieldDescriptorProto.LABEL_OPTIONAL
    if kind.startswith("map:"):
        entry = message.nested_type.add(name="".join(word.title() for word in name.split("_")) + "Entry")
        entry.options.map_entry = True
        _field(entry, package, "key:string=1")
        _field(entry, package, f"value:{kind[4:]}=2")
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{package}.{message.name}.{entry.name}"
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        return
    if kind.startswith("*"):
        field.label = descriptor_pb2.FieldDescriptorProto.LABEL_REPEATED
        kind = kind[1:]
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{package}.{kind}"


def _made() -> dict[str, Any]:
    files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
    for row in _MESSAGES.strip().splitlines():
        package, name, *fields = row.split()
        file = files.setdefault(
            package, descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
        )
        message = file.message_type.add(name=name)
        for text in fields:
            _field(message, package, text)
    pool = descriptor_pool.DescriptorPool()
    for file in files.values():
        pool.Add(file)
    return {
        f"{package}.{message.name}": message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{message.name}")
        )
        for package, file in files.items()
        for message in file.message_type
    }


#: The classes of KETI's messages, by full name.
KETI = _made()
