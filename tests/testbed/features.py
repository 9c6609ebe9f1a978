"""What a cluster of the test bed has switched on besides its version's own defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.testbed import binaries


@dataclass(frozen=True)
class Features:
    """Feature gates, for all components alike, and versions of APIs, such as `resource.k8s.io/v1beta1`."""

    gates: Mapping[str, bool] = field(default_factory=dict)
    apis: tuple[str, ...] = ()

    @property
    def flags(self) -> list[str]:
        """The gates as components take them."""
        text = ",".join(f"{name}={str(on).lower()}" for name, on in self.gates.items())
        return [f"--feature-gates={text}"] if text else []

    @property
    def api_flags(self) -> list[str]:
        """Both, as kube-apiserver takes them."""
        text = ",".join(f"{name}=true" for name in self.apis)
        return [*self.flags, *([f"--runtime-config={text}"] if text else [])]


DEFAULTS = Features()


def claims() -> Features:
    """What claims of devices need in the version under test: nothing from 1.34 on."""
    if int(binaries.kube_version().split(".")[1]) >= 34:
        return DEFAULTS
    return Features({"DynamicResourceAllocation": True}, ("resource.k8s.io/v1beta1",))
