"""The embedded cluster: a Kubernetes API server in memory, for trying, developing and testing. Not for production.

It stores and answers; it runs no controllers and no nodes, and keeps nothing when it ends.
"""
