"""Limits on cgroups on a real kubelet: they stand before a container's first instruction, or it does not start."""

from pathlib import Path

from shoal.agent.limits.cgroup import PROGRAM
from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits, Device, Hook, Spec
from shoal.model.allocation import Allocation, CardShare, ContainerAllocation
from shoal.model.contract import gpushare, nvidia, shoal
from shoal.model.gpu import Isolation
from shoal.model.request import Share
from tests.agent.lab import GIB, MEMORY, TELL, memory_pod
from tests.agent.real.conftest import NewLab, RealLab, describe_machine
from tests.agent.real.walls import (  # noqa: F401
    Walled,
    hook,
    on_node,
    own_id,
    seen_limits,
    wait_marked,
    walled,
    watching,
)
from tests.kubelet.pods import container, container_status, pod


def place(lab: RealLab, manifest: dict, units: int) -> None:
    lab.place(manifest, lab.allocation({"main": [1]}, {"main": Share(units * GIB)}))


def test_limit_stands_on_the_containers_own_cgroup_before_its_first_instruction(walled: Walled):  # noqa: F811
    lab = walled()
    assert [gpu.isolation for gpu in lab.gpus] == [Isolation.CGROUP] * 2
    apps = [container("left", TELL, {MEMORY: 3}), container("right", TELL, {MEMORY: 5})]
    chosen = lab.allocation({"left": [1], "right": [0]}, {"left": Share(3 * GIB), "right": Share(5 * GIB)})
    lab.place(watching(lab, pod("two", apps)), chosen)
    found = lab.pods.wait_running("two")
    assert seen_limits(lab, "two", "left", own_id(found, "left")) == [(1, 3 * 2**30)]
    assert seen_limits(lab, "two", "right", own_id(found, "right")) == [(0, 5 * 2**30)]
    assert lab.env("two", "left")[shoal.ENV_ISOLATION] == "cgroup"
    wait_marked(lab, "two", "cgroup")


def test_each_card_has_its_limit_again_after_a_restart(walled: Walled):  # noqa: F811
    lab = walled()
    manifest = memory_pod("both", 8, f"trap 'exit 1' USR1; {TELL}", restart="Always")
    manifest["metadata"]["labels"] = {gpushare.LABEL_POD_COUNT: "2"}
    both = tuple(CardShare(lab.card(index).uuid, index, Share(units * GIB)) for index, units in ((0, 4), (1, 4)))
    lab.place(watching(lab, manifest), Allocation(lab.node.name, (ContainerAllocation("main", both),)))
    first = own_id(lab.pods.wait_running("both"))
    limits = [(0, 4 * 2**30), (1, 4 * 2**30)]
    assert seen_limits(lab, "both", "main", first) == limits
    lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "exec", "both", "--", "kill", "-USR1", "1")
    lab.pods.wait("both", lambda found: container_status(found, "main").get("restartCount") == 1, "restarted")
    second = own_id(lab.pods.wait_running("both"))
    assert second != first
    assert seen_limits(lab, "both", "main", second) == limits


def test_container_does_not_start_without_its_limit(walled: Walled):  # noqa: F811
    """The driver refuses, and then nobody answers the hook; with the agent back, both containers start."""
    lab = walled()
    machine = describe_machine("2xA30")
    lab.shim.write(f"error nvmlDeviceSetMemoryLimits_v1 4\n{machine}")
    place(lab, memory_pod("refused", 4, restart="Always"), 4)
    event = lab.pods.wait_event("refused", lambda event: PROGRAM in event["message"], "of its hook")
    assert "shoal-limit: the agent: the memory limit of 4096 MiB could not be set" in event["message"]
    place(lab, memory_pod("once", 3), 3)
    status = container_status(lab.pods.wait_phase("once", "Failed"), "main")
    assert PROGRAM in status["state"]["terminated"]["message"], "one that is not to be restarted has failed"
    on_node(lab, "/run/shoal/limit.sock").unlink()
    lab.shim.write(machine)
    place(lab, memory_pod("unheard", 5, restart="Always"), 5)
    event = lab.pods.wait_event("unheard", lambda event: PROGRAM in event["message"], "of its hook")
    assert "shoal-limit: /run/shoal/limit.sock: No such file or directory" in event["message"]
    for name in ("refused", "unheard"):
        # kubectl has no log to show while kubelet makes the container again.
        said = lab.pods.apiserver.kubectl("-n", lab.pods.namespace, "logs", name, "-c", "main", check=False)
        assert "told=all" not in said, "its program never began"
    assert lab.shim.told() == []
    lab.kill()
    lab.start(**lab.settings)
    for name, amount in (("refused", 4), ("unheard", 5)):
        own = own_id(lab.pods.wait_running(name, 300))
        assert [line for line in lab.shim.told() if f" {amount * 2**30} " in line and line.endswith(f"/{own}")]
        wait_marked(lab, name, "cgroup")


def test_nvidias_hook_sets_the_limit_where_its_spec_has_it(walled: Walled, tmp_path: Path):  # noqa: F811
    lab = walled()
    card = lab.card(1)
    program = tmp_path / "nvidia-cdi-hook"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\n')
    program.chmod(0o755)
    words = (nvidia.HOOK_MEMORY_LIMITS, f"--gpu-id={card.uuid}")
    edits = ContainerEdits(hooks=(Hook("createRuntime", str(program), (program.name, *words)),))
    spec = Spec(cdi_version="0.6.0", kind=nvidia.RESOURCE_GPU, devices=(Device(card.uuid, edits),))
    cdi.write(lab.node.cdi, spec, "generated")
    place(lab, memory_pod("theirs", 4), 4)
    lab.pods.wait_running("theirs")
    env = lab.env("theirs")
    assert (env[nvidia.ENV_MEMORY_REQUEST], env[nvidia.ENV_MEMORY_LIMIT]) == ("0", "4096")
    assert (tmp_path / "words").read_text().split() == list(words)
    assert lab.shim.told() == [], "and the agent's is not asked"
    wait_marked(lab, "theirs", "cgroup")


def test_tier_that_cannot_be_had_is_refused(walled: Walled):  # noqa: F811
    lab = walled(isolation="mps-namespace")
    place(lab, memory_pod("share", 4), 4)
    event = lab.pods.wait_event("share", lambda event: event["reason"] == "GpuRefused", "of its refusal")
    assert "isolation mps-namespace is asked for and cannot be had: no MPS control program" in event["message"]
    assert shoal.ANNOTATION_ISOLATION not in lab.pods.get("share")["metadata"]["annotations"]


def test_without_a_wall_the_pod_says_so(new_lab: NewLab):
    lab = new_lab("2xA30")
    assert isinstance(lab, RealLab)
    place(lab, memory_pod("share", 4), 4)
    lab.pods.wait_running("share")
    assert lab.env("share")[shoal.ENV_ISOLATION] == "none"
    wait_marked(lab, "share", "none")
