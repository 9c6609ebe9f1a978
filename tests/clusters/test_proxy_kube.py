"""The way to a member's scheduler through a real API server, with the right to that one Service and no other."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from shoal.clusters.choice import Unasked
from shoal.clusters.member import Member
from shoal.clusters.offers import OfferClient, asked_pod
from shoal.kube.access.credentials import Access, FileContent, Inline, StoredCredential
from shoal.kube.client import Client
from shoal.model.contract.clusters import HEADER_TOKEN, NAME_OFFER_SERVICE, OFFER_PORT, Offer, OfferRequest
from tests.clusters.peer import Peer
from tests.clusters.test_asking import pod
from tests.testbed.apiserver import ApiServer

RBAC = "/apis/rbac.authorization.k8s.io/v1"


def own_address() -> str:
    """An address of this machine that is not loopback: API servers lead to no other. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            pytest.skip("this machine has no address but loopback")
        return str(probe.getsockname()[0])


def serve_there(api: ApiServer, namespace: str, address: str, port: int) -> None:
    """The Service, which leads to the peer."""
    ports = [{"name": "offer", "port": OFFER_PORT, "targetPort": port, "protocol": "TCP"}]
    service = {"metadata": {"name": NAME_OFFER_SERVICE}, "spec": {"ports": ports}}
    api.request("POST", f"/api/v1/namespaces/{namespace}/services", service)
    # API servers lead only to pods that are there and have that address.
    pods = f"/api/v1/namespaces/{namespace}/pods"
    api.request("POST", pods, {"metadata": {"name": "s"}, "spec": {"containers": [{"name": "s", "image": "s"}]}})
    running = {"status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}}
    api.request("PATCH", f"{pods}/s/status", running, "application/merge-patch+json")
    target = {"kind": "Pod", "name": "s", "namespace": namespace}
    ready = [{"ip": address, "targetRef": target}]
    subsets = [{"addresses": ready, "ports": [{"name": "offer", "port": port, "protocol": "TCP"}]}]
    endpoints = {"metadata": {"name": NAME_OFFER_SERVICE}, "subsets": subsets}
    api.request("POST", f"/api/v1/namespaces/{namespace}/endpoints", endpoints)


def token_of(api: ApiServer, namespace: str, names: list[str]) -> str:
    """An account that may reach these Services of the namespace through the API server, and nothing else."""
    where = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    api.request("POST", where, {"metadata": {"name": "manager"}})
    rules = [{"apiGroups": [""], "resources": ["services/proxy"], "resourceNames": names, "verbs": ["create"]}]
    api.request("POST", f"{RBAC}/namespaces/{namespace}/roles", {"metadata": {"name": "ask"}, "rules": rules})
    bound = {
        "metadata": {"name": "ask"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "ask"},
        "subjects": [{"kind": "ServiceAccount", "name": "manager", "namespace": namespace}],
    }
    api.request("POST", f"{RBAC}/namespaces/{namespace}/rolebindings", bound)
    return str(api.request("POST", f"{where}/manager/token", {"spec": {}})["status"]["token"])


async def test_the_token_arrives_in_our_header_and_in_no_other(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    peer = Peer(3)
    address = own_address()
    token = token_of(apiserver, namespace, [f"https:{NAME_OFFER_SERVICE}:{OFFER_PORT}"])
    access = Access(
        apiserver.url,
        StoredCredential(token=Inline(token.encode())),
        authority=FileContent(apiserver.ca, what="authority"),
    )
    request = OfferRequest(asked_pod(pod()), count=2)
    async with (
        peer.serving(tmp_path, "member", address) as (port, _),
        Client(access) as client,
        OfferClient(seconds=60) as offers,
    ):
        member = Member("m", "u", client, namespace=namespace)
        assert await offers.ask(member, request) is Unasked.TRIAL, "there is no such Service yet"
        serve_there(apiserver, namespace, address, port)
        said = await offers.ask(member, request)
        for _ in range(20):  # the server learns of endpoints by a watch
            if isinstance(said, Offer):
                break
            said = await offers.ask(member, request)
        assert said == Offer(2, 0.5)
        elsewhere = await offers.ask(Member("m", "u", client, namespace="kube-system"), request)
    assert isinstance(elsewhere, str)
    assert "the manager may not ask it" in elsewhere
    assert peer.headers[-1][HEADER_TOKEN] == token
    assert "Authorization" not in peer.headers[-1]
