"""`shoal demo`: the examples on an embedded cluster, from nothing to an answer for every pod.

It starts the cluster, applies one example after another, waits until each pod runs or has said why it cannot, and
shows who sits where. It fails when something is not where the examples say it should be.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from shoal.cli.output import quiet_grpc

if TYPE_CHECKING:
    from shoal.cli.embedded import EmbeddedCluster
    from shoal.kube.client import Client
    from shoal.kube.objects.pod import Pod
    from shoal.kube.resources import RawObject, Resource

NODES: Final = 3
GPUS: Final = "4xA30-24G"
#: Seconds for one example; a slow machine needs a few.
_PATIENCE: Final = 60.0
#: Kinds that the examples use, with the plurals of their paths.
_KINDS: Final = {
    ("v1", "Namespace"): ("namespaces", False),
    ("v1", "Pod"): ("pods", True),
    ("apps/v1", "Deployment"): ("deployments", True),
    ("apps/v1", "StatefulSet"): ("statefulsets", True),
    ("batch/v1", "Job"): ("jobs", True),
}


@click.command(short_help="Run the examples on a cluster with simulated GPUs.")
@click.option(
    "--examples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder with the examples.",
)
@click.option("--policy", default="fragmentation", show_default=True, help="How nodes and cards are chosen.")
def demo(examples: Path | None, policy: str) -> None:
    """Start a cluster with simulated GPUs, apply the examples, and show who got which card and why somebody did not.

    \b
    shoal demo
    shoal demo --policy binpack
    """
    quiet_grpc()
    from shoal.embedded.policies.errors import CelError
    from shoal.placement.errors import PolicyError
    from shoal.placement.policies import policy_named

    logging.basicConfig(level=logging.CRITICAL)
    try:
        policy_named(policy)
    except PolicyError as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    folder = examples or _folder()
    with tempfile.TemporaryDirectory(prefix="shoal-") as directory:
        try:
            wrong = asyncio.run(_play(folder, policy, Path(directory)))
        except CelError as error:
            raise click.ClickException(str(error)) from error
    if wrong:
        for line in wrong:
            click.echo(f"Not as expected: {line}", err=True)
        sys.exit(1)
    click.echo("\nEvery pod is where it should be, or nowhere for a reason.")


def _folder() -> Path:
    """The examples beside the package: in a wheel inside it, in a clone at the root."""
    import shoal

    package = Path(shoal.__file__).parent
    for folder in (package / "examples", package.parents[1] / "examples"):
        if folder.is_dir():
            return folder
    raise click.ClickException("the examples are not here: give their folder with --examples")


def _expected(folder: Path) -> dict[str, dict[str, Any]]:
    """What should become of each example."""
    import yaml

    path = folder / "expected.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(outcomes, dict) for outcomes in content.values()):
        raise click.ClickException(f"{path}: write what becomes of the pods of each file, as in the examples")
    return content


async def _play(folder: Path, policy: str, directory: Path) -> list[str]:
    from shoal.cli.embedded import EmbeddedCluster, EmbeddedPlan
    from shoal.embedded.nodes.cluster import few

    expected = _expected(folder)
    started = time.monotonic()
    _progress("starting a cluster")
    async with (
        EmbeddedCluster(EmbeddedPlan(few(NODES, GPUS), policy=policy), directory) as cluster,
        cluster.client() as client,
    ):
        await cluster.ready()
        _progress("")
        click.echo(
            f"A cluster of {NODES} nodes, {GPUS} each, simulated; ready after {time.monotonic() - started:.1f} s."
        )
        wrong: list[str] = []
        for number, (file, outcomes) in enumerate(expected.items(), 1):
            _progress(f"{number}/{len(expected)} {file}")
            lines, problems = await _apply(client, folder / file, outcomes)
            _progress("")
            click.echo(f"\n{click.style(file, bold=True)}")
            for line in lines:
                click.echo(f"  {line}")
            wrong += [f"{file}: {problem}" for problem in problems]
        click.echo("\n" + await _table(client, cluster), nl=False)
    return wrong


async def _apply(client: Client, path: Path, outcomes: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Apply one file and wait for what it should lead to: what happened, and what is not as it should be."""
    from shoal.kube.errors import AlreadyExistsError, ForbiddenError

    refused = str(outcomes.get("refused", ""))
    for resource, namespace, manifest in _manifests(path):
        try:
            await client.create(resource, manifest, namespace=namespace)
        except AlreadyExistsError:
            continue  # two examples share a namespace
        except ForbiddenError as error:
            why = error.message.split("denied request: ")[-1]
            return [f"refused: {why}"], [] if refused and refused in why else [f"refused: {why}"]
    if refused:
        return [], ["was not refused"]
    lines: list[str] = []
    problems: list[str] = []
    for prefix, outcome in outcomes.items():
        pods = await _settled(client, prefix, outcome)
        lines += [_line(pod) for pod in pods]
        problems += _problems(prefix, outcome, pods)
    return lines, problems


def _manifests(path: Path) -> Iterator[tuple[Resource[RawObject], str, RawObject]]:
    """The objects of a file in its order, each with its kind and its namespace."""
    import yaml

    from shoal.kube.resources import Resource

    try:
        documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise click.ClickException(f"{path} cannot be read: {error}") from error
    for document in documents:
        if document is None:
            continue
        kind = (document.get("apiVersion"), document.get("kind")) if isinstance(document, dict) else None
        if kind not in _KINDS:
            raise click.ClickException(f"{path}: {kind} is not among the kinds of the examples: use kubectl apply")
        plural, namespaced = _KINDS[kind]
        version, _, rest = str(kind[0]).partition("/")
        group, version = (version, rest) if rest else ("", version)
        resource = Resource(group, version, plural, str(kind[1]), dict, namespaced=namespaced, whole=True)
        namespace = document.get("metadata", {}).get("namespace", "default") if namespaced else ""
        yield resource, namespace, document


async def _settled(client: Client, prefix: str, outcome: dict[str, Any]) -> list[Pod]:
    """The pods of that name when all are there and either run, have ended or tell why they wait."""
    from shoal.kube.resources import PODS

    until = time.monotonic() + _PATIENCE
    while True:
        pods = [pod for pod in (await client.list(PODS)).items if pod.metadata.name.startswith(prefix)]
        pods.sort(key=lambda pod: pod.metadata.name)
        told = [pod for pod in pods if pod.status.phase != "Pending" or ("pending" in outcome and _waits(pod))]
        if len(told) == outcome["pods"] or time.monotonic() > until:
            return pods
        await asyncio.sleep(0.05)


def _waits(pod: Pod) -> str:
    """Why the pod has no node; empty when it has one or nobody has said."""
    found = (condition for condition in pod.status.conditions if condition.type == "PodScheduled")
    return next((condition.message or "" for condition in found if condition.status == "False"), "")


def _line(pod: Pod) -> str:
    name = f"{pod.metadata.name:<24}"
    if not pod.spec.node_name:
        return f"{name} pending: {_waits(pod) or 'nobody has looked at it yet'}"
    return f"{name} {pod.status.phase.lower()} on {pod.spec.node_name}: {', '.join(_shares(pod))}"


def _shares(pod: Pod) -> list[str]:
    from shoal.model.contract import shoal
    from shoal.model.request import share_words

    allocation = shoal.decode_allocation(pod.metadata.annotations[shoal.ANNOTATION_ALLOCATION])
    several = len(allocation.containers) > 1
    found = []
    for container in allocation.containers:
        for card in container.cards:
            text = f"GPU{card.index} {share_words(card.share)}"
            found.append(f"{container.name} {text}" if several else text)
    return found


def _problems(prefix: str, outcome: dict[str, Any], pods: list[Pod]) -> list[str]:
    """What is not as the examples say."""
    from shoal.model.contract import shoal

    if len(pods) != outcome["pods"]:
        return [f"{len(pods)} pods {prefix}, {outcome['pods']} expected"]
    if "pending" in outcome:
        return [f"{pod.metadata.name}: {_line(pod)}" for pod in pods if outcome["pending"] not in _waits(pod)]
    wrong = [_line(pod) for pod in pods if pod.status.phase not in ("Running", "Succeeded")]
    if wrong:
        return wrong
    allocations = [shoal.decode_allocation(pod.metadata.annotations[shoal.ANNOTATION_ALLOCATION]) for pod in pods]
    cards = {uuid for allocation in allocations for uuid in allocation.held()}
    nodes = {allocation.node for allocation in allocations}
    if len(cards) != outcome["cards"]:
        wrong.append(f"{prefix} is on {len(cards)} cards, {outcome['cards']} expected")
    if len(nodes) > outcome.get("nodes", len(nodes)):
        wrong.append(f"{prefix} is on {len(nodes)} nodes, {outcome['nodes']} expected")
    return wrong


async def _table(client: Client, cluster: EmbeddedCluster) -> str:
    """The table of `kubectl inspect gpushare`."""
    from shoal.analysis.inspect.read import read_uses
    from shoal.cli.inspect.tables import summary

    return summary(await read_uses(client, unit=cluster.plan.unit), cluster.plan.unit)


def _progress(what: str) -> None:
    """Say on a terminal what goes on; an empty text removes it."""
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{what}", nl=False, err=True)
