"""What is remembered of pods between the requests of kube-scheduler."""
