from pathlib import Path

from shoal.embedded.nodes.cdi_files import CdiFiles
from shoal.kubelet import cdi


def spec(variable: str) -> cdi.Spec:
    edits = cdi.ContainerEdits(env=(variable,))
    return cdi.Spec(cdi_version="0.6.0", kind="shoal.test/card", devices=(cdi.Device(name="a", container_edits=edits),))


def variables(files: CdiFiles) -> list[tuple[str, ...]]:
    return [device.container_edits.env for _, device in files.load().devices.values()]


def test_a_file_is_read_again_when_another_takes_its_place(tmp_path: Path) -> None:
    files = CdiFiles((tmp_path,))
    assert variables(files) == []
    path = cdi.write(tmp_path, spec("A=1"), "x")
    assert variables(files) == variables(files) == [("A=1",)]
    cdi.write(tmp_path, spec("A=2"), "x")
    assert variables(files) == [("A=2",)]
    path.write_text("{")
    assert len(files.load().errors) == 1
    path.unlink()
    assert variables(files) == []
