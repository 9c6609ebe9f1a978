"""What the image is made of is there, and lies where the code looks for it. No image is built here."""

import re
import tomllib

from shoal.agent.config import AgentConfig
from shoal.agent.limits import cgroup
from tests.agent.hook import CONTAINERFILE, SOURCE

ROOT = CONTAINERFILE.parents[2]
LINES = [line for line in CONTAINERFILE.read_text().splitlines() if line and not line.startswith("#")]


def test_sources_are_there() -> None:
    copied = [line.split()[1:-1] for line in LINES if line.startswith("COPY ") and "--from=" not in line]
    sources = [ROOT / name for names in copied for name in names]
    assert sources
    assert all(source.exists() for source in sources)
    assert SOURCE in sources
    assert {ROOT / "src", ROOT / "requirements.lock"} <= set(sources)


def test_hook_lies_where_the_agent_takes_it_from() -> None:
    assert f"COPY --from=hook /{cgroup.PROGRAM} {AgentConfig(node_name='n').limit_hook}" in LINES


def test_python_is_one_that_the_package_takes_and_the_base_is_named_without_a_registry() -> None:
    bases = [line.split()[1] for line in LINES if line.startswith("FROM ")]
    assert all(re.fullmatch(r"[a-z]+:[a-z0-9.-]+", base) for base in bases)
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = {base.partition(":")[2].partition("-")[0] for base in bases if base.startswith("python:")}
    assert {f">={version}" for version in versions} == {wanted}


def test_packages_are_those_of_the_lock_and_the_program_is_the_command() -> None:
    assert any("--require-hashes -r /build/requirements.lock" in line for line in LINES)
    assert LINES[-1] == 'ENTRYPOINT ["/opt/shoal/bin/shoal"]'
