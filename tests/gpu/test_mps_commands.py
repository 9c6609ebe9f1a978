"""The words of MPS's two protocols."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.gpu.errors import MpsError
from shoal.gpu.mps import v2, v3
from shoal.gpu.mps.v3 import Client, Namespace, Server

UUIDS = ("GPU-abcd-1234", "GPU-efgh-5678")

COMMANDS = [
    (v2.list_clients(4711), "get_client_list 4711"),
    (v2.start_server(0), "start_server -uid 0"),
    (v2.set_default_memory_limit(1, 3072), "set_default_device_pinned_mem_limit 1 3072M"),
    (v2.set_default_threads(25), "set_default_active_thread_percentage 25"),
    (v2.terminate_client(123, 1024), "terminate_client 123 1024"),
    (v3.list_servers(), "server list --format=csv,noheader"),
    (v3.create_server("all"), "server create all"),
    (v3.create_server("two", devices=UUIDS), "server create two --allowed-devices=GPU-abcd-1234,GPU-efgh-5678"),
    (v3.set_server("all", threads=10), "server set all --active-thread-percentage=10"),
    (v3.delete_server("all", force=True), "server delete all --force"),
    (v3.list_namespaces("all"), "namespace list --server=all --format=csv,noheader"),
    (v3.create_namespace("c_1", server="all"), "namespace create c_1 --server=all"),
    (
        v3.set_namespace("c_1", server="all", memory_mib=512, threads=100),
        "namespace set c_1 --server=all --pinned-memory-limit=512M --active-thread-percentage=100",
    ),
    (v3.set_namespace("c_1", server="all", yields=True), "namespace set c_1 --server=all --client-priority=1"),
    (v3.delete_namespace("c_1", server="all"), "namespace delete c_1 --server=all"),
    (v3.list_clients(), "client list --all --format=csv,noheader"),
    (v3.terminate_client(51023), "client terminate 51023"),
]


@pytest.mark.parametrize(("command", "text"), COMMANDS, ids=[text for _, text in COMMANDS])
def test_commands(command: v2.Command, text: str) -> None:
    assert " ".join(command) == text


def test_client_environment() -> None:
    assert v2.client_environment(Path("/run/mps")) == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
    assert v2.client_environment(Path("/run/mps"), memory_mib={1: 2048, 0: 3072}, threads=30) == {
        "CUDA_MPS_PIPE_DIRECTORY": "/run/mps",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3072M,1=2048M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "30",
    }
    assert v2.client_environment(Path("/run/mps"), yields=True)["CUDA_MPS_CLIENT_PRIORITY"] == "1"


@pytest.mark.parametrize("name", ["", "A", "a-b", "a b", "a\n", "x" * 65, "../a", "ä"])
def test_names_the_daemon_would_refuse(name: str) -> None:
    with pytest.raises(MpsError, match="lower case"):
        v3.create_namespace(name, server="s")
    with pytest.raises(MpsError, match="lower case"):
        v3.list_namespaces(name)


def test_limits_that_cannot_be() -> None:
    for percent in (0, -1, 101):
        with pytest.raises(MpsError, match="1 to 100"):
            v3.set_server("s", threads=percent)
    with pytest.raises(MpsError, match="1 or more"):
        v2.set_default_memory_limit(0, 0)
    with pytest.raises(MpsError, match="no limit is given"):
        v3.set_namespace("n", server="s")
    with pytest.raises(MpsError, match="UUID"):
        v3.create_server("s", devices=["GPU-a,GPU-b"])
    with pytest.raises(MpsError, match="1 or more"):
        v2.client_environment(Path("/p"), memory_mib={0: -5})


def test_answers_of_the_manual() -> None:
    assert v2.parse_pids("4711\n12\n") == (4711, 12)
    assert v2.parse_pids("") == ()
    path = Path("/run/nvidia-mps/training")
    assert v3.parse_servers("training,1000,48201,Ready,/run/nvidia-mps/training,GPU-abcd-1234,-\n") == (
        Server("training", 1000, 48201, "Ready", path),
    )
    assert v3.parse_servers("two,0,-,Stopped,/run/nvidia-mps/training,GPU-a,GPU-b,-") == (
        Server("two", 0, None, "Stopped", path),
    )
    assert v3.parse_clients("51023,training,0,default,python train.py\n51087,training,0,high,python -c a,b") == (
        Client(51023, "training", "default"),
        Client(51087, "training", "high"),
    )
    assert v3.parse_namespaces("high,training,Ready,0=4G,1=2G,50,0,/run/nvidia-mps/training") == (
        Namespace("high", "training", path, memory_limit="0=4G,1=2G", threads="50"),
    )


@given(st.text(max_size=200))
def test_any_answer_is_read_or_refused(answer: str) -> None:
    for parse in (v2.parse_pids, v3.parse_servers, v3.parse_namespaces, v3.parse_clients):
        message = ""
        try:
            assert isinstance(parse(answer), tuple)
        except MpsError as error:
            message = str(error)
        assert not message or "see its log" in message
