"""The way to kubelet, for services that run on a node: gRPC of device plugins and PodResources, paths, CDI files.

The device plugins themselves are the service `agent`'s.
"""
