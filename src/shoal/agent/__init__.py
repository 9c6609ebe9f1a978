"""The node daemon: publishes a node's cards, serves kubelet's device plugin API, and gives each container its cards.

`app` joins the parts, `follow` keeps them in step with the pods. `node` is what there is, `nvidia` how NVIDIA's
configuration shares it, `plugins` what kubelet is told of it. `starts` is what happens when a container is about to be
created, `limits` the walls around its share, `health` that of the cards. Nothing is kept here that is not also in the
API server, in kubelet's records or in the CDI files: the process may be killed at any moment.
"""
