"""The manifests of operands, as the chart hands them over: a folder of YAML files, which is a mounted ConfigMap."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import yaml

from shoal.kube.resources import RawObject
from shoal.model.errors import shown
from shoal.operator.errors import OperandsError

#: A ConfigMap has no more.
_MAX_BYTES: Final = 1 << 20
_SUFFIX: Final = ".yaml"
#: What a file may hold: rights are the chart's to grant.
KINDS: Final = (("apps/v1", "DaemonSet"), ("v1", "ConfigMap"))
Manifests = dict[str, tuple[RawObject, ...]]


def read_manifests(folder: Path) -> Manifests:
    """The objects of each file, by its name without `.yaml`. Raises OperandsError."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix == _SUFFIX and not path.name.startswith("."))
    except OSError as error:
        raise OperandsError(
            f"{folder} cannot be read: {error.strerror}: mount ConfigMap shoal-operands there, or give --operands"
        ) from error
    return {path.name.removesuffix(_SUFFIX): _documents(path) for path in paths}


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


def _documents(path: Path) -> tuple[RawObject, ...]:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
        if len(text) > _MAX_BYTES:
            raise OperandsError(f"{path} has more than {_MAX_BYTES} bytes: is it a file of operands?")
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except OSError as error:
        raise OperandsError(f"{path} cannot be read: {error.strerror}") from error
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
