"""What happens when a container with cards starts: whose devices these are, which cards they stand for, its spec."""
