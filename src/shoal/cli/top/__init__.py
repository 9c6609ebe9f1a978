"""`shoal top`: a live picture of nodes, cards and pods in a terminal."""
