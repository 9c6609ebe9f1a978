"""Shoal shares GPUs on Kubernetes: by memory, by compute, by MPS client or whole, on one ledger."""

__version__ = "0.1.0"
