"""What runs on nodes: each operand with its place in a policy, in the labels of nodes and among the steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from shoal.model.contract import nvidia, shoal
from shoal.model.contract.operator import (
    NAME_CLEANUP,
    NAME_DRIVER,
    NAME_MPS,
    NAME_TOOLKIT,
    NAME_VALIDATOR,
    NAME_VALIDATOR_RUNTIME,
    OPERAND_CLEANUP,
    Step,
)
from shoal.operator.nvidia import NvidiaOperator
from shoal.operator.policy import ClusterPolicySpec

#: A section of a policy, by its name there.
Section = Literal["driver", "toolkit", "validator", "devicePlugin", "gfd", "dcgmExporter"]


@dataclass(frozen=True, slots=True)
class Component:
    """One operand."""

    #: Its file among the manifests.
    operand: str
    daemon_set: str
    section: Section
    #: The ServiceAccount of its pods; empty: they have no token.
    account: str = ""
    #: The parts of nodes' deploy labels that it is chosen by; none: its manifest chooses nodes.
    parts: tuple[str, ...] = ()
    #: Under NVIDIA's runtime.
    reads_cards: bool = False
    #: The file that its pods wait for.
    waits_for: str = ""
    #: The step of a node that it belongs to.
    step: Step | None = None
    #: Its end ends what uses it: nobody replaces its pods by the way.
    on_delete: bool = False


#: In the order in which a node needs them.
COMPONENTS: Final = (
    Component("driver", NAME_DRIVER, "driver", "shoal-driver", ("driver",), step="driver", on_delete=True),
    Component(
        "validator", NAME_VALIDATOR, "validator", "shoal-validator", ("operator-validator", "client"), step="driver"
    ),
    Component(
        "toolkit",
        NAME_TOOLKIT,
        "toolkit",
        "",
        ("container-toolkit",),
        waits_for=nvidia.VALIDATION_DRIVER,
        step="toolkit",
    ),
    Component(
        "validator-runtime",
        NAME_VALIDATOR_RUNTIME,
        "validator",
        "shoal-validator",
        ("operator-validator", "client"),
        reads_cards=True,
        waits_for=nvidia.VALIDATION_DRIVER,
        step="toolkit",
    ),
    Component(
        "agent",
        shoal.NAME_AGENT,
        "devicePlugin",
        shoal.NAME_AGENT,
        ("device-plugin", "client"),
        reads_cards=True,
        waits_for=nvidia.VALIDATION_TOOLKIT,
        step="plugin",
    ),
    Component(
        "mps",
        NAME_MPS,
        "devicePlugin",
        "",
        ("device-plugin", "client"),
        reads_cards=True,
        waits_for=nvidia.VALIDATION_TOOLKIT,
        on_delete=True,
    ),
    Component(
        "discovery-cards",
        "shoal-discovery-cards",
        "gfd",
        "shoal-discovery-worker",
        ("gpu-feature-discovery", "client"),
        reads_cards=True,
        waits_for=nvidia.VALIDATION_TOOLKIT,
    ),
    Component("discovery-bus", "shoal-discovery-bus", "gfd", "shoal-discovery-worker"),
    Component(
        "metrics",
        "shoal-metrics",
        "dcgmExporter",
        "shoal-metrics",
        ("dcgm-exporter", "client"),
        reads_cards=True,
        waits_for=nvidia.VALIDATION_TOOLKIT,
    ),
)
#: DaemonSet and account of each file of manifests; the last one removes files of nodes while Shoal is uninstalled.
FILES: Final = {one.operand: (one.daemon_set, one.account) for one in COMPONENTS} | {
    OPERAND_CLEANUP: (NAME_CLEANUP, "")
}
BY_DAEMON_SET: Final = {component.daemon_set: component for component in COMPONENTS}

#: Why a component does not run.
Absence = Literal["Disabled", "LeftToNvidia"]


def absent(component: Component, spec: ClusterPolicySpec, beside: NvidiaOperator) -> Absence | None:
    """Why a component does not run; None if it shall."""
    if not is_enabled(component, spec):
        return "Disabled"
    # The bus is read where nobody knows of cards yet, and what NFD says is respected there.
    if component.section in beside.sections and component.operand != "discovery-bus":
        return "LeftToNvidia"
    return None


def is_enabled(component: Component, spec: ClusterPolicySpec) -> bool:
    """Whether the policy wants a component."""
    match component.operand:
        case "driver":
            return spec.driver.enabled
        case "toolkit":
            return spec.toolkit.enabled
        case "agent":
            return spec.device_plugin.enabled
        case "mps":
            return spec.device_plugin.enabled and spec.sharing.mps
        case "discovery-cards":
            return spec.gfd.enabled
        case "metrics":
            return spec.dcgm_exporter.enabled
        case _:
            return True


def wanted(spec: ClusterPolicySpec, beside: NvidiaOperator) -> tuple[Component, ...]:
    """The components that shall run."""
    return tuple(component for component in COMPONENTS if absent(component, spec, beside) is None)


def steps_of(components: Iterable[Component], beside: NvidiaOperator) -> tuple[Step, ...]:
    """The steps that a node takes until it is ready: the plugin counts where somebody serves cards."""
    serves = "devicePlugin" in beside.sections or any(component.step == "plugin" for component in components)
    return ("driver", "toolkit", "cuda", "plugin") if serves else ("driver", "toolkit", "cuda")
