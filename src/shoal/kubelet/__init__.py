"""What kubelet says and understands: the gRPC of device plugins and PodResources, its paths and its limits.

Only the wire is here. The node daemon that serves and asks over it is the service `agent`.
"""
