"""Simulated nodes: kubelets that register, admit pods, speak the real gRPC to device plugins, and play containers.

`app.Nodes` runs them all in one process; `pods` is the life of one pod, `devices` kubelet's device manager. No program
is run: what a container does is told by `pods.workload`.
"""
