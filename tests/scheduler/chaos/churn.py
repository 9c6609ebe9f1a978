"""Pods that come and go: shares of all sizes, whole cards, MPS clients; they end by themselves or are deleted."""

import asyncio
import random
from typing import Any

from shoal.kube.client import Client
from shoal.kube.errors import AlreadyExistsError, KubeError, NotFoundError
from shoal.kube.resources import PODS
from tests.testbed.fake_kubelet import RUNS_FOR

WRITERS = 8


def pod(number: int, rng: random.Random, *, longest: float) -> dict[str, Any]:
    """A pod of the mix."""
    annotations = {RUNS_FOR: f"{rng.uniform(2, longest):.1f}"}
    kind = rng.random()
    if kind < 0.7:
        limits = {"aliyun.com/gpu-mem": str(rng.choice((1, 2, 3, 4, 6, 8, 10, 12)))}
    elif kind < 0.9:
        limits = {"keti.com/mpsgpu": str(rng.choice((1, 1, 2)))}
        annotations["GPUrequest"] = f"{rng.choice((1, 3, 5))}Gi"
    else:
        limits = {"nvidia.com/gpu": str(rng.choice((1, 1, 1, 2)))}
    return {
        "metadata": {"name": f"p{number}", "annotations": annotations},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "main", "image": "none", "resources": {"limits": limits}}],
        },
    }


class Churn:
    """Makes pods at a steady rate and deletes some early, whatever state they are in."""

    def __init__(
        self, client: Client, namespace: str, rng: random.Random, *, count: int, rate: float, longest: float
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._rng = rng
        self._count = count
        self._rate = rate
        self._longest = longest
        #: Pods made so far, and the names of those that were deleted.
        self.made = 0
        self.deleted: set[str] = set()

    async def run(self) -> None:
        """Until all are made."""
        todo = iter(range(self._count))

        async def write() -> None:
            for number in todo:
                await self._insist(self._create(pod(number, self._rng, longest=self._longest)))
                self.made += 1
                if self._rng.random() < 0.2:
                    early = f"p{self._rng.randrange(number + 1)}"
                    self.deleted.add(early)
                    await self._insist(self._delete(early))
                await asyncio.sleep(WRITERS / self._rate * self._rng.uniform(0.5, 1.5))

        await asyncio.gather(*(write() for _ in range(WRITERS)))

    def _create(self, manifest: dict[str, Any]) -> Any:
        async def create() -> None:
            try:
                await self._client.create(PODS.raw, manifest, namespace=self._namespace)
            except AlreadyExistsError:
                return  # the answer to an earlier try was lost

        return create

    def _delete(self, name: str) -> Any:
        async def delete() -> None:
            try:
                await self._client.delete(PODS, name, namespace=self._namespace)
            except NotFoundError:
                return  # it had gone

        return delete

    async def _insist(self, action: Any) -> None:
        """Until the API server is there to do it."""
        while True:
            try:
                return await action()  # type: ignore[no-any-return]
            except KubeError:
                await asyncio.sleep(0.3)
