"""The embedded cluster: a Kubernetes API server in memory, for trying, developing and testing. Not for production.

The server stores and answers; `controllers` run workloads beside it. Nothing is kept when it ends.
"""
