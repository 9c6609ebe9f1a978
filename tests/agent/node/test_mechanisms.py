"""When a resource name changes from devices to claims and back."""

from shoal.agent.node.mechanisms import SETTLE_SECONDS, NameMechanisms
from shoal.model.contract.mechanisms import NAMES, Mechanism

MEMORY, _, WHOLE = NAMES


class Scene:
    """A node's names, whose agent has published what it last said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.names = NameMechanisms(clock=lambda: self.now)
        self.published: dict[str, Mechanism] = {}
        self.wanted: set[str] = set()
        self.devices: set[str] = set()
        self.claims: set[str] = set()

    def look(self, name: str = MEMORY, *, after: float = 0.0, publish: bool = True) -> Mechanism:
        self.now += after
        self.names.look(self.wanted, self.published, devices=self.devices, claims=self.claims)
        if publish:
            self.published = dict(self.names.states)
        return self.names.states[name]


def test_waits_for_the_last_holder_and_for_those_on_the_way() -> None:
    scene = Scene()
    assert scene.look() is Mechanism.DEVICES
    scene.wanted, scene.devices = {MEMORY}, {MEMORY, WHOLE}
    assert scene.look() is Mechanism.TO_CLAIMS
    assert scene.look(after=1000) is Mechanism.TO_CLAIMS, "a pod has devices of it"
    scene.devices = {WHOLE}
    assert scene.look() is Mechanism.TO_CLAIMS
    scene.devices = {MEMORY}
    assert scene.look(after=SETTLE_SECONDS / 2) is Mechanism.TO_CLAIMS, "one was on the way"
    scene.devices = set()
    assert scene.look() is Mechanism.TO_CLAIMS
    assert scene.look(after=SETTLE_SECONDS / 2) is Mechanism.TO_CLAIMS
    assert scene.look(after=SETTLE_SECONDS / 2) is Mechanism.CLAIMS
    assert scene.names.by_claims == {MEMORY}
    assert scene.look(WHOLE) is Mechanism.DEVICES


def test_nothing_changes_before_others_can_know() -> None:
    scene = Scene()
    scene.wanted = {MEMORY}
    for _ in range(3):
        assert scene.look(after=SETTLE_SECONDS, publish=False) is Mechanism.TO_CLAIMS


def test_there_and_back_and_a_change_of_mind() -> None:
    scene = Scene()
    scene.wanted = {MEMORY}
    scene.look()
    scene.wanted = set()
    assert scene.look() is Mechanism.DEVICES
    scene.wanted = {MEMORY}
    scene.look()
    scene.look()
    assert scene.look(after=SETTLE_SECONDS) is Mechanism.CLAIMS
    scene.claims = {MEMORY}
    scene.wanted = set()
    assert scene.look() is Mechanism.TO_DEVICES
    assert scene.look(after=1000) is Mechanism.TO_DEVICES
    scene.wanted = {MEMORY}
    assert scene.look() is Mechanism.CLAIMS
    scene.wanted, scene.claims = set(), set()
    scene.look()
    scene.look()
    assert scene.look(after=SETTLE_SECONDS) is Mechanism.DEVICES
    assert scene.names.by_claims == set()


def test_a_new_agent_goes_on() -> None:
    """And devices that pods have count more than what stands on the node."""
    published = {MEMORY: Mechanism.CLAIMS, WHOLE: Mechanism.TO_DEVICES}
    scene = Scene()
    scene.names.recall(published, devices=(), claims=())
    assert scene.names.by_claims == {MEMORY, WHOLE}
    scene.names.recall(published, devices={MEMORY}, claims={MEMORY})
    assert scene.names.by_claims == {WHOLE}
    scene.names.recall({}, devices=(), claims={MEMORY})
    assert scene.names.by_claims == {MEMORY}
    scene.names.recall({MEMORY: Mechanism.TO_CLAIMS}, devices=(), claims=())
    assert scene.names.by_claims == set()
