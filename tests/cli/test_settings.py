"""Settings of the services: file, flags, and what is said of those that cannot be used."""

import contextlib
import logging
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.agent.config import AgentConfig
from shoal.cli.main import main
from shoal.cli.settings import OneLine, ServiceSettingsError, escaped, load
from shoal.model.contract.gpushare import MemoryUnit
from shoal.scheduler.config import SECRET, SchedulerConfig, TlsConfig
from tests.soak import times


def scheduler(tmp_path: Path, text: str, **flags: Any) -> SchedulerConfig:
    path = tmp_path / "settings.yaml"
    path.write_bytes(text.encode("latin-1"))
    return load(SchedulerConfig, path, flags, command="scheduler")


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    config = scheduler(
        tmp_path, "memoryUnit: MiB\nport: 1\nelection: {enabled: false}", port=2, policy=None, scheduler_names=()
    )
    assert (config.memory_unit, config.port, config.election.enabled) == (MemoryUnit.MIB, 2, False)
    assert (config.policy, config.scheduler_names) == ("fragmentation", ("gpu-scheduler",))


#: Every setting of the scheduler with a value that is not its default.
EVERY = """
schedulerNames: [one, two]
clusterName: blue
host: 10.0.0.1
port: 1
tls: {certificate: /c.pem, key: /k.pem, clientCa: /ca.pem}
limits: {connections: 2, connectionsPerPeer: 3, bodyMib: 4, bodiesMib: 5, seconds: 6}
openInspect: true
healthHost: 10.0.0.2
healthPort: 7
memoryUnit: MiB
policy: binpack
policyNamespaces: [elsewhere]
election: {enabled: false, namespace: there, name: lease}
liveLoad: {source: prometheus, ttlSeconds: 60, toleratedMib: 1, url: "http://p:9090", intervalSeconds: 2,
  timeoutSeconds: 3, caFile: /ca.pem, authorizationFile: /token, matchers: 'job="a",cluster=~"b|c"', database: db}
offer: {enabled: true, host: 10.0.0.3, port: 8, audience: shoal}
claims: true
offerAllUpTo: 8
binds: 9
eventsPerSecond: 10.5
"""


def test_every_setting_of_the_scheduler_can_be_written(tmp_path: Path) -> None:
    config, default = scheduler(tmp_path, EVERY), SchedulerConfig()
    for name in SchedulerConfig.__struct_fields__:
        given = getattr(config, name)
        assert given != getattr(default, name), f"{name} is not in the file of this test"
        assert isinstance(given, type(getattr(default, name))) or name == "tls"
    sections = ("limits", "election", "live_load", "offer")
    for section, plain in ((getattr(config, name), getattr(default, name)) for name in sections):
        for name in section.__struct_fields__:
            assert getattr(section, name) != getattr(plain, name), name
    assert config.tls == TlsConfig(certificate="/c.pem", key="/k.pem", client_ca="/ca.pem")
    bounds = config.limits.bounds()
    assert (bounds.connections, bounds.per_peer, bounds.body, bounds.bodies) == (2, 3, 4 << 20, 5 << 20)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("liveLoad: {source: prometheus}", "needs url"),
        ("liveLoad: {source: influxdb, url: 'ftp://x'}", "url"),
        ("liveLoad: {source: influxdb, url: 'http://x', ttlSeconds: 5}", "ttlSeconds must be more than"),
        ("liveLoad: {source: somewhere}", "source"),
        ("liveLoad: {matchers: 'a}) or vector(1'}", "matchers"),
        ('liveLoad: {matchers: \'job="a\\"b"\'}', "matchers"),
        ("liveLoad: {toleratedMib: -1}", "toleratedMib"),
    ],
)
def test_live_load_that_cannot_be_meant(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(ServiceSettingsError, match=why):
        scheduler(tmp_path, text)


def test_tls_by_a_secret(tmp_path: Path) -> None:
    config = scheduler(tmp_path, "tls: {secret: shoal-scheduler-tls}")
    assert config.tls == TlsConfig(secret=SECRET)


def test_without_tls_only_loopback_is_served_unless_more_is_said(tmp_path: Path) -> None:
    assert scheduler(tmp_path, "port: 1").extender_host == "127.0.0.1"
    assert scheduler(tmp_path, "tls: {secret: s}").extender_host == "0.0.0.0"
    assert scheduler(tmp_path, "host: 0.0.0.0").extender_host == "0.0.0.0"


def test_without_a_file_the_flags_are_all() -> None:
    config = load(AgentConfig, None, {"node_name": "n1", "mps_clients": 4}, command="agent")
    assert (config.node_name, config.mps_clients) == ("n1", 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1]", "write settings as key: value"),
        ("{", "is no YAML"),
        ("\xff", "is no YAML"),
        ("polcy: binpack", "polcy"),
        ("port: 70000", "port"),
        ("memoryUnit: KiB", "memoryUnit"),
        ("policy: best", "no policy 'best': choose one of"),
        ("tls: {}", "give certificate and key, or secret"),
        ("tls: {certificate: /c}", "give certificate and key, or secret"),
        ("tls: {secret: s, key: /k}", "leave out one or the other"),
        ("tls: {secret: S!}", "secret"),
        ("limits: {bodyMib: 0}", "bodyMib"),
        ("#" * (1 << 20) + "\n", "is it the settings file?"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ServiceSettingsError, match=str(tmp_path)) as told:
        scheduler(tmp_path, text)
    assert words in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nodeName"),
        ("nodeName: N!", "nodeName"),
        ("{nodeName: n, colour: red}", "colour"),
        ("{nodeName: n, mpsClients: 49}", "mpsClients"),
        ("{nodeName: n, resources: [cpu]}", "resource 'cpu' is not served"),
        ("{nodeName: n, deviceListStrategy: smoke}", "choose one of auto, envvar"),
    ],
)
def test_what_the_agent_cannot_use_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(text)
    with pytest.raises(ServiceSettingsError, match=str(path)) as told:
        load(AgentConfig, path, {}, command="agent")
    assert words in str(told.value)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(["nodeName", "memoryUnit", "resources", "mpsClients", "port", "policy", "election", "tls", "x"])


@settings(max_examples=times(30))
@given(st.dictionaries(KEYS, ANYTHING, max_size=5) | ANYTHING)
def test_no_file_does_worse_than_a_message(tmp_path_factory: pytest.TempPathFactory, document: object) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_text(yaml.safe_dump(document))
    for kind, command in ((AgentConfig, "agent"), (SchedulerConfig, "scheduler")):
        with contextlib.suppress(ServiceSettingsError):
            assert isinstance(load(kind, path, {}, command=command), kind)


def test_what_is_logged_stays_on_its_line() -> None:
    forged = "p\n2026-01-01 00:00:00,000 INFO root: all is well\r\x1b[2K\u2028\u202e"
    try:
        raise ValueError(forged)
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "pod %s", (forged,), sys.exc_info())
    lines = OneLine("%(levelname)s %(message)s").format(record).splitlines()
    assert lines[0] == ("ERROR pod p\\n2026-01-01 00:00:00,000 INFO root: all is well\\r\\x1b[2K\\u2028\\u202e")
    assert len(lines) > 2
    assert all(line.startswith("| ") for line in lines[1:])
    assert escaped("träge/pod") == "träge/pod"


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ServiceSettingsError, match="/nowhere cannot be read: No such file"):
        load(SchedulerConfig, Path("/nowhere"), {}, command="scheduler")


@pytest.mark.parametrize("command", ["agent", "scheduler", "up"])
def test_the_unit_is_written_as_everywhere(command: str) -> None:
    """A wrong one is refused with the right ones; a right one gets as far as the next mistake."""
    refused = CliRunner().invoke(main, [command, "--memory-unit", "KiB"])
    assert "'GiB', 'MiB'" in refused.output
    accepted = CliRunner().invoke(main, [command, "--memory-unit", "MiB", "--no-such-flag"])
    assert "No such option" in accepted.output
