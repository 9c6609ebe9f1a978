from click.testing import CliRunner

from shoal.cli.demo import demo
from shoal.placement.policies import POLICIES
from shoal.simulate.scene import Fate, NodeSketch, play, read_scene


def scene(**changes: object) -> dict[str, object]:
    """One node with two cards and one pod that asks for one of them whole."""
    limits = changes.pop("limits", {"nvidia.com/gpu": 1})
    return {
        "unit": "GiB",
        "nodes": [{"name": "n", "cpu": "8", "memory": "16Gi", "gpus": 2, "model": "T4", "mib": 16384, **changes}],
        "pods": [
            {
                "expect": "placed",
                "metadata": {"name": "p"},
                "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]},
            }
        ],
    }


def test_every_pod_of_the_demo_ends_as_the_scene_says() -> None:
    result = CliRunner().invoke(demo)
    assert result.exit_code == 0, result.output
    assert "two-containers: placed" in result.output
    assert "too-big: pending" in result.output
    assert "mistaken: refused" in result.output
    assert "write 10 for 10 GiB" in result.output


def test_binpack_fills_the_fullest_card() -> None:
    result = CliRunner().invoke(demo, ["--policy", "binpack"])
    places = [line for line in result.output.splitlines() if "app on" in line][:3]
    assert len(set(places)) == 1
    assert "3072 MiB" in places[0]


def test_an_unknown_policy_is_refused_with_the_choice() -> None:
    result = CliRunner().invoke(demo, ["--policy", "magic"])
    assert result.exit_code == 2
    assert "no policy 'magic'" in result.output
    assert "fragmentation" in result.output


def test_a_pod_that_ends_otherwise_is_told() -> None:
    _, (outcome,) = play(read_scene(scene(broken=[0, 1])), POLICIES["fragmentation"])
    assert outcome.fate is Fate.PENDING
    assert outcome.pod.expect is Fate.PLACED
    assert "fallen off the bus" in outcome.refusals["n"].cards["GPU-n-0"]


def test_a_request_that_could_never_be_right_is_refused_with_the_fix() -> None:
    _, (outcome,) = play(read_scene(scene(limits={"aliyun.com/gpu-mem": "-1"})), POLICIES["fragmentation"])
    assert outcome.fate is Fate.REFUSED
    assert "'c'" in outcome.error
    assert "-1" in outcome.error


def test_cards_of_a_sketch_are_linked_in_pairs() -> None:
    node = NodeSketch("n", "8", "16Gi", 3, "A100", 40960, pairs=True).node()
    assert [[link.peer for link in card.links] for card in node.gpus] == [["GPU-n-1"], ["GPU-n-0"], []]
