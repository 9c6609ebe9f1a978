"""The node daemon: publishes a node's cards, serves kubelet's device plugin API, and gives each container its cards.

`app` joins the parts. `starts` is what happens when a container is about to be created. Nothing is kept here that is
not also in the API server, in kubelet's records or in the CDI files: the process may be killed at any moment.
"""
