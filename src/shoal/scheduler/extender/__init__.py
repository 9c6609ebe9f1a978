"""The HTTP side of the scheduler: what kube-scheduler asks an extender, and gpushare's inspect."""
