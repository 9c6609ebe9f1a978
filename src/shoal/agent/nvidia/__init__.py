"""NVIDIA's configuration: where it comes from, and what it makes of cards, replicas and MIG partitions."""
