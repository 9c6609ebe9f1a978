"""Completion: `shoal completion` prints the scripts for a shell; after `kubectl` two programs are asked by kubectl.

kubectl calls `kubectl_complete-NAME` with the words of its plugin and the one that is being typed, and reads a line for
each proposal, with a tab before its explanation, and last a colon with a number.
"""

from __future__ import annotations

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete, get_completion_class

_VARIABLE: Final = "_SHOAL_COMPLETE"
#: To kubectl: the proposals are all there is, or names of files will do as well.
_NOTHING_ELSE: Final = ":4"
_OR_FILES: Final = ":0"


@click.command(short_help="Print a script that completes commands in your shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that completes the commands and options of shoal in your shell.

    \b
    source <(shoal completion bash)                            in ~/.bashrc
    source <(shoal completion zsh)                             in ~/.zshrc
    shoal completion fish > ~/.config/fish/completions/shoal.fish
    """
    root = ctx.find_root().command
    kind = get_completion_class(shell)
    assert kind is not None
    # bash older than 4.4 cannot use it, and click says so when the script is made.
    click.echo(kind(root, {}, "shoal", _VARIABLE).source())


def complete_shoal() -> None:
    """What may follow `kubectl shoal`."""
    from shoal.cli.main import main

    _complete(main)


def complete_inspect() -> None:
    """What may follow `kubectl inspect gpushare`."""
    from shoal.cli.inspect.command import inspect

    _complete(inspect)


def _complete(command: click.Command) -> None:
    *words, typed = sys.argv[1:] or [""]
    found = ShellComplete(command, {}, "shoal", _VARIABLE).get_completions(words, typed)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NOTHING_ELSE if all(item.type == "plain" for item in found) else _OR_FILES)
