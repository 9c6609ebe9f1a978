"""How the operator sees its nodes: the policy in force, and each node's step, since when, why, and what to do.

In the words of the policy's status, which `shoal.operator` works out; here also for a single node, and without waiting
for the operator to write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from shoal.analysis.doctor.findings import Finding, failed, note, ok, unknown, warning
from shoal.analysis.doctor.installation import Installation
from shoal.analysis.inspect.use import natural
from shoal.analysis.installed import namespace_of
from shoal.kube.client import Client
from shoal.kube.errors import ForbiddenError, NotFoundError
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import NODES, PODS, RawObject, Resource, meta_of
from shoal.model.contract import operator as contract
from shoal.operator.components import BY_DAEMON_SET, steps_of, wanted
from shoal.operator.node_state import Grade, Trouble, is_served, said, target_of, trouble_of
from shoal.operator.nodes import is_gpu_node
from shoal.operator.nvidia import NVIDIA_POLICIES, nvidia_operator
from shoal.operator.policy import read_policy
from shoal.operator.reconcile import in_force
from shoal.operator.status import nodes_state
from shoal.operator.world import World
from shoal.operator.writes import POLICIES

#: Nodes and problems that are told one by one.
_MOST: Final = 10
_CHECK: Final = "set-up"


def set_up(installation: Installation) -> Iterator[Finding]:
    """The policy, and the nodes that do not serve."""
    policy = _in_force(installation)
    if policy is None:
        yield from _without_policy(installation)
        return
    meta = meta_of(policy)
    status = policy.get("status")
    yield from _policy(meta.name, status if isinstance(status, Mapping) else {})
    for other in installation.wishes or ():
        if other is not policy:
            yield note(_CHECK, f"ClusterPolicy {meta_of(other).name} is ignored: {meta.name} is older", "delete one")
    spec = read_policy(policy).spec
    state = nodes_state(_world(installation, policy), spec, nvidia_operator(installation.nvidia_wishes or ()))
    for trouble in state.troubles[:_MOST]:
        yield _told(trouble)
    if len(state.troubles) > _MOST:
        more = len(state.troubles) - _MOST
        yield warning(_CHECK, f"{more} more nodes do not serve", f"kubectl get {_NAMED} {meta.name} -o yaml")
    if state.served and not state.troubles:
        yield ok(_CHECK, f"all {state.served} GPU nodes serve")


def explain(installation: Installation, name: str) -> Iterator[Finding]:
    """How one node stands."""
    node = next((one for one in installation.nodes if one.metadata.name == name), None)
    if node is None:
        yield failed(_CHECK, f"there is no node {said(name)}", "kubectl get nodes lists them")
        return
    policy = _in_force(installation)
    if policy is None:
        yield from _without_policy(installation)
        return
    if not is_gpu_node(node.metadata.labels):
        yield note(
            _CHECK,
            f"{name} is not known to have cards: no label nvidia.com/gpu.present=true, gpushare=true or gpu=on",
            "see whether shoal-discovery-bus runs there, or label the node",
        )
        return
    if not is_served(node):
        yield note(_CHECK, f"{name}: all operands are switched off by nvidia.com/gpu.deploy.operands=false")
        return
    beside = nvidia_operator(installation.nvidia_wishes or ())
    components = wanted(read_policy(policy).spec, beside)
    pods = [pod for pod in _pods(installation, policy) if target_of(pod) == name]
    trouble = trouble_of(node, pods, components, steps_of(components, beside))
    yield ok(_CHECK, f"{name} serves: it has taken all steps") if trouble is None else _told(trouble)


@dataclass(frozen=True, slots=True)
class NodeStep:
    """A GPU node: `step` is what it waits for, empty when it serves; `grade` says whether that fails, waits or begins.

    `since` is RFC 3339, empty when nobody knows.
    """

    node: str
    step: str = ""
    grade: str = ""
    since: str = ""
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, slots=True)
class SetUp:
    """The policy in force, empty without one; what it says of itself; and the nodes, those that do not serve first."""

    policy: str = ""
    state: str = ""
    problems: tuple[str, ...] = ()
    nodes: tuple[NodeStep, ...] = ()


async def read_set_up(client: Client) -> SetUp:
    """How the operator sees its nodes now. Raises KubeError when nodes or pods cannot be read."""
    wishes, nvidia = await asyncio.gather(_wishes(client, POLICIES), _wishes(client, NVIDIA_POLICIES))
    policy = in_force(tuple(wishes))
    if policy is None:
        return SetUp()
    status = policy.get("status")
    told: Mapping[str, Any] = status if isinstance(status, Mapping) else {}
    home = str(told.get("namespace") or "") or await namespace_of(client)
    nodes, pods = await asyncio.gather(client.list(NODES), client.list(PODS, namespace=home))
    installation = Installation("", datetime.now(UTC), home, nodes.items, pods.items, wishes=wishes)
    state = nodes_state(_world(installation, policy), read_policy(policy).spec, nvidia_operator(nvidia))
    waiting = {one.node for one in state.troubles}
    serving = sorted(
        (node.metadata.name for node in nodes.items if is_served(node) and node.metadata.name not in waiting),
        key=natural,
    )
    return SetUp(
        meta_of(policy).name,
        said(told.get("state")),
        tuple(finding.says for finding in _policy(meta_of(policy).name, told)),
        (*(_step(one) for one in state.troubles), *(NodeStep(name) for name in serving)),
    )


async def _wishes(client: Client, resource: Resource[RawObject]) -> list[RawObject]:
    """None where the kind is not known, or may not be read."""
    try:
        return (await client.list(resource)).items
    except (ForbiddenError, NotFoundError):
        return []


def _step(trouble: Trouble) -> NodeStep:
    return NodeStep(trouble.node, trouble.step, trouble.grade.name.lower(), trouble.since, trouble.why, trouble.fix)


_NAMED: Final = f"{contract.PLURAL}.{contract.GROUP}"


def _in_force(installation: Installation) -> RawObject | None:
    return in_force(tuple(installation.wishes or ()))


def _without_policy(installation: Installation) -> Iterator[Finding]:
    if installation.wishes is None:
        yield unknown(_CHECK, f"{_NAMED} may not be read")
    elif installation.wishes:
        yield note(_CHECK, "Shoal is being taken away: every ClusterPolicy is being deleted")


def _policy(name: str, status: Mapping[str, Any]) -> Iterator[Finding]:
    if not status:
        fix = "see whether shoal-operator runs: kubectl get deployment -A -l app.kubernetes.io/name=shoal-operator"
        yield failed(_CHECK, f"nobody has looked at ClusterPolicy {name}", fix)
        return
    for problem in (status.get("problems") or ())[:_MOST]:
        says = f"{said(problem.get('field'))} {said(problem.get('value'))}: {said(problem.get('why'))}"
        yield warning(_CHECK, says, said(problem.get("fix")))
    for condition in status.get("conditions") or ():
        if condition.get("type") == "Error" and condition.get("reason") in ("ReconcileFailed", "OperandMissing"):
            yield failed(_CHECK, said(condition.get("message")), "see the log of shoal-operator")
    if status.get("state") != "ready" and status.get("ready") == "0/0":
        words = "no node is known to have cards"
        yield warning(_CHECK, words, "see whether discovery runs, or label nodes gpushare=true")


def _told(trouble: Trouble) -> Finding:
    since = f" since {trouble.since}" if trouble.since else ""
    says = f"{trouble.node} waits for {trouble.step}{since}: {trouble.why}"
    if trouble.grade is Grade.FAILS:
        return failed(_CHECK, says, trouble.fix)
    return warning(_CHECK, says, trouble.fix or "wait a little, then look again")


def _world(installation: Installation, policy: RawObject) -> World:
    pods: dict[str, list[Pod]] = {}
    for pod in _pods(installation, policy):
        pods.setdefault(pod.spec.node_name, []).append(pod)
    return World(
        namespace=installation.namespace,
        now=installation.now.timestamp(),
        policies=(policy,),
        nodes={node.metadata.name: node for node in installation.nodes},
        operand_pods={name: tuple(found) for name, found in pods.items()},
    )


def _pods(installation: Installation, policy: RawObject) -> Iterator[Pod]:
    """The pods of operands. Their namespace is the operator's, which it writes into the status."""
    status = policy.get("status")
    namespace = (status.get("namespace") if isinstance(status, Mapping) else None) or installation.namespace
    for pod in installation.pods:
        if pod.metadata.namespace == namespace and any(
            owner.kind == "DaemonSet" and owner.name in BY_DAEMON_SET for owner in pod.metadata.owner_references
        ):
            yield pod
