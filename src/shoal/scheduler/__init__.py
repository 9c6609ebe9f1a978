"""The scheduler: an extender of the stock kube-scheduler and the standalone `gpu-scheduler`, on one ledger."""
