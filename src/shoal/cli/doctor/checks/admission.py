"""The admission policies: there, in force, and counting memory as the nodes do.

Without those for requests a bad request is told later. Without the others tenants write what only the scheduler should.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from shoal.cli.doctor.checks.nodes import unit_of
from shoal.cli.doctor.facts import Facts
from shoal.cli.doctor.finding import Finding, failed, ok, some, unknown, warning
from shoal.kube.resources import RawObject
from shoal.model.contract import decisions, shoal

_REQUESTS: Final = (shoal.POLICY_PODS, shoal.POLICY_TEMPLATES, shoal.POLICY_CRON_JOBS)
_GUARDS: Final = (*decisions.POLICIES_DECISIONS, *decisions.POLICIES_VISIBLE_DEVICES, decisions.POLICY_EXEMPTIONS)
_ALL: Final = (*_REQUESTS, *_GUARDS, *decisions.POLICIES_FENCE)
_INSTALL: Final = "kubectl apply -k deploy/admission"
_INSTALL_FENCE: Final = "kubectl apply -k deploy/agent"


def policies(facts: Facts) -> Iterator[Finding]:
    """What refuses bad GPU requests at `kubectl apply`, and guards what was decided."""
    if facts.policies is None or facts.bindings is None:
        yield unknown("admission", "the admission policies may not be read")
        return
    if "validatingadmissionpolicies" in facts.absent:
        return  # told by the cluster's version
    found = {one["metadata"]["name"]: one for one in facts.policies if one["metadata"]["name"] in _ALL}
    bound = {
        binding.get("spec", {}).get("policyName")
        for binding in facts.bindings
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
    yield from _units(facts, found)
    yield from _complaints(found)
    if found and not missing and not idle:
        yield ok("admission", "bad GPU requests are refused, and decisions are guarded")


def _units(facts: Facts, found: dict[str, RawObject]) -> Iterator[Finding]:
    unit = unit_of(facts)
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
