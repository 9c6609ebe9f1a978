"""etcd and kube-apiserver: enough for everything that only talks to the API. RBAC is on, users have certificates."""

import base64
import http.client
import json
import ssl
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import yaml

from tests.testbed import binaries
from tests.testbed.features import DEFAULTS, Features
from tests.testbed.kubectl import run_kubectl
from tests.testbed.pki import Authority
from tests.testbed.processes import Process, Run, TestbedError

ADMIN = ("admin", ("system:masters",))


class ApiServer:
    """One etcd with one kube-apiserver on 127.0.0.1. Starts at once; can be killed and started again in place."""

    def __init__(self, run: Run, name: str = "cluster", features: Features = DEFAULTS) -> None:
        self.run = run
        self.name = name
        self.features = features
        self.directory = run.folder(name)
        self.authority = Authority(run.folder(name, "pki"))
        self._port = run.reservations.port()
        self._etcd_url = f"http://127.0.0.1:{run.reservations.port()}"
        self._etcd = run.process(f"{name}-etcd", self._etcd_command(run.reservations.port()))
        self._process = run.process(f"{name}-apiserver", self._command())
        admin = self.authority.client(*ADMIN)
        self._tls = ssl.create_default_context(cafile=str(self.ca))
        self._tls.load_cert_chain(admin.certificate, admin.key)
        self._etcd.start()
        self._etcd.wait_until(self._etcd_healthy, "healthy")
        self.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"https://127.0.0.1:{self._port}"

    @property
    def port(self) -> int:
        """The port of `url`."""
        return self._port

    @property
    def processes(self) -> tuple[Process, Process]:
        """kube-apiserver and etcd."""
        return self._process, self._etcd

    @property
    def ca(self) -> Path:
        """The certificate that its own is signed with."""
        return self.authority.certificate

    def kubeconfig(self, user: str = ADMIN[0], groups: Sequence[str] = ()) -> Path:
        """A kubeconfig for a user; `admin` may do everything, others what RBAC gives them."""
        member = ADMIN[1] if user == ADMIN[0] and not groups else tuple(groups)
        pair = self.authority.client(user, member)
        path = pair.certificate.with_suffix(".kubeconfig")
        if not path.exists():
            content = {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": str(self.ca)}}],
                "users": [
                    {
                        "name": user,
                        "user": {"client-certificate": str(pair.certificate), "client-key": str(pair.key)},
                    }
                ],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
                "current-context": "test",
            }
            path.write_text(yaml.safe_dump(content))
        return path

    def kubectl(self, *arguments: str, input: str | None = None, user: str = ADMIN[0], check: bool = True) -> str:  # noqa: A002
        """What kubectl prints; its error as an exception."""
        return run_kubectl(self.kubeconfig(user), *arguments, home=self.directory, input=input, check=check)

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> dict:
        """One plain request as admin, for the test bed's own needs: independent of the client under test."""
        status, answer = self.try_request(method, path, body, content_type)
        if status >= 400:
            raise TestbedError(f"{method} {path}: {status} {answer.get('message', answer)}")
        return answer

    def try_request(
        self, method: str, path: str, body: object = None, content_type: str = "application/json"
    ) -> tuple[int, dict]:
        """As `request`, with the status instead of an exception."""
        connection = http.client.HTTPSConnection("127.0.0.1", self._port, context=self._tls, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": content_type})
            response = connection.getresponse()
            text = response.read()
            try:
                return response.status, json.loads(text)
            except ValueError:
                return response.status, {"message": text.decode(errors="replace")}
        finally:
            connection.close()

    def create_namespace(self, name: str) -> None:
        """A namespace in which pods can be made although no controller may be there to make its service account."""
        self.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        status, answer = self.try_request("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        if status not in (201, 409):  # 409: a controller was faster
            raise TestbedError(f"no service account in {name}: {answer}")

    def start(self) -> None:
        """Start kube-apiserver and wait until it is ready."""
        self._process.start()
        self._process.wait_until(self._ready, "ready")

    def kill(self) -> None:
        """SIGKILL for kube-apiserver; etcd stays."""
        self._process.kill()

    def stop(self) -> None:
        """End both for good."""
        self._process.kill()
        self._etcd.kill()

    def compact(self) -> int:
        """Make etcd forget all versions before the present one, which is returned.

        kube-apiserver's watch cache goes on serving what it has; after a restart old versions are 410 Gone.
        """
        revision = int(self._etcd_call("kv/range", {"key": _b64("/registry"), "limit": 1})["header"]["revision"])
        self._etcd_call("kv/compaction", {"revision": revision, "physical": True})
        return revision

    def _etcd_call(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(f"{self._etcd_url}/v3/{path}", json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=60) as response:
            answer: dict = json.load(response)
            return answer

    def _etcd_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._etcd_url}/health", timeout=5) as response:
                return bool(json.load(response)["health"] == "true")
        except OSError:
            return False

    def _ready(self) -> bool:
        try:
            return self.try_request("GET", "/readyz")[0] == 200
        except (OSError, http.client.HTTPException):
            return False

    def _etcd_command(self, peer_port: int) -> list[str | Path]:
        peer = f"http://127.0.0.1:{peer_port}"
        return [
            binaries.find("etcd"),
            f"--data-dir={self.directory / 'etcd'}",
            *(f"--listen-client-urls={self._etcd_url}", f"--advertise-client-urls={self._etcd_url}"),
            *(
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
            ),
            "--unsafe-no-fsync",
            "--log-level=warn",
        ]

    def _command(self) -> list[str | Path]:
        serving = self.authority.server("kube-apiserver", ["127.0.0.1", "localhost", "10.96.0.1"])
        to_kubelet = self.authority.client("kube-apiserver-kubelet-client", ("system:masters",))
        signing = self.authority.signing_key()
        return [
            binaries.find("kube-apiserver"),
            f"--etcd-servers={self._etcd_url}",
            *("--bind-address=127.0.0.1", f"--secure-port={self._port}", "--advertise-address=127.0.0.1"),
            *(f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}"),
            *(f"--client-ca-file={self.ca}", "--authorization-mode=Node,RBAC", "--allow-privileged"),
            *(f"--service-account-key-file={signing}", f"--service-account-signing-key-file={signing}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            *("--service-cluster-ip-range=10.96.0.0/16", "--endpoint-reconciler-type=none"),
            *(f"--kubelet-client-certificate={to_kubelet.certificate}", f"--kubelet-client-key={to_kubelet.key}"),
            *(f"--kubelet-certificate-authority={self.ca}", "--kubelet-preferred-address-types=InternalIP"),
            "--profiling=false",
            *self.features.api_flags,
        ]


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
