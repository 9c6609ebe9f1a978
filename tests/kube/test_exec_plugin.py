"""Credential plugins as real little programs, and the credentials they give used on the real server."""

import asyncio
import base64
import datetime
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from shoal.kube.access.credentials import Credential
from shoal.kube.access.exec_plugin import MAX_OUTPUT, ExecEnv, ExecPlugin, ExecSpec
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.errors import ConfigError, ForbiddenError, UnauthorizedError
from shoal.kube.resources import PODS
from tests.kube.waiting import until
from tests.testbed.apiserver import ApiServer

V1 = "client.authentication.k8s.io/v1"
Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A shell script made executable; it counts its runs in the file `runs` beside it."""

    def write(body: str) -> str:
        path = tmp_path / "plugin"
        path.write_text(f'#!/bin/sh\necho run >> "{tmp_path}/runs"\n{body}\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return write


def runs(tmp_path: Path) -> int:
    path = tmp_path / "runs"
    return len(path.read_text().splitlines()) if path.exists() else 0


def answer(version: str = V1, **status: Any) -> str:
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


def plugin(command: str, **options: Any) -> ExecPlugin:
    fields: dict[str, Any] = {"api_version": V1, "interactive_mode": "Never"}
    fields.update({key: options.pop(key) for key in list(options) if key in ExecSpec.__struct_fields__})
    return ExecPlugin(ExecSpec(command=command, **fields), environ=dict(os.environ), **options)


async def test_a_token_is_fetched_once(program: Program, tmp_path: Path) -> None:
    source = plugin(program(f"echo '{answer(token='t1')}'"))
    tokens = await asyncio.gather(*(source.current() for _ in range(5)))
    assert [credential.token for credential in tokens] == ["t1"] * 5
    assert runs(tmp_path) == 1
    assert "t1" not in f"{source!r} {tokens!r}"


async def test_it_is_told_what_it_asks_for(program: Program) -> None:
    body = (
        'told=$(echo "$KUBERNETES_EXEC_INFO$1$WORD" | base64 -w0)\n'
        """printf '{"apiVersion":"%s","status":{"token":"%s"}}' "$VERSION" "$told\""""
    )
    source = plugin(
        program(body),
        args=["argument"],
        env=[ExecEnv("VERSION", V1), ExecEnv("WORD", "word")],
        provide_cluster_info=True,
        cluster={"server": "https://x", "config": {"a": 1}},
    )
    told = base64.b64decode((await source.current()).token).decode().strip()
    assert told.endswith("argumentword")
    info = json.loads(told.removesuffix("argumentword"))
    assert info == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://x", "config": {"a": 1}}},
    }


async def test_an_expired_one_is_fetched_again(program: Program, tmp_path: Path) -> None:
    now = [datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)]
    body = f"echo '{answer(token='t', expirationTimestamp='2030-01-01T01:00:00Z')}'"
    source = plugin(program(body), now=lambda: now[0])
    await source.current()
    now[0] += datetime.timedelta(minutes=59)
    await source.current()
    assert runs(tmp_path) == 1
    now[0] += datetime.timedelta(minutes=1)
    await source.current()
    assert runs(tmp_path) == 2


async def test_a_refused_one_is_fetched_again_once(program: Program, tmp_path: Path) -> None:
    source = plugin(program(f"echo '{answer(token='t')}'"))
    first = await source.current()
    await source.refresh(Credential("another"))
    assert runs(tmp_path) == 1
    await source.refresh(first)
    assert runs(tmp_path) == 2


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_both_versions(program: Program, version: str) -> None:
    mode = {"interactive_mode": None} if version.endswith("beta1") else {}
    source = plugin(program(f"echo '{answer(version, token='t')}'"), api_version=version, **mode)
    assert (await source.current()).token == "t"


TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJzdWIiOiJ4In0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("exit 3", "ended with code 3"),
        (f"echo 'please log in {TOKEN}' >&2; exit 1", "please log in"),
        ("echo no json", "no ExecCredential"),
        ("echo '[]'", "no ExecCredential"),
        (f"echo '{answer()}'", "neither a token nor a certificate"),
        (f"echo '{answer(clientCertificateData=TOKEN)}'", "without its key"),
        (f"echo '{answer('client.authentication.k8s.io/v1beta1', token=TOKEN)}'", "another version"),
        (f"echo '{answer(token=7)}'", "no ExecCredential"),
        (f"head -c {MAX_OUTPUT + 10} /dev/zero", "printed more than"),
        (f"head -c {MAX_OUTPUT + 10} /dev/zero >&2", "printed more than"),
    ],
)
async def test_plugins_that_fail_say_why(program: Program, body: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        await plugin(program(body)).current()
    assert TOKEN not in str(caught.value)


async def test_a_plugin_that_hangs_is_ended_with_its_children(program: Program, tmp_path: Path) -> None:
    source = plugin(program(f"sleep 1000 & echo $! > {tmp_path}/child; wait"), timeout=1)
    with pytest.raises(ConfigError, match="no answer within 1 s"):
        await source.current()
    child = int((tmp_path / "child").read_text())
    await until(lambda: not _alive(child), "the child is gone")


def _alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


async def test_a_missing_plugin_gives_its_hint(tmp_path: Path) -> None:
    hint = "\x1b[31mget it\x1b[0m from your provider"
    with pytest.raises(ConfigError, match="is not there: get it from your provider"):
        await plugin(str(tmp_path / "none"), install_hint=hint).current()
    (tmp_path / "data").write_text("not a program")
    with pytest.raises(ConfigError, match="cannot be started"):
        await plugin(str(tmp_path / "data")).current()


def test_a_plugin_that_wants_a_terminal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="wants a terminal"):
        plugin("x", interactive_mode="Always")
    assert repr(plugin("x", interactive_mode="Always", terminal=True)) == "ExecPlugin(x)"


async def test_on_the_real_server_from_a_relative_path(
    apiserver: ApiServer, client: Client, namespace: str, program: Program, tmp_path: Path
) -> None:
    """First a bad token, then, asked again on 401, a good one; the kubeconfig names the plugin beside it."""
    good = await client.token("default", namespace=namespace)
    (tmp_path / "good").write_text(good.token)
    template = answer(token="TOKEN")
    program(
        f"if [ $(wc -l < {tmp_path}/runs) -gt 1 ]; then token=$(cat {tmp_path}/good); else token=bad; fi\n"
        f"echo '{template}' | sed s/TOKEN/$token/"
    )
    content = yaml.safe_load(apiserver.kubeconfig().read_text())
    spec = {"command": "./plugin", "apiVersion": V1, "interactiveMode": "Never", "provideClusterInfo": True}
    content["users"][0]["user"] = {"exec": spec}
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    access = load_kubeconfig([tmp_path / "config"], environ={"PATH": os.environ["PATH"]})
    async with Client(access) as user:
        with pytest.raises(ForbiddenError, match="serviceaccount"):
            await user.list(PODS, namespace=namespace)
        assert runs(tmp_path) == 2
        with pytest.raises(ForbiddenError):
            await user.list(PODS, namespace=namespace)
        assert runs(tmp_path) == 2


async def test_a_certificate_from_a_plugin(apiserver: ApiServer, program: Program, tmp_path: Path) -> None:
    user = yaml.safe_load(apiserver.kubeconfig().read_text())["users"][0]["user"]
    certificate, key = (Path(user[name]).read_text() for name in ("client-certificate", "client-key"))  # noqa: ASYNC240
    (tmp_path / "answer").write_text(answer(clientCertificateData=certificate, clientKeyData=key))
    program(f"cat {tmp_path}/answer")
    content = yaml.safe_load(apiserver.kubeconfig().read_text())
    content["users"][0]["user"] = {"exec": {"command": "./plugin", "apiVersion": V1, "interactiveMode": "Never"}}
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    async with Client(load_kubeconfig([tmp_path / "config"], environ=dict(os.environ))) as admin:
        assert (await admin.list(PODS)).resource_version


async def test_a_refusal_that_stays(apiserver: ApiServer, program: Program, tmp_path: Path) -> None:
    """A plugin that goes on giving a bad token is asked twice for a request and no more."""
    program(f"echo '{answer(token='bad')}'")
    content = yaml.safe_load(apiserver.kubeconfig().read_text())
    content["users"][0]["user"] = {"exec": {"command": "./plugin", "apiVersion": V1, "interactiveMode": "Never"}}
    (tmp_path / "config").write_text(yaml.safe_dump(content))
    async with Client(load_kubeconfig([tmp_path / "config"], environ=dict(os.environ))) as user:
        with pytest.raises(UnauthorizedError):
            await user.list(PODS)
    assert runs(tmp_path) == 2
