"""Which pods must be gone before a driver is replaced."""

import msgspec
import pytest

from shoal.kube.objects.pod import Pod
from shoal.operator.gpu_pods import uses_gpu


def pod(limits: dict | None = None, **spec: object) -> Pod:
    containers = [{"name": "main", "resources": {"limits": limits or {}}}]
    return msgspec.convert({"spec": {"containers": containers, **spec}}, Pod)


@pytest.mark.parametrize(
    "resource",
    [
        *("aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "aliyun.com/gpu-count", "keti.com/mpsgpu"),
        *("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "shoal.dev/gpu"),
    ],
)
def test_every_family_counts(resource: str) -> None:
    assert uses_gpu(pod({resource: "1"}))
    assert uses_gpu(pod({resource: 1}))
    assert not uses_gpu(pod({resource: "0"}))


def test_init_containers_and_pod_level_resources_count() -> None:
    asked = {"resources": {"requests": {"aliyun.com/gpu-mem": "2"}}}
    assert uses_gpu(pod(initContainers=[{"name": "first", **asked}]))
    assert uses_gpu(pod(**asked))


def test_a_claim_of_devices_counts_since_it_may_be_for_a_card() -> None:
    assert uses_gpu(pod(resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one"}]))


@pytest.mark.parametrize("resource", ["cpu", "memory", "amd.com/gpu", "aliyun.com/eni", "nvidia.com/hostdev"])
def test_other_resources_do_not(resource: str) -> None:
    assert not uses_gpu(pod({resource: "1"}))
