"""The cluster as the scheduler sees it, from the API server or from a file."""
