"""Which nodes can take a pod: one reason a file."""
