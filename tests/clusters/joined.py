"""Two real clusters, one joined to the other: what tests of joining ask of them."""

import base64
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result

from shoal.cli.main import main
from shoal.clusters.join import ManagerAccount
from shoal.kube.access.credentials import Access
from shoal.kube.access.kubeconfig import closed_access, load_access
from shoal.model.contract import clusters
from tests.testbed.apiserver import ApiServer
from tests.testbed.waiting import wait_for

NAMESPACE = "shoal"
NAME = "west"
Object = dict[str, Any]


def admin(server: ApiServer) -> Access:
    return load_access(environ={}, home=Path("/"), kubeconfig=server.kubeconfig())


def uid_of(server: ApiServer) -> str:
    return str(server.request("GET", "/api/v1/namespaces/kube-system")["metadata"]["uid"])


def inline(server: ApiServer) -> Object:
    """The administrator's kubeconfig with everything inside, as a Secret has to have it."""
    config = yaml.safe_load(server.kubeconfig().read_text())
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    cluster["certificate-authority-data"] = _file(cluster.pop("certificate-authority"))
    user["client-certificate-data"] = _file(user.pop("client-certificate"))
    user["client-key-data"] = _file(user.pop("client-key"))
    return dict(config)


def _file(path: str) -> str:
    return base64.b64encode(Path(path).read_bytes()).decode()


@dataclass
class Joined:
    """Home, a member with controllers, and in the member a namespace that accepts copies and one that does not."""

    home: ApiServer
    member: ApiServer
    open: str = field(default_factory=lambda: f"open-{uuid.uuid4().hex[:8]}")
    closed: str = field(default_factory=lambda: f"closed-{uuid.uuid4().hex[:8]}")

    def prepare(self) -> None:
        for name, labels in ((self.open, {clusters.LABEL_ACCEPTS: clusters.ENABLED}), (self.closed, {})):
            self.member.create_namespace(name)
            self.merge(self.member, f"/api/v1/namespaces/{name}", {"metadata": {"labels": labels}})
        self.home.create_namespace(NAMESPACE)
        self.home.create_namespace("team")

    @property
    def account(self) -> ManagerAccount:
        return ManagerAccount(uid_of(self.home))

    def merge(self, server: ApiServer, path: str, body: Object) -> Object:
        return server.request("PATCH", path, body, "application/merge-patch+json")

    def command(self, *arguments: str) -> Result:
        """`shoal clusters` with both administrators' kubeconfigs."""
        both = ["--kubeconfig", str(self.member.kubeconfig()), "--home-kubeconfig", str(self.home.kubeconfig())]
        return CliRunner().invoke(main, ["clusters", *arguments, *both, "-n", NAMESPACE])

    def at_home(self, *arguments: str) -> Result:
        """`shoal clusters` with home's."""
        kubeconfig = ["--kubeconfig", str(self.home.kubeconfig())]
        return CliRunner().invoke(main, ["clusters", *arguments, *kubeconfig, "-n", NAMESPACE])

    def join(self, name: str = NAME, *arguments: str) -> Result:
        result = self.command("join", name, *arguments)
        assert result.exit_code == 0, result.output
        return result

    def secret(self, name: str = NAME) -> Object:
        return self.home.request("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets/shoal-cluster-{name}")

    def access(self, name: str = NAME) -> Access:
        """As the account that the Secret at home holds."""
        content = base64.b64decode(self.secret(name)["data"]["kubeconfig"])
        return closed_access(content, what="the Secret", environ={})

    def token(self, name: str = NAME) -> str:
        content = json.loads(base64.b64decode(self.secret(name)["data"]["kubeconfig"]))
        return str(content["users"][0]["user"]["token"])

    def write_secret(self, name: str, label: str, content: Object, **annotations: str) -> None:
        """A Secret by somebody's own hand."""
        body = {
            "metadata": {"name": name, "labels": {clusters.LABEL_CLUSTER: label}, "annotations": annotations},
            "stringData": {"kubeconfig": yaml.safe_dump(content)},
        }
        self.home.request("POST", f"/api/v1/namespaces/{NAMESPACE}/secrets", body)

    def delete_secret(self, name: str) -> None:
        self.home.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}/secrets/{name}")

    def tenant(self, namespace: str) -> str:
        """The token of somebody who may do everything in a namespace of the member."""
        where = f"/api/v1/namespaces/{namespace}"
        rbac = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
        self.member.request("POST", f"{where}/serviceaccounts", {"metadata": {"name": "tenant"}})
        everything = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
        self.member.request("POST", f"{rbac}/roles", {"metadata": {"name": "all"}, "rules": everything})
        self.member.request(
            "POST",
            f"{rbac}/rolebindings",
            {
                "metadata": {"name": "all"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
                "subjects": [{"kind": "ServiceAccount", "name": "tenant", "namespace": namespace}],
            },
        )
        answer = self.member.request(
            "POST", f"{where}/serviceaccounts/tenant/token", {"spec": {"expirationSeconds": 3600}}
        )
        return str(answer["status"]["token"])

    def copy(
        self, name: str, namespace: str = "", *, origin: str = "pod-1", node: str = "", kept: bool = False
    ) -> Object:
        """A copy, made by the administrator; with a node it was opened and placed."""
        pods = f"/api/v1/namespaces/{namespace or self.open}/pods"
        made = copy_of(self.account.home, name, origin=origin)
        if kept:
            made["metadata"]["finalizers"] = [clusters.FINALIZER_COPY]
        if node:
            del made["spec"]["schedulingGates"]
            made["spec"]["nodeName"] = node
        return self.member.request("POST", pods, made)

    def home_pod(self, name: str, *, cluster: str = NAME, uid: str = "", phase: str = "") -> Object:
        """A pod at home, held, and sent to a cluster, under a fence."""
        sent = clusters.Sent(2, cluster, uid or uid_of(self.member), fence=240)
        pod = {
            "metadata": {
                "name": name,
                "annotations": {clusters.ANNOTATION_DISPATCH: clusters.encode(sent, what="sent")},
                "finalizers": [clusters.FINALIZER_HOME],
            },
            "spec": {
                "containers": [{"name": "main", "image": "x"}],
                "schedulingGates": [{"name": clusters.GATE_HOME}],
            },
        }
        made = self.home.request("POST", "/api/v1/namespaces/team/pods", pod)
        if phase:
            path = f"/api/v1/namespaces/team/pods/{name}/status"
            self.merge(self.home, path, {"status": {"phase": phase}})
        return made

    def sent(self, name: str) -> tuple[Mapping[str, Any], str]:
        """Where a pod at home was sent, and its phase."""
        pod = self.home.request("GET", f"/api/v1/namespaces/team/pods/{name}")
        return json.loads(pod["metadata"]["annotations"][clusters.ANNOTATION_DISPATCH]), pod["status"]["phase"]

    def left_behind(self) -> list[str]:
        """All objects in the member that carry home's identity, and the namespace of accounts."""
        kinds = (
            "/apis/rbac.authorization.k8s.io/v1/clusterroles",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
            "/apis/rbac.authorization.k8s.io/v1/roles",
            "/apis/rbac.authorization.k8s.io/v1/rolebindings",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
            "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
            "/apis/coordination.k8s.io/v1/leases",
            "/api/v1/serviceaccounts",
            "/api/v1/secrets",
            "/api/v1/namespaces",
        )
        home = uid_of(self.home)
        found = []
        for kind in kinds:
            for one in self.member.request("GET", kind)["items"]:
                name = one["metadata"]["name"]
                if home in name or name == clusters.NAMESPACE_MEMBERS:
                    found.append(f"{kind}/{name}")
        return found

    def wait_gone(self) -> None:
        wait_for(lambda: self.left_behind() == [], "gone")


def copy_of(home: str, name: str, *, origin: str = "pod-1", fence: int = 0) -> Object:
    """A copy as its manager makes it."""
    written = clusters.encode(clusters.CopyOrigin(home, origin, 1, fence), what="origin")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {clusters.LABEL_ORIGIN: home},
            "annotations": {clusters.ANNOTATION_ORIGIN: written},
        },
        "spec": {
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "x"}],
            "schedulingGates": [{"name": clusters.GATE_COPY}],
        },
    }
