"""The node: its cards, its object in the API server, its pods, what they hold, and kubelet's record of devices."""
