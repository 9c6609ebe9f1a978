"""The node as it is: its cards, its object in the API server, its pods and what they hold, its paths and runtime."""
