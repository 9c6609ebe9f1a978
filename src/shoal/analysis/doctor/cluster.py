"""The cluster itself: its version, whether clocks agree, and whether the admission policies are in force and count
memory as the nodes do.

Without the policies for requests a bad request is told later. Without the others tenants write what only the scheduler
should.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterator
from datetime import datetime
from typing import Final

from shoal.analysis.doctor.findings import Finding, failed, note, ok, some, unknown, warning
from shoal.analysis.doctor.installation import Installation
from shoal.analysis.doctor.nodes import unit_of
from shoal.kube.resources import RawObject
from shoal.model.contract import decisions, shoal

_OLDEST: Final = (1, 20)
_ADMISSION: Final = (1, 30)
#: kubelet renews its lease every 10 s, and a node whose lease is 40 s old is not ready any more.
_AHEAD_SECONDS: Final = 5.0
_BEHIND_SECONDS: Final = 60.0
#: What half of all leases are never older than, unless the clock here goes ahead.
_MEDIAN_SECONDS: Final = 30.0


def version(installation: Installation) -> Iterator[Finding]:
    """What the API server is, and what it lacks."""
    match = re.match(r"v?(\d+)\.(\d+)", installation.version)
    if match is None:
        yield warning("kubernetes", f"says its version is {installation.version!r}", "use a released Kubernetes")
        return
    numbers = int(match[1]), int(match[2])
    if numbers < _OLDEST:
        yield failed("kubernetes", f"{installation.version} is older than 1.20", "update the cluster")
    elif numbers < _ADMISSION:
        yield note(
            "kubernetes", f"{installation.version}: no admission policies before 1.30", "events tell of bad requests"
        )
    else:
        yield ok("kubernetes", installation.version)


def clocks(installation: Installation) -> Iterator[Finding]:
    """Each kubelet writes the time into its node's lease; those of ready nodes are fresh."""
    if installation.node_leases is None:
        yield unknown("clocks", "the leases of the nodes may not be read")
        return
    ready = {
        node.metadata.name
        for node in installation.nodes
        if any(one.type == "Ready" and one.status == "True" for one in node.status.conditions)
    }
    ages = {
        lease.metadata.name: (installation.now - renewed).total_seconds()
        for lease in installation.node_leases
        if lease.metadata.name in ready and (renewed := moment(lease.spec.renew_time)) is not None
    }
    if not ages:
        yield unknown("clocks", "no ready node renews a lease")
        return
    middle = statistics.median(ages.values())
    if not -_AHEAD_SECONDS <= middle <= _MEDIAN_SECONDS:
        way = "behind" if middle < 0 else "ahead of"
        yield failed(
            "clocks",
            f"the clock of this machine is about {abs(middle):.0f} s {way} those of the nodes",
            "run NTP here: tokens and certificates depend on it",
        )
        return
    # A lease is renewed some seconds before another: only one of the future, or a very old one, tells of a wrong clock.
    odd = sorted(name for name, age in ages.items() if age < -_AHEAD_SECONDS or age - middle > _BEHIND_SECONDS)
    if odd:
        yield failed("clocks", f"wrong on {some(odd)}", "run NTP on these nodes: leases and tokens depend on it")
    else:
        yield ok("clocks", f"{len(ages)} node(s) agree with this machine")


def moment(text: str | None) -> datetime | None:
    """A time as Kubernetes writes it."""
    try:
        return datetime.fromisoformat(text) if text else None
    except ValueError:
        return None


_REQUESTS: Final = (shoal.POLICY_PODS, shoal.POLICY_TEMPLATES, shoal.POLICY_CRON_JOBS)
_GUARDS: Final = (
    *decisions.POLICIES_DECISIONS,
    decisions.POLICY_CLAIMS,
    *decisions.POLICIES_VISIBLE_DEVICES,
    decisions.POLICY_EXEMPTIONS,
    decisions.POLICY_MADE_CLAIMS,
)
_ALL: Final = (*_REQUESTS, *_GUARDS, *decisions.POLICIES_FENCE)
_INSTALL: Final = "kubectl apply -k deploy/admission"
_INSTALL_FENCE: Final = "kubectl apply -k deploy/agent"


def policies(installation: Installation) -> Iterator[Finding]:
    """What refuses bad GPU requests at `kubectl apply`, and guards what was decided."""
    if installation.policies is None or installation.bindings is None:
        yield unknown("admission", "the admission policies may not be read")
        return
    if "validatingadmissionpolicies" in installation.absent:
        return  # told by the cluster's version
    found = {one["metadata"]["name"]: one for one in installation.policies if one["metadata"]["name"] in _ALL}
    bound = {
        binding.get("spec", {}).get("policyName")
        for binding in installation.bindings
        if "Deny" in (binding.get("spec", {}).get("validationActions") or ())
    }
    missing = [name for name in _ALL if name not in found]
    idle = [name for name in found if name not in bound]
    if late := [name for name in missing if name in _REQUESTS]:
        yield warning("admission", f"{some(late)}: not there; bad requests are told by events only", _INSTALL)
    if open_ := [name for name in missing if name in _GUARDS]:
        yield failed("admission", f"{some(open_)}: not there; tenants can write what was decided", _INSTALL)
    if free := [name for name in missing if name in decisions.POLICIES_FENCE]:
        yield failed("admission", f"{some(free)}: not there; an agent can write to any node", _INSTALL_FENCE)
    if idle:
        yield failed("admission", f"{some(idle)}: there, and bound by nothing that denies", _INSTALL)
    yield from _units(installation, found)
    yield from _complaints(found)
    if found and not missing and not idle:
        yield ok("admission", "bad GPU requests are refused, and decisions are guarded")


def _units(installation: Installation, found: dict[str, RawObject]) -> Iterator[Finding]:
    unit = unit_of(installation)
    wrong = [name for name, one in found.items() if unit is not None and _unit(one) not in (None, unit.value)]
    if wrong:
        told = _unit(found[wrong[0]])
        fix = "deploy/admission-mib" if unit is not None and unit.value == "MiB" else "deploy/admission"
        yield failed(
            "admission", f"{some(wrong)} count memory in {told}, the nodes in {unit}", f"kubectl apply -k {fix}"
        )


def _unit(policy: RawObject) -> str | None:
    for variable in policy.get("spec", {}).get("variables") or ():
        if variable.get("name") == "unit" and (match := re.fullmatch(r"'(\w+)'", str(variable.get("expression")))):
            return match[1]
    return None


def _complaints(found: dict[str, RawObject]) -> Iterator[Finding]:
    """What the API server says of the policies' own text."""
    for name, one in found.items():
        checked = (one.get("status") or {}).get("typeChecking") or {}
        if checked.get("expressionWarnings"):
            yield warning("admission", f"the API server warns of {name}", f"{_INSTALL} of this release")
