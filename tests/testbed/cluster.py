"""What a cluster offers to a test, real or embedded. A suite that keeps to this runs on both."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from shoal.model.gpu import Gpu


class Api(Protocol):
    """An API server and ways to be somebody on it."""

    @property
    def url(self) -> str:
        """Where it answers."""
        ...

    @property
    def ca(self) -> Path:
        """The certificate that its own is signed with."""
        ...

    def kubeconfig(self, user: str = "admin", groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user: `admin` may do everything, others what RBAC gives them."""
        ...

    def kubectl(self, *arguments: str, input: str | None = None, user: str = "admin", check: bool = True) -> str:  # noqa: A002
        """What kubectl prints."""
        ...

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be made at once."""
        ...


class Scheduler(Protocol):
    """A running scheduler."""

    def kill(self) -> None:
        """End it at once."""
        ...


class ControlPlane(Protocol):
    """An API server with controllers, and schedulers as the test wants them."""

    @property
    def api(self) -> Api:
        """Its API server."""
        ...

    def start_scheduler(self, configuration: Mapping[str, object] | None = None) -> Scheduler:
        """A stock scheduler with this KubeSchedulerConfiguration; it ends with the test."""
        ...


class FakeNodes(Protocol):
    """Makes node objects with cards. Their pods run without containers."""

    async def __call__(self, count: int, *, gpus: int | Sequence[Gpu] = 0, prefix: str = "node") -> list[str]:
        """The names of that many new nodes, each with so many made-up cards or with these."""
        ...
