"""Simulated cards behind the protocol of the driver, for clusters that run without hardware."""

from shoal.gpu.simulated.driver import SimulatedNvml

__all__ = ["SimulatedNvml"]
