"""What is told of a cluster, worked out and not printed: why, what-if, inspect, doctor. cli and dashboard show it."""
