import json
import subprocess
import sys

from click.testing import CliRunner

from shoal import __version__
from shoal.cli.main import main


def test_version():
    result = CliRunner().invoke(main, ["--version"])
    assert result.exit_code == 0
    assert __version__ in result.output


def test_help_lists_the_commands():
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    assert "simulate" in result.output


def test_help_loads_nothing_heavy():
    code = "import json, sys, shoal.cli.main; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True).stdout
    loaded = set(json.loads(out))
    assert not loaded & {"numpy", "highspy", "matplotlib", "shoal.simulate.runs", "shoal.placement.engine"}
