"""`shoal logs` and `shoal exec`: kubectl's own, in the cluster to which a pod was dispatched.

kubectl itself is run there, with the caller's own credentials of that cluster: the manager lends nobody its rights.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import click

from shoal.cli.connection import ClusterConnection, ask, connected, in_namespace

if TYPE_CHECKING:
    from shoal.clusters.follow import OwnContext
    from shoal.kube.client import Client


@click.command(short_help="Print the logs of a pod, in whatever cluster it runs.")
@click.argument("pod", metavar="POD")
@in_namespace
@connected
@click.option("-c", "--container", default="", metavar="NAME", help="Else the only or default one.")
@click.option("-f", "--follow", is_flag=True, help="Go on while the container writes.")
@click.option("-p", "--previous", is_flag=True, help="Of the container before its last restart.")
@click.option("--all-containers", is_flag=True, help="Of all containers.")
@click.option("--timestamps", is_flag=True, help="With the time of each line.")
@click.option("--tail", type=int, default=None, metavar="N", help="The last lines only.")
@click.option("--since", default="", metavar="TIME", help="Not older than this, such as 5m.")
def logs(
    pod: str,
    namespace: str,
    connection: ClusterConnection,
    container: str,
    follow: bool,
    previous: bool,
    all_containers: bool,
    timestamps: bool,
    tail: int | None,
    since: str,
) -> None:
    """Print the logs of a pod, at home or in the cluster it was dispatched to.

    `kubectl logs` at home says nothing of such a pod: its container runs elsewhere. This looks up where, finds the
    context of your own kubeconfigs (KUBECONFIG) that leads there, and runs kubectl logs with it.

    \b
    shoal logs trainer-0
    shoal logs trainer-0 -f --tail 20
    """
    flags = {
        "--follow": follow,
        "--previous": previous,
        "--all-containers": all_containers,
        "--timestamps": timestamps,
    }
    words = [flag for flag, given in flags.items() if given]
    words += [] if tail is None else [f"--tail={tail}"]
    words += [f"--since={since}"] if since else []
    words += [f"--container={container}"] if container else []
    _hand_over(connection, namespace, pod, ["logs", *words, pod])


@click.command(name="exec", short_help="Run a command in a pod, in whatever cluster it runs.")
@click.argument("pod", metavar="POD")
@in_namespace
@connected
@click.option("-c", "--container", default="", metavar="NAME", help="Else the only or default one.")
@click.option("-i", "--stdin", is_flag=True, help="Pass standard input on.")
@click.option("-t", "--tty", is_flag=True, help="Standard input is a terminal.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    pod: str,
    namespace: str,
    connection: ClusterConnection,
    container: str,
    stdin: bool,
    tty: bool,
    command: tuple[str, ...],
) -> None:
    """Run a command in a pod, at home or in the cluster it was dispatched to, as kubectl exec does.

    \b
    shoal exec trainer-0 -- nvidia-smi
    shoal exec -it trainer-0 -- sh
    """
    words = [flag for flag, given in (("--stdin", stdin), ("--tty", tty)) if given]
    words += [f"--container={container}"] if container else []
    _hand_over(connection, namespace, pod, ["exec", *words, pod, "--", *command])


def _hand_over(connection: ClusterConnection, namespace: str, pod: str, words: list[str]) -> None:
    """Become kubectl, where the pod is."""
    from shoal.clusters.follow import own_context, sent_to
    from shoal.kube.access.kubeconfig import kubeconfig_paths
    from shoal.kube.resources import PODS

    program = shutil.which("kubectl")
    if program is None:
        raise click.ClickException("kubectl is not there, which this hands over to: install it, or add it to PATH")

    async def find(client: Client, own: str) -> tuple[str, OwnContext | None]:
        space = namespace or own
        sent = sent_to(await client.get(PODS, pod, namespace=space))
        if sent is None:
            return space, None
        paths = kubeconfig_paths(os.environ, Path.home())
        if connection.kubeconfig is not None and connection.kubeconfig not in paths:
            paths = [connection.kubeconfig, *paths]
        return space, await own_context(sent, paths, environ=os.environ)

    space, there = ask(connection, find)
    kubeconfig, context = connection.kubeconfig, connection.context
    if there is not None:
        kubeconfig, context = there.kubeconfig, there.context
    where = [f"--kubeconfig={kubeconfig}"] if kubeconfig is not None else []
    where += [f"--context={context}"] if context else []
    os.execv(program, ["kubectl", *where, f"--namespace={space}", *words])
