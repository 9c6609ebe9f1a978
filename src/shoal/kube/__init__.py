"""The project's own Kubernetes client: credentials, typed calls, reflector, events and leader election.

Async only, on aiohttp and msgspec. It knows the API server and nothing of GPUs: what objects mean is for `shoal.model`.
"""
