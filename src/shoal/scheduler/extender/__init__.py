"""The HTTP side of the scheduler: what kube-scheduler asks an extender, gpushare's inspect, health and metrics."""
