"""Writes deploy/ from the chart, for users without helm, and the schema of the chart's values: `make manifests`.

The chart's templates/FOLDER/FILE.yaml becomes deploy/FOLDER/FILE.yaml, in the namespace kube-system and without an
operator; deploy/operator has all that the operator needs. kustomization.yaml files are written by hand.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy import values_schema

ROOT: Final = Path(__file__).parents[1]
CHART: Final = ROOT / "charts" / "shoal"
DEPLOY: Final = ROOT / "deploy"
NAMESPACE: Final = "kube-system"
#: The Kubernetes that manifests are made for, and whose kube-scheduler is the second one.
KUBE_VERSION: Final = "1.36.3"
HEADER: Final = "# Made from charts/shoal by `make manifests`: change it there.\n"

#: What deploy/ has otherwise than the chart's defaults.
_PLAIN: Final = {
    "operator.enabled": "false",
    "restartOnChange": "false",
    "sharing.mps": "false",
    "dcgmExporter.service.enabled": "false",
    "daemonsets.rollingUpdate.maxUnavailable": "",
}
#: Folders, and the values that bring them out; a value may change other folders, which are then not taken.
_RENDERINGS: Final[tuple[tuple[tuple[str, ...], Mapping[str, str]], ...]] = (
    (("scheduler", "agent", "discovery", "metrics", "rbac", "admission", "uninstall"), {}),
    (
        ("admission-scheduler", "admission-slot", "admission-strip"),
        {"admission.scheduler": "true", "admission.slot": "true", "admission.strip": "true"},
    ),
    (("agent-mps",), {"sharing.mps": "true"}),
    (("agent-claims", "scheduler-claims"), {"sharing.claims": "true"}),
    (("scheduler-second",), {"scheduler.second.enabled": "true"}),
    (("scheduler-offer",), {"scheduler.offer.enabled": "true"}),
    (("metrics-scores",), {"metricsScores.enabled": "true"}),
    (("cluster-manager",), {"clusterManager.enabled": "true"}),
    (("dashboard",), {"dashboard.enabled": "true"}),
)
#: Where the operator's manifests go, and the folders of services whose DaemonSets it makes.
_OPERATOR: Final = Path("operator")
_ON_NODES: Final = ("agent", "discovery", "metrics")
#: What those have who come from KETI.
_KETI: Final = Path("keti")
_KETI_NAMESPACE: Final = "gpu"
_KETI_FOLDERS: Final = ("scheduler", "agent", "agent-mps", "metrics", "metrics-scores", "cluster-manager")
_KETI_VALUES: Final = {
    "sharing.mps": "true",
    "metricsScores.enabled": "true",
    "metricsScores.namespace": _KETI_NAMESPACE,
    "clusterManager.enabled": "true",
    "clusterManager.namespace": _KETI_NAMESPACE,
    "clusterManager.keti.enabled": "true",
    "dcgmExporter.settings.influx.url": f"http://influxdb.{_KETI_NAMESPACE}:8086",
}
_SOURCE: Final = re.compile(r"^# Source: shoal/templates/(\S+)\n", re.MULTILINE)
_OBJECT: Final = re.compile(r"^kind: (\S+)\nmetadata:\n(?:  [^n].*\n)*  name: (\S+)", re.MULTILINE)


class HelmError(Exception):
    """helm refuses the chart or its values; the message is helm's."""


def render(
    helm: Path | str,
    values: Mapping[str, str] | None = None,
    *,
    namespace: str = NAMESPACE,
    kube_version: str = KUBE_VERSION,
    arguments: tuple[str, ...] = (),
) -> str:
    """What `helm template` prints."""
    sets = [f"--set={name}={value}" for name, value in (values or {}).items()]
    command = [str(helm), "template", "shoal", str(CHART), "--namespace", namespace, "--kube-version", kube_version]
    done = subprocess.run([*command, *sets, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise HelmError(done.stderr.strip())
    return done.stdout


def documents(text: str) -> Iterator[tuple[str, str]]:
    """The template and the text of each document."""
    for piece in re.split(r"^---\n", text, flags=re.MULTILINE):
        found = _SOURCE.match(piece)
        if found:
            yield found[1], piece[found.end() :].strip("\n") + "\n"


def manifests(helm: Path | str) -> dict[Path, str]:
    """The files of deploy/ that are made, by their paths below it."""
    files: dict[Path, list[str]] = {}
    for folders, values in _RENDERINGS:
        for source, document in documents(render(helm, {**_PLAIN, **values}, arguments=("--no-hooks",))):
            if source.partition("/")[0] in folders:
                files.setdefault(Path(source), []).append(document)
    made = {path: HEADER + "---\n".join(_in_order(path, pieces)) for path, pieces in sorted(files.items())}
    return {**made, **_operator(helm), **_keti(helm)}


def _operator(helm: Path | str) -> dict[Path, str]:
    """The operator's folder: its own files, and of services on nodes what the operator does not make."""
    files: dict[Path, list[str]] = {}
    values = {"restartOnChange": "false", "dcgmExporter.service.enabled": "false"}
    for source, document in documents(render(helm, values, arguments=("--no-hooks",))):
        folder, _, name = source.partition("/")
        if folder == "operator":
            files.setdefault(_OPERATOR / name, []).append(document)
        elif folder in _ON_NODES:
            files.setdefault(_OPERATOR / f"{folder}.yaml", []).append(document)
    return {path: HEADER + "---\n".join(pieces) for path, pieces in sorted(files.items())}


def _keti(helm: Path | str) -> dict[Path, str]:
    """What comes into KETI's namespace, a file for each folder; deploy/keti gives it KETI's names."""
    files: dict[Path, list[str]] = {}
    for source, document in documents(
        render(helm, {**_PLAIN, **_KETI_VALUES}, namespace=_KETI_NAMESPACE, arguments=("--no-hooks",))
    ):
        folder = source.partition("/")[0]
        if folder in _KETI_FOLDERS:
            files.setdefault(_KETI / f"{folder}.yaml", []).append(document)
    return {path: HEADER + "---\n".join(pieces) for path, pieces in sorted(files.items())}


def _in_order(path: Path, made: list[str]) -> list[str]:
    """The documents as the template has them: helm sorts them by kind, and comments would come apart."""
    order = [found.groups() for found in _OBJECT.finditer((CHART / "templates" / path).read_text())]

    def place(document: str) -> int:
        found = _OBJECT.search(document)
        return order.index(found.groups()) if found and found.groups() in order else len(order)

    return sorted(made, key=place)


def main() -> int:
    """Write the files, or tell with --check which differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--helm", default="helm", help="helm 3; `make kube` has one")
    parser.add_argument("--check", action="store_true", help="change nothing; fail when files differ")
    options = parser.parse_args()
    # First, since helm reads it.
    stale = _refresh(values_schema.SCHEMA, values_schema.text(), write=not options.check)
    wanted = {DEPLOY / path: text for path, text in manifests(options.helm).items()}
    different = [path for path, text in wanted.items() if _refresh(path, text, write=not options.check)]
    return 1 if options.check and (stale or different) else 0


def _refresh(path: Path, text: str, *, write: bool = True) -> bool:
    """Whether a file differed; then it is written and named."""
    if path.is_file() and path.read_text() == text:
        return False
    print(path.relative_to(ROOT))
    if write:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return True


if __name__ == "__main__":
    sys.exit(main())
