"""`shoal top`: nodes, cards and pods live in a terminal."""
