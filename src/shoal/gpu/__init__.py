"""The GPU driver as the rest of Shoal sees it: one protocol, with NVIDIA's NVML or simulated cards behind it.

`protocol` has the words, `nvml.open_nvml` and `simulated.SimulatedNvml` the two backends, `inventory` what a node
publishes, `mps` the control of MPS daemons. Nothing here decides: health, limits and supervision are the agent's.
"""
