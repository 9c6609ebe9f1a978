"""What only simulated nodes do, and what of the real ones cannot be asked of a program inside a container."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.embedded.nodes.devices.plugins import socket_address
from shoal.embedded.nodes.errors import HookError, NodesError
from shoal.embedded.nodes.gpus import visible_cards
from shoal.embedded.nodes.host import HookCall
from shoal.embedded.nodes.pods.workload import HIDDEN
from shoal.gpu.describe import parse_cards
from shoal.gpu.protocol import MemoryLimit
from shoal.kubelet import cdi, constants
from shoal.kubelet.api import deviceplugin_pb2 as api
from shoal.kubelet.api import deviceplugin_pb2_grpc as rpc
from shoal.kubelet.api import podresources_pb2, podresources_pb2_grpc
from shoal.model.contract import nvidia
from tests.embedded.nodes.conftest import NewSimulatedNode
from tests.embedded.nodes.simulated import SimulatedNode, SimulatedServer
from tests.kubelet.conftest import NewPlugin
from tests.kubelet.device_plugin import DevicePlugin, PluginLoop, channel_to
from tests.kubelet.pods import FOREVER, Pods, container, container_status, is_ready, pod
from tests.testbed.waiting import wait_for

GIB = 2**30


def annotated(
    name: str, text: str, *, containers: list[dict] | None = None, env: Mapping[str, str] | None = None
) -> dict:
    made = pod(name, containers or [{"name": "main", "image": "example.com/train:1"}])
    made["metadata"]["annotations"] = {"shoal.dev/simulate": text}
    for one in made["spec"]["containers"]:
        one["env"] = [{"name": key, "value": value} for key, value in (env or {}).items()]
    return made


def test_a_node_looks_like_one(kubelet: SimulatedNode, apiserver: SimulatedServer) -> None:
    node = apiserver.request("GET", f"/api/v1/nodes/{kubelet.name}")
    assert node["metadata"]["labels"]["kubernetes.io/hostname"] == kubelet.name
    assert {one["type"]: one["status"] for one in node["status"]["conditions"]} == {
        "MemoryPressure": "False",
        "DiskPressure": "False",
        "PIDPressure": "False",
        "Ready": "True",
    }
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
    assert {one["type"]: one["address"] for one in node["status"]["addresses"]} == {
        "InternalIP": kubelet.address,
        "Hostname": kubelet.name,
    }
    lease = apiserver.request("GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{kubelet.name}")
    assert lease["spec"]["holderIdentity"] == kubelet.name
    wait_for(
        lambda: "taints" not in apiserver.request("GET", f"/api/v1/nodes/{kubelet.name}")["spec"], "free of taints"
    )


def test_environment(kubelet: SimulatedNode, apiserver: SimulatedServer, pods: Pods) -> None:
    space = f"/api/v1/namespaces/{pods.namespace}"
    apiserver.request("POST", f"{space}/configmaps", {"metadata": {"name": "c"}, "data": {"k": "v", "l": "w"}})
    apiserver.request("POST", f"{space}/secrets", {"metadata": {"name": "s"}, "stringData": {"k": "hidden"}})
    sources: dict[str, dict] = {
        "NAME": {"fieldRef": {"fieldPath": "metadata.name"}},
        "NODE": {"fieldRef": {"fieldPath": "spec.nodeName"}},
        "IP": {"fieldRef": {"fieldPath": "status.podIP"}},
        "HOST": {"fieldRef": {"fieldPath": "status.hostIP"}},
        "LABEL": {"fieldRef": {"fieldPath": "metadata.labels['a']"}},
        "NONE": {"fieldRef": {"fieldPath": "metadata.labels['b']"}},
        "CONFIG": {"configMapKeyRef": {"name": "c", "key": "k"}},
        "SECRET": {"secretKeyRef": {"name": "s", "key": "k"}},
        "OPTIONAL": {"configMapKeyRef": {"name": "none", "key": "k", "optional": True}},
        "CPU": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}},
    }
    main = {
        "name": "main",
        "image": "x",
        "env": [
            *({"name": name, "valueFrom": source} for name, source in sources.items()),
            {"name": "MADE", "value": "$(NAME)-$(NOBODY)-$$(NAME)"},
            {"name": "URL", "value": "user:$(SECRET)@host"},
        ],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}],
        "resources": {"limits": {"cpu": "500m"}},
    }
    manifest = pod("env", [main])
    manifest["metadata"]["labels"] = {"a": "b"}
    pods.create(manifest, kubelet)
    found = pods.wait_running("env")
    env = dict(line.split("=", 1) for line in pods.log("env", "main").splitlines())
    assert env.pop("PATH")
    assert env == {
        "HOSTNAME": "env",
        "NAME": "env",
        "NODE": kubelet.name,
        "IP": found["status"]["podIP"],
        "HOST": kubelet.address,
        "LABEL": "b",
        "NONE": "",
        "CONFIG": "v",
        "SECRET": HIDDEN,
        "URL": HIDDEN,
        "CPU": "500",
        "MADE": "env-$(NOBODY)-$(NAME)",
        "P_k": "v",
        "P_l": "w",
    }
    creation = kubelet.inner.host.creations[found["metadata"]["uid"], "main"]
    assert (creation.env["SECRET"], creation.env["URL"]) == ("hidden", "user:hidden@host"), "the container has them"


def test_a_restarted_container_waits_for_its_plugin(kubelet: SimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    plugin = new_plugin(kubelet)
    main = container("main", f"echo $IDENTITY; {FOREVER}", {plugin.resource: 1})
    pods.create(pod("again", [main], restart="Always"), kubelet)
    found = pods.wait_running("again")
    plugin.stop()
    kubelet.end_container(found, "main", 1)
    # A call that meets the closing connection is told otherwise, and tried again.
    failed = pods.wait_event(
        "again",
        lambda event: event["reason"] == "Failed" and "has been stopped" in event["message"],
        "of a failed start",
    )
    assert "PreStartContainer rpc failed" in failed["message"]
    status = container_status(pods.get("again"), "main")
    assert (status["restartCount"], status["state"]["waiting"]["reason"]) == (0, "CreateContainerConfigError")
    plugin.start()
    pods.wait("again", lambda found: container_status(found, "main").get("restartCount") == 1, "restarted")
    assert plugin.pre_started[0] == plugin.pre_started[-1]
    assert len(plugin.allocated) == 1


def test_a_pod_from_before_its_plugin_is_stuck(kubelet: SimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    resource = f"shoal.test/late-{pods.namespace}"
    init = [container("first")]
    pods.create(pod("early", [container("main", FOREVER, {resource: 1})], init), kubelet)
    found = pods.wait("early", lambda found: "running" in container_status(found, "first").get("state", {}), "begun")
    plugin = new_plugin(kubelet, 4, resource=resource)
    kubelet.end_container(found, "first", 0)
    event = pods.wait_event("early", lambda event: "no devices found" in event["message"], "of missing devices")
    assert event["type"] == "Warning"
    assert plugin.allocated == plugin.pre_started == []


class Simple(DevicePlugin):
    """A plugin without PreStartContainer: what it has to say, it says at Allocate."""

    answer = api.ContainerAllocateResponse()

    async def GetDevicePluginOptions(self, request: api.Empty, context: object) -> api.DevicePluginOptions:  # noqa: N802
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    async def GetPreferredAllocation(  # noqa: N802
        self, request: api.PreferredAllocationRequest, context: object
    ) -> api.PreferredAllocationResponse:
        answer = api.PreferredAllocationResponse()
        for one in request.container_requests:
            wanted = sorted(one.available_deviceIDs)[-one.allocation_size :]
            answer.container_responses.add().deviceIDs.extend(wanted)
        return answer

    async def Allocate(self, request: api.AllocateRequest, context: object) -> api.AllocateResponse:  # noqa: N802
        self.allocated += [sorted(one.devices_ids) for one in request.container_requests]
        return api.AllocateResponse(container_responses=[self.answer for _ in request.container_requests])


def simple(loop: PluginLoop, node: SimulatedNode, resource: str, answer: api.ContainerAllocateResponse) -> Simple:
    async def none(_: object) -> dict:
        raise AssertionError("PreStartContainer is not asked for")

    plugin = Simple(loop, node, resource, [f"d{number}" for number in range(4)], none)  # type: ignore[arg-type]
    plugin.answer = answer
    plugin.start()
    return plugin


def test_what_a_plugin_answers_reaches_the_container(
    new_node: NewSimulatedNode, pods: Pods, plugin_loop: PluginLoop
) -> None:
    node = new_node()
    answer = api.ContainerAllocateResponse(
        envs={"FROM_PLUGIN": "yes", "MINE": "plugin"},
        mounts=[api.Mount(container_path="/b", host_path="/a", read_only=True)],
        devices=[api.DeviceSpec(container_path="/dev/nvidia1", host_path="/dev/nvidia1", permissions="rw")],
        cdi_devices=[api.CDIDevice(name="shoal.test/share=x")],
    )
    plugin = simple(plugin_loop, node, "shoal.test/simple", answer)
    pods.create(
        annotated(
            "told", "", containers=[container("main", f"env; {FOREVER}", {plugin.resource: 2})], env={"MINE": "pod"}
        ),
        node,
    )
    event = pods.wait_event("told", lambda event: event["reason"] == "Failed", "of a missing device")
    why = "failed to create containerd container: CDI device injection failed: unresolvable CDI devices"
    assert event["message"] == f"Error: {why} shoal.test/share=x"
    status = container_status(pods.get("told"), "main")
    assert status["state"]["waiting"]["reason"] == "CreateContainerError"
    edits = cdi.ContainerEdits(
        env=("FROM_CDI=yes", "MINE=cdi"), hooks=(cdi.Hook("createRuntime", "/bin/true", args=("true",)),)
    )
    device = cdi.Device("x", edits)
    cdi.write(node.cdi, cdi.Spec(cdi_version=cdi.VERSION, kind="shoal.test/share", devices=(device,)), "x")
    found = pods.wait_running("told")
    env = dict(line.split("=", 1) for line in pods.log("told", "main").splitlines())
    assert (env["FROM_PLUGIN"], env["FROM_CDI"], env["MINE"]) == ("yes", "yes", "cdi")
    creation = node.inner.host.creations[found["metadata"]["uid"], "main"]
    assert [one.path for one in creation.edits.device_nodes] == ["/dev/nvidia1"]
    assert creation.edits.mounts == (cdi.Mount("/a", "/b", options=("ro",)),)
    assert [one.hook_name for one in creation.edits.hooks] == ["createRuntime"], "recorded, and run by nobody"
    assert plugin.allocated == [["d2", "d3"]], "those the plugin preferred"
    plugin.stop()


def test_hooks_can_be_played_and_build_walls(new_node: NewSimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    node = new_node(cards=parse_cards("1xA30-24G"))
    nvml = node.inner.host.nvml
    (card,) = nvml.uuids()
    calls: list[HookCall] = []
    broken = True

    async def edits(_: object) -> dict:
        hook = {"hookName": "createRuntime", "path": "/opt/wall", "args": ["wall"]}
        late = {"hookName": "poststop", "path": "/opt/late"}
        return {"hooks": [late, hook], "env": [f"{nvidia.ENV_VISIBLE_DEVICES}={card}"]}

    async def play(call: HookCall) -> None:
        calls.append(call)
        if broken:
            raise HookError("no limit, no start")
        nvml.set_memory_limit(card, call.cgroup, MemoryLimit(hard_bytes=GIB))

    node.inner.host.run_hook = play
    plugin = new_plugin(node, 8, edits)
    main = {"name": "main", "image": "x", "resources": {"limits": {plugin.resource: "1"}}}
    pods.create(annotated("refused", "memory=512Mi", containers=[main]), node)
    found = pods.wait_phase("refused", "Failed")
    ended = container_status(found, "main")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
    assert ended["message"].endswith(
        "error running hook #0: error running hook: exit status 1, stdout: , stderr: no limit, no start"
    )
    reasons = [one["reason"] for one in pods.events("refused")]
    assert "Created" in reasons
    assert "Started" not in reasons
    (call,) = calls
    uid = found["metadata"]["uid"]
    assert call.hook.path == "/opt/wall"
    assert call.cgroup == f"/sys/fs/cgroup/kubepods/besteffort/pod{uid}/{call.state['id']}"
    assert call.state["annotations"]["io.kubernetes.cri.sandbox-uid"] == uid
    assert call.state["annotations"]["io.kubernetes.cri.container-name"] == "main"
    broken = False
    pods.create(annotated("within", "memory=512Mi", containers=[main]), node)
    pods.wait_running("within")
    pods.create(annotated("beyond", "memory=2Gi", containers=[main]), node)
    pods.wait_phase("beyond", "Failed")
    assert "CUDA out of memory" in pods.log("beyond", "main")


def test_a_plugin_that_refuses(new_node: NewSimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    node = new_node()
    plugin = new_plugin(node)

    async def refuse() -> None:
        raise RuntimeError("not today")

    plugin.on_allocate = refuse
    pods.create(pod("refused", [container("main", FOREVER, {plugin.resource: 1})]), node)
    found = pods.wait_phase("refused", "Failed")["status"]
    assert found["reason"] == "UnexpectedAdmissionError"
    assert found["message"].startswith("Pod was rejected: Allocate failed due to rpc error: code = Unknown desc = ")
    assert found["message"].endswith("not today, which is unexpected")
    plugin.on_allocate = None
    pods.create(pod("next", [container("main", FOREVER, {plugin.resource: 8})]), node)
    pods.wait_running("next")


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (api.RegisterRequest(version="v9", endpoint="x.sock", resource_name="a.b/c"), 'API version "v9"'),
        (
            api.RegisterRequest(version="v1beta1", endpoint="x.sock", resource_name="cpu"),
            'ResourceName "cpu" is invalid',
        ),
        (api.RegisterRequest(version="v1beta1", endpoint="../x", resource_name="a.b/c"), "is not a file name"),
    ],
)
def test_registrations_that_are_refused(
    kubelet: SimulatedNode, plugin_loop: PluginLoop, request_: api.RegisterRequest, words: str
) -> None:
    async def register() -> str:
        async with channel_to(kubelet.device_plugins / constants.REGISTRATION_SOCKET) as channel:
            call = rpc.RegistrationStub(channel).Register(request_)
            return str(await call.details())

    assert words in plugin_loop.run(register())


def test_pod_resources_of_one_pod(
    kubelet: SimulatedNode, pods: Pods, new_plugin: NewPlugin, plugin_loop: PluginLoop
) -> None:
    plugin = new_plugin(kubelet)
    pods.create(pod("one", [container("main", FOREVER, {plugin.resource: 2})]), kubelet)
    pods.wait_running("one")

    async def ask(name: str) -> list[str]:
        async with channel_to(kubelet.pod_resources) as channel:
            stub = podresources_pb2_grpc.PodResourcesListerStub(channel)
            call = stub.Get(podresources_pb2.GetPodResourcesRequest(pod_name=name, pod_namespace=pods.namespace))
            if await call.code() != 0 and str(await call.details()):
                return [str(await call.details())]
            answer = await call
            return sorted(d for one in answer.pod_resources.containers for e in one.devices for d in e.device_ids)

    assert plugin_loop.run(ask("one")) == plugin.allocated[0]
    assert plugin_loop.run(ask("two")) == [f"pod two in namespace {pods.namespace} not found"]


def test_programs_on_cards(new_node: NewSimulatedNode, pods: Pods) -> None:
    node = new_node(cards=parse_cards("2xA30-24G"), device_plugins=False)
    nvml = node.inner.host.nvml
    first, second = nvml.uuids()

    def used(uuid: str) -> tuple[int | None, int | None, int]:
        sample = nvml.sample(uuid)
        return sample.memory_used_bytes, sample.utilisation, len(sample.processes)

    visible = {nvidia.ENV_VISIBLE_DEVICES: first}
    pods.create(annotated("train", "memory=2Gi utilisation=60", env=visible), node)
    pods.wait_running("train")
    wait_for(lambda: used(first) == (2 * GIB, 60, 1), "computing on its card")
    assert used(second) == (0, 0, 0)

    pods.create(annotated("greedy", "memory=23Gi", env=visible), node)
    pods.wait_phase("greedy", "Failed")
    assert "CUDA out of memory" in pods.log("greedy", "main")
    assert container_status(pods.get("greedy"), "main")["state"]["terminated"]["exitCode"] == 1
    assert used(first) == (2 * GIB, 60, 1)

    pods.create(annotated("growing", "memory=23Gi ramp=2s", env=visible), node)
    pods.wait_phase("growing", "Failed")
    assert "CUDA out of memory" in pods.log("growing", "main")

    walled = {**visible, nvidia.ENV_MPS_MEMORY_LIMIT: "0=1G"}
    pods.create(annotated("walled", "memory=2Gi", env=walled), node)
    pods.wait_phase("walled", "Failed")
    assert "CUDA out of memory" in pods.log("walled", "main")

    pods.create(annotated("blind", "memory=1Gi"), node)
    pods.wait_phase("blind", "Failed")
    assert "No CUDA GPUs are available" in pods.log("blind", "main")

    pods.create(annotated("short", "memory=1Gi duration=1s", env={nvidia.ENV_VISIBLE_DEVICES: "all"}), node)
    pods.wait_phase("short", "Succeeded")
    pods.delete("train")
    wait_for(lambda: used(first) == used(second) == (0, 0, 0), "free again")


def test_which_cards_a_container_sees(new_node: NewSimulatedNode) -> None:
    cards = parse_cards([{"model": "T4", "count": 3}, {"model": "A30", "mig": ["1g.6gb"]}])
    nvml = new_node(cards=cards, device_plugins=False).inner.host.nvml
    uuids = nvml.uuids()

    def seen(value: str, *paths: str) -> list[int]:
        edits = cdi.ContainerEdits(device_nodes=tuple(cdi.DeviceNode(path) for path in paths))
        return [card.index for card in visible_cards(nvml.survey(), {nvidia.ENV_VISIBLE_DEVICES: value}, edits)]

    assert seen("") == seen("none") == seen("void") == []
    assert seen("all") == [0, 1, 2, 3]
    assert seen(nvml.survey().cards[3].mig_instances[0].uuid) == [3]
    assert seen("0,2") == [0, 2]
    assert seen(f"{uuids[1]}, {uuids[0]}") == [0, 1]
    assert seen("all", "/dev/nvidia1", "/dev/nvidiactl") == [1]


def test_only_containers_that_are_there_can_be_ended(kubelet: SimulatedNode, pods: Pods) -> None:
    pods.create(pod("p", [container("main")], restart="OnFailure"), kubelet)
    found = pods.wait_running("p")
    with pytest.raises(NodesError, match="no container 'other'"):
        kubelet.end_container(found, "other", 1)
    kubelet.end_container(found, "main", 7)
    again = pods.wait("p", lambda found: container_status(found, "main")["restartCount"] == 1, "restarted")
    assert container_status(again, "main")["lastState"]["terminated"]["exitCode"] == 7
    kubelet.end_container(found, "main", 0)
    pods.wait_phase("p", "Succeeded")


def test_memory_of_the_node(kubelet: SimulatedNode, pods: Pods) -> None:
    main = {"name": "main", "image": "x", "resources": {"limits": {"memory": "1Gi"}}}
    pods.create(annotated("fat", "ram=2Gi", containers=[main]), kubelet)
    ended = container_status(pods.wait_phase("fat", "Failed"), "main")["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "OOMKilled")


def test_an_annotation_that_cannot_be_read_is_told(kubelet: SimulatedNode, pods: Pods) -> None:
    pods.create(annotated("odd", "duration=soon"), kubelet)
    event = pods.wait_event("odd", lambda event: event["reason"] == "Failed", "of what is wrong")
    assert "annotation shoal.dev/simulate: duration is 'soon': write a duration such as 30s" in event["message"]


def test_static_resources_need_no_plugin(new_node: NewSimulatedNode, pods: Pods) -> None:
    node = new_node(resources={"example.com/unit": 4}, device_plugins=False)
    assert node.status()["allocatable"]["example.com/unit"] == "4"
    assert not node.device_plugins.exists()
    pods.create(pod("three", [container("main", FOREVER, {"example.com/unit": 3})]), node)
    pods.wait_running("three")
    pods.create(pod("more", [container("main", FOREVER, {"example.com/unit": 2})]), node)
    refused = pods.wait_phase("more", "Failed")["status"]
    assert refused["reason"] == "OutOfexample.com/unit"
    text = "Node didn't have enough resource: example.com/unit, requested: 2, used: 3, capacity: 4"
    assert refused["message"] == f"Pod was rejected: {text}"
    pods.delete("three")
    pods.create(pod("fits", [container("main", FOREVER, {"example.com/unit": 4})]), node)
    pods.wait_running("fits")


def test_sockets_can_be_opened_later(new_node: NewSimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    node = new_node(device_plugins=False)
    assert not node.device_plugins.exists()
    node._server.loop.run(node.inner.open_device_plugins())
    plugin = new_plugin(node)
    pods.create(pod("one", [container("main", f"echo $IDENTITY; {FOREVER}", {plugin.resource: 1})]), node)
    pods.wait_running("one")
    assert pods.log("one", "main").strip() == f"{pods.namespace}/one/main"


def test_a_path_too_long_for_sockets_is_refused() -> None:
    assert socket_address(Path("/short/kubelet.sock")) == "unix:/short/kubelet.sock"
    with pytest.raises(NodesError, match="use a shorter folder"):
        socket_address(Path("/" + "x" * 107))


def test_the_devices_of_a_plugin_that_is_gone(new_node: NewSimulatedNode, new_plugin: NewPlugin) -> None:
    node = new_node()
    plugin = new_plugin(node, 8)
    wait_for(lambda: node.status()["allocatable"].get(plugin.resource) == "8", "told of 8 devices")
    plugin.stop()
    wait_for(lambda: node.status()["allocatable"].get(plugin.resource) == "0", "told that they are gone")
    assert node.status()["capacity"][plugin.resource] == "8"


def test_following_a_log(kubelet: SimulatedNode, apiserver: SimulatedServer, pods: Pods) -> None:
    pods.create(pod("slow", [container("main", "echo one; sleep 1; echo two; sleep 1; exit 0")]), kubelet)
    pods.wait("slow", lambda found: found["status"]["phase"] != "Pending", "begun")
    assert apiserver.log(pods.namespace, "slow", "main", "&follow=true") == "one\ntwo\n", "to the end"
    pods.create(pod("long", [container("main")]), kubelet)
    pods.wait_running("long")
    with apiserver.following(pods.namespace, "long", "main") as answer:
        pods.delete("long")
        assert answer.read() == b"", "the end of the container ends it"


def test_a_pod_that_is_deleted_at_once_and_made_anew(kubelet: SimulatedNode, pods: Pods) -> None:
    for number in range(5):
        pods.create(pod("same", [container("main", f"echo {number}; {FOREVER}")]), kubelet)
        if number % 2:
            pods.wait_running("same")
            assert pods.log("same", "main").strip() == str(number)
        pods.delete_all()
        wait_for(lambda: not pods.all(), "empty")
    assert len(kubelet.inner.host.runs) < 100


def test_finalizers_keep_the_object_and_not_its_containers(
    kubelet: SimulatedNode, apiserver: SimulatedServer, pods: Pods
) -> None:
    held = pod("held", [container("main")])
    held["metadata"]["finalizers"] = ["example.com/wait"]
    pods.create(held, kubelet)
    pods.wait_running("held")
    path = f"/api/v1/namespaces/{pods.namespace}/pods/held"
    apiserver.request("DELETE", path)
    pods.wait_phase("held", "Succeeded")
    wait_for(lambda: pods.get("held")["metadata"]["deletionGracePeriodSeconds"] == 0, "let go by kubelet")
    apiserver.request("PATCH", path, {"metadata": {"finalizers": None}}, "application/merge-patch+json")
    assert apiserver.try_request("GET", path)[0] == 404


def test_restart_keeps_pods_of_plain_nodes(new_node: NewSimulatedNode, pods: Pods) -> None:
    node = new_node(device_plugins=False)
    pods.create(pod("p", [container("main", f"echo here; {FOREVER}")]), node)
    before = container_status(pods.wait_running("p"), "main")
    node.kubelet.stop()
    pods.create(pod("q", [container("main")]), node)
    node.kubelet.start()
    pods.wait_running("q")
    assert container_status(pods.get("p"), "main") == before
    assert is_ready(pods.get("p"))
    assert pods.log("p", "main") == "here\n"


def test_a_damaged_checkpoint_is_left_behind(new_node: NewSimulatedNode, pods: Pods, new_plugin: NewPlugin) -> None:
    node = new_node()
    plugin = new_plugin(node, 2)
    node.kubelet.stop()
    path = node.device_plugins / constants.CHECKPOINT
    path.write_text(json.dumps({**json.loads(path.read_text()), "Checksum": 1}))
    node.kubelet.start()
    assert "checkpoint is corrupted" in node.kubelet.tail()
    plugin.stop()
    plugin.start()
    pods.create(pod("p", [container("main", FOREVER, {plugin.resource: 2})]), node)
    pods.wait_running("p")
