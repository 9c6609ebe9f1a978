"""`shoal doctor`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from shoal.cli.connection import ClusterConnection, ask, connected
from shoal.cli.output import emit, output, styled

if TYPE_CHECKING:
    from shoal.analysis.doctor.findings import Finding

_MARKS: Final = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "warning": ("warning", "yellow"),
    "failed": ("FAILED", "red"),
    "unknown": ("unknown", "magenta"),
}
_WIDEST_MARK: Final = 8
_WIDEST_CHECK: Final = 11


@click.command(short_help="Find what is wrong with an installation, and how to put it right.")
@connected
@click.option("--here", is_flag=True, help="Look at this machine instead: driver, kubelet, CDI. For nodes, as root.")
@click.option("--node", default="", metavar="NAME", help="Explain one node: the step it is at, why, and what to do.")
@output()
def doctor(connection: ClusterConnection, here: bool, node: str, form: str | None) -> None:
    """Find what is wrong with an installation, and how to put it right. Reads only; exits with 1 if a check failed.

    \b
    Examples:
      shoal doctor                    the cluster of the current context
      shoal doctor --context prod -o json
      shoal doctor --node gpu-1       what a node waits for on its way to serving cards
      shoal doctor --here             on a node: driver, kubelet's sockets, CDI, cgroups

    What it needs to read is in deploy/rbac/viewer.yaml; what it may not read is told as unknown.
    """
    findings = list(_here() if here else _cluster(connection, node))
    if form is not None:
        emit([finding.document() for finding in findings], form)
    else:
        _tell(findings)
    if any(finding.level.value == "failed" for finding in findings):
        sys.exit(1)


def _cluster(connection: ClusterConnection, node: str) -> Iterator[Finding]:
    from shoal.analysis.doctor.examine import examine
    from shoal.analysis.doctor.installation import read_installation
    from shoal.analysis.doctor.setup import explain

    installation = ask(connection, lambda client, _: read_installation(client))
    return explain(installation, node) if node else examine(installation)


def _here() -> Iterator[Finding]:
    from shoal.analysis.doctor.machine import examine_machine
    from shoal.gpu.nvml import open_nvml
    from shoal.kubelet.host_paths import HostPaths

    return examine_machine(HostPaths(), open_nvml)


def _tell(findings: list[Finding]) -> None:
    """Colours are for terminals; click leaves them out elsewhere, and NO_COLOR does."""
    for finding in findings:
        word, colour = _MARKS[finding.level.value]
        mark = styled(f"{word:<{_WIDEST_MARK}}", colour)
        click.echo(f"{mark} {finding.check:<{_WIDEST_CHECK}} {finding.says}")
        if finding.fix:
            click.echo(f"{'':<{_WIDEST_MARK + _WIDEST_CHECK + 2}}fix: {finding.fix}")
    failed = sum(finding.level.value == "failed" for finding in findings)
    warnings = sum(finding.level.value == "warning" for finding in findings)
    click.echo(f"\n{failed} failed, {warnings} to look at, {len(findings) - failed - warnings} other.")
