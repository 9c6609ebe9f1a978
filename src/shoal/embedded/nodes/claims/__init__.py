"""kubelet's manager of claims: drivers on unix sockets, what is prepared for which pods, the checkpoint."""
