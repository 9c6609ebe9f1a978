"""Which pod and container a device call is for: PodResources at PreStartContainer tells, and CDI carries it inside."""

import uuid
from collections.abc import Sequence

from tests.kubelet.conftest import NewPlugin, identity
from tests.kubelet.device_plugin import PluginLoop, holders, pod_resources
from tests.kubelet.pods import FOREVER, Pods, container, container_status, is_ready, pod
from tests.testbed.node import Node
from tests.testbed.waiting import wait_for

SAY = f'echo "$IDENTITY"; {FOREVER}'


def test_allocate_is_too_early_to_know_the_pod(
    kubelet: Node, pods: Pods, new_plugin: NewPlugin, plugin_loop: PluginLoop
):
    plugin = new_plugin(kubelet)
    seen: list[dict] = []

    async def look() -> None:
        seen.append(holders(await pod_resources(kubelet), plugin.resource))

    plugin.on_allocate = look
    pods.create(pod("one", [container("main", SAY, {plugin.resource: 2})]), kubelet)
    pods.wait_running("one")
    assert seen == [{}]
    later = holders(plugin_loop.run(pod_resources(kubelet)), plugin.resource)
    assert later == {(pods.namespace, "one", "main"): frozenset(plugin.allocated[0])}


def test_two_equal_containers_of_one_pod(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    plugin = new_plugin(kubelet)
    equal = [container(name, SAY, {plugin.resource: 2}) for name in ("left", "right")]
    pods.create(pod("pair", equal), kubelet)
    pods.wait_running("pair")
    for name in ("left", "right"):
        assert pods.log("pair", name).strip() == f"{pods.namespace}/pair/{name}"
    assert sorted(plugin.pre_started) == sorted(plugin.allocated)
    assert len({device for ids in plugin.pre_started for device in ids}) == 4


def test_forty_equal_pods_at_once(kubelet: Node, pods: Pods, new_plugin: NewPlugin, plugin_loop: PluginLoop):
    plugin = new_plugin(kubelet, 80)
    names = [f"equal-{number}" for number in range(40)]
    script = f'echo "$IDENTITY|$DEVICES"; {FOREVER}'
    for name in names:
        manifest = pod(name, [container("main", script, {plugin.resource: 2})])
        manifest["metadata"]["labels"] = {"set": "equal"}
        pods.create(manifest, kubelet)
    wait_for(lambda: all(map(is_ready, pods.all())), "forty running pods", 300)
    told = pods.apiserver.kubectl(
        *("-n", pods.namespace, "logs", "-l", "set=equal", "--prefix", "--tail=-1", "--max-log-requests=50")
    )
    held = holders(plugin_loop.run(pod_resources(kubelet)), plugin.resource)
    right = {
        f"[pod/{name}/main] {pods.namespace}/{name}/main|{' '.join(sorted(held[pods.namespace, name, 'main']))}"
        for name in names
    }
    assert set(told.splitlines()) == right
    assert len({device for ids in held.values() for device in ids}) == 80


def test_container_does_not_start_while_pre_start_fails(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    plugin = new_plugin(kubelet)
    plugin.failure = "no card for you"
    pods.create(pod("held", [container("main", SAY, {plugin.resource: 1})]), kubelet)
    event = pods.wait_event("held", lambda event: "no card for you" in event["message"], "with the plugin's reason")
    assert event["type"] == "Warning"
    wait_for(lambda: len(plugin.pre_started) >= 2, "tried again by kubelet")
    held = pods.get("held")
    assert "running" not in container_status(held, "main").get("state", {})
    assert "containerID" not in container_status(held, "main")
    plugin.failure = ""
    pods.wait_running("held")
    assert pods.log("held", "main").strip() == f"{pods.namespace}/held/main"
    assert len(plugin.allocated) == 1, "kubelet keeps its first choice of devices"


def test_container_restart_waits_for_the_plugin_to_be_back(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    plugin = new_plugin(kubelet)
    script = f"trap 'exit 1' USR1; {SAY}"
    pods.create(pod("again", [container("main", script, {plugin.resource: 1})], restart="Always"), kubelet)
    pods.wait_running("again")
    plugin.stop()
    pods.apiserver.kubectl("-n", pods.namespace, "exec", "again", "--", "kill", "-USR1", "1")
    failed = pods.wait_event(
        "again", lambda event: event["type"] == "Warning" and event["reason"] == "Failed", "of a failed start"
    )
    assert "PreStartContainer rpc failed" in failed["message"]
    assert "has been stopped" in failed["message"]
    assert container_status(pods.get("again"), "main")["restartCount"] == 0
    assert "running" not in container_status(pods.get("again"), "main")["state"]
    plugin.start()
    back = pods.wait("again", lambda found: container_status(found, "main").get("restartCount") == 1, "restarted")
    pods.wait_running("again")
    assert container_status(back, "main")["name"] == "main"
    assert pods.log("again", "main").strip() == f"{pods.namespace}/again/main"
    assert plugin.pre_started[0] == plugin.pre_started[-1], "a restarted container has the devices it had"
    assert len(plugin.allocated) == 1


def test_devices_may_change_between_pods(kubelet: Node, pods: Pods, new_plugin: NewPlugin):
    resource_edits: list[Sequence[str]] = []
    plugin = new_plugin(kubelet, 1)

    async def note(ids: Sequence[str]) -> dict:
        resource_edits.append(ids)
        return await identity(kubelet, plugin.resource)(ids)

    plugin.edits = note
    for name in ("first", "second"):
        pods.create(pod(name, [container("main", SAY, {plugin.resource: 1})]), kubelet)
        pods.wait_running(name)
        assert pods.log(name, "main").strip() == f"{pods.namespace}/{name}/main"
        pods.delete(name)
    assert resource_edits[0] == resource_edits[1], "the one device went from pod to pod"


def test_pod_admitted_before_the_plugin_is_known_runs_without_devices(kubelet: Node, pods: Pods):
    unknown = f"shoal.test/{uuid.uuid4().hex[:8]}"
    pods.create(pod("early", [container("main", SAY, {unknown: 1})]), kubelet)
    pods.wait_running("early")
    assert pods.log("early", "main").strip() == "", "kubelet lets it run, and nobody was asked"
    assert unknown not in kubelet.status()["capacity"]


def test_pod_admitted_before_the_plugin_is_known_is_stuck_without_them(
    kubelet: Node, pods: Pods, new_plugin: NewPlugin, plugin_loop: PluginLoop
):
    resource = f"shoal.test/{uuid.uuid4().hex[:8]}"
    init = [container("first", "until [ -e /go ]; do sleep 0.1; done")]
    pods.create(pod("early", [container("main", SAY, {resource: 1})], init), kubelet)
    pods.wait("early", lambda found: "running" in container_status(found, "first").get("state", {}), "waiting")
    plugin = new_plugin(kubelet, 4, resource=resource)
    pods.apiserver.kubectl("-n", pods.namespace, "exec", "early", "-c", "first", "--", "touch", "/go")
    event = pods.wait_event("early", lambda event: "no devices found" in event["message"], "of missing devices")
    assert event["type"] == "Warning"
    assert plugin.allocated == []
    assert plugin.pre_started == []
