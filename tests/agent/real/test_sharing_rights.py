"""The deployed agent may read the ConfigMap of NVIDIA's device plugin, and no other."""

from pathlib import Path

from tests.testbed.apiserver import ApiServer

RIGHTS = Path(__file__).parents[3] / "deploy" / "agent" / "rbac.yaml"
ACCOUNT = "system:serviceaccount:kube-system:shoal-agent"


def test_one_config_map_can_be_read(apiserver: ApiServer):
    apiserver.kubectl("apply", "-f", str(RIGHTS))

    def asked(*more: str) -> str:
        return apiserver.kubectl("get", "--raw", "".join(more), user=ACCOUNT, check=False)

    path = "/api/v1/namespaces/kube-system/configmaps"
    assert '"kind":"ConfigMapList"' in asked(path, "?fieldSelector=metadata.name%3Ddevice-plugin-config")
    assert "ConfigMapList" not in asked(path, "?fieldSelector=metadata.name%3Danother")
    assert "ConfigMapList" not in asked(path)
