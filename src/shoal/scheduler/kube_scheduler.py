"""Configurations for the stock kube-scheduler: how it is told to ask Shoal's extender.

Two set-ups. *default*: the cluster's own scheduler asks the extender about GPU pods; its static pod on every
control-plane node is edited once. *second*: another kube-scheduler, in a pod like any other, serves the pods that name
it, and the control plane is left alone. What is printed was run on Kubernetes 1.32 and 1.36; the forms for older
releases are written from their published types.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import yaml

from shoal.model.contract import gpushare, keti, nvidia
from shoal.model.errors import shown
from shoal.scheduler.certificates import KEY_CA, KEY_CLIENT, KEY_CLIENT_KEY, SERVER_NAME
from shoal.scheduler.errors import ConfigurationError


class SchedulerMode(StrEnum):
    """Which scheduler asks the extender."""

    DEFAULT = "default"
    SECOND = "second"


class ConfigForm(StrEnum):
    """How a release of kube-scheduler is configured."""

    POLICY = "Policy"
    V1BETA2 = "kubescheduler.config.k8s.io/v1beta2"
    V1BETA3 = "kubescheduler.config.k8s.io/v1beta3"
    V1 = "kubescheduler.config.k8s.io/v1"


#: The resources whose pods are sent to the extender, and whether kube-scheduler leaves the nodes' totals to it.
#:
#: Totals are counted where nodes publish them: kubelet counts them too, and only what kube-scheduler counts itself can
#: make it preempt. Compute is published by few nodes, so its total, which would be missing, is passed over.
MANAGED: Final = {
    gpushare.RESOURCE_MEMORY: False,
    gpushare.RESOURCE_COMPUTE: True,
    keti.RESOURCE_MPS: False,
    nvidia.RESOURCE_GPU: False,
}
#: One step of the extender's scores in kube-scheduler's points is ten times this. Its own scores that nobody asked for
#: (free CPU, balance, images) differ by some hundred; the best node leads by two steps.
WEIGHT: Final = 10
#: As kube-scheduler's own default; a bind that takes longer than this is tried again.
TIMEOUT_SECONDS: Final = 5

SCHEDULER_NAME: Final = keti.SCHEDULER_NAME
#: Where the files lie on a control-plane node that kubeadm has made.
DIRECTORY: Final = "/etc/kubernetes"
_KUBECONFIG: Final = f"{DIRECTORY}/scheduler.conf"
_FILE: Final = f"{DIRECTORY}/shoal-scheduler"

_VERSION: Final = re.compile(r"v?1\.([0-9]{1,3})(?:[.+-].*)?")
_OLDEST: Final = 11


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files on kube-scheduler's side: the CA of the extender's certificate, and its own certificate and key.

    `server_name`: what the extender's certificate is for, where it is reached by another name.
    """

    ca: str
    certificate: str = ""
    key: str = ""
    server_name: str = ""

    def config(self) -> dict[str, str]:
        """As kube-scheduler reads it."""
        given = {"serverName": self.server_name, "caFile": self.ca, "certFile": self.certificate, "keyFile": self.key}
        return {key: value for key, value in given.items() if value}


@dataclass(frozen=True, slots=True)
class InlineClientTls:
    """The same in the configuration itself, so that a static pod needs no further file."""

    ca: bytes
    certificate: bytes
    key: bytes = field(repr=False)
    server_name: str = SERVER_NAME

    def config(self) -> dict[str, str]:
        """As kube-scheduler reads it."""
        data = {"caData": self.ca, "certData": self.certificate, "keyData": self.key}
        return {
            "serverName": self.server_name,
            **{key: base64.b64encode(value).decode() for key, value in data.items()},
        }


#: Where the pods of a second kube-scheduler have the Secret of the extender's certificates.
MOUNTED: Final = ClientTls(
    f"/etc/shoal-tls/{KEY_CA}", f"/etc/shoal-tls/{KEY_CLIENT}", f"/etc/shoal-tls/{KEY_CLIENT_KEY}", SERVER_NAME
)


def form_for(version: str) -> ConfigForm:
    """The form a release reads: the newest it knows."""
    match = _VERSION.fullmatch(version.strip())
    if match is None:
        raise ConfigurationError(f"version {shown(version)} cannot be read: write one such as 1.36")
    minor = int(match[1])
    if minor < _OLDEST:
        raise ConfigurationError(f"version {shown(version)} is too old: extenders are served from 1.{_OLDEST} on")
    if minor < 22:
        return ConfigForm.POLICY
    return ConfigForm.V1BETA2 if minor == 22 else ConfigForm.V1BETA3 if minor < 25 else ConfigForm.V1


def configuration(
    version: str,
    *,
    mode: SchedulerMode = SchedulerMode.DEFAULT,
    url: str | None = None,
    tls: ClientTls | InlineClientTls | None = None,
    node_cache: bool = True,
    weight: int = WEIGHT,
    namespace: str = gpushare.EXTENDER_NAMESPACE,
) -> str:
    """The file for kube-scheduler of this version, with comments on what to do with it where the form allows any.

    `url` is where kube-scheduler reaches the extender, else the node port, or the Service in `namespace` for a second
    one; without `tls` it asks in plain HTTP. `node_cache` off makes it send whole nodes in place of their names, which
    costs a hundred times the bytes and is there for odd set-ups.
    """
    form = form_for(version)
    prefix = _prefix(url or f"{'http' if tls is None else 'https'}://{_reached(mode, namespace)}")
    extender = _extender(form, prefix, tls=tls, node_cache=node_cache, weight=weight)
    if form is ConfigForm.POLICY:
        document = {"kind": "Policy", "apiVersion": "v1", "extenders": [extender]}
        return json.dumps(document, indent=2) + "\n"
    steps = instructions(version, mode=mode, secret=isinstance(tls, InlineClientTls))
    comment = "".join(f"# {line}".rstrip() + "\n" for line in steps.splitlines())
    return comment + _yaml(_settings(form, mode, namespace)) + _scope_comment(mode) + _yaml({"extenders": [extender]})


def instructions(version: str, *, mode: SchedulerMode, secret: bool = False) -> str:
    """What to do with the file, step by step. `secret`: it holds a key."""
    policy = form_for(version) is ConfigForm.POLICY
    flag = "--policy-config-file" if policy else "--config"
    path = f"{_FILE}.{'json' if policy else 'yaml'}"
    if mode is SchedulerMode.SECOND:
        named = f" and --scheduler-name={SCHEDULER_NAME}" if policy else ""
        return (
            f"For a second kube-scheduler {version}, run as a Deployment with {flag}=<this file>{named}.\n"
            f"It serves the pods with schedulerName: {SCHEDULER_NAME}. Shoal's own loop serves the same name:\n"
            "switch that off with schedulerNames: [] in the settings of `shoal scheduler`."
        )
    return f"""\
For the cluster's own kube-scheduler {version}. On every control-plane node, one after another:
1. Write this file to {path}{", which only root may read: it holds a key" if secret else ""}.
2. Copy {DIRECTORY}/manifests/kube-scheduler.yaml somewhere outside that folder, and edit the copy:
     add to the command        - {flag}={path}
     add to volumeMounts       - {{name: shoal-scheduler, mountPath: {path}, readOnly: true}}
     add to volumes            - {{name: shoal-scheduler, hostPath: {{path: {path}, type: File}}}}
3. Copy it back over the old one. kubelet restarts the scheduler; `kubectl -n kube-system get pods` shows it.
To undo it, copy the old manifest back."""


def _reached(mode: SchedulerMode, namespace: str) -> str:
    """Where each set-up reaches the extender, but for the scheme: the node port on its own node, or the Service."""
    if mode is SchedulerMode.DEFAULT:
        return f"127.0.0.1:{gpushare.PORT_NODE}"
    return f"{gpushare.EXTENDER_NAME}.{namespace}:{gpushare.PORT_MANIFEST}"


def _prefix(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigurationError(
            f"url {shown(url)} cannot be used: write one such as https://127.0.0.1:{gpushare.PORT_NODE}"
        )
    return url.rstrip("/") + ("" if parts.path.strip("/") else gpushare.PATH_PREFIX)


def _extender(
    form: ConfigForm, prefix: str, *, tls: ClientTls | InlineClientTls | None, node_cache: bool, weight: int
) -> dict[str, object]:
    https = prefix.startswith("https:")
    if tls is not None and not https:
        raise ConfigurationError(f"url {shown(prefix)} is not https: certificates would not be used")
    if weight < 1:
        raise ConfigurationError(f"weight {weight} cannot be used: write 1 or more")
    policy = form is ConfigForm.POLICY
    extender: dict[str, object] = {
        "urlPrefix": prefix,
        "filterVerb": gpushare.VERB_FILTER,
        "prioritizeVerb": gpushare.VERB_PRIORITIZE,
        "weight": weight,
        "preemptVerb": gpushare.VERB_PREEMPT,
        "bindVerb": gpushare.VERB_BIND,
        "enableHttps" if policy else "enableHTTPS": https,
        "nodeCacheCapable": node_cache,
        "ignorable": False,
        # Old files carry Go's own count of nanoseconds.
        "httpTimeout": TIMEOUT_SECONDS * 10**9 if policy else f"{TIMEOUT_SECONDS}s",
    }
    if tls is not None:
        extender["tlsConfig"] = tls.config()
    extender["managedResources"] = [{"name": name, "ignoredByScheduler": ignored} for name, ignored in MANAGED.items()]
    return extender


def _settings(form: ConfigForm, mode: SchedulerMode, namespace: str) -> dict[str, object]:
    settings: dict[str, object] = {"apiVersion": form.value, "kind": "KubeSchedulerConfiguration"}
    if mode is SchedulerMode.DEFAULT:
        return {
            **settings,
            "clientConnection": {"kubeconfig": _KUBECONFIG},
            "leaderElection": {"leaderElect": True},
        }
    return {
        **settings,
        "leaderElection": {
            "leaderElect": True,
            "resourceName": SCHEDULER_NAME,
            "resourceNamespace": namespace,
        },
        "profiles": [{"schedulerName": SCHEDULER_NAME}],
        "percentageOfNodesToScore": 100,
    }


def _scope_comment(mode: SchedulerMode) -> str:
    """Why all nodes should be looked at, or what it means that they are not."""
    if mode is SchedulerMode.SECOND:
        return (
            "# 100: kube-scheduler asks the extender about all nodes. With less it asks about the first it finds, and\n"
            "# leaves a pod waiting when just those have no card free.\n"
        )
    return (
        "# With more than 100 nodes that carry GPUs kube-scheduler asks the extender only about the first it finds,\n"
        "# and leaves a pod waiting when just those have no card free. percentageOfNodesToScore: 100 makes it ask\n"
        "# about all, at the price of slower decisions for every other pod of the cluster.\n"
    )


def _yaml(document: dict[str, object]) -> str:
    return yaml.safe_dump(document, sort_keys=False, width=120)
