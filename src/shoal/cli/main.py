"""`shoal`: the command that holds the others. Each lies in a module of its own and is added here."""

from __future__ import annotations

import click

from shoal import __version__
from shoal.cli.agent import agent
from shoal.cli.config import config
from shoal.cli.demo import demo
from shoal.cli.scheduler import scheduler
from shoal.cli.simulate import simulate
from shoal.cli.up import up


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shoal")
def main() -> None:
    """Share GPUs on Kubernetes: by memory, by compute, by MPS client or whole, on one ledger."""


main.add_command(agent)
main.add_command(config)
main.add_command(demo)
main.add_command(scheduler)
main.add_command(simulate)
main.add_command(up)
