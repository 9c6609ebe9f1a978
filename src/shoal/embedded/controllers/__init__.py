"""The workload controllers of the embedded cluster: Deployment, ReplicaSet, StatefulSet, Job, DaemonSet,
ResourceClaims of pods, lost pods.

`reconcile` decides, purely, what to do about one object; `loop` asks it whenever something changed, `execute` does it.
There is no node lifecycle here, no scheduler, no services and no autoscaling.
"""
