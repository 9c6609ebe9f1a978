"""Discovery: what a node has is told in its labels, by the names of NFD and of NVIDIA's feature discovery."""
