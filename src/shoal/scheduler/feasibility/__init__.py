"""Kubernetes' own filters and preferences, over arrays with the ledger's rows. No I/O, no clock.

- `wish`: what a pod's manifest asks for, read once per template
- `state`: nodes, pods and volumes as arrays and counts, kept by change; `cluster` is its face
- `filters`: one file per plugin of kube-scheduler (or two that share their data): which rows refuse, and why
- `feasibility`: asks the filters in kube-scheduler's order and weighs the preferences

What is counted is what somebody asked about: a selector that no pending pod and no filter uses costs nothing. GPU
cards are not looked at here, nor scheduling gates, nor DRA claims.
"""
