"""The namespaces whose pods may be clients of an MPS daemon that cannot keep them apart.

With protocol 2 every client can change the limits of all others, or end the daemon. So namespaces opt in, by a label.
"""

from __future__ import annotations

from shoal.agent.errors import RefusedError
from shoal.kube.client import Client
from shoal.kube.objects.node import Namespace
from shoal.kube.reflector import Reflector
from shoal.kube.resources import NAMESPACES
from shoal.model.contract import shoal


class Consents:
    """The namespaces that have the label. Only they are read, and only while `reflector` runs."""

    def __init__(self, client: Client) -> None:
        self.reflector: Reflector[Namespace] = Reflector(
            client, NAMESPACES, labels=f"{shoal.LABEL_MPS}={shoal.MPS_ALLOW}"
        )

    def given(self, namespace: str) -> bool:
        """Whether the namespace has opted in. RefusedError while that is not known: a container can wait."""
        if not self.reflector.synced.is_set():
            why = self.reflector.last_error or "no answer yet"
            raise RefusedError(f"which namespaces have opted in to MPS is still being read: {why}")
        return self.reflector.store.get(namespace) is not None
