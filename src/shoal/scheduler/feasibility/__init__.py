"""Kubernetes' own filters and preferences, over arrays with the ledger's rows. No I/O, no clock.

- `pod_spec`, `affinity`: what a pod's spec says, read once per template
- `tables`: the cluster as the filters read it, in `node_table`, `pod_table` and `storage_table`, kept by change
- `filters`: one file per plugin of kube-scheduler, or for several that share their data: which rows are rejected, why
- `feasibility`: asks the filters in kube-scheduler's order and weighs the preferences

What is counted is what somebody asked about: a selector that no pending pod and no filter uses costs nothing. GPU
cards are not looked at here, nor scheduling gates, nor DRA claims.
"""
