"""kubelet's device plugin API: the devices of each resource, and what happens at Allocate and PreStartContainer.

`devices`, `plugin` and `serving` tell kubelet what there is. `calls` answers when a container is about to be created:
`decisions` and `matching` say which cards it gets, `start_check` whether it may have them, `edits` and `specs` what
that means for the container.
"""
