from pathlib import Path

import pytest

from shoal.model.request import ANY_CARD, CardSelector, Share
from shoal.simulate.errors import TraceError
from shoal.simulate.trace import capacity_milli, read_nodes, read_workload, workload_name
from tests.simulate.made_up import NODE_HEAD, POD_HEAD, node, node_file, pod_file, write

NODES = (node("n1", 4, model="T4"), node("n2", 2, model="V100M16"))


def test_nodes_become_inventories(tmp_path):
    path = write(tmp_path / "nodes.csv", NODE_HEAD, ["b,64000,262144,2,T4", "a,32000,1000,0,", "c,1,2,1,G2"])
    nodes = read_nodes(path)
    assert [item.name for item in nodes] == ["b", "a", "c"]
    assert [(gpu.uuid, gpu.index, gpu.model) for gpu in nodes[0].gpus] == [("b-0", 0, "T4"), ("b-1", 1, "T4")]
    assert (nodes[0].cpu_milli, nodes[0].memory_mib) == (64000, 262144)
    assert capacity_milli(nodes) == 3000


def test_pods_become_requests(tmp_path):
    lines = ["c,6000,12288,1,460,,5,65.5", "a,12000,16384,2,1000,T4|V100M16,0,10", "b,500,10,0,0,,,"]
    found = read_workload(write(tmp_path / "mine.csv", POD_HEAD, lines), NODES)
    assert found.name == "mine"
    assert [item.name for item in found.pods] == ["a", "b", "c"]
    two, none, share = found.pods
    assert two.request.containers[0].gpus == 2
    assert two.request.containers[0].share == Share(exclusive=True)
    assert two.request.selector == CardSelector(models=frozenset({"T4", "V100M16"}))
    assert (two.gpu_milli, two.lifetime, two.size_class) == (2000, 10.0, "2")
    assert none.request.containers == ()
    assert (none.request.cpu_milli, none.request.memory_mib) == (500, 10)
    assert (none.gpu_milli, none.lifetime, none.size_class) == (0, None, "cpu")
    assert share.request.containers[0].share == Share(compute=46)
    assert (share.gpu_milli, share.lifetime, share.size_class) == (460, 60.5, "share")
    assert share.request.selector == ANY_CARD


def test_the_mean_gpu_pod_wants_cores_beside_each_card(tmp_path):
    lines = ["a,6000,1,1,500", "b,20000,1,2,1000", "c,90000,1,0,0"]
    path = write(tmp_path / "pods.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli", lines)
    assert read_workload(path, NODES).cores_per_card == pytest.approx(26 / 3)


def test_numbers_that_a_spreadsheet_wrote_and_columns_nobody_needs(tmp_path):
    path = write(
        tmp_path / "pods.csv", "x,name,cpu_milli,memory_mib,num_gpu,gpu_milli", ["?,a,6000.0,1e3,1.0,1000", ""]
    )
    assert read_workload(path, NODES).pods[0].request.cpu_milli == 6000
    assert read_workload(path, NODES).pods[0].request.memory_mib == 1000


@pytest.mark.parametrize(
    ("file", "name"),
    [("openb_pod_list_default.csv", "default"), ("openb_pod_list_gpuspec33.csv", "gpuspec33"), ("mine.csv", "mine")],
)
def test_a_workload_goes_by_its_file(file, name):
    assert workload_name(Path("some/where") / file) == name


BAD_PODS = [
    ("a,x,1,1,1000,,,", ["line 2", "cpu_milli 'x'", "not a whole number", "write digits"]),
    ("a,1.5,1,1,1000,,,", ["line 2", "cpu_milli '1.5'", "not a whole number"]),
    ("a,inf,1,1,1000,,,", ["line 2", "cpu_milli 'inf'", "not a whole number"]),
    ("a,1,-5,1,1000,,,", ["line 2", "memory_mib '-5'", "negative"]),
    ("a,1,,1,1000,,,", ["line 2", "memory_mib ''", "not a whole number"]),
    (",1,1,1,1000,,,", ["line 2", "name ''", "empty"]),
    ("a,1,1,2,0,,,", ["line 2", "num_gpu '2'", "without gpu_milli", "1000 for whole"]),
    ("a,1,1,0,500,,,", ["line 2", "gpu_milli '500'", "without num_gpu"]),
    ("a,1,1,1,1500,,,", ["line 2", "gpu_milli '1500'", "more than one GPU", "num_gpu"]),
    ("a,1,1,1,455,,,", ["line 2", "gpu_milli '455'", "multiple of 10"]),
    ("a,1,1,1,1000,H100,,", ["line 2", "gpu_spec 'H100'", "names no model", "T4, V100M16"]),
    ("a,1,1,1,1000,,soon,9", ["line 2", "creation_time 'soon'", "not a number"]),
    ("a,1,1,1,1000,,1,nan", ["line 2", "deletion_time 'nan'", "not a number"]),
    ("a,1,1,1,1000,,9,1", ["line 2", "deletion_time '1'", "before creation_time '9'"]),
    ("a,1,1,1", ["line 2", "4 fields", "8 columns"]),
    ("a,1,1,0,0,,,", ["no pod asks for a GPU", "num_gpu"]),
]


@pytest.mark.parametrize(("line", "words"), BAD_PODS)
def test_a_bad_pod_list_is_refused_with_file_line_value_and_fix(tmp_path, line, words):
    path = write(tmp_path / "bad.csv", POD_HEAD, [line])
    with pytest.raises(TraceError) as caught:
        read_workload(path, NODES)
    for word in ["bad.csv", *words]:
        assert word in str(caught.value)


BAD_NODES = [
    (NODE_HEAD, ["a,1,1,x,T4"], ["line 2", "gpu 'x'", "not a whole number"]),
    (NODE_HEAD, ["a,1,1,1,T4", "a,1,1,1,T4"], ["line 3", "sn 'a'", "twice"]),
    (NODE_HEAD, ["a,1,1,0,"], ["no node has a GPU"]),
    (NODE_HEAD, [], ["no lines after the first"]),
    ("sn,cpu_milli,gpu", ["a,1,1"], ["line 1", "no column memory_mib, model", "it names sn, cpu_milli, gpu"]),
    ("", [], ["is empty", "sn, cpu_milli, memory_mib, gpu, model"]),
]


@pytest.mark.parametrize(("head", "lines", "words"), BAD_NODES)
def test_a_bad_node_list_is_refused_with_file_line_value_and_fix(tmp_path, head, lines, words):
    path = write(tmp_path / "bad.csv", head, lines)
    with pytest.raises(TraceError) as caught:
        read_nodes(path)
    for word in ["bad.csv", *words]:
        assert word in str(caught.value)


def test_files_that_are_no_text_or_not_there(tmp_path):
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(TraceError, match=r"binary\.csv is not UTF-8"):
        read_nodes(binary)
    with pytest.raises(TraceError, match=r"none\.csv cannot be read .*check the path"):
        read_nodes(tmp_path / "none.csv")
    with pytest.raises(TraceError, match="cannot be read"):
        read_nodes(tmp_path)


def test_the_made_up_trace_can_be_read(tmp_path):
    nodes = read_nodes(node_file(tmp_path))
    found = read_workload(pod_file(tmp_path), nodes)
    assert (found.name, len(found.pods), capacity_milli(nodes)) == ("small", 40, 40_000)
    assert {item.size_class for item in found.pods} == {"cpu", "share", "1", "2", "4"}
