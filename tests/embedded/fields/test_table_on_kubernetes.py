"""The table of fields says of every struct what a real server's OpenAPI says of it."""

import re

import pytest

from shoal.embedded.fields.table import structs
from tests.testbed.apiserver import ApiServer

pytestmark = [pytest.mark.kube, pytest.mark.min_kube("1.36")]

DEFINITION = re.compile(
    r"io\.k8s\.(?:api\.(?P<group>\w+)\.(?P<version>v\d)|apimachinery\.pkg\.apis\.(?P<meta>meta)\.v1"
    r"|apiextensions-apiserver\.pkg\.apis\.(?P<extensions>apiextensions)\.v1)\.(?P<name>\w+)"
)
#: Structs that Go embeds in others, so that OpenAPI has only their fields.
EMBEDDED = {
    *("admissionregistration.Rule", "core.EphemeralContainerCommon", "core.PersistentVolumeSource"),
    *("core.ProbeHandler", "core.VolumeSource", "meta.TypeMeta", "networking.IngressRuleValue"),
    "resource.DeviceConfiguration",
}


def section_of(found: re.Match[str]) -> str:
    group = found["group"] or found["meta"] or found["extensions"]
    return "autoscalingv1" if (group, found["version"]) == ("autoscaling", "v1") else str(group)


def test_the_fields_are_those_of_the_real_server(apiserver: ApiServer) -> None:
    table, compared = structs(), set()
    for full, definition in apiserver.request("GET", "/openapi/v2")["definitions"].items():
        found = DEFINITION.fullmatch(full)
        name = f"{section_of(found)}.{found['name']}" if found else ""
        if name in table:
            assert table[name].members.keys() == definition.get("properties", {}).keys(), name
            compared.add(name)
    assert table.keys() - compared == EMBEDDED
