"""The configurations of the stock scheduler. That a real one takes them is seen in `extender/test_kube.py`."""

import json
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from shoal.cli.main import main
from shoal.scheduler.certificates import SERVER_NAME
from shoal.scheduler.errors import ConfigurationError
from shoal.scheduler.kube_scheduler import (
    MOUNTED,
    ClientTls,
    ConfigForm,
    InlineClientTls,
    SchedulerMode,
    configuration,
    form_for,
    instructions,
)

GROUP = "kubescheduler.config.k8s.io"


@pytest.mark.parametrize(
    ("version", "form"),
    [
        ("1.11", ConfigForm.POLICY),
        ("v1.21.14", ConfigForm.POLICY),
        ("1.22", ConfigForm.V1BETA2),
        ("1.23", ConfigForm.V1BETA3),
        ("1.24.17-gke.200", ConfigForm.V1BETA3),
        ("1.25", ConfigForm.V1),
        ("1.28+", ConfigForm.V1),
        (" v1.36.3 ", ConfigForm.V1),
        ("1.99", ConfigForm.V1),
    ],
)
def test_each_release_gets_a_form_it_reads(version: str, form: ConfigForm) -> None:
    assert form_for(version) is form


@pytest.mark.parametrize("version", ["", "1", "2.0", "1.x", "1.10", "1.1111", "latest", "1.36; rm -rf /"])
def test_other_versions_are_refused_with_the_fix(version: str) -> None:
    with pytest.raises(ConfigurationError, match=r"write one such as 1\.36|too old"):
        configuration(version)


def extender_of(text: str) -> Any:
    document = json.loads(text) if text.startswith("{") else yaml.safe_load(text)
    (extender,) = document["extenders"]
    return extender


def test_the_default_scheduler_is_wired_through_the_node_port() -> None:
    document = yaml.safe_load(configuration("1.36"))
    assert document["apiVersion"] == f"{GROUP}/v1"
    assert document["kind"] == "KubeSchedulerConfiguration"
    assert document["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert "profiles" not in document
    inline = InlineClientTls(b"ca", b"certificate", b"key")
    assert extender_of(configuration("1.36", tls=inline)) == {
        "urlPrefix": "https://127.0.0.1:32766/gpushare-scheduler",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "weight": 10,
        "preemptVerb": "preempt",
        "bindVerb": "bind",
        "enableHTTPS": True,
        "nodeCacheCapable": True,
        "ignorable": False,
        "httpTimeout": "5s",
        "tlsConfig": {
            "serverName": "gpushare-schd-extender.kube-system.svc",
            "caData": "Y2E=",
            "certData": "Y2VydGlmaWNhdGU=",
            "keyData": "a2V5",
        },
        "managedResources": [
            {"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False},
            {"name": "aliyun.com/gpu-core.percentage", "ignoredByScheduler": True},
            {"name": "keti.com/mpsgpu", "ignoredByScheduler": False},
            {"name": "nvidia.com/gpu", "ignoredByScheduler": False},
        ],
    }


def test_a_second_scheduler_has_a_name_and_a_lease_of_its_own() -> None:
    for version, api in (("1.22", "v1beta2"), ("1.24", "v1beta3"), ("1.36", "v1")):
        document = yaml.safe_load(configuration(version, mode=SchedulerMode.SECOND))
        assert document["apiVersion"] == f"{GROUP}/{api}"
        assert document["profiles"] == [{"schedulerName": "gpu-scheduler"}]
        assert document["leaderElection"]["resourceName"] == "gpu-scheduler"
        assert "clientConnection" not in document, "it runs in a pod"
        assert document["percentageOfNodesToScore"] == 100
        assert document["extenders"][0]["urlPrefix"].startswith("http://gpushare-schd-extender.kube-system:12345/")
        with_tls = extender_of(configuration(version, mode=SchedulerMode.SECOND, tls=MOUNTED))
        assert with_tls["urlPrefix"].startswith("https://gpushare-schd-extender.kube-system:12345/")
        assert with_tls["tlsConfig"]["keyFile"] == "/etc/shoal-tls/client.key"


def test_the_policy_of_old_releases_has_its_own_spelling() -> None:
    policy = json.loads(configuration("1.20", url="https://10.0.0.1:32766", tls=ClientTls("/ca.pem")))
    assert (policy["kind"], policy["apiVersion"]) == ("Policy", "v1")
    (extender,) = policy["extenders"]
    assert extender["enableHttps"] is True
    assert "enableHTTPS" not in extender
    assert extender["httpTimeout"] == 5_000_000_000
    assert extender["tlsConfig"] == {"caFile": "/ca.pem"}
    assert "--policy-config-file=/etc/kubernetes/shoal-scheduler.json" in instructions(
        "1.20", mode=SchedulerMode.DEFAULT
    )
    assert "--scheduler-name=gpu-scheduler" in instructions("1.20", mode=SchedulerMode.SECOND)


def test_addresses_are_completed_and_checked() -> None:
    for url, prefix in (
        ("http://extender:80", "http://extender:80/gpushare-scheduler"),
        ("http://extender/", "http://extender/gpushare-scheduler"),
        ("https://extender/own/path/", "https://extender/own/path"),
    ):
        assert extender_of(configuration("1.36", url=url))["urlPrefix"] == prefix
    for url in ("extender:80", "ftp://x", "http://", "http://x/?a=b", "http://x/#f"):
        with pytest.raises(ConfigurationError, match="cannot be used"):
            configuration("1.36", url=url)
    with pytest.raises(ConfigurationError, match="not https"):
        configuration("1.36", url="http://x", tls=ClientTls("/ca.pem"))


def test_the_static_pod_edit_is_explained_in_comments() -> None:
    head = [line for line in configuration("1.36").splitlines() if line.startswith("#")]
    text = "\n".join(head)
    for part in ("--config=/etc/kubernetes/shoal-scheduler.yaml", "volumeMounts", "hostPath", "To undo it"):
        assert part in text
    assert "/etc/kubernetes/manifests" not in configuration("1.36", mode=SchedulerMode.SECOND)


def test_a_second_one_is_where_shoal_is_installed() -> None:
    options = ["config", "kube-scheduler", "--for", "1.36", "--mode", "second", "-n", "gpu-operator"]
    text = CliRunner().invoke(main, options).stdout
    assert yaml.safe_load(text)["leaderElection"]["resourceNamespace"] == "gpu-operator"
    assert extender_of(text)["urlPrefix"].startswith("https://gpushare-schd-extender.gpu-operator:")
    assert extender_of(text)["tlsConfig"]["serverName"] == SERVER_NAME, "the certificate is for one name everywhere"


def test_the_command_prints_what_the_function_gives() -> None:
    done = CliRunner().invoke(main, ["config", "kube-scheduler", "--for", "1.36", "--mode", "second"])
    assert (done.exit_code, done.stdout) == (0, configuration("1.36", mode=SchedulerMode.SECOND, tls=MOUNTED))
    done = CliRunner().invoke(main, ["config", "kube-scheduler", "--for", "1.21", "--plain"])
    assert done.exit_code == 0
    assert done.stdout == configuration("1.21"), "JSON alone, ready for a file"
    assert "control-plane node" in done.stderr
    secure = ["--url", "https://x", "--ca", "/ca", "--certificate", "/c", "--key", "/k", "--weight", "3"]
    done = CliRunner().invoke(main, ["config", "kube-scheduler", "--for", "1.36", *secure])
    extender = extender_of(done.stdout)
    assert extender["tlsConfig"] == {"caFile": "/ca", "certFile": "/c", "keyFile": "/k"}
    assert extender["weight"] == 3


@pytest.mark.parametrize(
    "options",
    [
        ["--for", "nineteen"],
        ["--for", "1.36", "--plain", "--url", "nowhere"],
        ["--for", "1.36", "--key", "/k"],
        ["--for", "1.36", "--weight", "0"],
        ["--for", "1.36", "--plain", "--ca", "/ca"],
        ["--for", "1.36", "--ca", "/ca", "--rotate-client"],
        [],
    ],
)
def test_the_command_refuses_bad_options(options: list[str]) -> None:
    done = CliRunner().invoke(main, ["config", "kube-scheduler", *options])
    assert done.exit_code == 2
    assert done.stdout == ""
