"""What a pod's manifest asks for, read once per template and hashable, so that equal wishes share their answers."""
