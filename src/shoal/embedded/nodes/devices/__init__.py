"""kubelet's device manager: plugins on unix sockets, who has which device, the checkpoint, PodResources."""
