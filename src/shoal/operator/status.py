"""The status of policies: what a person needs to see, and nothing that changes by itself. Pure.

`ready` means that there are GPU nodes and all of them serve. A status is worked out from the world alone; times in it
are those of the things it tells of, or of a condition's last change, so at rest there is nothing to write.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from shoal.kube.objects.pod import Pod
from shoal.kube.resources import RawObject, meta_of
from shoal.operator.actions import Action, SetStatus, Tell
from shoal.operator.components import COMPONENTS, Component, Section, absent, is_enabled, steps_of, wanted
from shoal.operator.fields import PolicyProblem
from shoal.operator.node_state import Grade, Trouble, is_served, moment, target_of, trouble_of
from shoal.operator.nvidia import NvidiaOperator
from shoal.operator.operands import missing, other_systems
from shoal.operator.policy import ClusterPolicySpec, PolicyReading, missing_config_maps, superseded_variables
from shoal.operator.policy_status import (
    MAX_NODES,
    ClusterPolicyStatus,
    ComponentState,
    ComponentStatus,
    PolicyCondition,
    ProblemStatus,
    bounded,
)
from shoal.operator.upgrade import stuck
from shoal.operator.world import World

READY: Final = "Ready"
ERROR: Final = "Error"
#: The reason of both while the manifests that are mounted cannot be used.
OPERANDS_REFUSED: Final = "OperandsRefused"
#: Events of one pass; the status has the rest.
_MOST_EVENTS: Final = 20
_MOST_STEPS: Final = 5
_SECTIONS: Final[tuple[Section, ...]] = ("driver", "toolkit", "validator", "devicePlugin", "gfd", "dcgmExporter")
#: The operand that runs where no card is known: it says nothing of GPU nodes.
_ELSEWHERE: Final = "discovery-bus"


@dataclass(frozen=True, slots=True)
class NodesState:
    """The GPU nodes of a cluster."""

    served: int
    troubles: tuple[Trouble, ...]

    @property
    def ready(self) -> int:
        """How many serve."""
        return self.served - len(self.troubles)


def nodes_state(world: World, spec: ClusterPolicySpec, beside: NvidiaOperator) -> NodesState:
    """How all GPU nodes stand, the worst first, of equal ones those that wait longest."""
    components = wanted(spec, beside)
    steps = steps_of(components, beside)
    unbound: dict[str, list[Pod]] = {}
    for pod in world.operand_pods.get("", ()):
        unbound.setdefault(target_of(pod), []).append(pod)
    served = 0
    troubles = []
    for name, node in world.nodes.items():
        if not is_served(node):
            continue
        served += 1
        pods = world.operand_pods.get(name, ())
        if name in unbound:
            pods = (*pods, *unbound[name])
        trouble = trouble_of(node, pods, components, steps)
        if trouble is not None:
            troubles.append(trouble)
    troubles.sort(key=lambda one: (one.grade, one.since or "9", one.node))
    return NodesState(served, tuple(troubles))


def plan(world: World, policy: RawObject, reading: PolicyReading, beside: NvidiaOperator) -> list[Action]:
    """The writes that the status of the policy in force needs, and the Events that go with them."""
    state = nodes_state(world, reading.spec, beside)
    status = status_of(world, policy, reading, beside, state)
    old = policy.get("status") or {}
    document = status.document()
    if document == old:
        return []
    return [*_events(policy, old, status, state), _write(policy, document, old)]


def ignored(world: World, policy: RawObject, by: RawObject) -> list[Action]:
    """The writes for a policy that is not in force."""
    name = meta_of(by).name
    why = f"ClusterPolicy {name} is older and in force: delete it, or this one"
    conditions = _conditions(world, policy, [(READY, "False", "Ignored", why)])
    document = ClusterPolicyStatus(
        state="ignored",
        namespace=world.namespace,
        waiting_for=bounded(why),
        observed_generation=meta_of(policy).generation,
        conditions=conditions,
    ).document()
    old = policy.get("status") or {}
    return [] if document == old else [_write(policy, document, old)]


def leaving(world: World, policy: RawObject, waiting: str) -> list[Action]:
    """The writes for a policy whose deletion is under way."""
    why = f"is being taken away: {waiting}"
    document = ClusterPolicyStatus(
        state="notReady",
        namespace=world.namespace,
        waiting_for=bounded(waiting),
        observed_generation=meta_of(policy).generation,
        conditions=_conditions(world, policy, [(READY, "False", "Uninstalling", why)]),
    ).document()
    old = policy.get("status") or {}
    return [] if document == old else [_write(policy, document, old)]


def refused(world: World, policy: RawObject) -> list[Action]:
    """The writes for a policy while the operator has no manifests that it may apply."""
    why = world.operands_error
    told = [(READY, "False", OPERANDS_REFUSED, why), (ERROR, "True", OPERANDS_REFUSED, why)]
    document = ClusterPolicyStatus(
        state="notReady",
        namespace=world.namespace,
        waiting_for=bounded(why),
        observed_generation=meta_of(policy).generation,
        conditions=_conditions(world, policy, told),
    ).document()
    old = policy.get("status") or {}
    return [] if document == old else [_write(policy, document, old)]


def _write(policy: RawObject, document: Mapping[str, Any], old: Mapping[str, Any]) -> SetStatus:
    # A merge patch takes away only what it names.
    gone = dict.fromkeys(key for key in old if key not in document)
    return SetStatus(meta_of(policy).name, meta_of(policy).uid, {**document, **gone})


def status_of(
    world: World, policy: RawObject, reading: PolicyReading, beside: NvidiaOperator, state: NodesState
) -> ClusterPolicyStatus:
    """The status of the policy in force."""
    spec = reading.spec
    sections = [_section(world, spec, beside, section) for section in _SECTIONS]
    problems = (
        *reading.problems,
        *missing_config_maps(spec, world.config_maps),
        *other_systems(world, spec, beside),
        *superseded_variables(spec),
    )
    waits = _waiting_for(state, sections)
    ready = not waits and state.served > 0
    told = [
        (READY, _flag(ready), *_ready_words(state, sections, waits)),
        (ERROR, *_error(world, problems, state, sections)),
        *((f"{one.name[0].upper()}{one.name[1:]}Ready", _flag(one.fine), one.reason, one.message) for one in sections),
    ]
    return ClusterPolicyStatus(
        state="ready" if ready else "notReady",
        namespace=world.namespace,
        ready=f"{state.ready}/{state.served}",
        waiting_for=bounded(waits),
        observed_generation=meta_of(policy).generation,
        conditions=_conditions(world, policy, told),
        components=tuple(
            ComponentStatus(name=one.name, state=one.state, ready=one.count, message=bounded(one.message))
            for one in sections
        ),
        nodes=tuple(one.told() for one in state.troubles[:MAX_NODES]),
        more_nodes=max(0, len(state.troubles) - MAX_NODES),
        problems=tuple(ProblemStatus.of(one) for one in problems[:MAX_NODES]),
    )


def _flag(holds: bool) -> Literal["True", "False"]:
    return "True" if holds else "False"


# --- components ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _SectionState:
    name: Section
    state: ComponentState
    reason: str
    message: str
    count: str = ""

    @property
    def fine(self) -> bool:
        """Whether it is as it is wanted."""
        return self.state in ("ready", "disabled") or (self.state == "nvidia" and self.name != "devicePlugin")


def _section(world: World, spec: ClusterPolicySpec, beside: NvidiaOperator, name: Section) -> _SectionState:
    """How the DaemonSets of a section stand together."""
    own = [one for one in COMPONENTS if one.section == name and one.operand != _ELSEWHERE]
    run = [one for one in own if absent(one, spec, beside) is None]
    if not run:
        return _absent(own[0], spec, beside, world)
    without = [one for one in missing(world, spec, beside) if any(one == each.operand for each in run)]
    if without:
        message = (
            f"the policy enables {name}, and the chart was installed without it: ConfigMap shoal-operands has no "
            f"manifest of {', '.join(without)}; run helm upgrade with {name}.enabled=true, or set {name}.enabled to "
            "false in the policy"
        )
        return _SectionState(name, "notReady", "OperandMissing", message)
    found = [_daemon_set(one, world, spec) for one in run]
    worst = min(found, key=lambda one: (one.fine, -one.behind))
    count = f"{worst.ready}/{worst.desired}"
    message = "; ".join(one.message for one in found if one.message)
    if worst.fine:
        return _SectionState(name, "ready", "Ready", message, count)
    return _SectionState(name, "notReady", "Waiting", message, count)


def _absent(component: Component, spec: ClusterPolicySpec, beside: NvidiaOperator, world: World) -> _SectionState:
    section = component.section
    if not is_enabled(component, spec):
        message = f"{section}.enabled is false in the policy"
        if component.operand == "driver" and component.operand in world.operands:
            message += (
                f"; the chart was installed with it, so ServiceAccount {component.account} and its rights are there: "
                f"run helm upgrade with {section}.enabled=false to remove them"
            )
        return _SectionState(section, "disabled", "Disabled", message)
    theirs = f"clusterpolicies.nvidia.com {beside.policy}"
    if section == "devicePlugin":
        message = (
            f"NVIDIA's device plugin serves the cards, so Shoal serves none: set devicePlugin.enabled to false in "
            f"{theirs} to let Shoal serve them"
        )
        return _SectionState(section, "nvidia", "LeftToNvidia", message)
    return _SectionState(section, "nvidia", "LeftToNvidia", f"left to NVIDIA's operator: {theirs} enables {section}")


@dataclass(frozen=True, slots=True)
class _DaemonSetState:
    fine: bool
    ready: int
    desired: int
    message: str

    @property
    def behind(self) -> int:
        return self.desired - self.ready


def _daemon_set(component: Component, world: World, spec: ClusterPolicySpec) -> _DaemonSetState:
    name = component.daemon_set
    found = world.owned.get(("DaemonSet", name))
    if found is None:
        return _DaemonSetState(False, 0, 0, f"{name} is not there yet")
    status = found.get("status") or {}
    desired, ready = _number(status, "desiredNumberScheduled"), _number(status, "numberReady")
    updated = _number(status, "updatedNumberScheduled")
    if _number(status, "observedGeneration") < meta_of(found).generation:
        return _DaemonSetState(False, ready, desired, f"{name} has changed, and Kubernetes has not seen to it yet")
    if ready < desired:
        return _DaemonSetState(False, ready, desired, f"{name} is ready on {ready} of {desired} nodes")
    if updated < desired:
        message = f"{name} is changed on {updated} of {desired} nodes"
        by_hand = component.operand == "mps" or _is_by_hand(component, spec)
        if by_hand:
            message += ", on the others when its pod is deleted"
        elif component.operand == "driver" and (words := stuck(world, spec.driver.upgrade_policy)):
            message += f": {words}"
        return _DaemonSetState(by_hand, ready, desired, message)
    return _DaemonSetState(True, ready, desired, "")


def _is_by_hand(component: Component, spec: ClusterPolicySpec) -> bool:
    """Whether pods are replaced only when somebody deletes them."""
    if component.operand == "driver":
        return not spec.driver.upgrade_policy.auto_upgrade
    return spec.daemonsets.update_strategy == "OnDelete"


def _number(status: Mapping[str, Any], key: str) -> int:
    value = status.get(key)
    return value if isinstance(value, int) else 0


# --- words --------------------------------------------------------------------------------------------------------


def _waiting_for(state: NodesState, sections: Iterable[_SectionState]) -> str:
    """What is waited for, in short; empty when all is well."""
    if any(one.reason == "LeftToNvidia" and not one.fine for one in sections):
        return "NVIDIA's device plugin to be switched off"
    if not state.served:
        return "a GPU node"
    steps = Counter(one.step for one in state.troubles)
    first = {one.step: one.node for one in reversed(state.troubles)}
    parts = [
        f"{step} on {first[step] if number == 1 else f'{number} nodes'}"
        for step, number in steps.most_common(_MOST_STEPS)
    ]
    if not parts:
        parts = [one.name for one in sections if not one.fine]
    return ", ".join(parts)


def _ready_words(state: NodesState, sections: Iterable[_SectionState], waits: str) -> tuple[str, str]:
    if any(one.reason == "LeftToNvidia" and not one.fine for one in sections):
        return "LeftToNvidia", next(one.message for one in sections if one.name == "devicePlugin")
    if not state.served:
        return "NoGPUNodes", (
            "no node has the label nvidia.com/gpu.present=true, gpushare=true or gpu=on: see whether discovery runs, "
            "or label the nodes with cards"
        )
    if not waits:
        return "Reconciled", f"all {state.served} GPU nodes serve"
    reason = "DriverNotReady" if any(one.step == "driver" for one in state.troubles) else "OperandNotReady"
    return reason, f"{state.ready} of {state.served} GPU nodes serve; waits for {waits}"


def _error(
    world: World, problems: tuple[PolicyProblem, ...], state: NodesState, sections: Iterable[_SectionState]
) -> tuple[Literal["True", "False"], str, str]:
    if world.operands_error:
        return "True", OPERANDS_REFUSED, world.operands_error
    for what, words in sorted(world.failures.items()):
        return "True", "ReconcileFailed", f"{what} could not be written: {words}"
    wrong = [one for one in problems if one.effect != "ignored"]
    if wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        return "True", "PolicyProblem", f"{wrong[0]}{more}"
    broken = [one for one in sections if one.reason == "OperandMissing"]
    if broken:
        return "True", "OperandMissing", broken[0].message
    failing = [one for one in state.troubles if one.grade is Grade.FAILS]
    if failing:
        one = failing[0]
        words = f"{len(failing)} nodes fail, such as {one.node} at {one.step}: {one.why}: {one.fix}"
        return "True", "NodesFail", words
    return "False", "NoError", ""


def _conditions(
    world: World, policy: RawObject, told: Iterable[tuple[str, str, str, str]]
) -> tuple[PolicyCondition, ...]:
    """Conditions; one that holds as before keeps its time."""
    before = {}
    old = policy.get("status")
    for one in (old.get("conditions") or ()) if isinstance(old, Mapping) else ():
        if isinstance(one, Mapping):
            before[one.get("type"), one.get("status")] = one.get("lastTransitionTime")
    return tuple(
        PolicyCondition(
            type=kind,
            status=holds,  # type: ignore[arg-type]
            reason=reason,
            message=bounded(message, 4096),
            last_transition_time=str(before.get((kind, holds)) or moment(world.now)),
            observed_generation=meta_of(policy).generation,
        )
        for kind, holds, reason, message in told
    )


def _events(
    policy: RawObject, old: Mapping[str, Any], status: ClusterPolicyStatus, state: NodesState
) -> Iterator[Tell]:
    """What is new: a policy that became ready or not, and nodes that began to fail."""
    meta = meta_of(policy)
    if old.get("state") != status.state:
        words = status.conditions[0].message
        ready = status.state == "ready"
        yield Tell(
            "ClusterPolicy", meta.name, meta.uid, READY if ready else "NotReady", words, warning=not ready and bool(old)
        )
    before = {(one.get("name"), one.get("step"), one.get("why")) for one in old.get("nodes") or ()}
    told = 0
    for one in state.troubles[:MAX_NODES]:
        known = one.told()
        if one.grade is not Grade.FAILS or (known.name, known.step, known.why) in before:
            continue
        words = f"{one.step}: {one.why}" + (f": {one.fix}" if one.fix else "")
        yield Tell("Node", one.node, one.uid, "GPUNodeNotReady", words, warning=True)
        told += 1
        if told >= _MOST_EVENTS:
            return
