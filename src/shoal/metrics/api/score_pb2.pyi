from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AnalysisScore(_message.Message):
    __slots__ = ("scores",)
    class ScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: NodeScore
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[NodeScore, _Mapping]] = ...) -> None: ...
    SCORES_FIELD_NUMBER: _ClassVar[int]
    scores: _containers.MessageMap[str, NodeScore]
    def __init__(self, scores: _Optional[_Mapping[str, NodeScore]] = ...) -> None: ...

class NodeScore(_message.Message):
    __slots__ = ("node_score", "gpu_scores")
    class GpuScoresEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: GPUScore
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[GPUScore, _Mapping]] = ...) -> None: ...
    NODE_SCORE_FIELD_NUMBER: _ClassVar[int]
    GPU_SCORES_FIELD_NUMBER: _ClassVar[int]
    node_score: float
    gpu_scores: _containers.MessageMap[str, GPUScore]
    def __init__(self, node_score: _Optional[float] = ..., gpu_scores: _Optional[_Mapping[str, GPUScore]] = ...) -> None: ...

class GPUScore(_message.Message):
    __slots__ = ("gpu_score", "pod_count")
    GPU_SCORE_FIELD_NUMBER: _ClassVar[int]
    POD_COUNT_FIELD_NUMBER: _ClassVar[int]
    gpu_score: float
    pod_count: int
    def __init__(self, gpu_score: _Optional[float] = ..., pod_count: _Optional[int] = ...) -> None: ...
