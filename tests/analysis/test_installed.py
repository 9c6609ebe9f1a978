"""Where Shoal is installed: the rights say it, and no object that a tenant can make."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.analysis.installed import DEFAULT, GRANTS, namespace_of
from shoal.analysis.snapshot import read_snapshot
from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.resources import CONFIG_MAPS, NAMESPACES

SETTINGS = {"scheduler.yaml": "policy: binpack\n"}


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with (
        EmbeddedApi(tmp_path) as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        yield client


async def grant(client: Client, namespace: str, account: str = "shoal-scheduler") -> None:
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "shoal-scheduler"}
    binding = {"metadata": {"name": "shoal-scheduler"}, "roleRef": role}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    await client.create(GRANTS, {**binding, "subjects": [subject]})


async def test_without_rights_it_is_the_usual_one(client: Client) -> None:
    assert await namespace_of(client) == DEFAULT == "kube-system"


async def test_the_rights_name_it(client: Client) -> None:
    await grant(client, "gpu-operator")
    assert await namespace_of(client) == "gpu-operator"


async def test_an_account_of_another_name_says_nothing(client: Client) -> None:
    await grant(client, "gpu-operator", "somebody")
    assert await namespace_of(client) == DEFAULT


async def test_settings_are_read_there_and_nowhere_else(client: Client) -> None:
    for namespace in ("gpu-operator", "team"):
        await client.create(NAMESPACES.raw, {"metadata": {"name": namespace}})
    await client.create(
        CONFIG_MAPS.raw, {"metadata": {"name": "shoal-scheduler", "namespace": "team"}, "data": SETTINGS}
    )
    assert (await read_snapshot(client)).settings.policy == "fragmentation", "a tenant's ConfigMap says nothing"
    await grant(client, "gpu-operator")
    place = {"name": "shoal-scheduler", "namespace": "gpu-operator"}
    await client.create(CONFIG_MAPS.raw, {"metadata": place, "data": SETTINGS})
    settings = (await read_snapshot(client)).settings
    assert (settings.policy, settings.policy_from) == ("binpack", "ConfigMap gpu-operator/shoal-scheduler")
