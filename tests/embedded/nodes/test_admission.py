"""kubelet's own check of a pod against its node, in its words."""

from fractions import Fraction

import pytest

from shoal.embedded.nodes.pods.admission import check, requests_of

NODE = {
    "metadata": {"labels": {"zone": "east"}},
    "spec": {"taints": [{"key": "t", "value": "v", "effect": "NoExecute"}, {"key": "s", "effect": "NoSchedule"}]},
    "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3", "a.b/unit": "4"}},
}
STANDS = [{"key": "t", "operator": "Exists"}]


def pod(*requests: dict, init: tuple = (), **spec: object) -> dict:
    def container(number: int, amounts: dict, **more: object) -> dict:
        return {"name": f"c{number}", "image": "x", "resources": {"requests": amounts}, **more}

    return {
        "metadata": {"name": "p"},
        "spec": {
            "containers": [container(number, amounts) for number, amounts in enumerate(requests or ({},))],
            "initContainers": [container(number + 10, amounts, **more) for number, (amounts, more) in enumerate(init)],
            "tolerations": STANDS,
            **spec,
        },
    }


def short(resource: str, requested: int, used: int, capacity: int) -> str:
    return f"Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"


@pytest.mark.parametrize(
    ("wanted", "others", "held", "reason", "message"),
    [
        (pod(), [], {}, "", ""),
        (pod({"cpu": "4", "memory": "8Gi", "a.b/unit": "4"}), [], {}, "", ""),
        (pod({"cpu": "3"}, {"cpu": "1500m"}), [], {}, "OutOfcpu", short("cpu", 4500, 0, 4000)),
        (pod({"cpu": "1"}), [{"cpu": Fraction(7, 2)}], {}, "OutOfcpu", short("cpu", 1000, 3500, 4000)),
        (pod({"memory": "9Gi"}), [], {}, "OutOfmemory", short("memory", 9 * 2**30, 0, 8 * 2**30)),
        (pod(), [{}, {}, {}], {}, "OutOfpods", short("pods", 1, 3, 3)),
        (pod({"a.b/unit": "2"}), [{"a.b/unit": Fraction(3)}], {}, "OutOfa.b/unit", short("a.b/unit", 2, 3, 4)),
        (pod({"a.b/unknown": "2"}), [], {}, "", ""),
        # Its plugin is gone, but devices of it are in use.
        (pod({"a.b/gone": "2"}), [], {"a.b/gone": 2}, "", ""),
        (
            pod({"a.b/gone": "2"}),
            [{"a.b/gone": Fraction(1)}],
            {"a.b/gone": 2},
            "OutOfa.b/gone",
            short("a.b/gone", 2, 1, 2),
        ),
        (pod(nodeSelector={"zone": "east"}), [], {}, "", ""),
        (
            pod(nodeSelector={"zone": "west"}),
            [],
            {},
            "NodeAffinity",
            "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
        ),
        (
            pod(tolerations=[]),
            [],
            {},
            "TaintToleration",
            "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
        ),
    ],
)
def test_check(wanted: dict, others: list, held: dict, reason: str, message: str) -> None:
    refusal = check(wanted, NODE, others, held=held)
    told = (refusal.reason, refusal.message) if refusal else ("", "")
    assert told == (reason, message)


def test_a_pod_needs_the_largest_of_its_phases() -> None:
    sidecar = ({"cpu": "1"}, {"restartPolicy": "Always"})
    wanted = pod(
        {"cpu": "2"}, {"cpu": "1"}, init=(({"cpu": "5"}, {}), sidecar, ({"cpu": "2"}, {})), overhead={"cpu": "1"}
    )
    assert requests_of(wanted) == {"cpu": Fraction(6)}
    wanted = pod({"cpu": "3"}, {"cpu": "2"}, init=(({"cpu": "5"}, {}), sidecar))
    assert requests_of(wanted) == {"cpu": Fraction(6)}
