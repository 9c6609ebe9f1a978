"""Joining on two embedded clusters, which evaluate the same policies; `test_join_kube.py` is on real ones."""

import asyncio
import base64
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from shoal.analysis.joined_clusters import joined_members
from shoal.cli.main import main
from shoal.clusters.entries import ClusterEntry
from shoal.clusters.join import POLICIES, ManagerAccount, expected, spelled
from shoal.clusters.joining import may_do, token_secrets
from shoal.clusters.member import Health
from shoal.clusters.members import OWN, Members, ProbePace, cluster_uid
from shoal.clusters.overview import unguarded
from shoal.kube.access.kubeconfig import closed_access, load_access
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError
from shoal.kube.resources import NAMESPACES, PODS, SECRETS
from shoal.model.backoff import Backoff
from shoal.model.contract import clusters
from tests.clusters.joined import copy_of
from tests.kube.waiting import until
from tests.suites.embedded import EmbeddedServer

PACE = ProbePace(every=0.2, backoff=Backoff(first=0.1, longest=0.5), drain=0.1)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[EmbeddedServer]]:
    """Home and a member."""
    made = [EmbeddedServer(tmp_path_factory.mktemp(name), controllers=True) for name in ("home", "member")]
    yield made
    for one in made:
        one.stop()


def admin(server: EmbeddedServer) -> Client:
    return Client(load_access(environ={}, home=Path("/"), kubeconfig=server.kubeconfig()))


async def command(servers: list[EmbeddedServer], *arguments: str) -> Result:
    home, member = (str(one.kubeconfig()) for one in servers)
    both = ["--kubeconfig", member, "--home-kubeconfig", home, "-n", "default"]
    result = await asyncio.to_thread(CliRunner().invoke, main, ["clusters", *arguments, *both])
    assert result.exit_code == 0, result.output
    return result


async def test_join_use_revoke_and_leave(servers: list[EmbeddedServer]) -> None:
    async with admin(servers[0]) as home, admin(servers[1]) as member:
        await command(servers, "join", "west", "--token-lifetime", "3600", "--cost", "2")
        account = ManagerAccount(await cluster_uid(home))
        await _is_confined(home, member, account)
        await _is_followed(servers, home, member, account)
        await _is_told_when_unguarded(servers, home, member, account)
        await command(servers, "leave", "west")
        policies = (await member.list(POLICIES)).items
        assert [one for one in policies if account.home in one["metadata"]["name"]] == []
        assert (await home.list(SECRETS, namespace="default", labels=clusters.LABEL_CLUSTER)).items == []


async def _is_confined(home: Client, member: Client, account: ManagerAccount) -> None:
    secret = await home.get(SECRETS, "shoal-cluster-west", namespace="default")
    access = closed_access(base64.b64decode(secret.data["kubeconfig"]), what="the Secret", environ={})
    async with Client(access) as own:
        rights = expected(account)
        assert {spelled(one): await may_do(own, one) for one, _ in rights} == {spelled(one): may for one, may in rights}
        made = copy_of(account.home, "one")
        with pytest.raises(ForbiddenError, match="accepts no copies"):
            await own.create(PODS, made, namespace="default")
        labels = {clusters.LABEL_ACCEPTS: clusters.ENABLED}
        await member.patch(NAMESPACES, "default", {"metadata": {"labels": labels}})
        await own.create(PODS, made, namespace="default")
        image = {"spec": {"containers": [{"name": "main", "image": "evil"}]}}
        with pytest.raises(ForbiddenError, match="takes the scheduling gate"):
            await own.patch(PODS, "one", image, namespace="default", kind="strategic")
        with pytest.raises(ForbiddenError, match="makes copies only"):
            await own.create(PODS, copy_of("other", "two"), namespace="default")


async def _is_told_when_unguarded(
    servers: list[EmbeddedServer], home: Client, member: Client, account: ManagerAccount
) -> None:
    """A cluster joined by an earlier version, or whose policy somebody deleted."""
    name = f"{account.name}-copies"
    listing = ["clusters", "list", "--kubeconfig", str(servers[0].kubeconfig()), "-n", "default"]

    async def listed() -> Result:
        return await asyncio.to_thread(CliRunner().invoke, main, listing)

    async with joined_members(home, "default") as members:
        await members.settled()
        assert await unguarded(account.home, members.members.values()) == {}
        policy = await member.get(POLICIES, name)
        earlier = [one for one in policy["spec"]["validations"] if "dispatched pod" not in one.get("message", "")]
        assert len(earlier) < len(policy["spec"]["validations"])
        await member.patch(POLICIES, name, {"spec": {"validations": earlier}})
        (words,) = (await unguarded(account.home, members.members.values())).values()
        assert "run shoal clusters join west again" in words
        await member.delete(POLICIES, name)
        result = await listed()
        assert (result.exit_code, f"west: {words}" in result.output) == (1, True), result.output
        await command(servers, "join", "west", "--token-lifetime", "3600")
    result = await listed()
    assert result.exit_code == 0, result.output


async def _is_followed(servers: list[EmbeddedServer], home: Client, member: Client, account: ManagerAccount) -> None:
    async with Members(
        home, namespace="default", pace=PACE, environ={}, own=ClusterEntry(OWN, "home", home.access)
    ) as members:
        await members.settled()
        assert {name: one.own for name, one in members.members.items()} == {"west": False, "home": True}
        assert members.members["west"].cost == 2.0
        assert all(state.version.startswith("v1.") for state in members.states.values())
        (bound,) = await token_secrets(member, account)
        await member.delete(SECRETS, bound.metadata.name, namespace=clusters.NAMESPACE_MEMBERS)
        await until(lambda: members.states["west"].health is Health.REFUSED, "refused")
        assert set(members.members) == {"home"}
        await command(servers, "join", "west", "--token-lifetime", "3600")
        await until(lambda: "west" in members.members, "joined again")
