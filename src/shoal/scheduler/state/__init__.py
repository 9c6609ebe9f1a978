"""The scheduler's picture of the cluster, and how the watch keeps it true."""
