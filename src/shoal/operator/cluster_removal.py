"""Takes Shoal away without an operator, or with one that is asked first: what `shoal uninstall` does.

The operator is asked by deleting its policy, and waited for while its Lease is renewed. Where none is alive, the same
plan (`shoal.operator.uninstall`) is carried out from here, to the end. Then goes what is not the operator's: workloads
that would write again, discovery's labels, Leases and the extender's Secret, and amounts of resources in the status of
nodes. Nothing is remembered: a second run goes on where the first was killed.

Manifests that somebody applied (accounts, rights, admission policies, namespaces, settings) are for helm or kubectl to
delete.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import yaml

from shoal.kube.client import Client
from shoal.kube.errors import ApiError, ConflictError, ForbiddenError, NotFoundError
from shoal.kube.objects.pod import Pod
from shoal.kube.resources import CONFIG_MAPS, LEASES, NAMESPACES, NODES, PODS, SECRETS, RawObject, Resource, meta_of
from shoal.model.contract import gpushare, keti, nvidia, operator, shoal
from shoal.model.contract.kubernetes import LABEL_APP, LABEL_PART_OF
from shoal.model.contract.operator import LABEL_POLICY, NAME_CLEANUP, NAME_OPERANDS, NAME_OPERATOR, OPERAND_CLEANUP
from shoal.model.contract.shoal import PART_OF
from shoal.model.errors import CodecError
from shoal.operator import uninstall
from shoal.operator.actions import Action, Delete, PatchNode, SetFinalizer, Tell
from shoal.operator.manifests import digest_of
from shoal.operator.nvidia import NVIDIA_POLICIES
from shoal.operator.world import World
from shoal.operator.writes import DAEMON_SETS, DEPLOYMENTS, POLICIES, RUNTIME_CLASSES, Writes

DEFINITIONS: Final[Resource[RawObject]] = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", dict, False, whole=True
)
_DEFINITION: Final = f"{operator.PLURAL}.{operator.GROUP}"
_OURS: Final = f"{LABEL_PART_OF}={PART_OF}"
#: Resources that the agent serves or counts, beside MIG partitions. Those of the first line are nobody else's here.
_OWN_RESOURCES: Final = (gpushare.RESOURCE_MEMORY, gpushare.RESOURCE_COUNT, keti.RESOURCE_MPS, shoal.RESOURCE_SLOT)
_NVIDIA_RESOURCES: Final = (nvidia.RESOURCE_GPU, nvidia.RESOURCE_GPU_SHARED)
#: Under whose name the agent's writes are.
_MANAGER: Final = "shoal"
_AT_ONCE: Final = 16
_PAGE: Final = 100
_LOOK_SECONDS: Final = 1.0
#: Workloads whose first container runs from Shoal's image.
_FROM_OWN_IMAGE: Final = {shoal.NAME_AGENT, NAME_CLEANUP, NAME_OPERATOR, shoal.NAME_SCHEDULER}
_DIGEST_FLAG: Final = "--operands-digest="
#: For the pods of Deployments to end, and for the definition.
_STOP_SECONDS: Final = 45.0
#: A Lease that promises more is not believed for longer.
_LONGEST_LEASE: Final = 60.0
#: Looks after the time is over: each takes one of the last steps.
_LAST_LOOKS: Final = 6


@dataclass(frozen=True, slots=True)
class RemovalSettings:
    """What to take away, and how long that may take."""

    namespace: str
    timeout: float = 240.0
    #: The definition of the ClusterPolicy too.
    definitions: bool = False
    #: The image of `shoal-cleanup` where the cluster has no manifest of it; else the one that an operand runs from.
    image: str = ""
    #: Namespaces and selectors of Leases that services made.
    leases: Sequence[tuple[str, str]] = ()
    #: Names of Leases and of Secrets in the namespace.
    lease_names: Sequence[str] = ()
    secret_names: Sequence[str] = ()


@dataclass
class RemovalReport:
    """What has become of it, in words."""

    done: list[str] = field(default_factory=list)
    #: What cannot be reached from here, and what to do.
    left: list[str] = field(default_factory=list)
    #: What could not be done, and why.
    failed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class ClusterRemoval:
    """One uninstall. `say` is told what happens; `clean_labels` takes discovery's labels away, and counts nodes."""

    def __init__(
        self,
        client: Client,
        writes: Writes,
        settings: RemovalSettings,
        *,
        clean_labels: Callable[[], Awaitable[int]],
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self._client = client
        self._writes = writes
        self._settings = settings
        self._clean_labels = clean_labels
        self._say = say
        self._end = math.inf
        #: Digest of the manifests that the operator's Deployment names; empty: there is none.
        self._digest = ""
        self.report = RemovalReport()

    async def run(self) -> RemovalReport:
        """Take everything away. Raises KubeError when the cluster cannot be read."""
        self._end = time.monotonic() + self._settings.timeout
        for note in await self._users():
            self._note(note)
        await self._ask_operator()
        image = self._settings.image or await self._image()
        self._digest = await self._pinned_digest()
        await self._stop_deployments()
        await self._carry_out_plan(image)
        # A collector's last word would be a Lease.
        await self._while(lambda: self._pods_of("DaemonSet"))
        await self._loose_ends()
        if self._settings.definitions:
            await self._delete_definition()
        self.report.failed += [f"{what} is still there" for what in await self.inventory()]
        return self.report

    # --- the operator -------------------------------------------------------------------------------------------------

    async def _ask_operator(self) -> None:
        """Delete the policies, and wait for them to go while an operator is alive: half of the time at most."""
        policies = await self._listed(POLICIES)
        if not policies:
            return
        for policy in policies:
            meta = meta_of(policy)
            if meta.deletion_timestamp is None:
                await self._delete(POLICIES, meta.name, uid=meta.uid)
        pulse = _Pulse(self._client, self._settings.namespace)
        end = time.monotonic() + self._settings.timeout / 2
        while await self._listed(POLICIES):
            if why := await pulse.silent():
                self._say(f"no operator takes the policy away ({why}): this goes on without it")
                return
            if time.monotonic() >= end:
                self._say("the operator is alive and has not come to an end: this goes on without it")
                return
            await asyncio.sleep(_LOOK_SECONDS)
        self._say("the operator has taken its policy away")

    async def _stop_deployments(self) -> None:
        """End whatever would write again: the operator, discovery's leader, schedulers."""
        space = self._settings.namespace
        found = await self._listed(DEPLOYMENTS, namespace=space, labels=_OURS)
        for one in found:
            meta = meta_of(one)
            await self._delete(DEPLOYMENTS, meta.name, namespace=space, uid=meta.uid)
        if found:
            await self._while(lambda: self._pods_of("ReplicaSet"))

    async def _pods_of(self, kind: str) -> list[Pod]:
        pods = (await self._client.list(PODS, namespace=self._settings.namespace, labels=_OURS)).items
        return [pod for pod in pods if any(owner.kind == kind for owner in pod.metadata.owner_references)]

    # --- the plan -----------------------------------------------------------------------------------------------------

    async def _carry_out_plan(self, image: str) -> None:
        began, looks, said = time.time(), 0, ""
        freed: set[str] = set()
        while looks < _LAST_LOOKS:
            world = await self.world(image)
            if time.monotonic() >= self._end:
                looks += 1
                world = replace(world, now=math.inf)
            step = uninstall.plan(world, began=began)
            self.report.left += [words for words in step.left if words not in self.report.left]
            if step.done:
                break
            await self._act(step.actions)
            freed |= {one.name for one in step.actions if isinstance(one, PatchNode) and None in one.labels.values()}
            freed |= {one.name for one in step.actions if isinstance(one, PatchNode) and one.annotations}
            if step.waiting and step.waiting != said:
                said = step.waiting
                self._say(f"waiting for {said}")
            await asyncio.sleep(_LOOK_SECONDS if looks == 0 else 0)
        if freed:
            self.report.done.append(f"labels, annotations and the taint of {_count(len(freed), 'node')}")

    async def _act(self, actions: Sequence[Action]) -> None:
        """Carry actions out in their order; those of nodes together, since each node stands for itself."""
        at_once = asyncio.Semaphore(_AT_ONCE)

        async def one(action: Action) -> None:
            async with at_once:
                done = await self._try(_words(action), self._writes.carry_out(action))
            if done and isinstance(action, Delete | SetFinalizer):
                self.report.done.append(_words(action))

        for together in _runs(actions):
            await asyncio.gather(*map(one, together))

    async def world(self, image: str) -> World:
        """The cluster as the plan reads it."""
        space = self._settings.namespace
        pods: dict[str, tuple[Pod, ...]] = {}
        for pod in (await self._client.list(PODS, namespace=space)).items:
            pods[pod.spec.node_name] = (*pods.get(pod.spec.node_name, ()), pod)
        nodes = {node.metadata.name: node for node in (await self._client.list(NODES)).items}
        return World(
            namespace=space,
            now=time.time(),
            policies=tuple(await self._listed(POLICIES)),
            nvidia_policies=tuple(await self._listed(NVIDIA_POLICIES)),
            nodes=nodes,
            operand_pods=pods,
            owned={(obj["kind"], meta_of(obj).name): obj for obj in await self._owned()},
            operands={OPERAND_CLEANUP: await self._cleanup(image)},
        )

    async def _owned(self) -> list[RawObject]:
        """What the operator made, and the operands that somebody applied without one."""
        space = self._settings.namespace
        found: list[RawObject] = []
        for daemon in await self._listed(DAEMON_SETS, namespace=space, labels=_OURS):
            meta = meta_of(daemon)
            names = {meta.name, meta.labels.get(LABEL_APP, "")}
            if names & set(uninstall.DAEMON_SETS) or LABEL_POLICY in meta.labels:
                found.append(daemon)
        found += await self._listed(CONFIG_MAPS.raw, namespace=space, labels=LABEL_POLICY)
        found += await self._listed(RUNTIME_CLASSES, labels=LABEL_POLICY)
        return found

    async def _cleanup(self, image: str) -> tuple[RawObject, ...]:
        """The manifest of `shoal-cleanup`: the chart's if it is the one that was installed, else one for the image."""
        try:
            data = (await self._client.get(CONFIG_MAPS, NAME_OPERANDS, namespace=self._settings.namespace)).data
        except NotFoundError:
            data = {}
        found = () if self._settings.image else pinned_cleanup(data, self._digest)
        return found or ((cleanup_manifest(image, self._settings.namespace),) if image else ())

    async def _pinned_digest(self) -> str:
        for one in await self._listed(DEPLOYMENTS, namespace=self._settings.namespace, labels=_OURS):
            if meta_of(one).name == NAME_OPERATOR:
                for argument in one["spec"]["template"]["spec"]["containers"][0].get("args") or ():
                    if str(argument).startswith(_DIGEST_FLAG):
                        return str(argument).removeprefix(_DIGEST_FLAG)
        return ""

    async def _image(self) -> str:
        """The image that operands or other services run from; empty if there are none."""
        space = self._settings.namespace
        for resource in (DAEMON_SETS, DEPLOYMENTS):
            for one in await self._listed(resource, namespace=space, labels=_OURS):
                meta = meta_of(one)
                if {meta.name, meta.labels.get(LABEL_APP, "")} & _FROM_OWN_IMAGE:
                    return str(one["spec"]["template"]["spec"]["containers"][0]["image"])
        return ""

    # --- what is not the operator's -----------------------------------------------------------------------------------

    async def _loose_ends(self) -> None:
        counted: list[int] = []

        async def clean() -> None:
            counted.append(await self._clean_labels())

        await self._try("discovery's labels", clean())
        if any(counted):
            self.report.done.append(f"discovery's labels of {_count(sum(counted), 'node')}")
        for space, name in await self._leases():
            await self._delete(LEASES, name, namespace=space)
        for name in self._settings.secret_names:
            await self._delete(SECRETS, name, namespace=self._settings.namespace)
        await self._resources()

    async def _leases(self) -> list[tuple[str, str]]:
        """Namespaces and names of the Leases that services made."""
        found = []
        for space, selector in self._settings.leases:
            if await self._is_there(space):
                found += [(space, meta_of(one).name) for one in await self._listed(LEASES, space, labels=selector)]
        for name in self._settings.lease_names:
            space = self._settings.namespace
            with contextlib.suppress(NotFoundError):
                await self._client.get(LEASES, name, namespace=space)
                found.append((space, name))
        return found

    async def _is_there(self, namespace: str) -> bool:
        """Whether a namespace is there to stay. Without collectors there is none for them, and no right in it."""
        try:
            return (await self._client.get(NAMESPACES, namespace)).metadata.deletion_timestamp is None
        except NotFoundError:
            return False
        except ForbiddenError:
            return True  # whoever may not look may still list what is in it

    async def _secrets(self) -> list[str]:
        """Names of the Secrets, for whom may see them."""
        found = []
        for name in self._settings.secret_names:
            with contextlib.suppress(NotFoundError, ForbiddenError):
                await self._client.get(SECRETS, name, namespace=self._settings.namespace)
                found.append(name)
        return found

    async def _resources(self) -> None:
        """Take amounts out of the status of nodes that nobody serves any more."""
        cleaned = 0
        async for node in self._raw_nodes():
            name, gone = meta_of(node).name, list(stale_resources(node))
            if gone:
                amounts = dict.fromkeys(gone)
                patch = {"status": {"capacity": amounts, "allocatable": amounts}}
                await self._try(f"amounts of node {name}", self._client.patch(NODES, name, patch, subresource="status"))
                cleaned += 1
            if counted := [one for one in _served(node) if one not in gone and one in _OWN_RESOURCES]:
                self._note(f"node {name}: kubelet counts {', '.join(counted)} for five minutes after its plugin ended")
        if cleaned:
            self.report.done.append(f"amounts of resources in the status of {_count(cleaned, 'node')}")

    async def _raw_nodes(self) -> AsyncIterator[RawObject]:
        """All nodes with all their fields, page by page: together they may be large."""
        more, pages = "", 0
        while pages == 0 or more:
            page = await self._client.page(NODES.raw, continue_=more, limit=_PAGE)
            for node in page.items or ():
                yield node
            more, pages = page.metadata.continue_, pages + 1

    async def _delete_definition(self) -> None:
        await self._delete(DEFINITIONS, _DEFINITION)
        await self._while(lambda: self._listed(DEFINITIONS, fields=f"metadata.name={_DEFINITION}"))

    # --- what there is ------------------------------------------------------------------------------------------------

    async def inventory(self) -> list[str]:
        """All that would be taken away, or is still there, in words."""
        found = [f"ClusterPolicy {meta_of(one).name}" for one in await self._listed(POLICIES)]
        beside = bool(await self._listed(NVIDIA_POLICIES))
        deployments = await self._listed(DEPLOYMENTS, namespace=self._settings.namespace, labels=_OURS)
        for obj in (*deployments, *(await self._owned())):
            meta = meta_of(obj)
            kind = obj.get("kind") or DEPLOYMENTS.kind
            found.append(f"{kind} {meta.namespace}/{meta.name}" if meta.namespace else f"{kind} {meta.name}")
        found += [f"Lease {space}/{name}" for space, name in await self._leases()]
        found += [f"Secret {self._settings.namespace}/{name}" for name in await self._secrets()]
        for node in (await self._client.list(NODES)).items:
            patch = uninstall.removal(node, beside_nvidia=beside)
            if patch is not None:
                names = (*patch.labels, *patch.annotations, *patch.remove_taints)
                found.append(f"node {node.metadata.name}: {', '.join(names)}")
        if self._settings.definitions and await self._listed(DEFINITIONS, fields=f"metadata.name={_DEFINITION}"):
            found.append(f"CustomResourceDefinition {_DEFINITION}")
        return found

    async def _users(self) -> list[str]:
        """Pods that have cards: they go on running."""
        pods = 0
        for node in (await self._client.list(NODES)).items:
            text = node.metadata.annotations.get(shoal.ANNOTATION_HELD, "")
            try:
                pods += len(shoal.decode_held(text).pods) if text else 0
            except CodecError:
                continue
        if not pods:
            return []
        return [
            f"{_count(pods, 'pod')} with cards: their containers go on running and do not start again; clients of "
            "MPS end with its daemon"
        ]

    # --- helpers ------------------------------------------------------------------------------------------------------

    async def _while(self, there: Callable[[], Awaitable[list[Any]]]) -> None:
        """Wait for the end of something, for a while."""
        end = min(time.monotonic() + _STOP_SECONDS, self._end)
        while await there():
            if time.monotonic() >= end:
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _listed(
        self, resource: Resource[Any], namespace: str = "", *, labels: str = "", fields: str = ""
    ) -> list[Any]:
        """Objects of a kind; none where the kind or the namespace is not there. A refusal is told."""
        found: list[Any] = []

        async def listed() -> None:
            found.extend((await self._client.list(resource, namespace=namespace, labels=labels, fields=fields)).items)

        await self._try(f"{resource.plural} of {namespace or 'the cluster'}", listed())
        for one in found:
            if isinstance(one, dict):  # lists leave it out of their items
                one.setdefault("kind", resource.kind)
                one.setdefault("apiVersion", resource.api_version)
        return found

    async def _delete(self, resource: Resource[Any], name: str, *, namespace: str = "", uid: str = "") -> None:
        what = f"{resource.kind} {namespace}/{name}" if namespace else f"{resource.kind} {name}"
        call = self._client.delete(resource, name, namespace=namespace, uid=uid, propagation="Background")
        if await self._try(what, call):
            self.report.done.append(what)

    async def _try(self, what: str, call: Awaitable[object]) -> bool:
        """Whether it was done. What is gone needs nothing; a refusal is told, and the rest goes on."""
        try:
            return await call is not False
        except (NotFoundError, ConflictError):
            return False
        except ApiError as error:
            words = f"{what}: {error.message or error}"
            if words not in self.report.failed:
                self.report.failed.append(words)
            return False

    def _note(self, words: str) -> None:
        self.report.notes.append(words)
        self._say(words)


class _Pulse:
    """Whether an operator is alive: its Lease changes. No clock but this one is looked at."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self._namespace = namespace
        self._version = ""
        self._seen = time.monotonic()

    async def silent(self) -> str:
        """Why there is no operator to wait for; empty while there may be one."""
        try:
            lease = await self._client.get(LEASES, NAME_OPERATOR, namespace=self._namespace)
        except NotFoundError:
            return "there is none"
        if not lease.spec.holder_identity:
            return "it has ended"
        if lease.metadata.resource_version != self._version:
            self._version, self._seen = lease.metadata.resource_version, time.monotonic()
        promised = min(lease.spec.lease_duration_seconds or 0, _LONGEST_LEASE)
        return f"its Lease was not renewed for {promised:.0f} s" if time.monotonic() - self._seen > promised else ""


def pinned_cleanup(data: Mapping[str, str], digest: str) -> tuple[RawObject, ...]:
    """The manifest of `shoal-cleanup` in ConfigMap shoal-operands; empty if the ConfigMap has not this digest."""
    if not digest or digest_of({name: text.encode() for name, text in data.items()}) != digest:
        return ()
    documents = yaml.safe_load_all(data.get(f"{OPERAND_CLEANUP}.yaml", ""))
    return tuple(one for one in documents if isinstance(one, dict))


def cleanup_manifest(image: str, namespace: str) -> RawObject:
    """`shoal-cleanup` for an image, where no chart has left its own. charts/shoal has the same."""
    folders = {"run": "/run", "etc": "/etc", "var-lib": "/var/lib", "tmp": "/tmp", "var-log": "/var/log"}
    labels = {LABEL_APP: NAME_CLEANUP, LABEL_PART_OF: PART_OF}
    security = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    return {
        "apiVersion": DAEMON_SETS.api_version,
        "kind": DAEMON_SETS.kind,
        "metadata": {"name": NAME_CLEANUP, "namespace": namespace, "labels": labels},
        "spec": {
            "selector": {"matchLabels": {LABEL_APP: NAME_CLEANUP}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "automountServiceAccountToken": False,
                    "priorityClassName": "system-node-critical",
                    "terminationGracePeriodSeconds": 5,
                    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
                    "tolerations": [{"operator": "Exists"}],
                    "initContainers": [
                        {
                            "name": "files",
                            "image": image,
                            "args": ["uninstall", "--node", "--root=/host"],
                            "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                            "securityContext": {
                                **security,
                                "runAsUser": 0,
                                "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
                            },
                            "volumeMounts": [
                                {"name": name, "mountPath": f"/host{path}"} for name, path in folders.items()
                            ],
                        }
                    ],
                    "containers": [
                        {
                            "name": "done",
                            "image": image,
                            "args": ["uninstall", "--idle"],
                            "resources": {"requests": {"cpu": "5m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
                            "securityContext": {
                                **security,
                                "runAsUser": 65532,
                                "runAsGroup": 65532,
                                "runAsNonRoot": True,
                                "capabilities": {"drop": ["ALL"]},
                            },
                        }
                    ],
                    "volumes": [
                        {"name": name, "hostPath": {"path": path, "type": "Directory"}}
                        for name, path in folders.items()
                    ],
                },
            },
        },
    }


def stale_resources(node: RawObject) -> Iterator[str]:
    """Resources in a node's status that the agent wrote there itself, or that kubelet has set to 0 when it ended."""
    ours = set(_written(node))
    capacity = (node.get("status") or {}).get("capacity") or {}
    for name in _served(node):
        if name in ours or (str(capacity.get(name)) == "0" and (ours or name in _OWN_RESOURCES)):
            yield name


def _served(node: RawObject) -> list[str]:
    status = node.get("status") or {}
    names = {*(status.get("capacity") or {}), *(status.get("allocatable") or {})}
    known = (*_OWN_RESOURCES, *_NVIDIA_RESOURCES)
    return sorted(name for name in names if name in known or name.startswith(nvidia.RESOURCE_MIG_PREFIX))


def _written(node: RawObject) -> Iterator[str]:
    """Resources whose amounts stand in the status under the agent's name."""
    for entry in node["metadata"].get("managedFields") or ():
        if entry.get("manager") == _MANAGER and entry.get("subresource") == "status":
            status = (entry.get("fieldsV1") or {}).get("f:status") or {}
            for part in ("f:capacity", "f:allocatable"):
                yield from (key.removeprefix("f:") for key in status.get(part) or {})


def _runs(actions: Sequence[Action]) -> Iterator[list[Action]]:
    """Actions in their order; neighbours about nodes in one list."""
    together: list[Action] = []
    for action in actions:
        if isinstance(action, PatchNode | Tell):
            together.append(action)
            continue
        if together:
            yield together
            together = []
        yield [action]
    if together:
        yield together


def _words(action: Action) -> str:
    match action:
        case PatchNode(name):
            return f"node {name}"
        case Delete(_, kind, name, namespace):
            return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"
        case SetFinalizer(policy):
            return f"the finalizer of ClusterPolicy {policy}"
        case _:
            return type(action).__name__


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
