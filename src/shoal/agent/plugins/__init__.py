"""What kubelet is told: the devices of each resource, and the device plugin API that serves them."""
