"""What containerd makes of the agent's answers: device nodes, NVIDIA's own spec, CDI by annotations."""

import json
import os
import stat

from shoal.kubelet import cdi
from shoal.kubelet.cdi import ContainerEdits, Device, Mount, Spec
from shoal.model.contract import nvidia
from shoal.model.request import Share
from tests.agent.lab import GIB, TELL, memory_pod
from tests.agent.real.conftest import NewLab, RealLab
from tests.kubelet.pods import FOREVER, container, pod


def test_cdi_by_annotations(new_lab: NewLab):
    lab = new_lab("2xT4", deviceListStrategy="cdi-annotations")
    lab.place(memory_pod("one", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("one")
    assert lab.visible("one") == [1]


def test_a_pods_annotations_choose_no_cdi_devices(new_lab: NewLab):
    """kubelet gives containerd the annotations of device plugins for a container, and a pod's for its sandbox alone."""
    lab = new_lab("2xT4")
    lab.place(memory_pod("one", 2), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("one")
    names = [f"{spec.kind}={device.name}" for spec, device in cdi.load([lab.node.cdi]).devices.values()]
    assert names
    thief = pod("thief", [container("main", TELL)])
    keys = ("cdi.k8s.io/shoal", "cdi.k8s.io/main", "nvidia.cdi.k8s.io/pod", "nvidia.cdi.k8s.io/container.main")
    thief["metadata"]["annotations"] = dict.fromkeys(keys, ",".join(names))
    lab.pods.create(thief, lab.node)
    lab.pods.wait_running("thief")
    assert nvidia.ENV_VISIBLE_DEVICES not in lab.env("thief")
    assert lab.env("one")[nvidia.ENV_VISIBLE_DEVICES], "while the pod that has the device sees it"


def test_device_nodes_of_the_card_and_no_others(new_lab: NewLab):
    lab = new_lab("2xT4", start=False)
    assert isinstance(lab, RealLab)
    # Stand-ins with the numbers of /dev/null, which every container may use.
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        os.mknod(lab.dev / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    lab.start()
    script = f"ls /dev | grep nvidia; echo x > /dev/nvidiactl && echo usable; echo told=all; {FOREVER}"
    lab.place(memory_pod("one", 2, script), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("one")
    assert lab.told("one").split()[:-1] == ["nvidia-uvm", "nvidia1", "nvidiactl", "usable"]


def test_nvidias_own_spec_is_used_for_the_card(new_lab: NewLab, tmp_path):
    lab = new_lab("2xT4")
    (tmp_path / "lib").write_text("libcuda\n")
    common = ContainerEdits(
        env=(f"{nvidia.ENV_VISIBLE_DEVICES}=void",),
        mounts=(Mount(str(tmp_path / "lib"), "/lib-cuda", options=("ro", "bind")),),
    )
    devices = tuple(Device(str(index), ContainerEdits(env=(f"VENDOR={index}",))) for index in range(2))
    spec = Spec(cdi_version="0.6.0", kind=nvidia.RESOURCE_GPU, devices=devices, container_edits=common)
    cdi.write(lab.node.cdi, spec, "generated")
    script = f"cat /lib-cuda; {TELL}"
    lab.place(memory_pod("one", 2, script), lab.allocation({"main": [1]}, {"main": Share(2 * GIB)}))
    lab.pods.wait_running("one")
    assert lab.env("one")["VENDOR"] == "1"
    assert lab.visible("one") == [1], "the agent's environment wins over the vendor's"
    assert "libcuda" in lab.told("one")
    lab.clean()
    assert [path.name for path in lab.node.cdi.iterdir()] == ["nvidia.com-gpu-generated.json"]
    assert json.loads(next(lab.node.cdi.iterdir()).read_text())["kind"] == nvidia.RESOURCE_GPU
