"""The words of MPS's two protocols, and how a limit that was set is compared with what the daemon tells of it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu import mps as control
from shoal.gpu.errors import MpsError
from shoal.gpu.mps import Command, MpsNamespace, MpsServer

COMMANDS = [
    (control.list_servers(), "server list --format=csv,noheader"),
    (control.create_server("all"), "server create all"),
    (control.create_server("s_1", gpus=["GPU-b", "GPU-a"]), "server create s_1 --allowed-devices=GPU-a,GPU-b"),
    (control.delete_server("s_1"), "server delete s_1"),
    (control.list_namespaces("all"), "namespace list --server=all --format=csv,noheader"),
    (control.create_namespace("c_1", server="all"), "namespace create c_1 --server=all"),
    (
        control.set_namespace("c_1", server="all", memory_mib=512, threads=100),
        "namespace set c_1 --server=all --pinned-memory-limit=512M --active-thread-percentage=100",
    ),
    (control.set_namespace("c_1", server="all", yields=True), "namespace set c_1 --server=all --client-priority=1"),
    (control.delete_namespace("c_1", server="all"), "namespace delete c_1 --server=all"),
    (control.delete_namespace("c_1", server="all", force=True), "namespace delete c_1 --server=all --force"),
]


@pytest.mark.parametrize(("command", "text"), COMMANDS, ids=[text for _, text in COMMANDS])
def test_commands(command: Command, text: str) -> None:
    assert " ".join(command) == text


def test_client_environment() -> None:
    assert control.client_environment(Path("/run/mps")) == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    assert control.client_environment(Path("/run/mps"), memory_mib=3072, threads=30) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert control.client_environment(Path("/run/mps"), yields=True)["CUDA_MPS_CLIENT_PRIORITY"] == "1"


@pytest.mark.parametrize("name", ["", "A", "a-b", "a b", "a\n", "x" * 65, "../a", "ä"])
def test_names_the_daemon_would_refuse(name: str) -> None:
    with pytest.raises(MpsError, match="lower case"):
        control.create_namespace(name, server="s")
    with pytest.raises(MpsError, match="lower case"):
        control.list_namespaces(name)


@pytest.mark.parametrize("uuid", ["", "GPU 1", "GPU-1,GPU-2", "--force", "GPU-1\n"])
def test_gpus_that_would_be_other_words(uuid: str) -> None:
    with pytest.raises(MpsError, match="no UUID of a GPU"):
        control.create_server("s", gpus=[uuid])


def test_limits_that_cannot_be() -> None:
    for percent in (0, -1, 101):
        with pytest.raises(MpsError, match="1 to 100"):
            control.set_namespace("n", server="s", threads=percent)
    with pytest.raises(MpsError, match="1 or more"):
        control.set_namespace("n", server="s", memory_mib=0)
    with pytest.raises(MpsError, match="no limit is given"):
        control.set_namespace("n", server="s")
    with pytest.raises(MpsError, match="1 or more"):
        control.client_environment(Path("/p"), memory_mib=-5)


def test_answers_of_the_manual() -> None:
    (one,) = control.parse_servers("training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\n")
    assert one == MpsServer("training", "Ready", frozenset({"GPU-abcd-1234"}))
    assert not one.faulted
    (two,) = control.parse_servers("two,0,-,Fault,/run/nvidia-mps/training,GPU-a,GPU-b,-")
    assert two == MpsServer("two", "Fault", frozenset({"GPU-a", "GPU-b"}))
    assert two.faulted
    assert control.parse_namespaces("high,training,Ready,0=4G,1=2G,50,0,/run/nvidia-mps/training") == (
        MpsNamespace("high", memory_limit="0=4G,1=2G", threads="50"),
    )


@pytest.mark.parametrize(
    ("written", "mebibytes", "holds"),
    [
        ("3072M", 3072, True),
        ("3G", 3072, True),
        ("0=3G,1=3G", 3072, True),
        ("2G", 3000, True),  # NVIDIA's daemons write whole GiB
        ("3G", 3000, False),
        ("2999M", 3000, False),
        ("0=3G,1=4G", 3072, False),
        ("4G", 3072, False),
        ("3G", 4096, False),
        ("0G", 512, False),
        ("0M", 512, False),
        ("512M", 512, True),
        ("-", 512, False),
        ("", 512, False),
        ("unlimited", 512, False),
        ("3 G", 3072, False),
    ],
)
def test_memory_as_it_was_to_be(written: str, mebibytes: int, holds: bool) -> None:
    difference = MpsNamespace("n", written, "100").difference(memory_mib=mebibytes)
    assert (difference == "") == holds
    assert holds or f"not {mebibytes}M" in difference


@pytest.mark.parametrize(
    ("written", "holds"), [("25", True), ("25.0", True), ("25%", True), ("100", False), ("-", False), ("", False)]
)
def test_threads_as_they_were_to_be(written: str, holds: bool) -> None:
    difference = MpsNamespace("n", "3G", written).difference(memory_mib=3072, threads=25)
    assert (difference == "") == holds
    assert MpsNamespace("n", "-", written).difference() == "", "nothing was to be limited"


@given(st.text(max_size=200))
def test_any_answer_is_read_or_refused(answer: str) -> None:
    for parse in (control.parse_servers, control.parse_namespaces):
        message = ""
        try:
            assert isinstance(parse(answer), tuple)
        except MpsError as error:
            message = str(error)
        assert not message or "see its log" in message
