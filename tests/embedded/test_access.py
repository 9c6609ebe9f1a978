"""Service accounts, their tokens and RBAC as kubectl uses them; the words are held against a real server's in the
cases of `tests/suites/api`."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shoal.embedded.access.authorization import Asked, allows, asked
from shoal.embedded.app import EmbeddedApi
from shoal.embedded.errors import ApiStatus
from shoal.embedded.kinds import PODS, SECRETS, SERVICE_ACCOUNTS
from tests.embedded.kubectl import kubectl, program  # noqa: F401 - a fixture


async def test_kubectl_makes_tokens_and_asks_what_they_open(api: EmbeddedApi, program: Path) -> None:  # noqa: F811
    await kubectl(program, api, "create", "serviceaccount", "robot")
    token = (await kubectl(program, api, "create", "token", "robot", "--duration=20m")).strip()
    whoami = await kubectl(program, api, "auth", "whoami", "--token", token, "-o", "jsonpath={.status.userInfo}")
    assert "system:serviceaccount:default:robot" in whoami
    with pytest.raises(AssertionError, match='cannot list resource "pods" in API group ""'):
        await kubectl(program, api, "get", "pods", "--token", token)
    await kubectl(program, api, "create", "rolebinding", "v", "--clusterrole=view", "--serviceaccount=default:robot")
    assert await kubectl(program, api, "get", "pods", "-o", "name", "--token", token) == ""
    robot = "--as=system:serviceaccount:default:robot"
    assert await kubectl(program, api, "auth", "can-i", "list", "pods", robot) == "yes\n"
    assert await kubectl(program, api, "auth", "can-i", "delete", "pods") == "yes\n"
    with pytest.raises(AssertionError):  # kubectl says no with its exit code too
        await kubectl(program, api, "auth", "can-i", "delete", "pods", robot)
    listed = await kubectl(program, api, "auth", "can-i", "--list", robot)
    assert "statefulsets.apps" in listed
    assert "[get list watch]" in listed


async def test_kubectl_hears_why_nothing_can_be_run(api: EmbeddedApi, program: Path) -> None:  # noqa: F811
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
    api.registry.create(PODS, "default", pod)
    api.registry.update(PODS, "default", "p", {**pod, "status": {"phase": "Running"}}, subresource="status")
    for command in (["exec", "p", "--", "ls"], ["debug", "p", "--image=x"]):
        with pytest.raises(AssertionError, match="simulated and run no program"):
            await kubectl(program, api, *command)


def test_a_token_ends_with_its_time_and_its_pod(tmp_path: Path) -> None:
    moment = [datetime(2026, 1, 1, tzinfo=UTC)]
    api = EmbeddedApi(tmp_path, clock=lambda: moment[0])
    tokens = api.gate.tokens
    api.registry.create(SERVICE_ACCOUNTS, "default", {"metadata": {"name": "robot"}})
    spec = {"containers": [{"name": "c", "image": "x"}]}
    pod = api.registry.create(PODS, "default", {"metadata": {"name": "p"}, "spec": spec})
    bound = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    plain = tokens.request("default", "robot", {"spec": {"expirationSeconds": 600}})["status"]["token"]
    of_pod = tokens.request("default", "robot", {"spec": {"boundObjectRef": bound}})["status"]["token"]
    assert tokens.user(plain) == tokens.user(of_pod)
    moment[0] += timedelta(seconds=600)
    assert tokens.user(plain) is None
    assert tokens.user(of_pod) is not None
    api.registry.remove(PODS, pod, pod)
    assert tokens.user(of_pod) is None


def test_a_token_ends_with_its_secret(tmp_path: Path) -> None:
    api = EmbeddedApi(tmp_path)
    tokens = api.gate.tokens
    secret = api.registry.create(SECRETS, "default", {"metadata": {"name": "s"}})
    bound = {"kind": "Secret", "apiVersion": "v1", "name": "s"}
    token = tokens.request("default", "default", {"spec": {"boundObjectRef": bound}})["status"]["token"]
    assert tokens.user(token) is not None
    api.registry.remove(SECRETS, secret, secret)
    assert tokens.user(token) is None


@pytest.mark.parametrize(
    "change", [lambda t: t[:-2] + "AA", lambda t: "", lambda t: "a.b.c", lambda t: t + "ä", lambda t: t * 99]
)
def test_a_token_that_was_not_made_here_is_nobodys(tmp_path: Path, change: object) -> None:
    api = EmbeddedApi(tmp_path)
    token = api.gate.tokens.request("default", "default", {})["status"]["token"]
    assert api.gate.tokens.user(token) is not None
    with pytest.raises(ApiStatus, match="Unauthorized"):
        api.gate.user(f"Bearer {change(token)}")  # type: ignore[operator]


@pytest.mark.parametrize(
    ("method", "path", "query", "wanted"),
    [
        ("GET", "api/v1/pods", {}, Asked("list", "", "pods")),
        ("GET", "api/v1/pods", {"watch": "1"}, Asked("watch", "", "pods")),
        ("GET", "api/v1/watch/namespaces/a/pods", {}, Asked("watch", "", "pods", namespace="a")),
        ("GET", "api/v1/namespaces/a/pods/p/log", {}, Asked("get", "", "pods", "log", "a", "p")),
        ("POST", "apis/apps/v1/namespaces/a/deployments", {}, Asked("create", "apps", "deployments", namespace="a")),
        ("PUT", "api/v1/namespaces/a/finalize", {}, Asked("update", "", "namespaces", "finalize", "a", "a")),
        ("DELETE", "api/v1/namespaces/a/pods", {}, Asked("deletecollection", "", "pods", namespace="a")),
        ("GET", "api/v1/nodes", {"fieldSelector": "metadata.name=n"}, Asked("list", "", "nodes", name="n")),
        ("GET", "apis/apps/v1", {}, Asked("get", path="/apis/apps/v1")),
        ("GET", "metrics", {}, Asked("get", path="/metrics")),
    ],
)
def test_what_a_request_asks(method: str, path: str, query: dict[str, str], wanted: Asked) -> None:
    assert asked(method, path.split("/"), query) == wanted


def test_rules_name_parts_by_stars_too() -> None:
    log = Asked("get", "", "pods", "log", "a", "p")
    for resources, allowed in ((["*"], True), (["pods/log"], True), (["*/log"], True), (["pods"], False)):
        assert allows({"verbs": ["get"], "apiGroups": [""], "resources": resources}, log) is allowed
    assert not allows({"verbs": ["get"], "apiGroups": ["apps"], "resources": ["*"]}, log)
    assert allows({"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"]}, log)
    path = Asked("get", path="/api/v1")
    assert allows({"verbs": ["get"], "nonResourceURLs": ["/api/*"]}, path)
    assert not allows({"verbs": ["get"], "nonResourceURLs": ["/api"]}, path)
    assert not allows({"verbs": ["get"], "apiGroups": ["*"], "resources": ["*"]}, path)
