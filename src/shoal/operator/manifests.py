"""The manifests of operands, as the chart hands them over: a folder of YAML files, which is a mounted ConfigMap."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import yaml

from shoal.kube.resources import RawObject
from shoal.model.contract.operator import NAME_OPERANDS, NAME_OPERATOR
from shoal.model.errors import shown
from shoal.operator.components import FILES
from shoal.operator.errors import OperandsError

#: A ConfigMap has no more.
_MAX_BYTES: Final = 1 << 20
_SUFFIX: Final = ".yaml"
#: What a file may hold: rights are the chart's to grant.
KINDS: Final = (("apps/v1", "DaemonSet"), ("v1", "ConfigMap"))
Manifests = dict[str, tuple[RawObject, ...]]


def read_manifests(folder: Path, digest: str = "") -> Manifests:
    """The objects of each file, by its name without `.yaml`.

    Raises OperandsError, also when `digest` is given and is not the digest of the files.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX and not path.name.startswith("."))
    except OSError as error:
        raise OperandsError(
            f"{folder} cannot be read: {error.strerror}: mount ConfigMap {NAME_OPERANDS} there, or give --operands"
        ) from error
    texts = {path: _text(path) for path in paths}
    found = digest_of({path.name: text for path, text in texts.items()})
    if digest and found != digest:
        raise OperandsError(
            f"ConfigMap {NAME_OPERANDS} has digest {found}, and Deployment {NAME_OPERATOR} expects {digest} "
            "(--operands-digest), so its manifests are not applied: run helm upgrade, which writes both, or restore "
            "the ConfigMap if you did not change it"
        )
    return {path.name.removesuffix(_SUFFIX): _documents(path, text) for path, text in texts.items()}


def digest_of(files: Mapping[str, bytes]) -> str:
    """The digest of files by name: what `sha256sum *.yaml | sha256sum` prints in their folder."""
    lines = "".join(f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in sorted(files))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def state_of(folder: Path) -> tuple[tuple[str, int, int], ...]:
    """What changes when a file of the folder does. A mounted ConfigMap is changed by moving a link."""
    found = []
    try:
        for entry in sorted(os.scandir(folder), key=lambda one: one.name):
            state = entry.stat()
            found.append((entry.name, state.st_mtime_ns, state.st_ino))
    except OSError:
        return ()
    return tuple(found)


def _text(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise OperandsError(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > _MAX_BYTES:
        raise OperandsError(f"{path} has more than {_MAX_BYTES} bytes: is it a file of operands?")
    return text


def _documents(path: Path, text: bytes) -> tuple[RawObject, ...]:
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OperandsError(f"{path} is no YAML: {error}") from error
    for one in documents:
        _check(path, one)
    return tuple(documents)


def _check(path: Path, document: object) -> None:
    if not isinstance(document, dict) or not isinstance(document.get("metadata"), dict):
        raise OperandsError(f"{path} holds {shown(document)}: write Kubernetes objects")
    kind = (document.get("apiVersion"), document.get("kind"))
    if kind not in KINDS:
        known = " and ".join(f"{name} of {version}" for version, name in KINDS)
        raise OperandsError(f"{path} holds a {shown(kind[1])} of {shown(kind[0])}: operands are {known}")
    if document.get("kind") == "ConfigMap":
        _check_settings(path, document.get("data") or {})
    if document.get("kind") == "DaemonSet":
        try:
            if not document["spec"]["template"]["spec"]["containers"][0]["name"]:
                raise KeyError("name")
        except (KeyError, TypeError, IndexError) as error:
            raise OperandsError(f"{path} holds a DaemonSet without a container: write spec.template") from error
    _check_identity(path, document)


def _check_identity(path: Path, document: RawObject) -> None:
    """A file holds objects of its own operand only, which run as that operand's account or without a token."""
    operand = path.name.removesuffix(_SUFFIX)
    if operand not in FILES:
        raise OperandsError(f"{path} is no file of an operand: write one of {', '.join(sorted(FILES))}")
    name, account = FILES[operand]
    found = document["metadata"].get("name")
    if found != name:
        raise OperandsError(f"{path} holds {document.get('kind')} {shown(found)}: write {name}")
    if document.get("kind") != "DaemonSet":
        return
    pod = document["spec"]["template"]["spec"]
    if pod.get("serviceAccountName", "") != account or pod.get("serviceAccount", account) != account:
        runs_as = pod.get("serviceAccountName", "") or pod.get("serviceAccount", "")
        raise OperandsError(f"{path} runs as ServiceAccount {shown(runs_as)}: write {shown(account)}")
    if not account and pod.get("automountServiceAccountToken") is not False:
        raise OperandsError(f"{path} runs with a token: write automountServiceAccountToken: false")


def _check_settings(path: Path, data: object) -> None:
    """A policy changes settings in files of YAML: each must be one."""
    if not isinstance(data, dict):
        raise OperandsError(f"{path} holds a ConfigMap whose data is {shown(data)}: write files by name")
    for name, text in data.items():
        if not isinstance(text, str):
            raise OperandsError(f"{path} holds {shown(name)} in a ConfigMap as {shown(text)}: write text")
        if not str(name).endswith(_SUFFIX):
            continue
        try:
            settings = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise OperandsError(f"{path} holds settings {shown(name)} that are no YAML: {error}") from error
        if settings is not None and not isinstance(settings, dict):
            raise OperandsError(f"{path} holds settings {shown(name)} as {shown(settings)}: write key: value")
