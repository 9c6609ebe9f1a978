"""Fixtures: a client of the real control plane, and a namespace there. Import both where they are used."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from shoal.kube.access.kubeconfig import load_access
from shoal.kube.client import Client
from shoal.kube.resources import PODS
from tests.testbed.control_plane import ControlPlane
from tests.testbed.fake_nodes import each


@pytest.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    access = load_access(environ={}, home=Path("/"), kubeconfig=control_plane.api.kubeconfig())
    async with Client(access) as client:
        yield client


@pytest.fixture
async def room(control_plane: ControlPlane, client: Client) -> AsyncIterator[str]:
    """A namespace on the control plane; its pods go with the test."""
    name = f"test-{uuid.uuid4().hex[:12]}"
    control_plane.api.create_namespace(name)
    yield name
    pods = (await client.list(PODS, namespace=name)).items
    await each(
        [pod.metadata.name for pod in pods],
        lambda pod: client.delete(PODS, pod, namespace=name, grace_seconds=0),
    )
