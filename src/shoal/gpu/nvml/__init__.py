"""The real driver behind the protocol: NVIDIA's NVML, through nvidia-ml-py."""

from shoal.gpu.nvml.driver import open_nvml

__all__ = ["open_nvml"]
