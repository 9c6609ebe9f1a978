import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from shoal import __version__
from shoal.cli.inspect.command import inspect
from shoal.cli.main import main

COMMANDS = main.list_commands(click.Context(main))


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output


def test_help_lists_the_commands():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "Compare placement policies on a trace of pods." in result.output


def test_an_unknown_command_is_named():
    result = CliRunner().invoke(main, ["simulat"])
    assert result.exit_code == 2
    assert "No such command 'simulat'" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str):
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert f"Usage: main {name}" in result.output


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str):
    context = click.Context(main)
    command = main.get_command(context, name)
    listed = CliRunner().invoke(main, ["--help"], terminal_width=200).output
    assert command is not None
    assert command.get_short_help_str(200) in listed


@pytest.mark.parametrize("name", ["", "inspect", "top", "policy", "doctor"])
def test_help_teaches_by_example(name: str):
    output = CliRunner().invoke(main, [*name.split(), "--help"]).output
    example = "kubectl inspect gpushare " if name == "inspect" else f"shoal {name}"
    assert sum(line.strip().startswith(example) for line in output.splitlines()) >= 2


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_the_plugin_of_kubectl_has_help(option: str):
    result = CliRunner().invoke(inspect, [option])
    assert result.exit_code == 0
    assert "kubectl inspect gpushare -d node-1" in result.output


def test_help_loads_nothing_heavy():
    code = "import json, sys; from shoal.cli.main import main; main(['--help'], standalone_mode=False)\n"
    code += "print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    loaded = set(json.loads(out.splitlines()[-1]))
    assert not loaded & {"asyncio", "msgspec", "numpy", "yaml", "shoal.model", "shoal.placement.engine"}
