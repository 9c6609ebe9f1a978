from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestMessage(_message.Message):
    __slots__ = ("node_name", "node_score", "gpu_count")
    NODE_NAME_FIELD_NUMBER: _ClassVar[int]
    NODE_SCORE_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    node_name: str
    node_score: int
    gpu_count: int
    def __init__(self, node_name: _Optional[str] = ..., node_score: _Optional[int] = ..., gpu_count: _Optional[int] = ...) -> None: ...

class ResponseMessage(_message.Message):
    __slots__ = ("success",)
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    success: bool
    def __init__(self, success: _Optional[bool] = ...) -> None: ...

class InitMyClusterRequest(_message.Message):
    __slots__ = ("request_message",)
    REQUEST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_message: _containers.RepeatedCompositeFieldContainer[RequestMessage]
    def __init__(self, request_message: _Optional[_Iterable[_Union[RequestMessage, _Mapping]]] = ...) -> None: ...

class InitOtherClusterRequest(_message.Message):
    __slots__ = ("cluster_name", "request_message")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    request_message: _containers.RepeatedCompositeFieldContainer[RequestMessage]
    def __init__(self, cluster_name: _Optional[str] = ..., request_message: _Optional[_Iterable[_Union[RequestMessage, _Mapping]]] = ...) -> None: ...

class UpdateMyClusterRequest(_message.Message):
    __slots__ = ("request_message",)
    REQUEST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_message: RequestMessage
    def __init__(self, request_message: _Optional[_Union[RequestMessage, _Mapping]] = ...) -> None: ...

class UpdateOtherClusterRequest(_message.Message):
    __slots__ = ("cluster_name", "request_message")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    REQUEST_MESSAGE_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    request_message: RequestMessage
    def __init__(self, cluster_name: _Optional[str] = ..., request_message: _Optional[_Union[RequestMessage, _Mapping]] = ...) -> None: ...

class ClusterSchedulingRequest(_message.Message):
    __slots__ = ("gpu_count", "filtered_cluster")
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    FILTERED_CLUSTER_FIELD_NUMBER: _ClassVar[int]
    gpu_count: int
    filtered_cluster: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpu_count: _Optional[int] = ..., filtered_cluster: _Optional[_Iterable[str]] = ...) -> None: ...

class ClusterSchedulingResponse(_message.Message):
    __slots__ = ("cluster_name", "success")
    CLUSTER_NAME_FIELD_NUMBER: _ClassVar[int]
    SUCCESS_FIELD_NUMBER: _ClassVar[int]
    cluster_name: str
    success: bool
    def __init__(self, cluster_name: _Optional[str] = ..., success: _Optional[bool] = ...) -> None: ...
