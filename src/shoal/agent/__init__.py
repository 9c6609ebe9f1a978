"""The node daemon: publishes a node's cards, serves kubelet's device plugin API, and gives each container its cards.

`app` joins the parts, `reconcile` keeps them in step with the pods. `node` has the node's cards, pods and object,
`nvidia` how NVIDIA's configuration shares the cards, `device_plugin` what kubelet is told of them and what happens when
a container is about to be created. `limits` keeps containers to their shares, `health` watches the cards. Nothing is
kept here that is not also in the API server, in kubelet's records or in files on the node: the process may be killed at
any moment.
"""
