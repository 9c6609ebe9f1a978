"""`shoal`: the command that holds the others. Each lies in a module of its own, which is loaded when it is used."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Final

import click

from shoal import __version__

#: Where each command is, and what the list of commands says of it.
_COMMANDS: Final = {
    "agent": ("shoal.cli.agent:agent", "Run the node daemon: device plugin, identity, CDI."),
    "cluster-manager": (
        "shoal.cli.cluster_manager:cluster_manager",
        "Take pods to the joined cluster that can serve them best.",
    ),
    "clusters": ("shoal.cli.clusters:clusters", "Join clusters to this one, list them, and take them out again."),
    "completion": ("shoal.cli.completion:completion", "Print a script that completes commands in your shell."),
    "config": ("shoal.cli.config:config", "Print configurations of programs that work with Shoal."),
    "crds": ("shoal.cli.crds:crds", "Print or apply the definitions of Shoal's kinds of objects."),
    "dashboard": ("shoal.cli.dashboard:dashboard", "Serve the page that shows cards, pods and who waits."),
    "demo": ("shoal.cli.demo:demo", "Run the examples on a cluster with simulated GPUs."),
    "discovery": ("shoal.cli.discovery:discovery", "Label nodes with what they have: worker of a node, or leader."),
    "doctor": ("shoal.cli.doctor:doctor", "Find what is wrong with an installation, and how to put it right."),
    "exec": ("shoal.cli.follow:exec_", "Run a command in a pod, in whatever cluster it runs."),
    "inspect": (
        "shoal.cli.inspect.command:inspect",
        "Show what is allocated of each card (kubectl inspect gpushare).",
    ),
    "logs": ("shoal.cli.follow:logs", "Print the logs of a pod, in whatever cluster it runs."),
    "metrics": ("shoal.cli.metrics:metrics", "Run the collector: what cards and containers really use."),
    "metrics-scores": (
        "shoal.cli.metrics_scores:metrics_scores",
        "Run KETI's analysis engine: scores of all nodes and cards.",
    ),
    "migrate": ("shoal.cli.migrate:migrate", "Turn objects of other operators into Shoal's."),
    "operator": ("shoal.cli.operator:operator", "Bring GPU nodes to serving cards, by the wish of a ClusterPolicy."),
    "policy": ("shoal.cli.policy:policy", "Show the policy in force, or compare two."),
    "scheduler": ("shoal.cli.scheduler:scheduler", "Run the scheduler: extender and gpu-scheduler."),
    "simulate": ("shoal.cli.simulate:simulate", "Compare placement policies on a trace of pods."),
    "snapshot": (
        "shoal.cli.snapshot:snapshot",
        "Write nodes, pods and policy into a file, for what-if, why and policy.",
    ),
    "top": ("shoal.cli.top.command:top", "Watch nodes, cards and pods in the terminal."),
    "uninstall": ("shoal.cli.uninstall:uninstall", "Take Shoal away from a cluster, or its files from a node."),
    "up": ("shoal.cli.up:up", "Start a cluster with simulated GPUs, in this process."),
    "validator": (
        "shoal.cli.validator:validator",
        "Check driver, runtime and plugin of a node, or wait until they are ready.",
    ),
    "what-if": ("shoal.cli.what_if:what_if", "Tell where a pod would go, or what another policy would change."),
    "why": ("shoal.cli.why:why", "Tell why a pod waits, or why it is where it is."),
}


#: Commands of the embedded cluster, which images leave out.
_OF_EMBEDDED: Final = ("demo", "up")


class _Commands(click.Group):
    """Loads a command when it is named, so that the others cost nothing."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        if cmd_name in _OF_EMBEDDED and find_spec("shoal.embedded") is None:
            raise click.ClickException(
                f"there is no embedded cluster in this image, which shoal {cmd_name} needs: on a machine of your own, "
                "pip install shoal[embedded]"
            )
        module, _, name = _COMMANDS[cmd_name][0].partition(":")
        found = getattr(import_module(module), name)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name][1]) for name in self.list_commands(ctx)])


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shoal")
def main() -> None:
    """Share GPUs on Kubernetes: by memory, by compute, by MPS client or whole, on one ledger.

    \b
    shoal demo                     see it work, without a cluster and without a GPU
    shoal up                       a cluster to play with; prints its kubeconfig
    shoal inspect                  how full each card is
    shoal why trainer-0            why a pod waits, or why it is where it is
    shoal what-if -f pod.yaml      would it fit, and where
    shoal doctor                   what is wrong, with the fix

    `shoal COMMAND --help` has more examples.
    """
