"""What tells which container has which devices: kubelet's record, its PodResources, other plugins' answers."""
