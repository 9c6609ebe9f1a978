"""kubeconfig files: merging as kubectl does it, paths, users, and errors that tell no secret."""

import base64
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import in_cluster, kubeconfig_paths, load_access, load_kubeconfig
from shoal.kube.access.tls import proxy_for
from shoal.kube.client import Client
from shoal.kube.errors import ConfigError, KubeError
from tests.testbed import binaries
from tests.testbed.apiserver import ApiServer

Files = Callable[..., list[Path]]


def config(
    name: str = "c", *, cluster: Any = None, user: Any = None, context: Any = None, current: str | None = None
) -> dict[str, Any]:
    """A kubeconfig with one cluster, user and context of one name."""
    cluster = {"server": f"https://{name}.example:6443", **(cluster or {})}
    return {
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": user or {}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, **(context or {})}}],
        "current-context": name if current is None else current,
    }


@pytest.fixture
def files(tmp_path: Path) -> Files:
    def write(*configs: Any) -> list[Path]:
        paths = []
        for number, content in enumerate(configs):
            path = tmp_path / str(number) / "config"
            path.parent.mkdir()
            path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
            paths.append(path)
        return paths

    return write


def load(paths: list[Path], **options: Any) -> Access:
    return load_kubeconfig(paths, environ={}, **options)


def test_the_first_to_name_a_thing_wins_whole(files: Files) -> None:
    first = config("c", cluster={"tls-server-name": "first"}, current="")
    second = config("c", cluster={"server": "https://second", "proxy-url": "http://p"}, context={"namespace": "x"})
    third = config("d", current="c")
    paths = files(first, second, third)
    access = load(paths)
    assert (access.server, access.server_name, access.proxy) == ("https://c.example:6443", "first", "")
    assert access.namespace == "default"
    assert load(paths, context="d").server == "https://d.example:6443"


def test_the_places_to_look(tmp_path: Path) -> None:
    assert kubeconfig_paths({}, tmp_path) == [tmp_path / ".kube" / "config"]
    environ = {"KUBECONFIG": f"/a{os.pathsep}{os.pathsep}/b"}
    assert kubeconfig_paths(environ, tmp_path) == [Path("/a"), Path("/b")]


def test_missing_files_are_passed_over_unless_named(files: Files, tmp_path: Path) -> None:
    paths = files(config())
    assert load([tmp_path / "none", *paths]).server == "https://c.example:6443"
    with pytest.raises(ConfigError, match="is not there"):
        load([tmp_path / "none"], explicit=True)
    with pytest.raises(ConfigError, match="set KUBECONFIG"):
        load([tmp_path / "none"])


async def test_relative_paths_count_from_their_file(files: Files) -> None:
    user = {"tokenFile": "token.txt"}
    paths = files(config("a", current="b"), config("b", user=user, cluster={"certificate-authority": "ca.pem"}))
    (paths[1].parent / "token.txt").write_text("of-b\n")
    (paths[1].parent / "ca.pem").write_text("pem of b")
    access = load(paths)
    assert (await access.credentials.current()).token == "of-b"
    assert access.authority is not None
    assert access.authority.read() == b"pem of b"


async def test_tokens(files: Files) -> None:
    access = load(files(config(user={"token": "s3cret"})))
    credential = await access.credentials.current()
    assert credential.token == "s3cret"
    assert "s3cret" not in f"{access!r} {credential!r}"


async def test_data_wins_over_files(files: Files) -> None:
    user = {
        "client-certificate-data": base64.b64encode(b"cert").decode(),
        "client-certificate": "nowhere",
        "client-key-data": base64.b64encode(b"key").decode(),
    }
    pair = (await load(files(config(user=user))).credentials.current()).pair
    assert pair is not None
    assert (pair.certificate, pair.key) == (b"cert", b"key")
    assert "key=" not in repr(pair)


async def test_no_secret_over_plain_http(files: Files) -> None:
    access = load(files(config(user={"token": "s3cret"}, cluster={"server": "http://c"})))
    assert (await access.credentials.current()).token == ""


def test_impersonation(files: Files) -> None:
    user = {"as": "jane", "as-groups": ["a", "b"], "as-uid": "7", "as-user-extra": {"scopes/x": ["y"]}}
    assert load(files(config(user=user))).headers == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-scopes%2Fx", "y"),
    )


SECRET = "s3cret-value"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (config(user={"username": "u", "password": SECRET}), "use a token or a certificate"),
        (config(user={"auth-provider": {"name": "gcp", "config": {"access-token": SECRET}}}), "credential plugin"),
        (config(user={"client-certificate-data": "a"}), "not base64"),
        (config(user={"client-certificate": "a"}), "give both"),
        (config(user={"token": {"a": SECRET}}), "wrong form"),
        (config(user={"as-groups": ["a"]}), "without as"),
        (config(user={"as": "a\r\nX: y"}), "control characters"),
        (config(user={"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1alpha1"}}), "update"),
        (config(user={"exec": {"apiVersion": "client.authentication.k8s.io/v1"}}), "without a command"),
        (config(user={"exec": {"command": "x", "apiVersion": "client.authentication.k8s.io/v1"}}), "interactiveMode"),
        (config(cluster={"server": ""}), "no usable server"),
        (config(cluster={"server": "ftp://x"}), "no usable server"),
        (config(cluster={"server": "https://x:99999"}), "no usable server"),
        (config(cluster={"server": f"https://u:{SECRET}@x"}), "holds a user or password"),
        (config(cluster={"proxy-url": f"socks5://u:{SECRET}@x"}), "not SOCKS"),
        (config(cluster={"certificate-authority-data": "%"}), "not base64"),
        (config(current="other"), "choose one of c"),
        (config(current=""), "no current-context"),
        (config(context={"user": "other"}), "no user 'other'"),
        (config(context={"cluster": "other"}), "no cluster 'other'"),
        ({"clusters": 7}, "wrong form"),
        ("- a list", "wrong form"),
        (f"token: [{SECRET}\n: :", "no YAML, see line"),
        (f"a: !!python/object:x {SECRET}", "no YAML"),
        ("a: 2024-99-99", "no YAML"),
        ("", "no current-context"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(files: Files, content: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        load(files(content))
    assert SECRET not in str(caught.value)
    assert SECRET not in str(caught.value.__cause__)


@given(
    st.text(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([*config(), "name", "cluster", "user", "context", "exec"]), inner, max_size=4
            )
        ),
        max_leaves=15,
    ).map(yaml.safe_dump)
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_is_read_or_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config"
    path.write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(ConfigError):
        # Nothing random names a cluster with a server.
        load([path])


def _inlined(paths: dict[str, str]) -> dict[str, str]:
    return {
        f"{name}-data": base64.b64encode(Path(path).read_bytes()).decode()
        for name, path in paths.items()
        if name != "server"
    }


async def test_the_real_server_by_data_and_by_file(apiserver: ApiServer, tmp_path: Path) -> None:
    """The file of the test bed, its data inlined, and kubectl on the merged pair give the same answer."""
    by_file = yaml.safe_load(apiserver.kubeconfig().read_text())
    cluster, user = by_file["clusters"][0]["cluster"], by_file["users"][0]["user"]
    inline = _inlined({**cluster, **user})
    authority = {"certificate-authority-data": inline.pop("certificate-authority-data")}
    users, rest = tmp_path / "users", tmp_path / "rest"
    users.write_text(yaml.safe_dump({"users": [{"name": "c", "user": inline}]}))
    content = config(cluster={"server": apiserver.url, **authority})
    rest.write_text(yaml.safe_dump({**content, "users": []}))
    for access in (load([apiserver.kubeconfig()]), load([users, rest])):
        async with Client(access) as client:
            assert (await client.version()).git_version == f"v{binaries.kube_version()}"
            assert b"system:masters" in await client.request(
                "POST",
                "/apis/authentication.k8s.io/v1/selfsubjectreviews",
                body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
            )


async def test_impersonation_is_what_the_server_sees(apiserver: ApiServer, tmp_path: Path) -> None:
    content = yaml.safe_load(apiserver.kubeconfig().read_text())
    content["users"][0]["user"].update({"as": "jane", "as-groups": ["g1", "g2"]})
    path = tmp_path / "config"
    path.write_text(yaml.safe_dump(content))
    async with Client(load([path])) as client:
        answer = await client.request(
            "POST",
            "/apis/authentication.k8s.io/v1/selfsubjectreviews",
            body={"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"},
        )
    assert b'"username":"jane"' in answer
    assert b"g1" in answer
    assert b"g2" in answer


@pytest.mark.parametrize(
    ("server", "environ", "proxy"),
    [
        ("https://a.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://a.example", {"https_proxy": "p:1"}, "http://p:1"),
        ("http://a.example", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://127.0.0.1:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, ""),
        ("https://11.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.0.0.0/8,junk/9"}, "http://p:1"),
        ("https://[fd00::1]", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "fd00::/8"}, ""),
        ("https://10.1.2.3", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "10.1.2.3"}, ""),
        ("https://a.b.example", {"HTTPS_PROXY": "http://p:1", "no_proxy": "b.example"}, ""),
        ("https://b.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".b.example"}, "http://p:1"),
        ("https://a.b.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": ".b.example"}, ""),
        ("https://xb.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "b.example"}, "http://p:1"),
        ("https://a.example:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example:443"}, "http://p:1"),
        ("https://a.example:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example:6443"}, ""),
        ("https://a.example", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "*"}, ""),
    ],
)
def test_proxies_of_the_environment(server: str, environ: dict[str, str], proxy: str) -> None:
    assert proxy_for(server, environ) == proxy


def service_account(folder: Path, token: str = "t1") -> dict[str, str]:
    (folder / "token").write_text(token)
    (folder / "ca.crt").write_text("pem")
    (folder / "namespace").write_text("mine\n")
    return {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_a_pods_own_account(tmp_path: Path) -> None:
    environ = service_account(tmp_path)
    access = in_cluster(environ, tmp_path)
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", "mine")
    credential = await access.credentials.current()
    assert credential.token == "t1"
    assert in_cluster({**environ, "KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path).server == "https://[fd00::1]:443"


def test_a_pod_without_its_account(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no pod"):
        in_cluster({}, tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        in_cluster({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}, tmp_path)


def test_which_of_them_counts(files: Files, tmp_path: Path) -> None:
    account = tmp_path / "account"
    account.mkdir()
    environ = service_account(account)
    (path,) = files(config())
    options: dict[str, Any] = {"home": tmp_path, "service_account": account}
    assert load_access(environ=environ, **options).server == "https://10.96.0.1:443"
    assert load_access(environ=environ, kubeconfig=path, **options).server == "https://c.example:6443"
    named = {**environ, "KUBECONFIG": str(path)}
    assert load_access(environ=named, **options).server == "https://c.example:6443"
    with pytest.raises(KubeError, match="set KUBECONFIG"):
        load_access(environ={}, **options)
