"""What is allocated of the cards of a cluster, read from its nodes and pods."""
