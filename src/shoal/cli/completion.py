"""`shoal completion`: scripts by which a shell completes the commands and options of `shoal`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_VARIABLE = "_SHOAL_COMPLETE"


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
