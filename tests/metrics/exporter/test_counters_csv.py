"""dcgm-exporter's list of fields: its format, wrong lines, files and ConfigMaps that change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.embedded.app import EmbeddedApi
from shoal.kube.access.kubeconfig import load_kubeconfig
from shoal.kube.client import Client
from shoal.kube.objects.meta import ObjectMeta
from shoal.kube.objects.others import ConfigMap
from shoal.kube.resources import CONFIG_MAPS
from shoal.metrics.exporter.counters_csv import SERVED, CounterConfigMap, CounterFile, CounterList, CounterSource, parse
from shoal.metrics.exporter.errors import ExporterConfigError
from shoal.metrics.exporter.fields import MetricKind
from tests.metrics.exporter.patience import until

GOOD = """\
# Format
# DCGM FIELD, Prometheus metric type, help message

DCGM_FI_DEV_GPU_TEMP,    gauge, Degrees (in C).
DCGM_FI_DEV_DEC_UTIL ,   gauge, Decoder.
DCGM_FI_DEV_FB_USED, counter,"Quoted, with a comma"
DCGM_FI_DRIVER_VERSION, label, Driver Version
"""


def names(counters: CounterList) -> list[str]:
    return [counter.field.name for counter in counters.counters]


def test_a_list_is_read_as_dcgm_exporter_reads_it() -> None:
    counters = parse(GOOD)
    assert names(counters) == ["DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_DEC_UTIL", "DCGM_FI_DEV_FB_USED"]
    assert counters.counters[2].kind is MetricKind.COUNTER
    assert counters.counters[2].what == "Quoted, with a comma"
    assert [label.name for label in counters.labels] == ["DCGM_FI_DRIVER_VERSION"]
    assert names(parse(GOOD.replace("\n", "\r\n"))) == names(counters)


def test_fields_that_are_not_read_here_are_named_and_skipped() -> None:
    counters = parse(GOOD + "DCGM_FI_DEV_BRAND, label, Brand\nDCGM_EXP_P2P_STATUS, counter, P2P\ndcgm_x, gauge, old\n")
    assert counters.skipped == ((8, "DCGM_FI_DEV_BRAND"), (9, "DCGM_EXP_P2P_STATUS"), (10, "dcgm_x"))
    assert names(counters) == names(parse(GOOD))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("DCGM_FI_DEV_GPU_TEMP, gauge", "line 8 has 2 fields, not 3: write name, type, help"),
        ("DCGM_FI_DEV_GPU_TEMP, gauge, a, b", "line 8 has 4 fields, not 3.*quotes"),
        ("DCGM_FI_DEV_GPU_TEMP, gouge, a", "line 8: 'gouge' is no type of DCGM_FI_DEV_GPU_TEMP: write one of gauge, c"),
        ("GPU_TEMP, gauge, a", "line 8: 'GPU_TEMP' is no field of DCGM: write one, or # before the line"),
        (" # comment", "line 8 has 1 fields"),
        ('DCGM_FI_DEV_GPU_TEMP, gauge,"open', "line 8 is no CSV"),
        ('evil"} 1\tx, gauge, a', "line 8: .* is no field"),
    ],
)
def test_a_wrong_line_is_named_with_its_fix(line: str, words: str) -> None:
    with pytest.raises(ExporterConfigError, match=words):
        parse(f"{GOOD}{line}\n")


def test_lists_are_bounded() -> None:
    with pytest.raises(ExporterConfigError, match="names no field"):
        parse("# nothing\n\n")
    with pytest.raises(ExporterConfigError, match="longer than 1048576 bytes"):
        parse("#" * (1 << 20) + "\n#")
    with pytest.raises(ExporterConfigError, match="line 1001: more than 1000 fields"):
        parse("".join(f"DCGM_FI_DEV_X{number}, gauge, x\n" for number in range(2000)))
    with pytest.raises(ExporterConfigError, match="no CSV"):
        parse(f"DCGM_FI_DEV_GPU_TEMP, gauge, {'x' * 200_000}")
    assert len(parse(f"DCGM_FI_DEV_GPU_TEMP, gauge, {'x' * 100_000}").counters[0].what) == 1000
    assert parse("DCGM_FI_DEV_GPU_TEMP, gauge, a\tb\0c").counters[0].what == "a b c"


@given(st.text(max_size=200), st.integers(0, len(GOOD)))
def test_any_text_is_read_or_refused_in_words(text: str, at: int) -> None:
    with contextlib.suppress(ExporterConfigError):
        counters = parse(GOOD[:at] + text + GOOD[at:])
        assert all(counter.what.isprintable() for counter in counters.counters)


@contextlib.asynccontextmanager
async def running(source: CounterSource) -> AsyncIterator[None]:
    task = asyncio.create_task(source.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


async def test_a_file_that_changes_is_taken_and_a_wrong_one_leaves_the_last_good(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "counters.csv"
    path.write_text(GOOD)
    source = CounterFile(path, look_seconds=0.01)
    assert len(names(source.current)) == 3
    async with running(source):
        good = source.current
        path.write_text(GOOD + "DCGM_FI_DEV_SM_CLOCK, clock, x\n")
        await until(lambda: "line 8: 'clock' is no type of DCGM_FI_DEV_SM_CLOCK: write one of" in source.refused)
        assert source.current is good
        await asyncio.sleep(0.05)
        assert sum("line 8" in message for message in caplog.messages) == 1
        path.write_text(GOOD + "DCGM_FI_DEV_SM_CLOCK, gauge, x\n")
        await until(lambda: not source.refused)
        assert len(names(source.current)) == 4
        path.unlink()
        await until(lambda: "No such file" in source.refused)
        assert len(names(source.current)) == 4
        path.write_text(GOOD)
        await until(lambda: len(names(source.current)) == 3)


def test_a_file_that_is_not_there_leaves_what_is_served_without_one(tmp_path: Path) -> None:
    source = CounterFile(tmp_path / "none.csv")
    assert source.current is SERVED
    assert "No such file" in source.refused


async def test_a_config_map_is_followed(tmp_path: Path) -> None:
    async with (
        EmbeddedApi(tmp_path / "embedded") as api,
        Client(load_kubeconfig([api.kubeconfig()], environ={}, explicit=True)) as client,
    ):
        source = CounterConfigMap(client, "default", "counters")
        async with running(source):
            await until(lambda: "it is not there" in source.refused)
            assert source.current is SERVED
            meta = ObjectMeta(name="counters", namespace="default")
            await client.create(CONFIG_MAPS, ConfigMap(metadata=meta, data={"other": GOOD}))
            await until(lambda: "none of the keys metrics, dcgm-metrics.csv" in source.refused)

            async def put(**data: str) -> None:
                found = await client.get(CONFIG_MAPS, "counters", namespace="default")
                made = ConfigMap(
                    metadata=found.metadata, data={key.replace("_", "-"): text for key, text in data.items()}
                )
                await client.replace(CONFIG_MAPS, made)

            await put(metrics=GOOD)
            await until(lambda: len(names(source.current)) == 3)
            good = source.current
            await put(metrics="DCGM_FI_DEV_GPU_TEMP, gauge\n")
            await until(lambda: "line 1 has 2 fields" in source.refused)
            assert source.current is good
            await client.delete(CONFIG_MAPS, "counters", namespace="default")
            await until(lambda: "it was deleted" in source.refused)
            operators = {"dcgm-metrics.csv": "DCGM_FI_DEV_GPU_TEMP, gauge, x"}
            await client.create(CONFIG_MAPS, ConfigMap(metadata=meta, data=operators))
            await until(lambda: len(names(source.current)) == 1 and not source.refused)
